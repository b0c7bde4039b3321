"""A run: one machine or endpoint, its servers and its records. What every notebook opens first."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from photodup import settings
from photodup.bench.link.way import LOOPBACK, Way
from photodup.bench.record import environment
from photodup.bench.record.record import RunStore
from photodup.errors import PhotodupError
from photodup.paths import project_root
from photodup.serving.check import handshake_ms, ready_models
from photodup.serving.endpoints import Endpoints, from_ports, load_endpoints
from photodup.study.notebook.files import read_json
from photodup.study.notebook.gaps import Gap, NotMeasured, go_on_without_what_is_missing

if TYPE_CHECKING:
    import pandas as pd

REFERENCE = "reference-cpu"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")


@dataclass(frozen=True)
class Run:
    """One directory under results/ together with the servers it is measured against."""

    name: str
    directory: Path
    endpoints: Endpoints
    store: RunStore

    def measure_or_load(
        self,
        key: str,
        measure: Callable[[], dict[str, Any]],
        *,
        config: dict[str, Any] | None = None,
        kind: str = "",
        may_fail: bool = False,
    ) -> dict[str, Any]:
        """Return the record of `key` with this `config`; call `measure` only when there is none.

        A committed run therefore renders again with no server, no model and no photographs at hand.

        Args:
            key: readable name of what is measured.
            measure: measures it; see `RunStore.measure_or_load`.
            config: everything the result depends on.
            kind: what kind of result it is, for those who collect them (see `study.claims.evidence`).
            may_fail: True for one point of many: a failure is recorded, returned as a `Gap` and tried again by the
                next run.

        Raises:
            NotMeasured: the measurement failed, or there is none and this run is only read. The notebook's cell
                prints it and the notebook goes on (see `photodup.study.notebook.gaps`).
        """
        result = self.store.measure_or_load(key, measure, config=config or {}, kind=kind)
        if result.get("status") not in ("failed", "missing"):
            return result
        if not may_fail:
            raise NotMeasured(f"{key}: {result['error']}")
        return Gap(result)

    def points(self) -> pd.DataFrame:
        """Return every point of this run as one tidy table (see `photodup.bench.record.record.load_points`)."""
        from photodup.bench.record.record import load_points

        return load_points(self.directory)

    @property
    def environment(self) -> dict[str, Any]:
        """Return the facts about the measuring machine; of this one while the run is still empty."""
        return read_environment(self.directory) or environment.describe()

    @property
    def machine(self) -> str:
        """Return the measuring machine in a few words, for captions."""
        return describe_machine(self.environment)

    @property
    def weights(self) -> str:
        """Return the weights this run was made with, saying so when they are random."""
        return describe_weights(self.environment)

    @property
    def is_here(self) -> bool:
        """Say whether its servers are on this machine: only here can one be started, or a link put before it."""
        urls = [url if "://" in url else f"//{url}" for url in self.endpoints.backends.values()]
        return {urlsplit(url).hostname for url in urls} <= {"127.0.0.1", "localhost", "::1"}

    def measure_way(self) -> Way:
        """Return the way to its servers: loopback, or the network with its round trip.

        The round trip is measured once for a run and recorded, so that all its points carry the same; it is None
        where nobody answered.
        """
        if self.is_here:
            return LOOPBACK
        url = next(iter(self.endpoints.backends.values()))

        def measure() -> dict[str, Any]:
            return {"rtt_ms": round(handshake_ms(url), 1)}

        found = self.measure_or_load("path-to-servers", measure, kind="way", may_fail=True)
        return Way("network", found.get("rtt_ms"))

    @property
    def n_records(self) -> int:
        """Return how many points have been recorded, failed ones included."""
        return len(list((self.directory / "records").glob("*.json")))

    def _repr_markdown_(self) -> str:
        packages = self.environment.get("packages", {})
        # Of servers elsewhere this machine knows neither the processor nor, until one answers, the weights.
        weights_known = self.is_here or self.environment.get("model", {}).get("digest")
        rows = [
            ("run", f"`{self.name}`, {self.n_records} records in `results/{self.name}/records/`"),
            ("measured on" if self.is_here else "measured from", self.machine),
            ("weights", self.weights if weights_known else "not known: no server has said"),
            ("servers", f"{self.endpoints.name} ({len(self.endpoints.backends)} backends)"),
            ("versions", ", ".join(f"{name} {version}" for name, version in packages.items())),
        ]
        return "| | |\n|---|---|\n" + "\n".join(f"| {k} | {v} |" for k, v in rows)

    def __repr__(self) -> str:
        return f"Run({self.name!r}, {self.n_records} records, {self.endpoints.name})"


def run_directory(run: str) -> Path:
    """Return the folder of a run that exists.

    Raises:
        PhotodupError: there is no such run; names those there are.
    """
    directory = project_root() / "results" / run
    if not directory.is_dir():
        known = sorted(p.name for p in directory.parent.glob("*/") if (p / "records").is_dir())
        raise PhotodupError(
            f"There is no run {run!r} under results/: there are {', '.join(known) or 'none yet'}."
        )
    return directory


def read_run(directory: Path) -> Run:
    """Return the run in a folder for reading only, whichever servers it was measured against."""
    store = RunStore(directory, create=False, measure=False)
    return Run(directory.name, directory, from_ports("127.0.0.1"), store)


def read_environment(directory: Path) -> dict[str, Any]:
    """Return `environment.json` of a run's directory, or an empty dictionary."""
    return read_json(directory / "environment.json", {})


def describe_machine(facts: dict[str, Any]) -> str:
    """Return the machine of an environment record in a few words, or an empty string."""
    if not facts:
        return ""
    gpus = ", ".join(gpu["name"] for gpu in facts.get("gpus", [])) or "no GPU"
    return f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gib']:.0f} GiB, {gpus}"


def describe_weights(facts: dict[str, Any]) -> str:
    """Return the weights of an environment record, saying so when they are random."""
    name = str(facts.get("model", {}).get("pretrained", "not recorded"))
    if name.startswith("random"):
        return f"{name} (random weights: timings stand, similarities mean nothing)"
    return name


def open_run(
    run: str = REFERENCE,
    *,
    endpoints: str | Path | None = None,
    host: str = "",
    pytorch_port: int = 8002,
    triton_http_port: int = 8003,
    triton_grpc_port: int = 8004,
    triton_metrics_port: int = 8005,
) -> Run:
    """Open (or begin) the run `run` against the servers of an endpoints file, or of `host` and its ports.

    Args:
        run: directory name under results/: small letters, digits, dot, dash, underscore.
        endpoints: YAML file, absolute or relative to the project root; the embedded servers by default.
        host: a machine named by hand. It wins over `endpoints`, and unless you also name a run, the run is
            named after it: a new machine must never be answered from the reference run's records. Its Triton is
            asked which models it has loaded, and the backends are theirs.

    `PHOTODUP_MEASURE=0` opens any run for reading only: a point without a record stays a gap. In a notebook, a cell
    that needs one prints so from now on, and the notebook goes on (`gaps.go_on_without_what_is_missing`).

    Raises:
        PhotodupError: a bad name, or an endpoints file that cannot be read.
    """
    go_on_without_what_is_missing()
    measure = settings.environment().may_measure
    if host:
        ports = (pytorch_port, triton_http_port, triton_grpc_port, triton_metrics_port)
        loaded = ready_models(f"http://{host}:{triton_http_port}") if measure and triton_http_port else None
        where = from_ports(host, *ports, models=loaded)
        if run == REFERENCE:
            run = re.sub(r"[^a-z0-9.-]+", "-", f"{host}-{triton_http_port}".lower())
    else:
        path = Path(endpoints or "notebooks/endpoints/embedded.yaml")
        where = load_endpoints(path if path.is_absolute() else project_root() / path)
        where.use_control_key()
    if not _NAME.fullmatch(run):
        raise PhotodupError(f"{run!r} is no run name: use small letters, digits, '.', '_' and '-'.")
    directory = project_root() / "results" / run
    return Run(run, directory, where, RunStore(directory, measure=measure))
