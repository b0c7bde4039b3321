"""The figures of servers: each load in a short window, again in every visit, and the mean over visits with its interval."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from photodup.bench import Columns
from photodup.bench.backends import adapters
from photodup.bench.link.emulate import LOOPBACK, PRESETS, Link, NetworkPath, emulated_path
from photodup.bench.load import counters
from photodup.bench.load.plan import WindowPlan
from photodup.bench.load.window import measure
from photodup.bench.load.workers import Observer
from photodup.bench.stats.figures import figures_of_windows
from photodup.bench.stats.metrics import Load
from photodup.core.errors import PhotodupError
from photodup.core.progress import bar
from photodup.core.settings import key_headers
from photodup.embedding.backends import Backend, parse_backend, served_models
from photodup.study.notebook.run import ready_to_measure
from photodup.study.notebook.table import as_table
from photodup.study.notebook.weights import payload_photos

if TYPE_CHECKING:
    import pandas as pd

    from photodup.bench.backends.adapters import Adapter
    from photodup.study.notebook.run import Run

KIND = "figure"
N_PHOTOS, VISITS = 32, 3
# A few answers, from which the length of all others is estimated.
TRIAL = WindowPlan(0.01, 1, warmup_requests=1, ramp_s=0.0, longest_s=10.0)
LOAD_S = 4.0  # Triton takes about so long to load a model with another configuration
# What a server can do: its rate under this load.
CAPACITY, CAPACITY_PLAN = Load("closed_loop", concurrency=8, span="prepared"), WindowPlan(3.0)


@dataclass(frozen=True)
class FigureSpec:
    """One load on one server: what a figure is measured of.

    Attributes:
        backend: its name.
        load: what is sent.
        label: in words, how the server is configured, or whatever else tells two specs apart; part of the key.
        setting: returns a context in which the server is configured as `label` says. It is entered once a visit for all
            specs of a label of which a record is missing.
        link: name of an emulated link (`photodup.bench.link.emulate.PRESETS`) between client and server, which must be on
            this machine; "" is the real way to them. Each window gets a fresh link, so none inherits another's queue.
        options: of the adapter, such as `{"channel": "shared"}`.
        config: more that the figure depends on; recorded.
        columns: more columns of the row, such as a name for a chart; not recorded.
        tolerates_errors: count requests that fail instead of failing the window.
        is_checked: compare embeddings with the reference before a backend's first window, unless it is emulated.
        plan: of its windows; default that of all specs.
    """

    backend: str
    load: Load
    label: str = ""
    setting: Callable[[], AbstractContextManager[object]] | None = None
    link: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, float] = field(default_factory=dict)
    columns: Mapping[str, str | float] = field(default_factory=dict)
    tolerates_errors: bool = False
    is_checked: bool = True
    plan: WindowPlan | None = None

    @property
    def key(self) -> str:
        """Return the readable part of the records' name."""
        load, options = self.load, map(str, self.options.values())
        rate = f"{load.offered_per_s:.4g}" if load.offered_per_s else ""
        connection = "" if load.connection == "warm" else load.connection
        loaded = load.scenario, f"b{load.batch}", f"c{load.concurrency}", rate, connection
        return "-".join(filter(None, (KIND, self.backend, *options, *loaded, self.link, self.label)))

    def config_of(self, plan: WindowPlan, visit: int) -> Columns:
        """Return what a window depends on."""
        names = {"backend": self.backend, "label": self.label, "link": self.link}
        window = {"plan": asdict(self.plan or plan), "visit": visit}
        return {**asdict(self.load), **names, **self.options, **self.config, **window}


def measure_figures(
    run: Run, specs: Sequence[FigureSpec], plan: WindowPlan | None = None, *, visits: int = VISITS
) -> pd.DataFrame:
    """Return one row a spec: its figures over the visits, measured now unless the run has them.

    Each visit takes all specs in a new random order, so that warming up, throttling or a neighbour's load hits all
    alike. Windows that the run has are read, so a measurement that was interrupted goes on where it ended.

    Args:
        plan: of a window.
        visits: windows a spec, spread over the whole measurement.

    Returns:
        Columns: those of backend, way, load and spec, the figures (of `figures_of_windows`), `status` ("ok",
        "failed" or "missing") and `because`, a sentence where a window could not be measured.
    """
    plan = plan or WindowPlan()
    windows = missing_windows(run, specs, plan, visits)
    asks_servers = any(not parse_backend(spec.backend).is_local for _, spec in windows)
    if windows and ready_to_measure(run, asks_servers=asks_servers):
        run.announce(f"{len(windows)} windows", windows_s(run, windows, plan))
        measure_windows(run, windows, plan)
    return as_table(_row(run, spec, plan, visits) for spec in specs)


def missing_windows(
    run: Run, specs: Sequence[FigureSpec], plan: WindowPlan, visits: int = VISITS
) -> list[tuple[int, FigureSpec]]:
    """Return (visit, spec) of each window that the run lacks and its servers can measure, visit by visit."""
    return [
        (visit, spec)
        for visit in range(1, visits + 1)
        for spec in specs
        if not _obstacle(run, spec) and not run.store.has(spec.key, config=spec.config_of(plan, visit))
    ]


def windows_s(run: Run, windows: Sequence[tuple[int, FigureSpec]], plan: WindowPlan) -> float:
    """Return about how long windows take, seconds; the servers are asked how fast they answer."""
    seconds = 2 * LOAD_S * len({(visit, spec.label) for visit, spec in windows if spec.setting})
    for _, spec in windows:
        backend = parse_backend(spec.backend)
        each_s = tried_answer_s(backend, run.address_of(backend), spec.load, *spec.options.items())
        seconds += (spec.plan or plan).expected_s(spec.load, each_s)
    return seconds


@cache
def tried_answer_s(backend: Backend, url: str | None, load: Load, *options: tuple[str, str]) -> float:
    """Ask a server once how long after each other its answers come; return seconds.

    They are 0 in an open loop, where arrivals decide, in this process, and where the server fails: its measurement says why.
    """
    if load.offered_per_s or not url:
        return 0.0
    client = adapters.adapter(backend, url, **dict(options))
    latency_ms = measure(client, payload_photos(N_PHOTOS), load, TRIAL).get("latency_ms_mean")
    return (latency_ms or 0.0) / 1000 / load.wave


def measure_windows(run: Run, windows: Sequence[tuple[int, FigureSpec]], plan: WindowPlan) -> None:
    """Measure and record windows, those of one configured server and visit together."""
    order, checked = random.Random(0), set[str]()
    with bar(total=len(windows), desc="windows", unit="window") as progress:
        for visit, of_visit in groupby(windows, key=itemgetter(0)):
            for group in _in_random_order([spec for _, spec in of_visit], order):
                refusal: PhotodupError | None = None  # fails each window of the group
                with contextlib.ExitStack() as stack:
                    try:
                        stack.enter_context((group[0].setting or contextlib.nullcontext)())
                    except PhotodupError as error:
                        refusal = error
                    for spec in group:
                        is_checked = spec.is_checked and spec.backend not in checked
                        checked.add(spec.backend)
                        measure = partial(_measured, run, spec, plan, visit, refusal, is_checked)
                        config = spec.config_of(plan, visit)
                        run.measure_or_load(spec.key, measure, config=config, kind=KIND, may_fail=True)
                        progress.update()


def reference_embeddings(run: Run) -> np.ndarray:
    """Return what the payload photographs embed to in this process, float32 [32, 512]; computed once a run."""

    def compute() -> Columns:
        from photodup.embedding import imaging
        from photodup.embedding.engines.encoder import load_model
        from photodup.embedding.wire import wires

        model = load_model()
        vectors = model.embed(imaging.normalize(wires.pixels(payload_photos(N_PHOTOS))))
        return {"digest": model.digest, "pretrained": model.pretrained, "raw": {"vectors": vectors.ravel()}}

    run.measure_or_load("reference-embeddings", compute)
    return run.store.raw("reference-embeddings", config={})["vectors"].reshape(N_PHOTOS, -1)


def _in_random_order(specs: Sequence[FigureSpec], order: random.Random) -> Iterator[list[FigureSpec]]:
    """Yield the specs in groups: those of one configured server together, each other one alone."""
    groups: dict[Any, list[FigureSpec]] = {}
    for place, spec in enumerate(order.sample(list(specs), len(specs))):
        groups.setdefault(spec.label if spec.setting else place, []).append(spec)
    yield from groups.values()


def _measured(
    run: Run, spec: FigureSpec, plan: WindowPlan, visit: int, refusal: PhotodupError | None, is_checked: bool
) -> Columns:
    """Measure one window; return the record's columns."""
    if refusal:
        raise refusal
    backend = parse_backend(spec.backend)
    url = run.endpoints.backends.get(backend.listed_as, "")
    if is_checked and not backend.is_emulated:
        check_answers(run, backend, adapters.adapter(backend, url or None, **spec.options))
    window_plan = spec.plan or plan
    window = partial(_window, spec, replace(window_plan, seed=window_plan.seed + visit - 1))
    metrics_url = run.endpoints.metrics_url(backend)
    if spec.link:
        return _facts(run, spec) | _through_link(spec, window, url, metrics_url)
    return _facts(run, spec) | window(url, metrics_url, _network(run, spec))


def check_answers(run: Run, backend: Backend, client: Adapter) -> None:
    """Compare a backend's embeddings with the reference; the client is closed.

    Raises:
        PhotodupError: it embeds otherwise, so nothing that it answers may be timed.
    """
    # How much a lossy wire changes the answer is notebook 04's and 11's subject.
    photos, least = payload_photos(N_PHOTOS), 0.95 if backend.is_encoded else 0.999
    adapters.check_embeddings(client, photos, reference_embeddings(run), least, name=str(backend))


def _window(
    spec: FigureSpec, plan: WindowPlan, url: str, metrics_url: str | None, network: NetworkPath
) -> Columns:
    backend = parse_backend(spec.backend)
    models = served_models(backend) if backend.server == "triton" else ()
    client = adapters.adapter(backend, url or None, **spec.options)
    meter = counters.meter(metrics_url, models, {} if models else key_headers()) if metrics_url else None
    observer = Observer() if spec.tolerates_errors else None
    return measure(
        client, payload_photos(N_PHOTOS), spec.load, plan, meter=meter, network=network, observer=observer
    )


def _through_link(
    spec: FigureSpec, window: Callable[..., Columns], url: str, metrics_url: str | None
) -> Columns:
    """Measure one window from the far end of an emulated link; a link that was late fails it."""
    if not url:
        raise PhotodupError(f"{spec.backend} runs in this process: no link leads to it.")
    with Link(spec.link) as link:
        metrics_url = link.url(metrics_url) if metrics_url else None
        measure = partial(window, link.url(url), metrics_url, emulated_path(spec.link))
        is_grpc = parse_backend(spec.backend).protocol == "grpc"
        measured = link.measure_far(measure, in_own_process=is_grpc)
        if late := link.invalid_reason():
            measured |= {"status": "failed", "error": late}
    return measured


def _facts(run: Run, spec: FigureSpec) -> Columns:
    """Return what is known of a figure before it is measured."""
    backend = parse_backend(spec.backend)
    return {
        **backend.columns(),
        "device": backend.emulated_device or run.device(backend),
        **_network(run, spec).columns(),
        **({"link": spec.link} if spec.link else {}),
        **spec.load.columns(),
        "label": spec.label,
        **spec.options,
    }


def _row(run: Run, spec: FigureSpec, plan: WindowPlan, visits: int) -> Columns:
    """Return the figures of a spec over the visits that the run has, or why it has none."""
    configs = [spec.config_of(plan, visit) for visit in range(1, visits + 1)]
    windows = [window for config in configs if (window := run.store.read(spec.key, config=config))]
    # Every visit with figures passed; a record is read again only where one is missing.
    records = (run.store.record(spec.key, config=c) for c in configs if len(windows) < visits)
    errors = [record["error"] for record in records if record and record["error"]]
    status, reason = "ok" if windows else "failed" if errors else "missing", "".join(errors[:1])
    if status == "missing":
        reason = "; ".join(filter(None, ["not measured in this run", _obstacle(run, spec)]))
    figures = figures_of_windows(windows) if windows else {}
    return {**_facts(run, spec), **figures, **spec.columns, "status": status, "because": reason}


def _obstacle(run: Run, spec: FigureSpec) -> str:
    """Return why no window of a spec can be measured here; empty where one can."""
    backend: Backend = parse_backend(spec.backend)
    if not run.endpoints.has(backend):
        return run.absence_of(backend)
    if spec.link and not backend.is_local and not run.is_here:
        return f"no link can be emulated in front of {run.endpoints.name}: its servers are on another machine"
    return ""


def _network(run: Run, spec: FigureSpec) -> NetworkPath:
    if parse_backend(spec.backend).is_local:
        return LOOPBACK
    return emulated_path(spec.link) if spec.link in PRESETS else run.measure_path()
