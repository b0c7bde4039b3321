"""Repeats of a comparison are spread over a pass, and what a slow minute does to them shows in the interval."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_1samp

from photodup.bench.load.plan import Stopping, in_blocks
from photodup.bench.record.record import RunStore
from photodup.bench.stats.facts import Load
from photodup.serving.endpoints import from_ports
from photodup.study.notebook import points
from photodup.study.notebook.run import Run


@given(st.lists(st.none() | st.integers(0, 4), max_size=40), st.integers(0, 9))
def test_everything_once_and_blocks_in_order_side_by_side(block_of, seed):
    order = in_blocks(block_of, seed)

    assert sorted(order) == list(range(len(block_of)))
    assert order == in_blocks(block_of, seed)
    seen = [block_of[i] for i in order]
    assert [b for b in seen if b is not None] == sorted(b for b in seen if b is not None)
    for block in set(seen) - {None}:
        first, n = seen.index(block), seen.count(block)
        assert seen[first : first + n] == [block] * n, "a block is broken up"


def test_blocks_are_spread_over_the_pass_and_shuffled_within():
    block_of = [n for _ in "abc" for n in range(5)] + [None] * 30
    order = in_blocks(block_of)
    begins = [min(order.index(i) for i in range(15) if block_of[i] == n) for n in range(5)]

    assert begins == [0, 9, 18, 27, 36]
    assert len({tuple(i // 5 for i in order[at : at + 3]) for at in begins}) > 1, "always in the same order"


@pytest.fixture
def drifting(monkeypatch, tmp_path):
    """A machine that is 15 % slower in the middle of a pass, and what is asked of it, in order."""
    asked = []

    def measure_point(run, backend, load, stopping=None, *, check=True, **facts):
        asked.append((backend, facts, check))
        slow = 1.15 if 5 <= len(asked) <= 8 else 1.0
        return facts | {
            "backend": backend,
            "valid": True,
            "latency_ms_p50": {"a": 50.0, "b": 55.0}[backend] * slow + len(asked) % 2 * 0.1,
        }

    monkeypatch.setattr(points, "measure_point", measure_point)
    return Run("made-up", tmp_path, from_ports("127.0.0.1"), RunStore(tmp_path)), asked


def test_a_slow_minute_cancels_within_a_round_and_shows_between_rounds(drifting):
    run, asked = drifting
    specs = [{"backend": b, "load": Load("single_stream"), "repeats": 3} for b in "ab"]
    specs += [{"backend": b, "load": Load("offline", batch=n)} for b in "ab" for n in (1, 4, 8)]
    table = points.measure_all(run, specs, Stopping())

    assert len(asked) == len(table) == 12
    assert [f.get("round") for b, f, _ in asked if b == "a"].count(None) == 3
    assert sorted(f["repeat"] for b, f, _ in asked if b == "a" and f) == [0, 1, 2]
    assert [check for _, _, check in asked].count(True) == 2, "each backend is checked once"
    rounds = table.iloc[:6].pivot(index="round", columns="backend", values="latency_ms_p50")
    assert rounds.max().div(rounds.min()).gt(1.14).all(), "the drift hit one round"
    ratios = np.log(rounds["b"] / rounds["a"])
    assert math.exp(ratios.mean()) == pytest.approx(1.1, rel=0.01)
    assert math.exp(ttest_1samp(ratios, 0).confidence_interval(0.95).low) > 1.08


def test_an_unmeasured_repeat_is_no_gap_but_an_unmeasured_point_is(tmp_path):
    run = Run("made-up", tmp_path, from_ports("127.0.0.1"), RunStore(tmp_path, measure=False))
    table = points.measure_all(
        run,
        [{"backend": "fastapi-pytorch-fp32-http-jpeg", "load": Load("single_stream"), "repeats": 5}],
        Stopping(),
    )
    assert list(table.repeat) == [0] and not table.valid.any()
