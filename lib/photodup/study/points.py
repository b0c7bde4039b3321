"""Measure one point of a backend against a run's servers: address, counters, reference and key in one place."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from photodup.bench.plan import Load, Stopping
from photodup.embedding.backends import parse_backend

if TYPE_CHECKING:
    import pandas as pd

    from photodup.study.run import Run

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
        adapter_options: passed to the adapter, such as `channel="shared"`.
    """
    stopping = stopping or Stopping()
    if backend not in run.endpoints.backends and not backend.startswith("local-"):
        why = f"{run.endpoints.name} has no {backend}: not measured"
        return {
            "backend": backend,
            **load.columns(),
            "status": "missing",
            "valid": False,
            "invalid_because": why,
        }
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
            label,
        )
        if part
    )
    settings = {**asdict(load), "backend": backend, "label": label, **adapter_options, **(config or {})}
    settings |= {"stopping": asdict(stopping), "slo_ms": slo_ms}

    def measure_now() -> dict[str, Any]:
        if before:
            before()
        return _with_goodput(_measure(run, backend, load, stopping, check, adapter_options), slo_ms)

    point = run.measure_or_load(key, measure_now, config=settings, may_fail=True)
    return {"backend": backend, **load.columns(), **point}  # a failed point still says which one it is


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
    run: Run, backend: str, load: Load, stopping: Stopping, check: bool, options: dict[str, Any]
) -> dict[str, Any]:
    from photodup.bench.adapters import adapter
    from photodup.bench.load import measure
    from photodup.study.weights import payload_photos

    photos = payload_photos(N_PHOTOS)
    wire = parse_backend(backend).wire
    return measure(
        adapter(backend, run.endpoints.backends.get(backend), **options),
        photos,
        load,
        stopping,
        reference=reference_embeddings(run) if check else None,
        min_cosine=MIN_COSINE.get(wire, 0.999),
        probe=counters_of(run, backend),
    )


def _with_goodput(point: dict[str, Any], slo_ms: float | None) -> dict[str, Any]:
    latency_ms = point.get("raw", {}).get("latency_ms")
    if slo_ms is None or latency_ms is None:
        return point
    share = float(np.mean(np.asarray(latency_ms) <= slo_ms))
    return {**point, "slo_ms": slo_ms, "goodput_images_per_s": share * point["throughput_images_per_s"]}


def reference_embeddings(run: Run) -> np.ndarray:
    """Return what the payload photographs embed to in this process, float32 [32, 512]; computed once a run."""

    def compute() -> dict[str, Any]:
        from photodup.bench import wires
        from photodup.embedding import imaging
        from photodup.embedding.model import load_model
        from photodup.study.weights import payload_photos

        model = load_model()
        vectors = model.embed(imaging.normalize(wires.pixels(payload_photos(N_PHOTOS))))
        return {"digest": model.digest, "pretrained": model.pretrained, "raw": {"vectors": vectors.ravel()}}

    run.measure_or_load("reference-embeddings", compute)
    return run.store.raw("reference-embeddings", config={})["vectors"].reshape(N_PHOTOS, -1)


def counters_of(run: Run, backend: str) -> Any:
    """Return the probe that reads the server's counters around a window; None where there is no server."""
    from photodup.bench import counters

    if backend.startswith("local-"):
        return None
    url = run.endpoints.metrics.get(parse_backend(backend).server)
    if url is None:
        return None
    return counters.probe(url, counters.account_of(backend))


def measure_all(
    run: Run, specs: Sequence[dict[str, Any]], stopping: Stopping, *, seed: int = 0
) -> pd.DataFrame:
    """Measure the points of a comparison in one seeded random order and return them as a table.

    Neighbouring points of a sweep never follow each other, so warming up, throttling or a neighbour's load
    hits all backends alike. Each backend's embeddings are compared with the reference once, before its first
    timed request.

    Args:
        specs: arguments of `measure_point`: `backend` and `load`, and whatever else a point needs. A spec may
            bring its own `stopping`.
    """
    import random

    import pandas as pd
    from tqdm import tqdm

    order = random.Random(seed).sample(range(len(specs)), len(specs))
    rows: dict[int, dict[str, Any]] = {}
    checked: set[str] = set()
    for index in tqdm(order, desc="points", unit="point", leave=False):
        spec = {"stopping": stopping, **specs[index]}
        check = spec.pop("check", True) and spec["backend"] not in checked
        rows[index] = measure_point(run, check=check, **spec) | {"label": spec.get("label", "")}
        checked.add(spec["backend"])
    frame = pd.DataFrame([rows[i] for i in range(len(specs))])
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
