"""Comparisons, as `notebooks/comparisons.yaml` declares them before anything is measured."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from photodup.bench.stats.metrics import Load, metric_named
from photodup.core.errors import PhotodupError
from photodup.core.paths import project_root
from photodup.embedding.backends import Backend, parse_backend

SETTINGS = ("instances", "threads", "delay_us", "preferred")


@dataclass(frozen=True)
class PeerServer:
    """A server that is started for a visit, and asked as its own documentation shows.

    Attributes:
        name: key of its records, and name of its environment and its lock file.
        setup: its configuration, one clause.
        command: program and arguments, with placeholders that `photodup.study.peers.servers` fills; none for photodup's own.
        environment: further variables, with the same placeholders.
        ready: path that answers 200 once it embeds.
        protocol, path, model: how it is asked (see `bench.anyurl.target`).
        max_images: in a request.
    """

    name: str
    label: str
    setup: str
    command: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    ready: str = "/readyz"
    protocol: str = "multipart"
    path: str = "/embed"
    model: str = ""
    max_images: int = 8


@dataclass(frozen=True)
class Side:
    """A way of getting embeddings that is compared with others.

    Attributes:
        name: as the file calls it; the key of its records.
        label: what a sentence and a figure call it.
        backend: what is asked.
        options: of the adapter, such as `channel`.
        settings: of Triton's model, given to a copy of it; empty: the model as deployed.
        server: started for a visit; None where the backend's server is among the endpoints.
    """

    name: str
    label: str
    backend: Backend
    options: tuple[tuple[str, str], ...] = ()
    settings: tuple[tuple[str, int], ...] = ()
    server: PeerServer | None = None

    @property
    def configured_model(self) -> str:
        """Triton's model whose settings count: of an ensemble that takes JPEG files, the encoder in it."""
        inner = replace(self.backend, wire="uint8") if self.backend.wire == "jpeg" else self.backend
        return inner.triton_model


@dataclass(frozen=True)
class Pair:
    """One comparison of the usual figure of one load: b against a.

    Attributes:
        load_name: as the file calls the load and its link.
        is_primary: an answer rests on it; the primary comparisons of a notebook are one family.
        is_quick: the quick study measures it.
        is_null: `a` and `b` are two processes of one configuration.
        elsewhere: alternatives to `a` and `b`: if the servers lack one of them, the first two that exist are compared.
        also: percentiles that the same visits compare, exploratory.
    """

    name: str
    notebook: str
    a: Side
    b: Side
    load_name: str
    load: Load
    link: str
    is_primary: bool = False
    is_quick: bool = False
    is_null: bool = False
    alternatives: tuple[tuple[Side, Side], ...] = ()
    also: tuple[str, ...] = ()

    @property
    def is_exploratory(self) -> bool:
        """Return whether no answer rests on it, and it checks none."""
        return not (self.is_primary or self.is_null)

    def offered(self, is_offered: Callable[[Backend], bool]) -> "Pair":
        """Return this comparison between the first two sides that both exist; unchanged if no two do."""
        for a, b in ((self.a, self.b), *self.alternatives):
            if is_offered(a.backend) and is_offered(b.backend):
                return replace(self, a=a, b=b)
        return self


@dataclass(frozen=True)
class Evidence:
    """The evidence of an answer beside its own primary comparisons.

    Attributes:
        records: prefixes of names of the run's records, or `RUN/prefix` for another run; each must exist.
        pairs: primary comparisons that another notebook declares.
        files: of the run's folder.
        devices: "gpu" where the question is about GPUs.
    """

    records: tuple[str, ...] = ()
    pairs: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Declarations:
    """Everything the file declares: sides by name, the comparisons of all notebooks, and the nulls that check them."""

    sides: Mapping[str, Side]
    pairs: tuple[Pair, ...]
    nulls: tuple[Pair, ...] = ()
    rests_on: Mapping[str, Evidence] = field(default_factory=dict)

    def pairs_of(self, notebooks: Iterable[str], *, quick: bool = False) -> tuple[Pair, ...]:
        """Return the comparisons of some notebooks (stems); of the quick study alone if asked."""
        stems = set(notebooks)
        return tuple(p for p in self.pairs if p.notebook in stems and (p.is_quick or not quick))

    def nulls_of(self, pairs: Iterable[Pair], *, quick: bool = False) -> tuple[Pair, ...]:
        """Return the nulls that check some comparisons; of the quick study alone if asked."""
        names = {name for pair in pairs for name in self.checks_of(pair)}
        return tuple(null for null in self.nulls if null.name in names and (null.is_quick or not quick))

    def checks_of(self, pair: Pair) -> tuple[str, ...]:
        """Return the names of the nulls under a comparison's load and by a protocol of its sides."""
        protocols = {side.backend.protocol for side in (pair.a, pair.b)}
        return tuple(
            null.name
            for null in self.nulls
            if null.load_name == pair.load_name and null.a.backend.protocol in protocols
        )


def declarations(path: Path | None = None) -> Declarations:
    """Read the declarations; `notebooks/comparisons.yaml` unless another file is named, none where there is no file.

    Raises:
        PhotodupError: a name that is not declared, a backend or a metric that does not exist.
    """
    path = path or project_root() / "notebooks" / "comparisons.yaml"
    return _read(path) if path.is_file() else Declarations({}, ())


@cache
def _read(path: Path) -> Declarations:
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    servers = {name: _server(name, row) for name, row in data.get("servers", {}).items()}
    sides = {name: _side(name, row, servers) for name, row in data["sides"].items()}
    loads = {name: _load(row) for name, row in data["loads"].items()}

    def pairs_of(notebook: str, rows: Iterable[Mapping[str, Any]]) -> Iterator[Pair]:
        """Yield what each row compares under each of its loads; rows without a notebook are nulls."""
        for row in rows:
            alternatives = row.get("alternatives", ())
            if notebook:
                name, sides_of_row = row["name"], [(row["a"], row["b"]), *alternatives]
            else:
                name = f"null of {row['side']}"
                sides_of_row = [(side, side) for side in (row["side"], *alternatives)]
            if absent := {side for pair in sides_of_row for side in pair} - sides.keys():
                raise PhotodupError(f"{path.name}: {name} compares {min(absent)!r}, which is no side of it.")
            compared = [(sides[a], sides[b]) for a, b in sides_of_row]
            if not notebook:
                compared = [(a, replace(b, label=f"{b.label} again")) for a, b in compared]
            for load_name in row["loads"]:
                if load_name not in loads:
                    raise PhotodupError(f"{path.name}: {name} asks for the load {load_name!r}: declare it.")
                load, link = loads[load_name]
                is_primary, is_quick = (load_name in row.get(mark, ()) for mark in ("primary", "quick"))
                also = tuple(metric_named(name).name for name in row.get("also", ()))
                pair = f"{name}, {load_name}", notebook, *compared[0], load_name, load, link
                yield Pair(*pair, is_primary, is_quick, not notebook, tuple(compared[1:]), also)

    pairs = tuple(pair for notebook, rows in data["comparisons"].items() for pair in pairs_of(notebook, rows))
    nulls = tuple(pairs_of("", data.get("nulls", ())))
    declared = [pair.name for pair in (*pairs, *nulls)]
    if duplicates := {name for name in declared if declared.count(name) > 1}:
        raise PhotodupError(f"{path.name}: two comparisons are called {sorted(duplicates)[0]!r}.")
    rests_on = {
        notebook: Evidence(**{key: tuple(values) for key, values in row.items()})
        for notebook, row in data.get("rests_on", {}).items()
    }
    return Declarations(sides, pairs, nulls, rests_on)


def _server(name: str, row: Mapping[str, Any]) -> PeerServer:
    return PeerServer(name, **{**row, "environment": tuple(row.get("environment", {}).items())})


def _side(name: str, row: Mapping[str, Any], servers: Mapping[str, PeerServer]) -> Side:
    if "server" in row:
        if row["server"] not in servers:
            raise PhotodupError(
                f"The side {name!r} is served by {row['server']!r}, which is no server of its file."
            )
        backend = Backend("peer", row.get("engine", "pytorch"), row.get("precision", "fp32"), "http", "jpeg")
        server = servers[row["server"]]
        return Side(name, row.get("label", server.label), backend, server=server)
    options, settings = (tuple(sorted(row.get(key, {}).items())) for key in ("options", "settings"))
    if unknown := sorted({key for key, _ in settings} - set(SETTINGS)):
        raise PhotodupError(f"The side {name!r} sets {unknown[0]!r}, which is none of {', '.join(SETTINGS)}.")
    return Side(name, row["label"], parse_backend(row["backend"]), options, settings)


def _load(row: Mapping[str, Any]) -> tuple[Load, str]:
    attributes = dict(row)
    link = attributes.pop("link", "")
    return Load(**attributes), link
