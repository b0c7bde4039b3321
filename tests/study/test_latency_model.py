"""The rival models say what the arithmetic of slow start says."""

import math
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from photodup.bench.link import latency_model as model
from photodup.core.errors import PhotodupError

JPEG, BASE64, UINT8, FP16, FP32 = 10_000, 13_686, 150_528, 301_056, 602_112
B8, B32 = 8 * FP32, 32 * FP32
PAYLOADS = st.integers(1, 30_000_000)
WINDOWS = st.integers(1, 1000)
bandwidth_only_ms, rounds_ms, pipe_limited_ms = (partial(model.predict_ms, name) for name in model.MODELS)


@pytest.mark.parametrize(
    ("payload_bytes", "trips"), [(JPEG, 1), (BASE64, 1), (UINT8, 4), (FP16, 5), (FP32, 6), (B8, 9), (B32, 11)]
)
@pytest.mark.parametrize("rtt_ms", [20, 25, 30])
def test_table_of_rounds(payload_bytes, trips, rtt_ms):
    assert model.rounds(payload_bytes) == trips
    for connection, more in (("idle", 0), ("new", 1)):
        predicted = rounds_ms(payload_bytes, rtt_ms, math.inf, connection=connection)
        assert predicted == (trips + more) * rtt_ms


def test_segments_and_other_windows():
    assert [model.segments(n) for n in (JPEG, BASE64, UINT8, FP16, FP32)] == [7, 10, 104, 208, 416]
    assert model.rounds(FP32, initcwnd=32) == 4


def test_idle_halves_the_window_once_per_timeout():
    assert model.window_after_idle(416, 1000, 230) == 26
    assert model.window_after_idle(416, 100, 230) == 416
    assert model.window_after_idle(416, 60_000, 230) == 10
    assert model.window_after_idle(4, 60_000, 230) == 4


def test_predictions_for_the_published_link():
    at_25_ms = {"rtt_ms": 25, "rate_mbit_s": math.inf, "server_ms": 15}
    assert rounds_ms(FP32, **at_25_ms) == 190
    assert rounds_ms(BASE64, **at_25_ms) == 65
    assert bandwidth_only_ms(FP32, 25, 210, 15, connection="warm") == pytest.approx(63, abs=1.5)


@given(PAYLOADS, WINDOWS)
def test_rounds_is_the_smallest_number_of_flights_that_carries_the_payload(payload_bytes, window):
    n = model.rounds(payload_bytes, window)
    carried = window * (2**n - 1)  # 1 + 2 + 4 + … in closed form
    assert carried >= model.segments(payload_bytes) > window * (2 ** (n - 1) - 1)


@given(PAYLOADS, PAYLOADS, WINDOWS, WINDOWS)
def test_more_bytes_never_need_fewer_rounds_and_a_wider_window_never_more(a, b, small, wide):
    assert model.rounds(min(a, b), small) <= model.rounds(max(a, b), small)
    assert model.rounds(a, max(small, wide)) <= model.rounds(a, min(small, wide))


@given(PAYLOADS, st.floats(0.1, 300), st.floats(1, 10_000), st.sampled_from(model.CONNECTIONS), WINDOWS)
def test_a_full_pipe_lies_between_the_rivals(payload_bytes, rtt_ms, rate, connection, window):
    keywords = {"connection": connection, "initcwnd": window}
    low = bandwidth_only_ms(payload_bytes, rtt_ms, rate, **keywords)
    middle = pipe_limited_ms(payload_bytes, rtt_ms, rate, **keywords)
    high = rounds_ms(payload_bytes, rtt_ms, rate, **keywords)
    slack = 1e-6 + model.serialisation_ms(model.MSS_BYTES, rate)  # the last segment may be a short one
    assert low <= middle + slack
    assert middle <= high + slack


@given(PAYLOADS, st.floats(0.1, 300), st.floats(1, 10_000))
def test_the_models_agree_on_a_warm_connection(payload_bytes, rtt_ms, rate):
    bandwidth = bandwidth_only_ms(payload_bytes, rtt_ms, rate, connection="warm")
    assert rounds_ms(payload_bytes, rtt_ms, rate, connection="warm") == pytest.approx(bandwidth)
    idle = rounds_ms(payload_bytes, rtt_ms, rate, connection="idle", restarts=False)
    assert idle == pytest.approx(bandwidth)


def test_what_makes_no_sense_is_refused():
    with pytest.raises(PhotodupError, match="No latency model 'vibes'"):
        model.predict_ms("vibes", FP32, 25, 210)
    with pytest.raises(PhotodupError, match="none of new, warm, idle"):
        model.round_trips(1, "lukewarm")
    with pytest.raises(PhotodupError, match="carries nothing"):
        model.rounds(1, 0)
