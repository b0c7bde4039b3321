"""The highest rate that a server sustains under a latency bound, within a time limit.

A short closed loop finds about what the server can answer; from there `bench.stats.slo` searches with open loops.
"""

import time
from dataclasses import replace

import numpy as np

from photodup.bench.anyurl.measure import Asked, Measured, Request, measure_load, shared_cores
from photodup.bench.anyurl.watch import Watcher
from photodup.bench.load.workers import common_error
from photodup.bench.stats.point import Sample
from photodup.bench.stats.slo import LatencyBound, RateSearch, SloRate, rate_seen, rate_words, search_rates
from photodup.bench.stats.steady import MIN_BLOCKS
from photodup.core.errors import PhotodupError

MEASUREMENTS = 10
PROBE_S, PROBE_IN_FLIGHT = 4.0, 32
# A measurement takes longer than its window: connecting, warming up, and what an overloaded server still owes.
OVERHEAD = 1.3


def highest_rate(
    request: Request,
    bound: LatencyBound,
    asked: Asked,
    watcher: Watcher,
    *,
    least_per_s: float | None = None,
    most_per_s: float | None = None,
) -> tuple[SloRate, list[Measured], list[str]]:
    """Search the highest rate that meets a bound; return it with every measurement and what is wrong with them.

    Args:
        asked: the open loop's other settings; its concurrency is the most requests in flight, and all of it takes about
            its `seconds` at most.
        least_per_s, most_per_s: no lower and no higher rate is offered.
    """
    until = time.monotonic() + asked.seconds
    probe_s = min(PROBE_S, asked.seconds / 10)
    probe = replace(asked, rate_per_s=None, concurrency=PROBE_IN_FLIGHT, seconds=probe_s, shortest_s=probe_s)
    label = f"{PROBE_IN_FLIGHT} in flight, to find about where"
    measured = [measure_load(request, probe, watcher, label=label)]
    answered = len(measured[0].sample.latency_ms)
    about = answered / float(np.max(measured[0].sample.finished_s)) if answered else most_per_s or 1.0
    seconds = min(20.0, max(1.0, (until - time.monotonic()) / ((MEASUREMENTS + 2) * OVERHEAD)))
    # A queue that grows needs some bounds' time to miss a bound, and a few requests have to come.
    seconds = max(seconds, min(5 * bound.bound_ms / 1000, asked.seconds / 8))
    least_per_s = least_per_s or min(about / 4, max(about / 50, 10 / seconds))
    search = RateSearch(
        bound,
        about,
        least_per_s=least_per_s,
        most_per_s=most_per_s,
        n_measurements=MEASUREMENTS,
        seed=asked.seed,
    )

    def sample(rate: float) -> Sample:
        # A slow server needs longer for its blocks.
        length = max(
            seconds, min(2.5 * MIN_BLOCKS / rate, 2 * seconds, (until - time.monotonic()) / OVERHEAD)
        )
        label = f"search, {len(measured)}: {rate:.4g} requests/s"
        one = measure_load(
            request, replace(asked, rate_per_s=rate, seconds=length, shortest_s=length), watcher, label=label
        )
        measured.append(one)
        late = one.columns.get("n_late_generator", 0) > 0.01 * max(1, len(one.rows))
        if late and not rate_seen(rate, one.sample, bound).latency_ms <= bound.bound_ms:
            raise PhotodupError(f"the generator itself was late at {rate:.4g} requests/s, so it is the limit")
        return one.sample

    def go_on() -> bool:
        if watcher.stop_asked:
            search.end("it was stopped by you")
        return not watcher.stop_asked and until - time.monotonic() >= OVERHEAD * seconds

    if not answered:
        search.end(f"{PROBE_IN_FLIGHT} requests in flight: {measured[0].columns['because']}")
    (found,) = search_rates([search], [sample], go_on=go_on)
    notes = []
    if worst := [m for m in measured[1:] if m.errors]:
        notes.append(
            f"Requests failed at {len(worst)} of {len(measured) - 1} rates, which counts as missing the bound: "
            f"{common_error(worst[-1].errors).rstrip('.')}."
        )
    if answered and not found.is_found:
        quickest = min(float(m.sample.latency_ms.min()) for m in measured if len(m.sample.latency_ms))
        notes.append(f"The quickest of all answers took {quickest:.3g} ms.")
    share = max((m.columns.get("client_cpu_share", 0.0) for m in measured), default=0.0)
    return found, measured, notes + shared_cores(share, request.target)


def rate_sentence(found: SloRate) -> str:
    """Return what a search found in one sentence."""
    if not found.is_found:
        return f"No rate was found that keeps {found.bound}: {found.because}"
    rests_on = f"95 % interval, {len(found.seen)} measurements"
    words = rate_words(found.rate_per_s, found.low, found.high)
    return f"Highest rate with {found.bound}: {words} ({found.because.rstrip('.') or rests_on})."
