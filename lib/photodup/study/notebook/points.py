"""Measure one point of a backend against a run's servers: address, counters, reference and key in one place."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from photodup.bench.link.link import PRESETS
from photodup.bench.link.way import LOOPBACK, Way, emulated
from photodup.bench.load.plan import Stopping
from photodup.bench.stats.facts import Load
from photodup.core.errors import PhotodupError
from photodup.embedding.backends import Backend, parse_backend
from photodup.study.notebook.gaps import Gap
from photodup.study.notebook.table import as_table

if TYPE_CHECKING:
    import pandas as pd

    from photodup.study.notebook.run import Run

N_PHOTOS = 32
# A wire that rounds or recompresses changes the answer; how much is notebook 04's and 11's subject.
MIN_COSINE = {"jpeg": 0.95, "base64": 0.95}


@dataclass(frozen=True)
class Measurement:
    """One point to measure, with everything that it takes; it can be sent to another process.

    Attributes:
        backend, load, stopping: what is asked of which server, and until when.
        url, metrics_url: where the server answers and where it counts; None in process.
        reference: what the payload photographs should embed to; None compares nothing.
        options: of the adapter.
        way: how requests reach the server; an emulated link is made for this point alone.
    """

    backend: Backend
    load: Load
    stopping: Stopping
    url: str | None = None
    metrics_url: str | None = None
    reference: np.ndarray | None = None
    options: dict[str, Any] = field(default_factory=dict)
    way: Way = LOOPBACK

    def measure(self) -> dict[str, Any]:
        """Measure from where this process is."""
        from photodup.bench.backends.adapters import adapter
        from photodup.bench.load import counters
        from photodup.bench.load.load import measure
        from photodup.study.notebook.weights import payload_photos

        account = counters.account_of(self.backend) if self.metrics_url else None
        return measure(
            adapter(self.backend, self.url, **self.options),
            payload_photos(N_PHOTOS),
            self.load,
            self.stopping,
            reference=self.reference,
            min_cosine=MIN_COSINE.get(self.backend.wire, 0.999),
            probe=counters.probe(self.metrics_url, account) if account and self.metrics_url else None,
            way=self.way,
        )

    def measure_through(self, preset: str) -> dict[str, Any]:
        """Measure from the far end of an emulated link; a link that was late takes the point's validity."""
        from photodup.bench.link.link import Link

        if self.url is None:
            raise PhotodupError(f"{self.backend.name} runs in this process: no link leads to it.")
        with Link(preset) as link:
            metrics_url = link.url(self.metrics_url) if self.metrics_url else None
            far = replace(self, url=link.url(self.url), metrics_url=metrics_url, way=emulated(preset))
            point = link.measure_far(far.measure, in_own_process=self.backend.protocol == "grpc")
            if late := link.invalid_because():
                why = "; ".join(filter(None, [point.get("invalid_because"), late]))
                point |= {"valid": False, "invalid_because": why}
        return point


def measure_point(
    run: Run,
    backend: str | Backend,
    load: Load,
    stopping: Stopping | None = None,
    *,
    label: str = "",
    as_deployed: bool | None = None,
    repeat: int = 0,
    check: bool = True,
    config: dict[str, Any] | None = None,
    before: Callable[[], Any] | None = None,
    link: str = "",
    **adapter_options: Any,
) -> dict[str, Any]:
    """Return one point of `backend`, measured now unless the run has it.

    A backend that the endpoints do not list, or that cannot be measured, gives a gap: `valid` is False and
    `invalid_because` says why. Nothing is filled in.

    Args:
        label: in words, what distinguishes points of one backend beside the load, such as the server's
            configuration; part of the key and of the record.
        as_deployed: whether the server is configured as it is deployed; unless given, a point with a label is not.
        repeat: 0 for the first measurement of this point, then 1, 2, …; part of the key and of the record.
        check: compare embeddings with the reference first, unless the backend is emulated.
        config: more that the result depends on; recorded.
        before: called first if this point is measured now; see `when_measuring`.
        link: name of an emulated link (`photodup.bench.link.link.PRESETS`) between client and server, which must
            be on this machine; "" is the real way to them (`Run.measure_way`). Each point gets a fresh link, so
            none inherits another's queue.
        adapter_options: passed to the adapter, such as `channel="shared"`.
    """
    asked, stopping = parse_backend(backend), stopping or Stopping()
    rate = f"{load.offered_per_s:g}" if load.offered_per_s else ""
    loaded = [load.scenario, f"b{load.batch}", f"c{load.concurrency}", rate]
    loaded += ["" if load.connection == "warm" else load.connection, link]
    which = (label, f"repeat-{repeat}" if repeat else "")
    parts = ("point", asked.name, *map(str, adapter_options.values()), *loaded, *which)
    key = "-".join(filter(None, parts))
    settings = {**asdict(load), "backend": asked.name, "label": label, "repeat": repeat}
    # The key of every record was made with this bound, which no point has any more.
    settings |= {**adapter_options, **(config or {}), "slo_ms": None, "stopping": stopping.as_config()}
    settings |= {"link": link} if link else {}
    way = LOOPBACK if asked.is_local else emulated(link) if link in PRESETS else run.measure_way()
    facts = {
        **asked.columns(),
        "device": asked.emulated_device or run.device(asked),
        **way.columns(),
        **({"link": link} if link else {}),
        **load.columns(),
        "label": label,
        "as_deployed": not label if as_deployed is None else as_deployed,
        "repeat": repeat,
    }

    def measure_now() -> dict[str, Any]:
        if before:
            before()
        reference = reference_embeddings(run) if check and not asked.is_emulated else None
        url, metrics_url = run.endpoints.backends.get(asked.listed_as), run.endpoints.metrics_url(asked)
        point = Measurement(
            asked, load, stopping, url, metrics_url, reference, dict(adapter_options), way=way
        )
        return facts | (point.measure_through(link) if link else point.measure())

    why = ""  # a record answers whatever the endpoints of the reading machine are
    if not run.endpoints.has(asked) and run.store.record(key, config=settings) is None:
        why = run.lacks(asked)
    elif link and not asked.is_local and not run.is_here and run.store.record(key, config=settings) is None:
        why = f"no link can be emulated in front of {run.endpoints.name}: its servers are on another machine"
    if why:
        return Gap({**facts, **adapter_options, "status": "missing", "valid": False, "invalid_because": why})
    point = run.measure_or_load(key, measure_now, config=settings, kind="point", may_fail=True)
    # A gap still says which point it is.
    return type(point)({**facts, **adapter_options, **point, "record": run.store.path_of(key, settings).stem})


@contextlib.contextmanager
def when_measuring(context: contextlib.AbstractContextManager) -> Iterator[Callable[[], None]]:
    """Enter `context` at the first point that is really measured, and leave it after the last.

    A server is reconfigured once for a group of points, and not at all when all of them have records:

        with when_measuring(temporary_config(...)) as reconfigured:
            points = [measure_point(run, ..., before=reconfigured) for ...]
    """
    with contextlib.ExitStack() as stack:
        entered, refused = False, None

        def enter() -> None:
            nonlocal entered, refused
            if refused is not None:  # a server that keeps its configuration keeps it for the whole group
                raise refused
            if not entered:
                try:
                    stack.enter_context(context)
                except PhotodupError as error:
                    refused = error
                    raise
                entered = True

        yield enter


def reference_embeddings(run: Run) -> np.ndarray:
    """Return what the payload photographs embed to in this process, float32 [32, 512]; computed once a run."""

    def compute() -> dict[str, Any]:
        from photodup.embedding import imaging
        from photodup.embedding.engines.encoder import load_model
        from photodup.embedding.wire import wires
        from photodup.study.notebook.weights import payload_photos

        model = load_model()
        vectors = model.embed(imaging.normalize(wires.pixels(payload_photos(N_PHOTOS))))
        return {"digest": model.digest, "pretrained": model.pretrained, "raw": {"vectors": vectors.ravel()}}

    run.measure_or_load("reference-embeddings", compute)
    return run.store.raw("reference-embeddings", config={})["vectors"].reshape(N_PHOTOS, -1)


def measure_all(
    run: Run, specs: Sequence[dict[str, Any]], stopping: Stopping, *, seed: int = 0
) -> pd.DataFrame:
    """Measure points in one seeded random order and return them as a table.

    Neighbouring points of a sweep never follow each other, so warming up, throttling or a neighbour's load
    hits all backends alike. Each backend's embeddings are compared with the reference once, before its first
    timed request.

    Args:
        specs: arguments of `measure_point`: `backend` and `load`, and whatever else a point needs. A spec may
            bring its own `stopping`.
    """
    from tqdm import tqdm

    order = random.Random(seed).sample(range(len(specs)), len(specs))
    rows: dict[int, dict[str, Any]] = {}
    checked: set[str] = set()
    # No bar where everything is read: what is committed would hold its traces.
    for index in tqdm(order, desc="points", unit="point", leave=False, delay=5):
        spec = {"stopping": stopping, **specs[index]}
        check = spec.pop("check", True) and spec["backend"] not in checked
        rows[index] = measure_point(run, check=check, **spec)
        checked.add(spec["backend"])
    return as_table(rows[i] for i in sorted(rows))
