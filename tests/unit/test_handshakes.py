"""The floor of many handshakes is the link; whatever delays single ones is not."""

import time
from itertools import chain, repeat

import pytest

from photodup.bench.link.handshakes import round_trip


def handshake(*seconds):
    """Take as long as it is told, the last one for ever."""
    left = chain(seconds, repeat(seconds[-1]))
    return lambda: time.sleep(next(left))


def test_the_floor_is_the_shortest_of_at_least_ten(figure):
    found = round_trip(handshake(*[0.02] * 9, 0.005, 0.02), 15, pause_s=0)
    assert (found.asked_ms, found.n) == (15, 10)
    assert 5 <= found.floor_ms <= found.median_ms and found.median_ms >= 20
    figure(found.floor_ms < 20, found)
    assert found.error_ms == pytest.approx(found.floor_ms - 15)


def test_a_busy_machine_is_asked_again_until_the_floor_shows(figure):
    late = [0.03] * 25
    found = round_trip(handshake(*late, 0.005), 15, pause_s=0, retry_s=60)
    assert found.n >= 26 and found.floor_ms <= found.median_ms and found.median_ms >= 30
    figure(found.floor_ms < 30, found)


def test_a_slower_link_is_that_slower_link_when_the_time_is_over():
    found = round_trip(handshake(0.02), 5, pause_s=0, retry_s=0.5)
    assert found.floor_ms >= 20 and found.error_ms >= 15 and found.n >= 10


def test_a_round_trip_that_is_too_short_is_not_waited_for():
    assert round_trip(handshake(0), 50, pause_s=0, retry_s=60).n == 10
