"""The steady part, its intervals and a point's verdict: laws, planted faults, and how often an interval holds."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats
from scipy.signal import lfilter

from photodup.bench.load.plan import Stopping
from photodup.bench.load.summary import little_ratio
from photodup.bench.stats.facts import METRICS, Load, metric_named
from photodup.bench.stats.interval import Interval, _skewness, figures_of, interval_in, mean_bounds
from photodup.bench.stats.point import Sample, judge_point
from photodup.bench.stats.steady import MIN_BLOCKS, autocorrelation, pettitt, steady_part, warmup_length
from photodup.core.errors import PhotodupError

ONE = Load("single_stream")


def closed_loop(latency_ms, wave: int = 1) -> Sample:
    latency = np.asarray(latency_ms, float)
    return Sample(latency, np.cumsum(latency / 1000) / wave)


def bursts(periods_s, wave: int) -> Sample:
    """A server that answers all requests in flight at once: a wave each `period_s`."""
    done = np.repeat(np.cumsum(periods_s), wave)
    return Sample(np.repeat(np.asarray(periods_s) * 1000, wave), done)


def noisy(n: int, seed: int, spread: float = 0.1) -> np.ndarray:
    return 50 * np.exp(spread * np.random.default_rng(seed).standard_normal(n))


# --- planted faults ---------------------------------------------------------------------------------------


def test_windows_that_a_burst_was_cut_through_are_not_valid():
    """OpenVINO at 32 in flight was valid with windows of 13.7, 171.9, 22.4, 22.5 and 23.3 images/s."""
    load = Load("closed_loop", concurrency=32)
    rates = np.array([13.7, 171.9, 22.4, 22.5, 23.3])
    finished = np.concatenate([[0.0], np.cumsum(33 / rates)])
    done = np.interp(np.arange(165), np.arange(6) * 33, finished)
    sample = Sample(np.full(165, 1400.0) + np.random.default_rng(0).normal(0, 30, 165), done)
    point = judge_point(sample, load)
    assert point.verdict == "imprecise"
    assert "waves of 32 answers" in point.because and "20 are needed" in point.because


def test_bursts_in_whole_waves_give_the_rate_they_have():
    """Sixty bursts of 32: windows that cut them read anything; blocks of whole waves read 32 answers a period."""
    periods = 1.4 + 0.05 * np.random.default_rng(1).standard_normal(60)
    sample = bursts(periods, 32)
    point = judge_point(sample, Load("closed_loop", concurrency=32))
    throughput = point.figures["throughput_images_per_s"]
    assert point.verdict == "valid", point.because
    assert throughput.low <= 32 / 1.4 <= throughput.high
    assert throughput.half_width < 0.03
    cut = np.diff(sample.finished_s[::33])  # a window of one answer more than a wave: sometimes two periods
    assert cut.max() > 1.8 * cut.min()


# From 30 %: the warm-up cut takes a tenth, and what is left before an earlier step is less than the place found.
@given(at=st.floats(0.3, 0.75), size=st.sampled_from([0.8, 1.15, 1.5]), seed=st.integers(0, 99))
@settings(max_examples=30)
def test_a_planted_level_shift_is_found(at, size, seed):
    latency = noisy(400, seed, 0.05)
    latency[int(at * 400) :] *= size
    point = judge_point(closed_loop(latency), ONE)
    assert point.verdict != "valid"  # a step far from the middle may only widen the interval
    assert (point.steady.shift > 0) == (size > 1)
    assert abs(point.steady.shift) > abs(size - 1) / 3  # the place found leans to the middle
    if 0.42 <= at <= 0.6:
        assert point.verdict == "unsteady" and "changes by" in point.because


def test_a_level_shift_that_interests_nobody_is_no_reason_to_refuse():
    latency = 8.4 * (1 + 0.001 * np.random.default_rng(0).standard_normal(400))
    latency[200:] *= 1.005
    point = judge_point(closed_loop(latency), ONE)
    assert point.steady.shift_p < 0.01
    assert point.verdict == "valid"


def test_the_warm_up_is_not_part_of_the_figures():
    latency = noisy(500, 3)
    latency[:20] *= 5
    point = judge_point(closed_loop(latency), ONE)
    assert point.verdict == "valid", point.because
    assert point.steady.first >= 20
    assert abs(point.figures["latency_ms_mean"].value / latency[20:].mean() - 1) < 0.01


def test_an_early_slow_spell_is_not_taken_for_the_warm_up():
    """Free to drop half, MSER-5 drops all up to the last early spell: the server then reads faster than it is."""
    latency = noisy(500, 3)
    latency[200:215] *= 4
    assert warmup_length(latency) <= 50
    point = judge_point(closed_loop(latency), ONE)
    assert point.figures["latency_ms_mean"].value > 1.04 * np.delete(latency, slice(200, 215)).mean()


def test_a_point_with_answers_that_depend_on_each_other_is_too_short():
    walk = np.random.default_rng(3).standard_normal(200)
    for i in range(1, 200):
        walk[i] = 0.97 * walk[i - 1] + 0.24 * walk[i]
    steady = steady_part(50 * np.exp(0.02 * walk), np.arange(1, 201) * 0.05, 1)
    assert steady.problem
    assert steady.n_effective < 60


@pytest.mark.parametrize(("sample", "verdict", "because"), [
    (Sample(np.empty(0), np.empty(0)), "failed", "no request was answered"),
    (Sample(np.empty(0), np.empty(0), error="connection refused"), "failed", "connection refused"),
    (Sample(noisy(400, 0), np.arange(1, 401) * 0.05, n_errors=3), "failed", "3 of 403 requests failed"),
    (Sample(noisy(15, 0), np.arange(1, 16) * 0.05), "imprecise", f"{MIN_BLOCKS} are needed"),
    (Sample(noisy(60, 0, 0.6), np.arange(1, 61) * 0.05), "imprecise", "are allowed"),
    (Sample(noisy(400, 0), np.arange(1, 401) * 0.05, scheduled_per_s=25.0), "unsteady", "20.0 of 25.0 requests/s"),
])  # fmt: skip
def test_each_verdict_has_its_reason(sample, verdict, because):
    load = Load(scenario="server", offered_per_s=25.0) if sample.scheduled_per_s else ONE
    point = judge_point(sample, load)
    assert point.verdict == verdict
    assert because in point.because


def test_percentiles_wait_for_their_sample():
    few = figures_of(steady_part(noisy(60, 0), np.arange(1, 61) * 0.05, 1))
    some = figures_of(steady_part(noisy(400, 0), np.arange(1, 401) * 0.05, 1))
    many = figures_of(steady_part(noisy(1000, 0), np.arange(1, 1001) * 0.05, 1))
    assert "latency_ms_p50" in few and "latency_ms_p90" not in few
    assert "latency_ms_p90" in some and "latency_ms_p99" not in some
    assert set(many) == set(METRICS)


@pytest.mark.parametrize(("latency", "finished", "wave", "match"), [
    ([1.0, 2.0], [1.0], 1, "one completion time for each latency"),
    ([1.0, float("nan")], [1.0, 2.0], 1, "not a positive number"),
    ([1.0, -2.0], [1.0, 2.0], 1, "not a positive number"),
    ([1.0, 2.0], [1.0, 2.0], 0, "requests in flight"),
])  # fmt: skip
def test_bad_samples_are_refused_in_one_sentence(latency, finished, wave, match):
    with pytest.raises(PhotodupError, match=match):
        steady_part(np.array(latency), np.array(finished), wave)


@pytest.mark.parametrize("plan", [{"max_duration_s": 0}, {"half_width": 0}])
def test_bad_plans_are_refused(plan):
    with pytest.raises(PhotodupError, match="above 0"):
        Stopping(**plan)


def test_an_unknown_metric_is_refused():
    with pytest.raises(PhotodupError, match="no metric"):
        metric_named("latency_ms_p42")


# --- laws -------------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 10_000), factor=st.floats(0.01, 100), wave=st.sampled_from([1, 4, 8]))
@settings(max_examples=40)
def test_scaling_time_scales_every_figure_and_keeps_the_verdict(seed, factor, wave):
    sample = closed_loop(noisy(480, seed, 0.2), wave)
    slower = Sample(sample.latency_ms * factor, sample.finished_s * factor)
    load = Load("closed_loop", concurrency=wave)
    one, other = judge_point(sample, load), judge_point(slower, load)
    assert one.verdict == other.verdict
    for name, figure in one.figures.items():
        scale = 1 / factor if name.startswith("throughput") else factor
        for field in ("value", "low", "high"):
            assert math.isclose(
                getattr(other.figures[name], field), getattr(figure, field) * scale, rel_tol=1e-6
            )


@given(
    latency=st.lists(st.floats(0.5, 5000), min_size=1, max_size=300),
    wave=st.integers(1, 12),
    batch=st.integers(1, 32),
    seed=st.integers(0, 99),
)
@settings(max_examples=150)
def test_every_interval_holds_its_figure_and_every_point_gets_a_verdict(latency, wave, batch, seed):
    order = np.random.default_rng(seed).permutation(len(latency))
    sample = closed_loop(latency, wave)
    shuffled = Sample(sample.latency_ms[order], sample.finished_s[order])
    load = Load("closed_loop", concurrency=wave, batch=batch)
    point = judge_point(shuffled, load)
    assert (point.verdict == "valid") == (point.because == "")
    for figure in point.figures.values():
        assert 0 < figure.low <= figure.value <= figure.high
        assert point.steady.n_blocks >= MIN_BLOCKS
    assert point.steady.n_answers % wave == 0
    assert 1 <= point.steady.n_effective <= max(1, len(latency))


def test_a_point_that_never_varies_has_an_interval_of_no_width():
    point = judge_point(closed_loop(np.full(100, 20.0)), ONE)
    assert point.verdict == "valid", point.because
    assert point.figures["latency_ms_mean"].half_width < 1e-9


def test_parts_that_scipy_has_agree_with_it():
    values = np.random.default_rng(0).exponential(1, 37)
    assert math.isclose(_skewness(values), scipy_stats.skew(values, bias=False))
    tied = np.round(values, 1)
    path = np.abs(2 * np.cumsum(scipy_stats.rankdata(tied))[:-1] - np.arange(1, 37) * 38)
    assert pettitt(tied)[1] == path.argmax() + 1
    sound = [pettitt(np.random.default_rng(seed).exponential(1, 24))[0] < 0.05 for seed in range(400)]
    assert 0.02 < np.mean(sound) < 0.09
    assert pettitt(np.repeat([1.0, 2.0], [6, 14]) + values[:20] / 100)[0] < 0.005
    independent = np.random.default_rng(1).normal(10, 1, 30)
    low, high = mean_bounds(independent)
    textbook = scipy_stats.ttest_1samp(independent, 0).confidence_interval()
    assert abs(low - textbook.low) < 0.25 and abs(high - textbook.high) < 0.25
    assert abs(autocorrelation(np.tile([1.0, -1.0], 50))) > 0.98


# --- looks and coverage -----------------------------------------------------------------------------------


def test_an_early_look_is_stricter():
    sample = closed_loop(noisy(100, 0, 0.2))
    assert judge_point(sample, ONE).verdict == "valid"
    assert judge_point(sample, ONE, is_early=True).verdict == "imprecise"
    few = closed_loop(noisy(30, 0, 0.01))
    assert "at an early look" in judge_point(few, ONE, is_early=True).because


@pytest.mark.parametrize(("rho", "least"), [(0.0, 0.92), (0.5, 0.91), (0.8, 0.90)])
def test_intervals_hold_the_truth_about_as_often_as_they_say(rho, least):
    generator, held, medians, n = np.random.default_rng(7), 0, 0, 0
    for _ in range(300):
        noise = lfilter([1], [1, -rho], generator.standard_normal(900) * math.sqrt(1 - rho**2))[300:]
        steady = steady_part(50 * np.exp(0.2 * noise), np.arange(1, 601) * 0.05, 1)
        if not steady.problem:
            n += 1
            low, high = mean_bounds(steady.block_latency_ms)
            held += low <= 50 * math.exp(0.02) <= high
            median = figures_of(steady)["latency_ms_p50"]
            medians += median.low <= 50 <= median.high
    assert n > 250
    assert least <= held / n <= 0.985
    assert least - 0.01 <= medians / n <= 0.99


# ---- figures measured apart


@pytest.mark.parametrize("percentile", [90, 99])
def test_a_percentile_needs_as_many_answers_as_one_miss_may_stand_in(percentile):
    """LoadGen's minima, 64 and 662: the least n of which at most one misses by chance, in 1 % of cases, where the
    percentile is worse than it seems."""
    n = METRICS[f"latency_ms_p{percentile}"].min_answers
    miss = 1 - percentile / 100
    assert scipy_stats.binom.cdf(1, n, miss) <= 0.01 < scipy_stats.binom.cdf(1, n - 1, miss)


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
