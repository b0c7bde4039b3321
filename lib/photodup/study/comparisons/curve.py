"""Latency against arrival rate: random arrivals from half of a server's capacity to beyond it, servers in turns.

One measurement gives the curve and the highest rate under a bound, so one load has one figure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from photodup.bench.load.plan import WindowPlan
from photodup.bench.pairs.declared import Side
from photodup.bench.stats.metrics import Load
from photodup.study.notebook.points import CAPACITY, CAPACITY_PLAN, FigureSpec, measure_figures

if TYPE_CHECKING:
    import pandas as pd

    from photodup.study.notebook.run import Run

# both servers in FP32 and in INT8
SIDES = "fastapi-openvino", "triton-openvino", "fastapi-int8", "triton-int8"
MAX_REFUSED = 0.01  # of requests: more refusals than this miss a bound, however fast the other answers are
SHORTEST_S, LONGEST_S = 5.0, 25.0  # of arrivals in a window


def measure_curve(
    run: Run, sides: Sequence[Side], *, shares: Sequence[float], answers: int = 110, visits: int = 3
) -> pd.DataFrame:
    """Return one row for each side and share of its capacity; measured now unless the run has it.

    Args:
        shares: of the images/s that a side answers with eight in flight, offered as random (Poisson) arrivals of single
            JPEGs that are prepared before the clock starts.
        answers: expected of each window, which lasts 5 to 25 s.
        visits: windows of each side at each share.

    Returns:
        The columns of `measure_figures` with `side`, `name`, `share` and `refused` (a share of all requests). A side
        whose capacity is not known gives one row, which says why.
    """
    import pandas as pd

    columns = {side: {"side": side.name, "name": side.label} for side in sides}
    specs = [
        FigureSpec(s.backend.name, CAPACITY, options=dict(s.options), columns=columns[s], is_checked=False)
        for s in sides
    ]
    capacities = measure_figures(run, specs, CAPACITY_PLAN, visits=1)
    steps = []
    for side, spec, capacity in zip(sides, specs, capacities.throughput_images_per_s, strict=True):
        for share in shares if capacity > 0 else ():
            rate = share * capacity
            load = Load("server", offered_per_s=rate, concurrency=128, span="prepared")
            # Nothing to warm up: a first request on each of 128 connections at once would take longer than the window.
            plan = WindowPlan(min(max(answers / rate, SHORTEST_S), LONGEST_S), 1, warmup_requests=0)
            step = replace(spec, load=load, plan=plan, columns=columns[side] | {"share": share})
            steps.append(replace(step, tolerates_errors=True))
    unknown = capacities[~(capacities.throughput_images_per_s > 0)]
    curve = pd.concat([measure_figures(run, steps, visits=visits), unknown])
    return curve.assign(refused=curve.n_errors / (curve.n_requests + curve.n_errors)).reset_index(drop=True)


class RateUnderBound(NamedTuple):
    """The highest arrival rate at which a side keeps a bound, read from a curve.

    Attributes:
        offered_per_s: interpolated between the two steps around it, the lower one where requests were refused at the upper;
            None where no step kept the bound, or none missed it.
        low, high: the highest step below which all kept the bound, and the lowest that missed it; NaN where there is none.
    """

    offered_per_s: float | None
    low: float
    high: float


def rate_under(curve: pd.DataFrame, side: str, *, bound_ms: float) -> RateUnderBound:
    """Return the highest rate at which the p95 of a side lies within `bound_ms` and hardly a request is refused."""
    import numpy as np

    steps = curve[curve.side == side].sort_values("offered_per_s")
    p95 = steps.latency_ms_p95.astype(float).where(steps.refused <= MAX_REFUSED).fillna(math.inf)
    is_within = (p95 <= bound_ms).cummin()
    low, high = steps.offered_per_s[is_within].max(), steps.offered_per_s[~is_within].min()
    if math.isnan(low) or math.isnan(high):
        return RateUnderBound(None, low, high)
    below, above = p95[is_within].iloc[-1], p95[~is_within].iloc[0]
    if math.isinf(above):
        return RateUnderBound(low, low, high)
    # The latency of a queue grows like a power of the rate near its capacity: a line in the logarithms.
    offered_per_s = math.exp(np.interp(math.log(bound_ms), np.log([below, above]), np.log([low, high])))
    return RateUnderBound(offered_per_s, low, high)
