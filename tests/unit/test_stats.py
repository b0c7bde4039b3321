"""The least numbers of answers are LoadGen's; a point decides nothing that its interval or the noise does not carry."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as distributions

from photodup.bench.stats import stats
from photodup.bench.stats.facts import METRICS
from photodup.bench.load.summary import little_ratio


@pytest.mark.parametrize("percentile", [90, 99])
def test_a_percentile_needs_as_many_answers_as_one_miss_may_stand_in(percentile):
    """LoadGen's minima, 64 and 662: the least n of which at most one misses by chance, in 1 % of cases, where the
    percentile is worse than it seems."""
    n = METRICS[f"latency_ms_p{percentile}"].min_answers
    miss = 1 - percentile / 100

    assert distributions.binom.cdf(1, n, miss) <= 0.01 < distributions.binom.cdf(1, n - 1, miss)


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
    assert little_ratio(32, 43.2, 741) == pytest.approx(1.0, abs=0.01)
    assert little_ratio(32, 43.2, 416) < 0.6  # the published median in place of the mean
