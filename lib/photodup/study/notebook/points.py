"""Measure one point of a backend against a run's servers: address, counters, reference and key in one place."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from photodup.bench.load.plan import Load, Stopping, in_blocks
from photodup.embedding.backends import parse_backend

if TYPE_CHECKING:
    import pandas as pd

    from photodup.study.notebook.run import Run

N_PHOTOS = 32
# A wire that rounds or recompresses changes the answer; how much is notebook 04's and 11's subject.
MIN_COSINE = {"jpeg": 0.95, "base64": 0.95}


def measure_point(
    run: Run,
    backend: str,
    load: Load,
    stopping: Stopping | None = None,
    *,
    label: str = "",
    check: bool = True,
    config: dict[str, Any] | None = None,
    before: Callable[[], Any] | None = None,
    slo_ms: float | None = None,
    link: str = "",
    **adapter_options: Any,
) -> dict[str, Any]:
    """Return one point of `backend`, measured now unless the run has it.

    A backend that the endpoints do not list, or that cannot be measured, gives a gap: `valid` is False and
    `invalid_because` says why. Nothing is filled in.

    Args:
        label: distinguishes points of one backend that differ in something the load does not say, such as
            the server's configuration; part of the key and of the record.
        check: compare embeddings with the reference first (not for engines that compute none).
        config: more that the result depends on; recorded.
        slo_ms: also record `goodput_images_per_s`, what was answered within this many milliseconds.
        before: called first if this point is measured now; see `when_measuring`.
        link: name of an emulated link (`photodup.bench.link.link.PRESETS`) between client and server, which must
            be on this machine; "" is the real way to them (`Run.path`). Each point gets a fresh link, so none
            inherits another's queue.
        adapter_options: passed to the adapter, such as `channel="shared"`.
    """
    stopping = stopping or Stopping()
    key = "-".join(
        part
        for part in (
            "point",
            backend,
            *map(str, adapter_options.values()),
            load.scenario,
            f"b{load.batch}",
            f"c{load.concurrency}",
            f"{load.offered_per_s:g}" if load.offered_per_s else "",
            "" if load.connection == "warm" else load.connection,
            link,
            label,
        )
        if part
    )
    settings = {**asdict(load), "backend": backend, "label": label, **adapter_options, **(config or {})}
    settings |= {"stopping": asdict(stopping), "slo_ms": slo_ms} | ({"link": link} if link else {})

    def measure_now() -> dict[str, Any]:
        if before:
            before()
        url, metrics_url = run.endpoints.backends.get(backend), metrics_of(run, backend)
        reference = reference_embeddings(run) if check else None
        asked = (backend, url, metrics_url, load, stopping, reference, adapter_options)
        return _with_goodput(_through(link, *asked) if link else _measure(*asked, way), slo_ms)

    way = "loopback" if backend.startswith("local-") else run.path
    columns = {"backend": backend, **load.columns(), **adapter_options, "link": link or way}
    listed = backend in run.endpoints.backends or backend.startswith("local-")
    # A record answers whatever the endpoints of the reading machine list.
    if not listed and run.store.record(key, config=settings) is None:
        why = f"{run.endpoints.name} has no {backend}: not measured"
        return {**columns, "status": "missing", "valid": False, "invalid_because": why}
    point = run.measure_or_load(key, measure_now, config=settings, may_fail=True)
    return {**columns, **point}  # a failed point still says which one it is


@contextlib.contextmanager
def when_measuring(context: contextlib.AbstractContextManager) -> Iterator[Callable[[], None]]:
    """Enter `context` at the first point that is really measured, and leave it after the last.

    A server is reconfigured once for a group of points, and not at all when all of them have records:

        with when_measuring(temporary_config(...)) as reconfigured:
            points = [measure_point(run, ..., before=reconfigured) for ...]
    """
    with contextlib.ExitStack() as stack:
        entered = False

        def enter() -> None:
            nonlocal entered
            if not entered:
                stack.enter_context(context)
                entered = True

        yield enter


def _measure(
    backend: str,
    url: str | None,
    metrics_url: str | None,
    load: Load,
    stopping: Stopping,
    reference: np.ndarray | None,
    options: dict[str, Any],
    link: str = "loopback",
) -> dict[str, Any]:
    from photodup.bench.backends.adapters import adapter
    from photodup.bench.load import counters
    from photodup.bench.load.load import measure
    from photodup.study.notebook.weights import payload_photos

    wire = "" if backend.startswith("local-") else parse_backend(backend).wire
    return measure(
        adapter(backend, url, **options),
        payload_photos(N_PHOTOS),
        load,
        stopping,
        reference=reference,
        min_cosine=MIN_COSINE.get(wire, 0.999),
        probe=counters.probe(metrics_url, counters.account_of(backend)) if metrics_url else None,
        link=link,
    )


def _through(name: str, backend: str, url: str, metrics_url: str | None, *rest: Any) -> dict[str, Any]:
    """Measure from the far end of an emulated link; a link that was late takes the point's validity."""
    from photodup.bench.link.link import Link

    with Link(name) as link:
        far = (backend, link.url(url), link.url(metrics_url) if metrics_url else None, *rest, name)
        link.report(reset=True)
        if parse_backend(backend).protocol == "grpc":  # its threads remember where the process began
            point = link.run_client_process(_measure, *far)
        else:
            with link.client_namespace():
                point = _measure(*far)
        if late := link.invalid_because():
            why = "; ".join(filter(None, [point.get("invalid_because"), late]))
            point |= {"valid": False, "invalid_because": why}
    return point


def _with_goodput(point: dict[str, Any], slo_ms: float | None) -> dict[str, Any]:
    latency_ms = point.get("raw", {}).get("latency_ms")
    if slo_ms is None or latency_ms is None:
        return point
    share = float(np.mean(np.asarray(latency_ms) <= slo_ms))
    return {**point, "slo_ms": slo_ms, "goodput_images_per_s": share * point["throughput_images_per_s"]}


def reference_embeddings(run: Run) -> np.ndarray:
    """Return what the payload photographs embed to in this process, float32 [32, 512]; computed once a run."""

    def compute() -> dict[str, Any]:
        from photodup.bench.backends import wires
        from photodup.embedding import imaging
        from photodup.embedding.engines.encoder import load_model
        from photodup.study.notebook.weights import payload_photos

        model = load_model()
        vectors = model.embed(imaging.normalize(wires.pixels(payload_photos(N_PHOTOS))))
        return {"digest": model.digest, "pretrained": model.pretrained, "raw": {"vectors": vectors.ravel()}}

    run.measure_or_load("reference-embeddings", compute)
    return run.store.raw("reference-embeddings", config={})["vectors"].reshape(N_PHOTOS, -1)


def metrics_of(run: Run, backend: str) -> str | None:
    """Return where a backend's server counts; None where there is no server, or it is not known."""
    return None if backend.startswith("local-") else run.endpoints.metrics.get(parse_backend(backend).server)


def measure_all(
    run: Run, specs: Sequence[dict[str, Any]], stopping: Stopping, *, seed: int = 0
) -> pd.DataFrame:
    """Measure the points of a comparison in one seeded random order and return them as a table.

    Neighbouring points of a sweep never follow each other, so warming up, throttling or a neighbour's load
    hits all backends alike. Each backend's embeddings are compared with the reference once, before its first
    timed request. A repeat that a run has not measured is left out: it widens an interval, and is no gap.

    Args:
        specs: arguments of `measure_point`: `backend` and `load`, and whatever else a point needs. A spec may
            bring its own `stopping`, and `repeats`: how often it is measured, labelled "", "again", "again 2"
            and so on, spread over the whole pass (see `in_blocks`).
    """
    import pandas as pd
    from tqdm import tqdm

    asked = [(spec, n) for spec in specs for n in range(spec.get("repeats", 1))]
    order = in_blocks([n if spec.get("repeats", 1) > 1 else None for spec, n in asked], seed)
    rows: dict[int, dict[str, Any]] = {}
    checked: set[str] = set()
    for index in tqdm(order, desc="points", unit="point", leave=False):
        spec, n = {"stopping": stopping, **asked[index][0]}, asked[index][1]
        spec.pop("repeats", None)
        repeat = "" if n == 0 else "again" if n == 1 else f"again {n}"
        label = " ".join(filter(None, [spec.pop("label", ""), repeat]))
        check = spec.pop("check", True) and spec["backend"] not in checked
        row = measure_point(run, check=check, label=label, **spec) | {"label": label}
        checked.add(spec["backend"])
        if not (n and row.get("status") == "missing"):
            rows[index] = row
    frame = pd.DataFrame([rows[i] for i in sorted(rows)])
    return frame.drop(columns=[c for c in ("windows", "raw") if c in frame])


def gaps(points: pd.DataFrame) -> list[str]:
    """Return one sentence for every point that is not valid, so that a notebook never hides one."""
    bad = points[~points.valid.fillna(False).astype(bool)]
    return [
        f"{p.backend} {p.scenario} b{p.batch} c{p.concurrency} {p.label}: {p.invalid_because}".replace(
            "  ", " "
        )
        for p in bad.itertuples()
    ]
