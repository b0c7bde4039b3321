"""Latency against arrival rate: random arrivals from a quarter of a server's capacity to beyond it, servers taking turns.

One measurement gives the curve and the highest rate under a bound, so one load has one figure.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from photodup.bench.backends.adapter import Adapter
from photodup.bench.backends.adapters import adapter
from photodup.bench.load.load import measure
from photodup.bench.load.plan import Stopping
from photodup.bench.load.summary import percentiles
from photodup.bench.load.workers import ROW, PatientObserver
from photodup.bench.pairs.declared import Side
from photodup.bench.stats.facts import Load
from photodup.bench.stats.slo import MISSED, LatencyBound, RateSeen, crossing
from photodup.study.notebook.points import N_PHOTOS
from photodup.study.notebook.weights import payload_photos

if TYPE_CHECKING:
    import pandas as pd

    from photodup.study.notebook.run import Run

SHARES = (0.25, 0.5, 0.75, 1.0, 1.2)
# both servers in FP32 and in INT8
SIDES = "fastapi-openvino", "triton-openvino", "fastapi-int8", "triton-int8"
KIND = "curve"
REFUSED = 0.01  # of the requests: more refusals than this miss a bound, however fast the other answers are
SHORTEST_S, LONGEST_S = 5.0, 25.0  # of arrivals in a measurement
PROBED, PROBE = Load("closed_loop", concurrency=8, span="prepared"), Stopping(3.0, 1, 3.0, warmup_requests=2)


def measure_curve(
    run: Run,
    sides: Sequence[Side],
    *,
    shares: Sequence[float] = SHARES,
    answers: int = 110,
    visits: int = 2,
    say: Callable[[str], None] = lambda text: None,
) -> pd.DataFrame:
    """Return one row for each side and share of its capacity; measured now unless the run has it.

    Args:
        shares: of the images/s that a side answers with eight in flight, offered as random (Poisson) arrivals of single
            JPEGs that are prepared before the clock starts.
        answers: expected of each measurement; it lasts 5 to 25 s, and what is late is waited for a quarter of that.
        visits: measurements of each side at each share, whose answers are pooled.

    Returns:
        Columns `side`, `label`, `server`, `engine`, `precision`, `share`, `offered_per_s`, `answered_per_s`, `n_requests`,
        `n_refused`, `refused` (share of all), `latency_ms_p50`, `_p95`, `_p99` (None below the number of answers that
        carries it). A side that the servers lack gives no row.
    """
    import pandas as pd

    rates = {side: _capacity(run, side) for side in sides} if shares else {}
    todo = [(visit, share) for visit in range(1, visits + 1) for share in shares]
    seen: dict[tuple[Side, float], list[dict[str, Any]]] = {}
    for visit, share in random.Random(1).sample(todo, len(todo)):
        say(f"arrivals at {share:.0%} of capacity, visit {visit}")
        for side in random.Random(f"{visit} {share}").sample(list(sides), len(sides)):
            if (capacity := rates[side]) is None:
                continue
            key = f"curve-{side.name}"
            config = {"side": side.name, "share": share, "visit": visit, "answers": answers}
            measure_now = partial(_point, run, side, share * capacity, answers, visit)
            run.measure_or_load(key, measure_now, config=config, kind=KIND, may_fail=True)
            if (point := run.store.read(key, config=config)) is not None:
                seen.setdefault((side, share), []).append(point)
    order = sorted(seen, key=lambda of: (list(sides).index(of[0]), of[1]))
    rows = [
        {"side": s.name, "label": s.label, **s.backend.columns(), "share": share, **_pooled(seen[s, share])}
        for s, share in order
    ]
    return pd.DataFrame(rows, columns=None if rows else ["side"])


def _capacity(run: Run, side: Side) -> float | None:
    """Return the images/s that a side answers with eight in flight, from a short measurement; None where it has none."""

    def measure_now() -> dict[str, Any]:
        return measure(_adapter(run, side), payload_photos(N_PHOTOS), PROBED, PROBE)

    config = {"side": side.name, "capacity": True}
    found = run.measure_or_load(f"curve-{side.name}", measure_now, config=config, kind=KIND, may_fail=True)
    return found.get("throughput_images_per_s")


def _adapter(run: Run, side: Side) -> Adapter:
    return adapter(side.backend, run.address_of(side.backend), **dict(side.options))


def _point(run: Run, side: Side, rate_per_s: float, answers: int, draw: int) -> dict[str, Any]:
    watcher, seconds = PatientObserver(), min(max(answers / rate_per_s, SHORTEST_S), LONGEST_S)
    load = Load("server", offered_per_s=rate_per_s, concurrency=128, span="prepared")
    # Nothing to warm up: a first request on each of 128 connections at once would take longer than the measurement.
    stopping = Stopping(min_duration_s=seconds, max_duration_s=seconds, warmup_requests=0, seed=draw)
    point = measure(_adapter(run, side), payload_photos(N_PHOTOS), load, stopping, observer=watcher)
    done = watcher.rows[:, ROW.index("done")]
    if not len(done):
        return {"status": "failed", "error": point.get("error", "nothing was answered")}
    return {
        "offered_per_s": rate_per_s,
        "n_refused": len(watcher.errors),
        "seconds": max(seconds, float(done.max())),
        "raw": {"latency_ms": watcher.latency_ms},
    }


def _pooled(points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    latency_ms = np.concatenate([point["raw"]["latency_ms"] for point in points])
    n, refused = len(latency_ms), sum(point["n_refused"] for point in points)
    return {
        "offered_per_s": points[0]["offered_per_s"],
        "answered_per_s": n / sum(point["seconds"] for point in points),
        "n_requests": n,
        "n_refused": refused,
        "refused": refused / (n + refused),
        **{name: value for name, value in percentiles(latency_ms).items() if name != "latency_ms_p90"},
    }


@dataclass(frozen=True)
class RateUnderBound:
    """The highest arrival rate at which a side keeps a bound, read from a curve.

    Attributes:
        per_s: interpolated between the two steps around it, the lower one where requests were refused at the upper; None
            where no step kept the bound, or none missed it.
        low, high: the highest step that kept the bound in every visit, and the lowest that missed it in one; NaN where
            there is none.
    """

    per_s: float | None
    low: float
    high: float


def rate_under(curve: pd.DataFrame, side: str, *, bound_ms: float) -> RateUnderBound:
    """Return the highest rate at which the p95 of a side lies within `bound_ms` and hardly a request is refused."""
    bound = LatencyBound(95, bound_ms)
    seen: list[RateSeen] = []
    kept: list[float] = []
    missed: list[float] = []
    for _, visits in curve[curve.side == side].groupby("share"):
        offered, values = float(visits.offered_per_s.mean()), visits.latency_ms_p95.astype(float)
        is_refused = not (visits.refused <= REFUSED).all() or values.isna().any()
        worst = MISSED * bound_ms if is_refused else float(values.max())
        seen.append(RateSeen(offered, worst, worst, worst))
        (kept if worst <= bound_ms else missed).append(offered)
    low = max((rate for rate in kept if rate < min(missed, default=math.inf)), default=math.nan)
    high = min(missed, default=math.nan)
    if math.isnan(low) or math.isnan(high):
        return RateUnderBound(None, low, high)
    if max(one.latency_ms for one in seen if one.rate_per_s == high) == MISSED * bound_ms:
        return RateUnderBound(low, low, high)
    found = crossing(seen, np.log([[one.latency_ms for one in seen]]), bound)
    return RateUnderBound(float(np.clip(found[0], low, high)), low, high)
