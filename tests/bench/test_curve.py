"""The curve of latency against arrival rate, and the rate under a bound that is read from it."""

import math

import pandas as pd
import pytest
from support.dummy import Dummy
from support.visits import opened

from photodup.bench.backends import adapters
from photodup.bench.load.plan import WindowPlan
from photodup.bench.pairs.declared import Side
from photodup.embedding.backends import Backend, parse_backend
from photodup.study.comparisons import curve

SIDE = Side("quick", "Quick", Backend("local", "pytorch"), (("delay_ms", 2.0),))


def made(*steps):
    """Steps of (rate, 95th percentile in ms, share refused)."""
    rows = [("quick", *step) for step in steps]
    return pd.DataFrame(rows, columns=["side", "offered_per_s", "latency_ms_p95", "refused"])


def test_the_rate_lies_between_the_last_step_kept_and_the_first_missed():
    steps = (10, 50, 0), (20, 100, 0), (30, 400, 0), (40, 400, 0)
    for order in (steps, steps[::-1]):
        under = curve.rate_under(made(*order), "quick", bound_ms=200)
        assert (under.low, under.high) == (20, 30)
        assert under.offered_per_s == pytest.approx(math.sqrt(20 * 30)), (
            "half-way in the logarithms of latency and rate"
        )


def test_refusals_and_too_few_answers_miss_a_bound_however_fast_the_rest_is():
    for step in ((20, 60, 0.4), (20, None, 0)):
        under = curve.rate_under(made((10, 50, 0), step), "quick", bound_ms=200)
        assert (under.offered_per_s, under.low, under.high) == (10, 10, 20)


def test_what_lies_above_a_step_that_missed_is_not_kept():
    under = curve.rate_under(made((10, 50, 0), (20, 400, 0), (30, 100, 0)), "quick", bound_ms=200)
    assert (under.low, under.high) == (10, 20)


@pytest.mark.parametrize(("steps", "low", "high"), [
    ([(10, 50, 0), (20, 60, 0)], 20, math.nan),
    ([(10, 500, 0), (20, 600, 0)], math.nan, 10),
    ([], math.nan, math.nan),
])  # fmt: skip
def test_a_curve_on_one_side_of_the_bound_gives_no_rate(steps, low, high):
    under = curve.rate_under(made(*steps), "quick", bound_ms=200)
    assert under.offered_per_s is None
    assert under.low == pytest.approx(low, nan_ok=True) and under.high == pytest.approx(high, nan_ok=True)


def test_a_curve_is_measured_once_and_counts_what_was_refused(tmp_path, monkeypatch):
    run, calls = opened(tmp_path / "run"), []

    def adapter(*_, **__):
        calls.append(1)  # the capacity is asked first, and refuses nothing
        return Dummy(delay_of=every_third_is_refused) if len(calls) > 1 else Dummy(20)

    def every_third_is_refused(number):
        if number % 3 == 2:
            raise ConnectionResetError("no room")
        return 1.0

    monkeypatch.setattr(adapters, "adapter", adapter)
    monkeypatch.setattr(curve, "SHORTEST_S", 0.5)
    monkeypatch.setattr(curve, "CAPACITY_PLAN", WindowPlan(0.5))
    sizes = {"shares": (0.5, 1.0), "answers": 30, "visits": 2}
    with run.store:
        rows = curve.measure_curve(run, [SIDE], **sizes)
        assert len(calls) == 1 + 2 * 2
        pd.testing.assert_frame_equal(rows, curve.measure_curve(run, [SIDE], **sizes))
        assert len(calls) == 1 + 2 * 2, "whatever is recorded is read"
    assert rows.share.tolist() == [0.5, 1.0] and set(rows["name"]) == {"Quick"}
    assert set(rows.n_visits) == {2} and set(rows.status) == {"ok"}
    assert rows.refused.between(0.1, 0.6).all()
    slow, fast = rows.offered_per_s
    assert fast == pytest.approx(2 * slow)


def test_a_side_that_the_servers_lack_says_so_in_its_row(tmp_path):
    run = opened(tmp_path / "run")
    absent = Side("absent", "Absent", parse_backend("triton-trt-fp16-http-fp32"))
    with run.store:
        (row,) = curve.measure_curve(run, [absent], shares=[0.5]).to_dict("records")
    assert row["status"] == "missing" and "has no triton-trt-fp16-http-fp32" in row["because"]
