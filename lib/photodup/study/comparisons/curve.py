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

from photodup.bench.backends.adapters import adapter
from photodup.bench.load.load import measure
from photodup.bench.load.plan import Stopping
from photodup.bench.load.summary import percentiles
from photodup.bench.load.workers import ROW, PatientObserver
from photodup.bench.pairs.declared import Side
from photodup.bench.stats.facts import Load, metric_named
from photodup.bench.stats.slo import MISSED, LatencyBound, RateSeen, crossing
from photodup.study.notebook.points import N_PHOTOS
from photodup.study.notebook.weights import payload_photos

if TYPE_CHECKING:
    import pandas as pd

    from photodup.study.notebook.run import Run

SHARES = (0.25, 0.5, 0.75, 1.0, 1.2)
KIND = "curve"
REFUSED = 0.01  # of the requests: more refusals than this miss a bound, however fast the other answers are


def measure_curve(
    run: Run,
    sides: Sequence[Side],
    capacity_per_s: Mapping[str, float],
    *,
    shares: Sequence[float] = SHARES,
    seconds: float = 12.0,
    visits: int = 2,
    say: Callable[[str], None] = lambda text: None,
) -> pd.DataFrame:
    """Return one row for each side, share of capacity and visit; measured now unless the run has it.

    Args:
        capacity_per_s: by the side's name: images/s that it answers with several in flight.
        shares: of the capacity, offered as random (Poisson) arrivals of single images.
        seconds: of arrivals in each measurement; what is late is waited for a quarter of that.

    Returns:
        Columns `side`, `label`, `server`, `engine`, `precision`, `share`, `visit`, `offered_per_s`, `answered_per_s`,
        `n_requests`, `n_refused`, `refused` (share of all), `latency_ms_p50`, `_p95`, `_p99` (None below the number of
        answers that carries it). A side that the servers lack gives no row.
    """
    import pandas as pd

    rows = []
    todo = [(visit, share) for visit in range(1, visits + 1) for share in shares]
    for visit, share in random.Random(1).sample(todo, len(todo)):
        say(f"arrivals at {share:.0%} of capacity, visit {visit}")
        for side in random.Random(f"{visit} {share}").sample(list(sides), len(sides)):
            if side.name not in capacity_per_s:
                continue
            point = run.measure_or_load(
                f"curve-{side.name}",
                partial(_point, run, side, share * capacity_per_s[side.name], seconds, visit),
                config={"side": side.name, "share": share, "seconds": seconds, "visit": visit},
                kind=KIND,
                may_fail=True,
            )
            about = {"side": side.name, "label": side.label, **side.backend.columns()}
            if point.get("n_requests"):
                rows.append({**about, "share": share, "visit": visit, **point})
    return pd.DataFrame(rows)


def _point(run: Run, side: Side, rate_per_s: float, seconds: float, draw: int) -> dict[str, Any]:
    watcher = PatientObserver()
    url = run.endpoints.backends.get(side.backend.name)
    load = Load("server", offered_per_s=rate_per_s, concurrency=128)
    stopping = Stopping(min_duration_s=seconds, max_duration_s=seconds, seed=draw)
    options = dict(side.options)
    point = measure(
        adapter(side.backend, url, **options), payload_photos(N_PHOTOS), load, stopping, observer=watcher
    )
    done = watcher.rows[:, ROW.index("done")]
    n, refused = len(done), len(watcher.errors)
    if not n:
        return {"status": "failed", "error": point.get("error", "nothing was answered")}
    return {
        "offered_per_s": rate_per_s,
        "answered_per_s": n / max(seconds, float(done.max())),
        "n_requests": n,
        "n_refused": refused,
        "refused": refused / (n + refused),
        **{
            name: value for name, value in percentiles(watcher.latency_ms).items() if name != "latency_ms_p90"
        },
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


def rate_under(
    curve: pd.DataFrame, side: str, *, bound_ms: float, metric: str = "latency_ms_p95"
) -> RateUnderBound:
    """Return the highest rate at which `metric` of a side lies within `bound_ms` and hardly a request is refused."""
    bound = LatencyBound(metric_named(metric).percentile or math.nan, bound_ms)
    seen: list[RateSeen] = []
    kept: list[float] = []
    missed: list[float] = []
    for _, visits in curve[curve.side == side].groupby("share"):
        offered, values = float(visits.offered_per_s.mean()), visits[metric].astype(float)
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
