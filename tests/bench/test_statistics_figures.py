"""Figures between visits: what an interval holds, and what becomes of the columns of windows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from photodup.bench.load.plan import WindowPlan
from photodup.bench.stats.figures import figures_of_windows, interval, percentile_figure
from photodup.bench.stats.metrics import METRICS, metric_named
from photodup.core.errors import PhotodupError


def window(latency_ms, **columns):
    latency_ms = np.asarray(latency_ms, float)
    mean = {"latency_ms_mean": latency_ms.mean(), "latency_ms_p50": np.median(latency_ms)}
    rate = {"throughput_images_per_s": 1000 / latency_ms.mean(), "n_requests": len(latency_ms), "n_errors": 0}
    return mean | rate | {"notes": "", "raw": {"latency_ms": latency_ms}} | columns


@given(st.lists(st.floats(0.1, 1e4), min_size=2, max_size=8), st.floats(0.5, 20))
def test_an_interval_is_students_and_keeps_to_the_scale(values, factor):
    value, low, high = interval(values)
    logs = np.log(values)
    expected = (
        stats.t.interval(0.95, len(logs) - 1, logs.mean(), stats.sem(logs))
        if np.ptp(logs)
        else (logs[0],) * 2
    )
    assert (
        (low, high) == pytest.approx(np.exp(expected))
        and low <= value * (1 + 1e-9)
        and value <= high * (1 + 1e-9)
    )
    assert interval([factor * each for each in values]) == pytest.approx(
        (factor * value, factor * low, factor * high)
    )


def test_a_single_visit_has_no_interval():
    assert interval([5.0]) == (pytest.approx(5.0), None, None)
    figures = figures_of_windows([window(np.arange(1, 301))])
    assert figures["latency_ms_p50"] == pytest.approx(150.5) and figures["latency_ms_p50_ci_low"] is None
    assert figures["latency_ms_p95_ci_high"] is None and figures["latency_ms_p99"] is None


def test_an_interval_holds_the_truth_as_often_as_it_says():
    """Visits differ by 2%, answers by 30%: the mean and the pooled percentile of the tail."""
    draw, held, tail = np.random.default_rng(0), 0, 0
    truth = 10 * np.exp(0.3 * stats.norm.ppf(0.95))
    for _ in range(300):
        visits = [10 * np.exp(0.02 * draw.normal() + 0.3 * draw.normal(size=150)) for _ in range(4)]
        _, low, high = interval([np.median(visit) for visit in visits])
        held += low <= 10 <= high
        _, low, high = percentile_figure(visits, 95)
        tail += low <= truth <= high
    assert 0.92 <= held / 300 <= 0.98 and 0.89 <= tail / 300 <= 0.98


def test_counts_add_up_and_other_numbers_are_means():
    windows = [
        window([10.0] * 100, batch=1, server_requests=100, server_queue_ms_mean=queue, backend="a", seed=seed)
        for seed, queue in enumerate((1.0, 2.0, 6.0))
    ]
    figures = figures_of_windows([*windows, {"status": "failed", "error": "gone", "n_requests": 5}])
    assert (figures["n_requests"], figures["n_visits"], figures["server_requests"]) == (300, 3, 300)
    assert (figures["server_queue_ms_mean"], figures["batch"], figures["backend"]) == (3.0, 1, "a")
    assert "seed" not in figures and "raw" not in figures and figures.get("status") != "failed"
    assert (
        set(METRICS) <= set(figures)
        and figures["latency_ms_p95"] == pytest.approx(10)
        and figures["latency_ms_p99"] is None
    )
    nothing = figures_of_windows([{"status": "failed", "error": "gone"}])
    assert (nothing["status"], nothing["error"], nothing["n_visits"]) == ("failed", "gone", 0)
    assert figures_of_windows([])["error"] == "nothing was measured"


def test_a_note_is_said_once_with_the_visits_that_it_is_true_of():
    late, warm = "the generator was late: {} of the requests", "not warm: one took 9 ms"
    windows = [
        window([1.0], notes="; ".join(notes)) for notes in ((late.format(3), warm), (), (late.format(5),))
    ]
    assert (
        figures_of_windows(windows)["notes"]
        == f"{late.format(3)} (in 2 of 3 visits); {warm} (in 1 of 3 visits)"
    )
    assert figures_of_windows(windows[:1])["notes"] == windows[0]["notes"]


def test_a_plan_or_a_metric_that_makes_no_sense_is_refused():
    for seconds in (0, -1, float("inf"), float("nan")):
        with pytest.raises(PhotodupError, match="needs a length"):
            WindowPlan(seconds)
    with pytest.raises(PhotodupError, match="There is no metric"):
        metric_named("latency")


def test_a_record_that_was_copied_without_its_answers_keeps_the_rest():
    figures = figures_of_windows([window(np.arange(1, 301), raw={}, latency_ms_p95=280.0)] * 3)
    assert (figures["latency_ms_p50"], figures["latency_ms_p95"]) == pytest.approx((150.5, 280.0))
