"""The highest rate that a server sustains under a latency bound, within a time limit.

A short closed loop finds about what the server can answer; around it `bench.stats.slo` searches with open loops.
Requests that fail miss the bound.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from photodup.bench.anyurl.measure import Asked, Measured, columns_error, measure_load
from photodup.bench.anyurl.payloads import Payloads
from photodup.bench.anyurl.watch import Watcher
from photodup.bench.stats.point import MAX_ERROR_SHARE, Sample
from photodup.bench.stats.slo import LatencyBound, SloRate, slo_rate
from photodup.bench.stats.steady import MIN_BLOCKS
from photodup.errors import PhotodupError

MOST_S = 300.0
MEASUREMENTS = 10
PROBE_S, PROBE_IN_FLIGHT = 4.0, 32
LOWEST, HIGHEST = 0.3, 1.3  # of what the closed loop answered: where to search
# A measurement takes longer than its window: connecting, warming up, and what an overloaded server still owes.
OVERHEAD = 1.3


@dataclass(frozen=True)
class Found:
    """The answer, every measurement behind it, and what is wrong with it."""

    bound: LatencyBound
    rate: SloRate | None
    measured: list[Measured]
    sentence: str
    notes: list[str]


def highest_rate(
    make: Callable[[], Any],
    payloads: Payloads,
    bound: LatencyBound,
    asked: Asked,
    watcher: Watcher,
    *,
    budget_s: float = MOST_S,
) -> Found:
    """Search the highest rate that meets a bound.

    Args:
        asked: the open loop's other settings; its concurrency is the most requests in flight.
        budget_s: all of it takes about so long at most.
    """
    began, measured = time.monotonic(), []
    notes: list[str] = []
    probe = replace(asked, rate_per_s=None, concurrency=PROBE_IN_FLIGHT, seconds=PROBE_S, shortest_s=PROBE_S)
    measured.append(
        measure_load(
            make, payloads, probe, watcher, label=f"{PROBE_IN_FLIGHT} in flight, to find about where"
        )
    )
    answered = len(measured[0].sample.latency_ms)
    if not answered or watcher.stop_asked:
        why = measured[0].point.because or "it was stopped"
        return Found(bound, None, measured, f"No rate was found: {why}.", notes)
    capacity = answered / float(np.max(measured[0].sample.finished_s))
    left_s = budget_s - (time.monotonic() - began)
    seconds = min(20.0, left_s / (MEASUREMENTS * OVERHEAD))

    def sample(rate: float) -> Sample:
        if watcher.stop_asked:
            raise PhotodupError("It was stopped by you")
        length = max(
            seconds, min(2.5 * MIN_BLOCKS / rate, 2 * seconds)
        )  # a slow server needs longer for its blocks
        one = replace(asked, rate_per_s=rate, seconds=length)
        label = f"{len(measured)} of {MEASUREMENTS}: {rate:.4g} requests/s"
        measured.append(measure_load(make, payloads, one, watcher, label=label))
        return _as_misses(measured[-1], bound)

    low, high = LOWEST * capacity, HIGHEST * capacity
    rate: SloRate | None = None
    sentence = ""
    for _ in range(3):  # where the first guess was off, search beside it in what time is left
        left = MEASUREMENTS + 1 - len(measured)
        if left < 6 or budget_s - (time.monotonic() - began) < 6 * seconds:
            break
        try:
            rate = slo_rate(
                sample,
                bound_ms=bound.bound_ms,
                percentile=bound.percentile,
                low_per_s=low,
                high_per_s=high,
                n_measurements=left,
                seed=asked.seed,
            )
        except PhotodupError as error:
            sentence = f"No rate was found: {str(error).rstrip('.')}; what was measured is kept."
            break
        if not math.isnan(rate.rate_per_s) or len(measured) > MEASUREMENTS:
            break
        low, high = (high, 4 * high) if "still meet" in rate.because else (low / 8, low)
    if len(worst := [m for m in measured[1:] if m.errors]):
        notes.append(
            f"Requests failed at {len(worst)} of {len(measured) - 1} rates, which counts as missing the bound: "
            f"{columns_error(worst[-1].errors)}."
        )
    late = [m for m in measured[1:] if m.columns.get("n_late_generator", 0) > 0.01 * max(1, len(m.rows))]
    if late:
        notes.append("The generator itself was late at some rates: it may be the limit, and not the server.")
    share = max((m.columns.get("client_cpu_share", 0.0) for m in measured), default=0.0)
    if share > 0.25 and make().target.is_local:
        notes.append(f"The generator took up to {share:.0%} of the cores that it shares with the server.")
    return Found(bound, rate, measured, sentence or _sentence(bound, rate, measured), notes)


def _as_misses(one: Measured, bound: LatencyBound) -> Sample:
    """Return the sample, or one that misses the bound by far where requests failed: they never were answered."""
    failed, answered = len(one.errors), len(one.sample.latency_ms)
    if failed <= MAX_ERROR_SHARE * (failed + answered) and answered:
        return one.sample
    count = 10 * MIN_BLOCKS
    return Sample(np.full(count, 10 * bound.bound_ms), np.arange(1.0, count + 1))


def _sentence(bound: LatencyBound, rate: SloRate | None, measured: list[Measured]) -> str:
    if rate is None:
        return "No rate was found: the time did not suffice for a search."
    if math.isnan(rate.rate_per_s):
        return f"No rate was found: {rate.because}"
    return (
        f"Highest rate with {bound}: {rate.rate_per_s:.4g} requests/s [{rate.low:.4g}, {rate.high:.4g}] "
        f"({rate.confidence:.0%} interval, {len(rate.seen)} measurements)."
    )
