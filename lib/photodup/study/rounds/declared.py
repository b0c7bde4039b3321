"""What is compared, as `notebooks/comparisons.yaml` declares it before anything is measured."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from photodup.bench.stats import facts
from photodup.bench.stats.schedule import Declared
from photodup.bench.load.plan import Load
from photodup.embedding.backends import Backend, parse_backend
from photodup.errors import PhotodupError
from photodup.paths import project_root

SETTINGS = ("instances", "threads", "delay_us", "preferred")
USUAL_METRIC = {"single_stream": "latency_ms_p50", "server": "latency_ms_p90"}


@dataclass(frozen=True)
class Side:
    """A way of getting embeddings that is compared with others.

    Attributes:
        name: as the file calls it; the key of its records.
        label: what a sentence and a figure call it.
        backend: what is asked.
        options: of the adapter, such as `channel`.
        settings: what Triton's model is set to while it is measured (see `photodup.study.rounds.arms.configure`),
            empty as it is deployed.
    """

    name: str
    label: str
    backend: Backend
    options: tuple[tuple[str, Any], ...] = ()
    settings: tuple[tuple[str, Any], ...] = ()

    @property
    def configured_model(self) -> str:
        """Triton's model whose settings count: of an ensemble that takes JPEG files, the encoder in it."""
        inner = replace(self.backend, wire="uint8") if self.backend.wire == "jpeg" else self.backend
        return inner.triton_model

    def as_judged(self, machine: str) -> facts.Side:
        """Return this side in the judge's words; `machine` is the run, which has one."""
        backend = self.backend
        variant = ", ".join(f"{key} {value}" for key, value in (*self.options, *self.settings))
        parts = (backend.server, backend.engine, backend.precision, backend.protocol, backend.wire)
        return facts.Side(self.label, *parts, variant, machine)


@dataclass(frozen=True)
class Asked:
    """A load, and the link that it is sent over ("" is the real way to the server)."""

    name: str
    load: Load
    link: str = ""

    def as_judged(self) -> facts.Load:
        """Return this load in the judge's words."""
        return self.load.as_judged(self.link or "real")


@dataclass(frozen=True)
class Pair:
    """One comparison of one figure under one load."""

    name: str
    notebook: str
    a: Side
    b: Side
    asked: Asked
    metric: str
    importance: int
    elsewhere: tuple[tuple[Side, Side], ...] = ()
    """What is compared in place of `a` and `b` where the servers have not both: the first that they have."""

    def on(self, backends: Collection[str]) -> "Pair":
        """Return this comparison with the sides that servers of these backends have; itself if they have none."""
        for a, b in ((self.a, self.b), *self.elsewhere):
            if all(side.backend.is_local or side.backend.name in backends for side in (a, b)):
                return replace(self, a=a, b=b)
        return self

    def with_sides(self, names: tuple[str, str] | None) -> "Pair":
        """Return this comparison with the sides of these names, which are its own or those of `elsewhere`."""
        for a, b in ((self.a, self.b), *self.elsewhere):
            if names is not None and (a.name, b.name) == tuple(names):
                return replace(self, a=a, b=b)
        return self

    def as_declared(self, machine: str) -> Declared:
        """Return this comparison as the scheduler takes it."""
        load = self.asked.as_judged()
        a, b = (facts.Arm(side.as_judged(machine), load) for side in (self.a, self.b))
        return Declared(self.name, self.notebook, self.metric, a, b, self.importance)


@dataclass(frozen=True)
class Declarations:
    """Everything the file declares: sides and loads by name, and the comparisons of all notebooks."""

    sides: Mapping[str, Side]
    loads: Mapping[str, Asked]
    pairs: tuple[Pair, ...]

    def of(self, notebooks: Iterable[str], *, at_least: int = 0) -> tuple[Pair, ...]:
        """Return the comparisons of some notebooks (stems) that are of this importance or more."""
        wanted = set(notebooks)
        return tuple(p for p in self.pairs if p.notebook in wanted and p.importance >= at_least)


def declarations(path: Path | None = None) -> Declarations:
    """Read the declarations; `notebooks/comparisons.yaml` unless another file is named, none where there is no file.

    Raises:
        PhotodupError: a name that is not declared, a backend or a metric that does not exist.
    """
    path = path or project_root() / "notebooks" / "comparisons.yaml"
    return _read(path) if path.is_file() else Declarations({}, {}, ())


@cache
def _read(path: Path) -> Declarations:
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    sides = {name: _side(name, row) for name, row in data["sides"].items()}
    loads = {name: _asked(name, row) for name, row in data["loads"].items()}
    pairs = []
    for notebook, rows in data["comparisons"].items():
        for row in rows:
            for key in (row["a"], row["b"], *(side for ends in row.get("elsewhere", ()) for side in ends)):
                if key not in sides:
                    raise PhotodupError(
                        f"{path.name}: {row['name']} compares {key!r}, which is no side of it."
                    )
            for load, metric in _loads_of(row, loads, path).items():
                known = facts.metric_named(metric or USUAL_METRIC.get(loads[load].load.scenario, RATE))
                name = f"{row['name']}, {load}"
                ends = (sides[row["a"]], sides[row["b"]])
                others = tuple((sides[a], sides[b]) for a, b in row.get("elsewhere", ()))
                importance = row.get("importance", 1)
                pairs.append(Pair(name, notebook, *ends, loads[load], known.name, importance, others))
    names = [pair.name for pair in pairs]
    if twice := {name for name in names if names.count(name) > 1}:
        raise PhotodupError(f"{path.name}: two comparisons are called {sorted(twice)[0]!r}.")
    return Declarations(sides, loads, tuple(pairs))


RATE = "throughput_images_per_s"


def _loads_of(row: Mapping[str, Any], loads: Mapping[str, Asked], path: Path) -> dict[str, str | None]:
    """A list of loads takes the usual figure of each; a mapping names the figure."""
    given = row["loads"] if isinstance(row["loads"], dict) else dict.fromkeys(row["loads"])
    if unknown := sorted(set(given) - set(loads)):
        raise PhotodupError(
            f"{path.name}: {row['name']} asks for the load {unknown[0]!r}, which is none of it."
        )
    return given


def _side(name: str, row: Mapping[str, Any]) -> Side:
    options, settings = (tuple(sorted(row.get(key, {}).items())) for key in ("options", "settings"))
    if unknown := sorted({key for key, _ in settings} - set(SETTINGS)):
        raise PhotodupError(f"The side {name!r} sets {unknown[0]!r}, which is none of {', '.join(SETTINGS)}.")
    return Side(name, row["label"], parse_backend(row["backend"]), options, settings)


def _asked(name: str, row: Mapping[str, Any]) -> Asked:
    rest = dict(row)
    link = rest.pop("link", "")
    return Asked(name, Load(**rest), link)
