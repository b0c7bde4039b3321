"""The highest rate under a latency bound, on queues whose answer is known."""

import math

import numpy as np
import pytest

from photodup.bench.anyurl.rate import rate_sentence
from photodup.bench.stats.rate_search import WINDOWS, LatencyBound, rate_window, search_rate
from photodup.core.errors import PhotodupError

SERVICE_S = 0.01


def window(latency_ms, finished_s, **columns):
    return {"raw": {"latency_ms": latency_ms, "finished_s": finished_s}, "n_errors": 0} | columns


def md1(rate_per_s: float, n: int, generator: np.random.Generator) -> dict:
    """One server, Poisson arrivals, every answer takes 10 ms; latency counts from the arrival (Lindley)."""
    arrived = np.cumsum(generator.exponential(1 / rate_per_s, n))
    work = np.arange(n) * SERVICE_S
    done = np.maximum.accumulate(arrived - work) + work + SERVICE_S
    return window(np.round((done - arrived) * 1000, 6), done)  # else rounding tells equal waits apart


def true_rate(bound_ms: float, percentile: float) -> float:
    """From half a million requests at each rate, with common arrivals: within half a percent."""
    below, above = 20.0, 99.0
    for _ in range(12):
        middle = (below + above) / 2
        latency = md1(middle, 500_000, np.random.default_rng(3))["raw"]["latency_ms"]
        below, above = (middle, above) if np.percentile(latency, percentile) <= bound_ms else (below, middle)
    return below


def sought(percentile, bound_ms, about, measure, **options):
    return search_rate(measure, LatencyBound(percentile, bound_ms), about, **options)


@pytest.mark.parametrize(("percentile", "bound_ms"), [(99, 50.0), (50, 15.0)])
@pytest.mark.parametrize(("about", "n"), [(80.0, 20), (3.0, 6), (1500.0, 6)])
def test_the_rate_of_a_known_queue_lies_in_the_interval_wherever_it_begins(percentile, bound_ms, about, n):
    truth, held, estimates = true_rate(bound_ms, percentile), 0, []
    for seed in range(n):
        generator, calls = np.random.default_rng(seed), []

        def measure(rate, generator=generator, calls=calls):
            calls.append(rate)
            return md1(rate, 3000, generator)

        found = sought(percentile, bound_ms, about, measure)
        assert [one.rate_per_s for one in found.windows] == calls
        assert WINDOWS <= len(calls) <= WINDOWS + 7 and not found.reason
        assert found.low <= found.rate_per_s <= found.high
        held += found.low <= truth <= found.high
        estimates.append(found.rate_per_s)
    assert held >= 0.83 * n
    assert abs(np.mean(estimates) / truth - 1) < 0.03 + 0.06 * (n < 20)


def test_a_waiting_time_of_the_textbook_is_met():
    """Mean wait of an M/D/1 queue is rho * S / (2 (1 - rho)): the simulated queue is the one it claims to be."""
    latency = md1(50.0, 400_000, np.random.default_rng(0))["raw"]["latency_ms"]
    assert math.isclose(latency.mean(), 10 + 0.5 * 10 / (2 * 0.5), rel_tol=0.02)


def queue(rate):
    return md1(rate, 1000, np.random.default_rng(0))


def test_a_bound_that_every_rate_meets_gives_at_least_the_highest():
    found = sought(50, 15.0, 10.0, queue, most_per_s=40)
    assert (found.rate_per_s, found.low, found.high) == (40, 40, math.inf)
    assert found.reason == "all rates offered met the bound; no higher rate is offered."
    assert found.as_record()["high"] is None
    assert ": at least 40 requests/s (all rates offered met the bound; " in rate_sentence(found)


def test_a_bound_that_no_rate_meets_names_what_the_lowest_takes():
    found = sought(50, 5.0, 80.0, queue)
    assert not found.is_found and found.as_record()["rate_per_s"] is None
    assert found.reason == "even at 1.6 requests/s p50 is 10 ms; no lower rate is offered."


def test_failed_requests_miss_a_bound_and_a_dead_server_gives_its_sentence():
    def refuses(rate):
        return md1(rate, 500, np.random.default_rng(0)) if rate < 20 else refused

    # Who is refused at once leaves the others fast.
    refused = window(np.full(60, 5.0), np.linspace(0.1, 3, 60), n_errors=30, error="30 of 90 requests failed")
    found = sought(50, 15.0, 80.0, refuses)
    assert found.low <= 20 <= found.high and found.rate_per_s < 30
    dead = sought(50, 15.0, 80.0, lambda rate: {"status": "failed", "error": "no way there"})
    assert dead.reason == "at 24 requests/s nothing could be measured: no way there."


def test_a_queue_that_grows_misses_a_bound_and_a_stall_at_the_end_does_not():
    due, bound = np.linspace(0, 20, 200), LatencyBound(95, 9000)
    for done, misses in ((np.where(due > 18.4, 20.3, due + 0.1), False), (due * 1.3 + 0.1, True)):
        assert (rate_window(10.0, window((done - due) * 1000, done), bound).latency_ms > 9000) is misses


def test_what_was_measured_counts_where_the_time_is_over():
    offered = []

    def until_the_fifth(rate: float) -> dict:
        if len(offered) == 5:
            raise PhotodupError("the time was over.")
        offered.append(rate)
        return queue(rate)

    found = sought(50, 15.0, 80.0, until_the_fifth)
    assert len(found.windows) == 5 and found.low < found.rate_per_s < found.high
    nothing = sought(50, 15.0, 80.0, until_the_fifth)
    assert not nothing.is_found and nothing.reason == "the time was over."


def test_measurements_that_contradict_each_other_widen_the_interval():
    """A machine that drifts answers 50/s later than 60/s."""

    def interval(drift: float) -> float:
        generator, calls = np.random.default_rng(0), []

        def measure(rate):
            calls.append(rate)
            raw = md1(rate, 3000, generator)["raw"]
            return window(raw["latency_ms"] * (drift if len(calls) % 2 else 1.0), raw["finished_s"])

        found = sought(99, 50.0, 80.0, measure)
        return found.high / found.low - 1

    assert interval(3.0) > 2 * interval(1.0)


@pytest.mark.parametrize("bad", [{"about_per_s": 0.0}, {"least_per_s": 9, "most_per_s": 8}])
def test_bad_searches_are_refused(bad):
    with pytest.raises(PhotodupError):
        search_rate(queue, LatencyBound(50, 15.0), **({"about_per_s": 10.0} | bad))
