"""Two passes over the same comparisons: what counts as agreeing, and what as a contradiction."""

import math

import pytest

from photodup.bench.stats.compare import Comparison, Outcome
from photodup.bench.stats.facts import Arm, Load, Side
from photodup.study.rounds import agreement


def outcome(verdict, effect=math.nan):
    arms = [
        Arm(Side(n, "triton", "onnx", "fp32", "http", "jpeg", machine="here"), Load("single_stream"))
        for n in "ab"
    ]
    comparison = Comparison("made up", "06", "latency_ms_p50", *arms, ())
    return Outcome(
        comparison,
        verdict,
        effect=effect,
        low=effect - 0.01,
        high=effect + 0.01,
        n_rounds=8,
        spread=0.01,
        value_a=10.0,
        value_b=10.0 * (1 + effect),
        confidence=0.95,
    )


def pair(first, second):
    return agreement.Twice("06_compare", "made up", outcome(*first), outcome(*second))


SAME = pair(("different", 0.1), ("different", 0.2))
EQUAL = pair(("equal", 0.001), ("equal", -0.001))
WEAKER = pair(("different", 0.03), ("undecided", 0.02))
OPPOSITE = pair(("different", 0.1), ("different", -0.1))
NEITHER = pair(("undecided", 0.02), ("undecided", -0.02))


@pytest.mark.parametrize(
    ("two", "decided", "agrees", "opposite"),
    [
        (SAME, True, True, False),
        (EQUAL, True, True, False),
        (WEAKER, True, False, False),
        (OPPOSITE, True, False, True),
        (NEITHER, False, True, False),
    ],
)
def test_agreeing_is_the_same_verdict_and_direction(two, decided, agrees, opposite):
    assert (two.is_decided, two.agrees, two.is_opposite) == (decided, agrees, opposite)


def test_the_summary_counts_what_either_pass_decides():
    said = agreement.summary([SAME, EQUAL, WEAKER, OPPOSITE, NEITHER])
    assert "Of 4 comparisons" in said and "2 (50%) have the same" in said and "1 differ in opposite" in said
    assert agreement.summary([NEITHER]).startswith("Neither pass decides")


def test_the_table_names_what_does_not_agree():
    table = agreement.lines([SAME, WEAKER, OPPOSITE, NEITHER], ("one", "two"))
    assert [row.rsplit("|", 2)[1].strip() for row in table[2:]] == ["yes", "no", "**opposite**", "–"]
    assert len(agreement.sentences([SAME, WEAKER, OPPOSITE, NEITHER])) == 2
