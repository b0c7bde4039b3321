"""A run: one machine or endpoint, its servers and its records. What every notebook opens first."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from photodup.bench.link.emulate import LOOPBACK, NetworkPath
from photodup.bench.record.store import RunStore
from photodup.core import settings
from photodup.core.errors import PhotodupError
from photodup.core.names import escaped
from photodup.core.paths import project_root
from photodup.embedding.backends import Backend
from photodup.embedding.engines.model import can_compute
from photodup.serving.check import (
    Check,
    availability_sentence,
    check_all,
    gpu_of,
    ready_models,
    round_trip_ms,
    service_engine,
)
from photodup.serving.endpoints import (
    NO_GPU,
    UNKNOWN_GPU,
    USUAL_SERVICE,
    AddressLine,
    Endpoints,
    from_ports,
    load_endpoints,
    read_address_line,
    replaced,
)
from photodup.study.notebook import gaps
from photodup.study.notebook.gaps import Gap, NotMeasured
from photodup.study.notebook.machine import Machine, Servers, read_machine, this_machine

if TYPE_CHECKING:
    import pandas as pd

REFERENCE = "reference-cpu"
EMBEDDED = "notebooks/endpoints/embedded.yaml"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_LONGEST = 250  # characters of a run's name, an address or a GPU
START = "Start servers on this machine with `photodup serve --embedded`, or name others with ENDPOINTS."
_ASKS_NONE = "This notebook measures nothing there: it computes on this machine, or reads records."


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
            kind: what kind of result it is (`point`, `ladder`, …), for those who collect them.
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

    def figures(self) -> pd.DataFrame:
        """Return every figure of this run as one tidy table (see `photodup.bench.record.store.figures_of_run`)."""
        from photodup.bench.record.store import figures_of_run

        return figures_of_run(self.directory)

    @cached_property
    def environment(self) -> Machine:
        """Return the measuring machine; this one while the run is still empty."""
        recorded = read_machine(self.directory)
        return recorded if recorded.cpu else _machine_now(self.endpoints, self.store.model)

    @property
    def machine(self) -> str:
        """Return the measuring machine in a few words, for captions; with servers elsewhere both machines."""
        return str(self.environment)

    @property
    def client(self) -> str:
        """Return the machine that notebooks run on, for captions of what no server of this run computed."""
        return self.environment.client

    @property
    def weights(self) -> str:
        """Return the weights this run was made with, saying so when they are random."""
        return str(self.environment.model)

    def device(self, backend: Backend) -> str | None:
        """Return what computes for a backend; None for one in this process where the servers have a GPU."""
        gpu = self.endpoints.gpu
        return None if backend.is_local and gpu != NO_GPU else Servers(gpu=gpu).device

    def address_of(self, backend: Backend) -> str | None:
        """Return the address of a backend's server; None where it computes in this process.

        Raises:
            PhotodupError: the endpoints have no such server.
        """
        if not self.endpoints.has(backend):
            raise PhotodupError(f"{self.absence_of(backend)}.")
        return self.endpoints.backends.get(backend.listed_as)

    def absence_of(self, backend: Backend) -> str:
        """Say that there is no server of a backend, and why where this processor is the reason."""
        is_refused = self.is_here and not can_compute(backend.precision)
        reason = ": this processor has no instructions for its precision" if is_refused else ""
        return f"{self.endpoints.name} has no {backend}{reason}"

    @property
    def is_here(self) -> bool:
        """Return whether the servers are on this machine: only here can one be started, or a link be put before it."""
        return _is_here(self.endpoints)

    def announce(self, missing: str, seconds: float) -> None:
        """Print about how long what is missing takes, and what it costs where the endpoints have a price."""
        price = self.endpoints.price_per_hour_usd
        cost = f" and {seconds / 3600 * price:.2f} USD" if price else ""
        again = "After an interruption, run the cell again."
        length = f"{seconds / 60:.0f} minutes" if seconds >= 60 else f"{seconds:.0f} seconds"
        print(f"{missing} are missing: about {length}{cost}. {again}", flush=True)

    def measure_path(self) -> NetworkPath:
        """Return the way to its servers: loopback, or the network with its round trip.

        The round trip is measured once for a run and recorded, so that all its points carry the same; it is None
        where nobody answered.
        """
        if self.is_here:
            return LOOPBACK
        url = next(iter(self.endpoints.backends.values()))

        def measure() -> dict[str, Any]:
            return {"rtt_ms": round(round_trip_ms(url), 1)}

        path = self.measure_or_load("path-to-servers", measure, kind="way", may_fail=True)
        return NetworkPath("network", path.get("rtt_ms"))

    def _repr_markdown_(self) -> str:
        # Of servers elsewhere this machine knows neither the processor nor, until one answers, the weights.
        weights_known = self.is_here or self.environment.model.digest
        remote_servers = servers_of(self.endpoints)
        hardware = f", {remote_servers}" if remote_servers else ""
        versions = ", ".join(f"{name} {version}" for name, version in self.environment.packages.items())
        rows = [
            ("run", f"`{self.name}`, {_n_records(self.directory)} records in `results/{self.name}/records/`"),
            ("measured on" if self.is_here else "measured from", self.client),
            ("weights", self.weights if weights_known else "not known: no server has said"),
            ("servers", f"{self.endpoints.name} ({len(self.endpoints.backends)} backends){hardware}"),
            ("versions", versions),
        ]
        return "| | |\n|---|---|\n" + "\n".join(f"| {k} | {v} |" for k, v in rows)

    def __repr__(self) -> str:
        return f"Run({self.name!r}, {_n_records(self.directory)} records, {self.endpoints.name})"


def folder_of(run: str) -> Path:
    """Return the folder of a run, which need not exist.

    Raises:
        PhotodupError: the name is invalid, such as one that leads out of results/.
    """
    if not _NAME.fullmatch(run) or len(run) > _LONGEST:
        raise PhotodupError(
            f"{escaped(run[:80])!r} is no run name: use small letters, digits, '.', '_' and '-'."
        )
    return project_root() / "results" / run


def run_directory(run: str) -> Path:
    """Return the folder of a run that exists.

    Raises:
        PhotodupError: there is no such run; names those there are.
    """
    directory = folder_of(run)
    if not directory.is_dir():
        runs = sorted(p.name for p in directory.parent.glob("*/") if (p / "records").is_dir())
        raise PhotodupError(
            f"There is no run {run!r} under results/: there are {', '.join(runs) or 'none yet'}."
        )
    return directory


def read_run(directory: Path) -> Run:
    """Return the run in a folder for reading only, whichever servers it was measured against."""
    store = RunStore(directory, create=False, measure=False)
    return Run(directory.name, directory, from_ports("127.0.0.1"), store)


def servers_of(endpoints: Endpoints) -> Servers | None:
    """Return what a run records of a machine elsewhere, or of a GPU behind a tunnel; None for the CPU of this one."""
    is_this_cpu = _is_here(endpoints) and endpoints.gpu == NO_GPU
    return None if is_this_cpu else Servers.model_validate(endpoints, from_attributes=True)


def _n_records(directory: Path) -> int:
    """Return how many points have been recorded, failed ones included."""
    return len(list((directory / "records").glob("*.json")))


def _is_here(endpoints: Endpoints) -> bool:
    urls = [url if "://" in url else f"//{url}" for url in endpoints.backends.values()]
    return {urlsplit(url).hostname for url in urls} <= {"127.0.0.1", "localhost", "::1"}


def open_run(
    run: str = REFERENCE,
    endpoints: str | Path = "",
    *,
    gpu: str = "",
    gpus: int | None = None,
    price_per_hour: float | None = None,
    strict: bool = False,
    asks_servers: bool = True,
) -> Run:
    """Open (or begin) the run `run` against some servers.

    Args:
        run: directory name under results/: small letters, digits, dot, dash, underscore.
        endpoints: YAML file, absolute or relative to the project root, the embedded servers unless given; or an address
            line, `HOST:FASTAPI,TRITON_HTTP,TRITON_GRPC,TRITON_METRICS` with the ports of a machine (see
            `endpoints.read_address_line`). Its servers are asked which models and which engine they have loaded, and
            unless you also name a run, the run is named after it: a new machine must never be answered from the reference
            run's records.
        gpu, gpus: model and number of the machine's GPUs, in place of the endpoints file's; the servers are asked for what
            neither states.
        price_per_hour: of the whole machine in USD, in place of the endpoints file's.
        strict: let the notebook fail where no server answers.
        asks_servers: False for a notebook that computes on this machine or reads records; beside what answers, it then
            says that it measures nothing there.

    Every address of servers elsewhere is checked, and one sentence states which answer. What does not answer is left
    out of the run's endpoints, so it stays not measured.

    `PHOTODUP_MEASURE=0` opens any run for reading only: a point without a record stays a gap. In a notebook, a cell
    that needs one prints so from now on, and the notebook goes on (`gaps.print_gaps`).

    Raises:
        PhotodupError: a bad name, an endpoints file that cannot be read, a parameter that the notebook does not
            declare, another GPU than the run was measured on, or, with `strict`, no server that answers.
        NotMeasured: in a notebook, no server answers and nothing is recorded.
    """
    gaps.refuse_undeclared_parameters()
    # papermill reads `-p GPU 4090` as a number
    run, gpu = (str(text) if type(text) in (int, float) else text for text in (run, gpu))
    texts = {"RUN": run, "ENDPOINTS": str(endpoints or ""), "GPU": gpu}
    for name, text in texts.items():
        if text is None and name != "RUN":
            continue  # papermill reads `-p GPU ""` as None
        if not isinstance(text, str) or len(text) > _LONGEST or escaped(text) != text:
            raise PhotodupError(f"{name} should be a text of at most {_LONGEST} characters in one line.")
    gaps.print_gaps()
    measure = settings.environment().may_measure
    line = read_address_line(texts["ENDPOINTS"])
    if line:
        servers = endpoints_of(line, ask=measure)
        if run == REFERENCE:
            run = _as_name(f"{line.host}-{line.triton_http or line.fastapi}")
    else:
        servers = load_endpoints(project_root() / (texts["ENDPOINTS"] or EMBEDDED))
        servers.use_control_key()
    directory = folder_of(run)
    given_facts = {"gpu": gpu or None, "gpus": gpus, "price_per_hour_usd": price_per_hour}
    servers = replaced(servers, **{name: value for name, value in given_facts.items() if value is not None})
    answers, model = True, None
    if measure and (line or not _is_here(servers)):
        checks = check_all(servers)
        sentence = availability_sentence(checks)
        if answering_servers := _answering(servers, checks):
            servers = answering_servers
        elif strict:
            raise PhotodupError(sentence)
        elif not _n_records(directory) and gaps.running_shell():
            raise NotMeasured(sentence)
        else:
            answers = False
        infos = [check.remote for check in checks if check.remote and check.remote.pretrained]
        model = {"pretrained": infos[0].pretrained, "digest": infos[0].digest} if infos else None
        print(sentence if asks_servers else f"{sentence} {_ASKS_NONE}")
    servers = _with_gpu(servers, read_machine(directory).servers or Servers(), ask=measure and answers)
    remote_servers = servers_of(servers)
    facts = remote_servers.model_dump() if remote_servers else None
    store = RunStore(directory, measure=measure, model=model, servers=facts)
    return Run(run, directory, servers, store)


def endpoints_of(line: AddressLine, *, ask: bool) -> Endpoints:
    """Return the endpoints of an address line with what its servers have loaded, or what is usual where they do not say."""
    models = ready_models(line.url(line.triton_http)) if ask and line.triton_http else None
    service = service_engine(line.url(line.fastapi)) if ask and line.fastapi else USUAL_SERVICE
    ports = line.fastapi, line.triton_http, line.triton_grpc, line.triton_metrics
    return from_ports(line.host, *ports, name=_as_name(line.host), models=models, service=service)


def _as_name(text: str) -> str:
    """Return what a run, or a machine, may be called after an address."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")


def was_measured_elsewhere(run: Run) -> bool:
    """Return whether the run was begun on another machine, or against other servers."""
    recorded, here = read_machine(run.directory), _machine_now(run.endpoints)
    names = {"cpu", "cores", "servers"} & recorded.model_fields_set
    return any(getattr(recorded, name) != getattr(here, name) for name in names)


def _machine_now(endpoints: Endpoints, model: Mapping[str, str | None] | None = None) -> Machine:
    return this_machine(model).model_copy(update={"servers": servers_of(endpoints)})


def ready_to_measure(run: Run, *, asks_servers: bool = True) -> Run | None:
    """Return the run with the servers that answer now; None, after a sentence, where nothing can be measured into it.

    Args:
        asks_servers: False where none of its servers takes part.
    """
    if not settings.environment().may_measure:
        return None
    if was_measured_elsewhere(run):
        print(f"Run {run.name} was measured on another machine: name a RUN of your own to measure here.")
        return None
    if not asks_servers:
        return run
    checks = check_all(run.endpoints)
    servers = _answering(run.endpoints, checks)
    if servers is None:
        print(f"{availability_sentence(checks)} {START}")
    return replace(run, endpoints=servers) if servers else None


def _answering(endpoints: Endpoints, checks: Sequence[Check]) -> Endpoints | None:
    """Return the endpoints without what did not answer a check; None where nothing did."""
    ready = {check.subject for check in checks if check.is_ready}
    backends = {name: url for name, url in endpoints.backends.items() if name in ready}
    metrics = {name: url for name, url in endpoints.metrics.items() if f"{name} metrics" in ready}
    return endpoints.model_copy(update={"backends": backends, "metrics": metrics}) if backends else None


def _with_gpu(endpoints: Endpoints, recorded: Servers, *, ask: bool) -> Endpoints:
    """Return the endpoints with the GPU and price that the run recorded, or else the GPU that the servers name.

    Raises:
        PhotodupError: the run was measured on another GPU.
    """
    if endpoints.price_per_hour_usd is None:
        endpoints = endpoints.model_copy(update={"price_per_hour_usd": recorded.price_per_hour_usd})
    if endpoints.gpu == UNKNOWN_GPU and recorded.gpu != UNKNOWN_GPU:
        return endpoints.model_copy(update={"gpu": recorded.gpu, "gpus": recorded.gpus})
    if endpoints.gpu == UNKNOWN_GPU and ask:
        gpu, gpus = gpu_of(endpoints)
        return endpoints.model_copy(update={"gpu": gpu, "gpus": max(gpus, endpoints.gpus)})
    if UNKNOWN_GPU not in (recorded.gpu, endpoints.gpu) and recorded.gpu != endpoints.gpu:
        raise PhotodupError(
            f"This run was measured on {recorded.gpu}, and the servers have {endpoints.gpu}: name another run with RUN."
        )
    return endpoints
