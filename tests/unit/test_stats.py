"""Early stopping is LoadGen's, and a single point decides nothing that its interval or the noise does not carry."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as distributions

from photodup.bench.judge import stats
from photodup.bench.load import scaling


@pytest.mark.parametrize(
    ("percentile", "over", "n"), [(90, 1, 64), (99, 1, 662), (99, 0, 459), (90, 0, 44), (95, 1, 130)]
)
def test_early_stopping_counts(percentile, over, n):
    """64 and 662 are LoadGen's published minima; 459 = ceil(ln 0.01 / ln 0.99)."""
    assert stats.queries_needed(over, percentile) == n


@given(st.integers(0, 40), st.sampled_from([90, 95, 97, 99]))
def test_early_stopping_is_the_binomial_bound(over, percentile):
    """An independent derivation: scipy's binomial distribution instead of the incomplete beta function."""
    n = stats.queries_needed(over, percentile)
    miss = 1 - percentile / 100

    assert distributions.binom.cdf(over, n, miss) <= 0.01
    assert n == over + 1 or distributions.binom.cdf(over, n - 1, miss) > 0.01


def test_early_stopping_latency_drops_only_what_it_can_afford():
    latency = np.arange(1.0, 101.0)  # 100 requests: for p90 one miss (64) is affordable, two (81), three (97)
    affordable = max(t for t in range(1, 9) if stats.queries_needed(t, 90) <= 100)

    assert stats.early_stopping_latency_ms(latency, 90) == 100 - (affordable - 1)
    assert stats.early_stopping_latency_ms(latency[:63], 90) is None


def point(value, *, spread=0.01, valid=True):
    return {
        "latency_ms_p50": value,
        "latency_ms_p50_ci_low": value * (1 - spread),
        "latency_ms_p50_ci_high": value * (1 + spread),
        "valid": valid,
        "invalid_because": "" if valid else "not stable",
    }


def test_no_difference_is_called_below_the_noise_floor():
    floor = stats.noise_floor([(10.0, 10.4), (10.0, 9.9)])

    assert stats.difference(point(10), point(10.39, spread=1e-6), floor)["verdict"] == "no difference"
    assert stats.difference(point(10), point(10.8), floor)["verdict"] == "higher"
    assert stats.difference(point(10.8), point(10), floor)["verdict"] == "lower"


def test_no_difference_is_called_when_the_interval_holds_one():
    said = stats.difference(point(10, spread=0.2), point(11, spread=0.2), 0.01)

    assert said["verdict"] == "no difference" and "interval" in said["because"]
    assert said["ratio"] == pytest.approx(1.1)


def test_an_invalid_point_decides_nothing():
    said = stats.difference(point(10), point(99, valid=False), 0.01)

    assert said["verdict"] == "unknown" and said["because"] == "not stable"
    assert stats.difference(point(10), {"valid": True}, 0.01)["verdict"] == "unknown"


@given(st.floats(0.5, 500), st.floats(0.5, 500), st.floats(0, 0.5))
def test_a_difference_is_never_within_the_floor_and_is_antisymmetric(a, b, floor):
    there = stats.difference(point(a), point(b), floor)["verdict"]
    back = stats.difference(point(b), point(a), floor)["verdict"]

    assert {there, back} in ({"no difference"}, {"higher", "lower"})
    if abs(np.log(a / b)) <= floor - 1e-12:
        assert there == "no difference"


def test_littles_law_exposes_a_load_that_was_not_held():
    assert scaling.little_ratio(32, 43.2, 741) == pytest.approx(1.0, abs=0.01)
    assert scaling.little_ratio(32, 43.2, 416) < 0.6  # the published median in place of the mean


def test_the_scalability_law_is_recovered_from_noisy_rates():
    load = np.array([1, 2, 4, 8, 16, 32, 64, 128])
    rate = 100 * load / (1 + 0.05 * (load - 1) + 0.0005 * load * (load - 1))
    noisy = rate * np.random.default_rng(0).normal(1, 0.01, len(load))

    fit = scaling.fit_usl(load, noisy)

    assert fit["rate_per_s"] == pytest.approx(100, rel=0.05)
    assert fit["contention"] == pytest.approx(0.05, rel=0.15)
    assert fit["coherency"] == pytest.approx(0.0005, rel=0.15)
    assert fit["peak_concurrency"] == pytest.approx(np.sqrt(0.95 / 0.0005), rel=0.1)
    assert fit["residual_max"] < 0.05


def test_the_scalability_law_needs_four_loads():
    with pytest.raises(ValueError, match="four loads"):
        scaling.fit_usl([1, 2, 4], [1, 2, 3])
