"""The curve of latency against arrival rate, and the rate under a bound that is read from it."""

import math

import pandas as pd
import pytest
from support.visits import opened

from photodup.bench.backends.adapter import Dummy
from photodup.bench.pairs.declared import Side
from photodup.embedding.backends import DUMMY, Backend, parse_backend
from photodup.study.comparisons import curve

SIDE = Side("quick", "quick", Backend("local", DUMMY), (("delay_ms", 2.0),))


def made(*steps):
    """Two visits of steps of (rate, 95th percentile in ms, share refused)."""
    rows = [("quick", n, visit, *step) for n, step in enumerate(steps) for visit in (1, 2)]
    columns = ["side", "share", "visit", "offered_per_s", "latency_ms_p95", "refused"]
    return pd.DataFrame(rows, columns=columns)


def test_the_rate_lies_between_the_last_step_kept_and_the_first_missed():
    found = curve.rate_under(
        made((10, 50, 0), (20, 100, 0), (30, 400, 0), (40, 400, 0)), "quick", bound_ms=200
    )
    assert (found.low, found.high) == (20, 30)
    assert found.per_s == pytest.approx(math.sqrt(20 * 30)), "half-way in the logarithms of latency and rate"


def test_refusals_miss_a_bound_however_fast_the_rest_is():
    found = curve.rate_under(made((10, 50, 0), (20, 60, 0.4)), "quick", bound_ms=200)
    assert (found.per_s, found.low, found.high) == (10, 10, 20)


@pytest.mark.parametrize(("steps", "low", "high"), [
    ([(10, 50, 0), (20, 60, 0)], 20, math.nan),
    ([(10, 500, 0), (20, 600, 0)], math.nan, 10),
    ([], math.nan, math.nan),
])  # fmt: skip
def test_a_curve_on_one_side_of_the_bound_gives_no_rate(steps, low, high):
    found = curve.rate_under(made(*steps), "quick", bound_ms=200)
    assert found.per_s is None
    assert found.low == pytest.approx(low, nan_ok=True) and found.high == pytest.approx(high, nan_ok=True)


def test_a_curve_is_measured_once_and_counts_what_was_refused(tmp_path, monkeypatch):
    run = opened(tmp_path / "run")

    def every_third_is_refused(number):
        if number % 3 == 2:
            raise ConnectionResetError("no room")
        return 1.0

    monkeypatch.setattr(curve, "adapter", lambda *_, **__: Dummy(delay_of=every_third_is_refused))
    monkeypatch.setattr(curve, "SHORTEST_S", 0.5)
    monkeypatch.setattr(curve, "_capacity", lambda run, side: 80.0)
    sizes = {"shares": (0.5, 1.0), "answers": 30, "visits": 2}
    with run.store:
        found = curve.measure_curve(run, [SIDE], **sizes)
    assert found.share.tolist() == [0.5, 1.0]
    assert (found.n_refused > 0).all() and (found.refused.between(0.1, 0.6)).all()
    assert found.n_requests.sum() > 60, "the answers of both visits"
    slow, fast = found.offered_per_s
    assert fast == pytest.approx(2 * slow)
    monkeypatch.setattr(curve, "adapter", None)  # whatever is recorded is read
    pd.testing.assert_frame_equal(found, curve.measure_curve(run, [SIDE], **sizes))
    assert curve.measure_curve(run, [SIDE], shares=[]).empty


def test_a_side_that_the_servers_lack_gives_no_row(tmp_path):
    run = opened(tmp_path / "run")
    absent = Side("absent", "absent", parse_backend("triton-trt-fp16-http-fp32"))
    with run.store:
        assert curve.measure_curve(run, [absent], shares=[0.5]).empty
