"""The least numbers of answers are LoadGen's, and two figures measured apart are compared with both intervals."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as distributions

from photodup.bench.load.summary import little_ratio
from photodup.bench.stats.facts import METRICS
from photodup.bench.stats.interval import Interval, interval_in


@pytest.mark.parametrize("percentile", [90, 99])
def test_a_percentile_needs_as_many_answers_as_one_miss_may_stand_in(percentile):
    """LoadGen's minima, 64 and 662: the least n of which at most one misses by chance, in 1 % of cases, where the
    percentile is worse than it seems."""
    n = METRICS[f"latency_ms_p{percentile}"].min_answers
    miss = 1 - percentile / 100

    assert distributions.binom.cdf(1, n, miss) <= 0.01 < distributions.binom.cdf(1, n - 1, miss)


def test_a_ratio_joins_both_intervals_as_logarithms():
    ratio = Interval(20, 18, 22) / Interval(10, 9, 11)
    wider, alone = ratio.high / ratio.low, 22 / 18

    assert ratio.value == 2 and alone < wider < alone**2
    assert ratio.low < 2 < ratio.high and ratio.is_known


@given(*[st.tuples(st.floats(0.5, 500), st.floats(1.001, 2), st.floats(1.001, 2)) for _ in "ab"])
def test_a_ratio_turned_round_is_its_mirror(a, b):
    a, b = (Interval(v, v / down, v * up) for v, down, up in (a, b))
    there, back = a / b, b / a

    assert there.value * back.value == pytest.approx(1)
    assert there.low * back.high == pytest.approx(1) == there.high * back.low


def test_a_ratio_has_no_interval_where_a_figure_has_none():
    for other in (Interval(10, 10, 10), Interval(10, -1, 11), Interval(0, 0, 0)):
        assert not (Interval(20, 18, 22) / other).is_known
    assert math.isnan((Interval(20, 18, 22) / Interval(0, 0, 0)).value)


def test_a_figure_is_read_with_its_interval_or_stands_for_itself():
    known = {"ms": 5.0, "ms_ci_low": 4.0, "ms_ci_high": 7.0}

    assert interval_in(known, "ms") == Interval(5, 4, 7)
    for gone in (None, math.nan):
        assert interval_in(known | {"ms_ci_low": gone}, "ms") == Interval(5, 5, 5)
        assert interval_in(known | {"ms": gone}, "ms") is None


def test_littles_law_exposes_a_load_that_was_not_held():
    assert little_ratio(32, 43.2, 741) == pytest.approx(1.0, abs=0.01)
    assert little_ratio(32, 43.2, 416) < 0.6  # the published median in place of the mean
