"""The highest rate that a server sustains under a latency bound, within a time limit.

A short closed loop finds the server's rough capacity; from there `bench.stats.rate_search` searches with open loops, one
window a rate.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from photodup.bench.anyurl.measure import (
    LoadSpec,
    Measured,
    Request,
    counters_of,
    measure_window,
    shared_cores,
)
from photodup.bench.anyurl.watch import Watcher
from photodup.bench.load.plan import WindowPlan
from photodup.bench.load.workers import common_error
from photodup.bench.stats.rate_search import WINDOWS, HighestRate, LatencyBound, rate_window, search_rate
from photodup.core.errors import PhotodupError

LEAST_ANSWERS = 50  # expected of a window
PROBE_S, PROBE_IN_FLIGHT = 4.0, 32
# A measurement takes longer than its window: connecting, warming up, and waiting for an overloaded server.
OVERHEAD = 1.3


def search_highest_rate(
    request: Request,
    bound: LatencyBound,
    spec: LoadSpec,
    watcher: Watcher,
    *,
    least_per_s: float | None = None,
    most_per_s: float | None = None,
) -> tuple[HighestRate, list[Measured], list[str]]:
    """Search for the highest rate that meets a bound; return it with every measurement and notes on their faults.

    Args:
        spec: the open loop's other settings; `concurrency` is the most requests in flight, `seconds` about the longest time
            of the search.
        least_per_s, most_per_s: lowest and highest rate to offer.
    """
    until = time.monotonic() + spec.seconds
    probe_s = min(PROBE_S, spec.seconds / 10)
    measured: list[Measured] = []
    counters = counters_of(request.target)

    def window(load: LoadSpec, plan: WindowPlan, label: str) -> Measured:
        opened = measure_window(request, load, plan, watcher, counters, label=label)
        measured.append(Measured(load, [opened]))
        return measured[-1]

    probe = replace(spec, rate_per_s=None, concurrency=PROBE_IN_FLIGHT)
    plan = WindowPlan(0.8 * probe_s, 1, ramp_s=0.2 * probe_s, longest_s=probe_s, seed=spec.seed)
    probed = window(probe, plan, f"{PROBE_IN_FLIGHT} in flight, to find about where").columns
    is_answering = "error" not in probed
    rough_per_s = probed["throughput_images_per_s"] / spec.batch if is_answering else most_per_s or 1.0
    seconds = min(20.0, max(1.0, (until - time.monotonic()) / ((WINDOWS + 2) * OVERHEAD)))
    # A growing queue misses the bound only after several times the bound.
    seconds = max(seconds, min(5 * bound.bound_ms / 1000, spec.seconds / 8))
    least_per_s = least_per_s or min(rough_per_s / 4, max(rough_per_s / 50, 10 / seconds))

    def offer(rate: float) -> Mapping[str, Any]:
        if not is_answering:
            raise PhotodupError(f"{PROBE_IN_FLIGHT} requests in flight: {probed['error']}")
        if watcher.stop_asked or until - time.monotonic() < OVERHEAD * seconds:
            raise PhotodupError("it was stopped by you" if watcher.stop_asked else "the time was over")
        length_s = max(seconds, min(LEAST_ANSWERS / rate, 2 * seconds, (until - time.monotonic()) / OVERHEAD))
        plan = WindowPlan(length_s, 1, seed=spec.seed + len(measured), longest_s=length_s)
        label = f"search, {len(measured)}: {rate:.4g} requests/s"
        loaded = window(replace(spec, rate_per_s=rate), plan, label)
        columns = loaded.windows[0].columns
        is_late = columns.get("n_late_generator", 0) > 0.01 * max(1, columns.get("n_requests", 0))
        if is_late and not rate_window(rate, columns, bound).latency_ms <= bound.bound_ms:
            raise PhotodupError(f"the generator itself was late at {rate:.4g} requests/s, so it is the limit")
        return columns

    limits = {"least_per_s": least_per_s, "most_per_s": most_per_s}
    highest = search_rate(offer, bound, rough_per_s, **limits, seed=spec.seed)
    notes = []
    if worst := [m for m in measured[1:] if m.errors]:
        notes.append(
            f"Requests failed at {len(worst)} of {len(measured) - 1} rates, which counts as missing the bound: "
            f"{common_error(worst[-1].errors).rstrip('.')}."
        )
    if is_answering and not highest.is_found:
        quickest = min(float(ms.min()) for m in measured for ms in m.latencies_ms)
        notes.append(f"The quickest of all answers took {quickest:.3g} ms.")
    share = max((m.columns.get("client_cpu_share", 0.0) for m in measured), default=0.0)
    return highest, measured, notes + shared_cores(share, request.target)


def rate_sentence(highest: HighestRate) -> str:
    """Return what a search found in one sentence."""
    if not highest.is_found:
        return f"No rate was found that keeps {highest.bound}: {highest.reason}"
    rate = f"{highest.rate_per_s:.4g} requests/s"
    if math.isinf(highest.high):
        return f"Highest rate with {highest.bound}: at least {rate} ({highest.reason.rstrip('.')})."
    interval = f"[{highest.low:.4g}, {highest.high:.4g}] (95% interval, {len(highest.windows)} windows)"
    return f"Highest rate with {highest.bound}: {rate} {interval}."
