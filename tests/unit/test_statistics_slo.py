"""The highest rate under a latency bound, on queues whose answer is known."""

import math

import numpy as np
import pytest

from photodup.bench.stats.point import Sample
from photodup.bench.stats.slo import slo_rate
from photodup.errors import PhotodupError

SERVICE_S = 0.01


def md1(rate_per_s: float, n: int, generator: np.random.Generator) -> Sample:
    """One server, Poisson arrivals, every answer takes 10 ms; latency counts from the arrival (Lindley)."""
    arrived = np.cumsum(generator.exponential(1 / rate_per_s, n))
    work = np.arange(n) * SERVICE_S
    done = np.maximum.accumulate(arrived - work) + work + SERVICE_S
    return Sample(np.round((done - arrived) * 1000, 6), done)  # else rounding tells equal waits apart


def true_rate(bound_ms: float, percentile: float) -> float:
    """From half a million requests at each rate, with common arrivals: within half a percent."""
    below, above = 20.0, 99.0
    for _ in range(12):
        middle = (below + above) / 2
        latency = md1(middle, 500_000, np.random.default_rng(3)).latency_ms
        below, above = (middle, above) if np.percentile(latency, percentile) <= bound_ms else (below, middle)
    return below


@pytest.mark.parametrize(("percentile", "bound_ms"), [(99, 50.0), (50, 15.0)])
def test_the_rate_of_a_known_queue_lies_in_the_interval(percentile, bound_ms):
    truth, held, estimates = true_rate(bound_ms, percentile), 0, []
    for seed in range(20):
        generator = np.random.default_rng(seed)
        calls = []

        def measure(rate, generator=generator, calls=calls):
            calls.append(rate)
            return md1(rate, 3000, generator)

        found = slo_rate(
            measure, bound_ms=bound_ms, percentile=percentile, low_per_s=30, high_per_s=99, n_measurements=12
        )
        assert len(calls) == len(found.seen) == 12
        assert found.low <= found.rate_per_s <= found.high
        held += found.low <= truth <= found.high
        estimates.append(found.rate_per_s)
    assert held >= 17
    assert abs(np.mean(estimates) / truth - 1) < 0.03


def test_a_waiting_time_of_the_textbook_is_met():
    """Mean wait of an M/D/1 queue is rho * S / (2 (1 - rho)): the simulated queue is the one it claims to be."""
    latency = md1(50.0, 400_000, np.random.default_rng(0)).latency_ms
    assert math.isclose(latency.mean(), 10 + 0.5 * 10 / (2 * 0.5), rel_tol=0.02)


def test_a_bracket_without_an_answer_says_which_way_to_look():
    generator = np.random.default_rng(0)
    ask = {"bound_ms": 15.0, "percentile": 50, "n_measurements": 6}
    over = slo_rate(lambda rate: md1(rate, 1000, generator), low_per_s=90, high_per_s=95, **ask)
    assert math.isnan(over.rate_per_s) and "search from a lower rate" in over.because and len(over.seen) == 1
    under = slo_rate(lambda rate: md1(rate, 1000, generator), low_per_s=5, high_per_s=10, **ask)
    assert math.isnan(under.rate_per_s) and "search up to a higher rate" in under.because


def test_bad_searches_are_refused():
    for bad in ({"low_per_s": 20.0}, {"bound_ms": 0.0}, {"percentile": 100}, {"n_measurements": 3}):
        ask = {"bound_ms": 15.0, "percentile": 50, "low_per_s": 5.0, "high_per_s": 10.0, "n_measurements": 8}
        with pytest.raises(PhotodupError):
            slo_rate(lambda rate: md1(rate, 500, np.random.default_rng(0)), **(ask | bad))
    with pytest.raises(PhotodupError, match="nothing could be measured: refused"):
        slo_rate(
            lambda rate: Sample(np.empty(0), np.empty(0), error="refused"),
            bound_ms=15.0,
            percentile=50,
            low_per_s=5.0,
            high_per_s=10.0,
        )
