"""Comparisons, their schedule and sentences: laws, planted faults, false claims and power at small fixed seeds."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from photodup.bench.stats.compare import (
    EXTENDED,
    FIXED,
    Comparison,
    Outcome,
    Plan,
    _holm,
    judge_family,
    judge_pass,
)
from photodup.bench.stats.facts import METRICS, SMALLEST_EFFECT, Arm, Figure, Load, Side
from photodup.bench.stats.measured import Measured, Round
from photodup.bench.stats.point import Point
from photodup.bench.stats.pool import pooled
from photodup.bench.stats.schedule import Declared, Measurement, comparisons_of, extension, run, schedule
from photodup.bench.stats.sentence import comparison_row, comparison_sentence, plain_sentence
from photodup.errors import PhotodupError


def arm(label: str, *, protocol: str = "http", engine: str = "onnx", machine: str = "m", **load) -> Arm:
    return Arm(Side(label, "triton", engine, "fp32", protocol, "fp32", machine=machine), Load(**load))


def comparison(
    ratios, *, name="c", metric="latency_ms_p50", a=None, b=None, drift=None, **others
) -> Comparison:
    """Rounds in which side a reads 50 (times the drift) and side b that times `ratio`."""
    drift = np.ones(len(ratios)) if drift is None else drift
    rounds = tuple(
        Round(i, Measured(50.0 * d), Measured(50.0 * d * r))
        for i, (d, r) in enumerate(zip(drift, ratios, strict=True), start=1)
    )
    return Comparison(name, "family", metric, a or arm("A"), b or arm("B"), rounds, **others)


def judged(ratios, **others) -> Outcome:
    return judge_family([comparison(ratios, **others)])[0]


STEADY = 1 + np.array([0.001, -0.002, 0.003, 0.0, -0.001, 0.002, -0.003, 0.001])


# --- verdicts ---------------------------------------------------------------------------------------------


def test_the_three_verdicts_and_their_sentences():
    different = judged(STEADY * 1.10)
    assert different.verdict == "different" and different.low > SMALLEST_EFFECT
    sentence = comparison_sentence(different)
    assert sentence.startswith("Median latency of B against A: different by +10.0% [")
    assert "55 against 50 ms; 8 rounds, spread between rounds 0.2%" in sentence
    equal = judged(STEADY * 1.01)
    assert equal.verdict == "equal"
    assert -0.05 < equal.low < equal.high < 0.05
    assert ": equal within 5% (+1.0% [" in comparison_sentence(equal)
    wide = judged(1 + 0.3 * np.array([1, -1, 0.5, -0.5, 0.2, -0.2, 0.8, -0.8]))
    assert wide.verdict == "undecided" and wide.rounds_to_decide > 8
    assert f"undecided; about {wide.rounds_to_decide} rounds would decide" in comparison_sentence(wide)


def test_an_answer_says_one_number_of_a_comparison_and_the_row_says_the_rest():
    different, equal = judged(STEADY * 1.10), judged(STEADY * 1.01)
    assert plain_sentence(different) == "The median latency of B is 10% higher than that of A."
    assert plain_sentence(judged(STEADY / 1.25)) == "The median latency of B is 20% lower than that of A."
    assert plain_sentence(equal) == "The median latency of B and A is equal within 5%."
    wide = judged(1 + 0.3 * np.array([1, -1, 0.5, -0.5, 0.2, -0.2, 0.8, -0.8]))
    remedy = f"about {wide.rounds_to_decide} rounds would decide"
    assert plain_sentence(wide).endswith(f"than that of A is undecided: {remedy}.")
    none = replace(different, verdict=None, because="A was away.")
    assert plain_sentence(none) == "The median latency of B and A was not compared: A was away."
    row = comparison_row(different)
    assert row["effect"].startswith("+10.0% [+") and row["values"] == "55 against 50 ms"
    assert (row["rounds"], row["spread between rounds"], row["what would decide"]) == ("8", "0.2%", "")
    assert comparison_row(wide)["what would decide"] == remedy
    row = comparison_row(none)
    assert (row["verdict"], row["effect"], row["what would decide"]) == ("not compared", "", "A was away.")


def test_where_different_and_equal_both_hold_equal_is_said():
    outcome = judged(STEADY * 1.035)
    assert outcome.p_different < 0.01 and outcome.p_equal < 0.01
    assert outcome.verdict == "equal"


def test_a_difference_of_a_whole_percent_is_not_claimed_however_sure():
    assert judged(1.015 + (STEADY - 1) / 100).verdict == "equal"


def test_four_rounds_do_not_make_two_servers_equally_fast():
    """Notebook 06 read 0.94 [0.86, 1.01] from four rounds as 'equally fast'."""
    few = judged([0.94, 0.90, 1.01, 0.92])
    assert few.verdict is None and "4 of 4 rounds are complete, 6 are needed" in few.because
    more = judged([0.94, 0.84, 1.05, 0.90, 1.00, 0.85, 1.04, 0.91])
    assert more.verdict == "undecided"


@pytest.mark.parametrize(
    ("made", "because"),
    [
        (comparison([]), "There are no rounds"),
        (comparison(STEADY[:5]), "5 of 5 rounds are complete, 6 are needed"),
        (comparison(STEADY, b=arm("B", concurrency=8)), "concurrency 1 and 8"),
        (comparison(STEADY, b=arm("B", machine="other")), "different machines (m and other)"),
    ],
)
def test_what_cannot_be_compared_gets_one_sentence_and_no_verdict(made, because):
    outcome = judge_family([made])[0]
    assert outcome.verdict is None
    assert because in outcome.because
    assert "not compared" in (sentence := comparison_sentence(outcome)) and "nan" not in sentence


def test_rounds_that_are_not_steady_count_only_where_too_few_are_steady():
    made = comparison(STEADY * 1.2)
    spoilt = Measured(500.0, "unsteady", "the latency changes by +30.0% after 50% of the steady part")
    two = tuple(replace(r, b=spoilt) if r.number <= 2 else r for r in made.rounds)
    outcome = judge_family([replace(made, rounds=two)])[0]
    assert outcome.verdict == "different" and outcome.n_dropped == 2 and outcome.n_rounds == 6
    assert math.isclose(outcome.value_b, 60, rel_tol=0.01)
    low = replace(spoilt, value=5.0)
    three = tuple(
        replace(r, b=(spoilt, low, spoilt)[r.number - 1]) if r.number <= 3 else r for r in made.rounds
    )
    told = judge_family([replace(made, rounds=three)])[0]
    assert (told.verdict, told.n_rounds, told.n_unsteady) == ("undecided", 8, 3), (
        "the spread holds what they did"
    )
    assert "8 rounds, 3 of them not steady" in comparison_sentence(told)
    alike = tuple(replace(r, b=replace(r.b, verdict="unsteady")) for r in made.rounds)
    assert judge_family([replace(made, rounds=alike)])[0].verdict == "different", "they agree with each other"
    failed = tuple(
        replace(r, b=replace(spoilt, verdict="failed")) if r.number <= 3 else r for r in made.rounds
    )
    refused = judge_family([replace(made, rounds=failed)])[0]
    assert refused.verdict is None and "changes by +30.0%" in refused.because


def test_rounds_beyond_the_plan_wait_for_the_next_look():
    ratios = np.concatenate([STEADY * 1.10, np.full(3, 0.5)])
    assert judged(ratios).n_rounds == 8
    extended = judge_family([comparison(ratios)], EXTENDED)[0]
    assert extended.n_rounds == 6 and math.isclose(extended.confidence, 0.99)


def test_plans_that_would_look_until_it_suits_are_refused():
    with pytest.raises(PhotodupError, match=r"add up to 0\.055"):
        Plan(looks=(6, 12), levels=(0.01, 0.045))
    with pytest.raises(PhotodupError, match="growing looks"):
        Plan(looks=(12, 6), levels=(0.01, 0.04))


# --- laws -------------------------------------------------------------------------------------------------

ratio_lists = st.lists(st.floats(0.5, 2.0), min_size=6, max_size=8)


@given(ratios=ratio_lists, metric=st.sampled_from(sorted(METRICS)))
@settings(max_examples=100, deadline=None)
def test_swapping_the_sides_turns_the_signs_and_keeps_the_verdict(ratios, metric):
    one, other = judged(ratios, metric=metric), judged(1 / np.array(ratios), metric=metric)
    assert one.verdict == other.verdict
    assert math.isclose(1 + one.effect, 1 / (1 + other.effect), rel_tol=1e-9)
    assert math.isclose(1 + one.low, 1 / (1 + other.high), rel_tol=1e-9)
    assert math.isclose(one.spread, other.spread, rel_tol=1e-6, abs_tol=1e-12)


@given(ratios=ratio_lists, scale=st.floats(0.01, 100), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_scale_and_drift_that_both_sides_share_change_nothing(ratios, scale, seed):
    drift = scale * np.exp(np.random.default_rng(seed).normal(0, 0.3, len(ratios)))
    one, other = judged(ratios), judged(ratios, drift=drift)
    assert one.verdict == other.verdict
    assert math.isclose(one.low, other.low, abs_tol=1e-9)


@given(families=st.lists(ratio_lists, min_size=1, max_size=6))
@settings(max_examples=80, deadline=None)
def test_an_interval_says_the_same_as_its_verdict(families):
    made = [comparison(ratios, name=str(i)) for i, ratios in enumerate(families)]
    for outcome in judge_family(made):
        assert outcome.low <= outcome.effect <= outcome.high
        zone = SMALLEST_EFFECT
        outside = outcome.low > zone or outcome.high < 1 / (1 + zone) - 1
        margin = outcome.metric.margin
        if outcome.verdict == "different":
            assert outside
        elif outcome.verdict == "equal":
            assert 1 / (1 + margin) - 1 <= outcome.low and outcome.high <= margin
        else:
            assert not outside


def test_holm_as_in_the_textbook():
    """Four p values at .05: .01 and .005 pass (.0125, .0167), .03 fails (.025), .04 is not tested further."""
    levels = _holm([0.01, 0.04, 0.03, 0.005], [0.05] * 4, 4)
    assert np.allclose(levels, [0.05 / 3, 0.025, 0.025, 0.0125])
    assert np.allclose(_holm([0.01], [0.05], 4), [0.0125])  # declared but not measurable members count


def test_a_family_is_stricter_than_its_member():
    ratios = STEADY + np.array([0.05, 0.0, 0.06, 0.03, 0.1, 0.02, 0.08, 0.07])
    alone = judged(ratios)
    among = judge_family([comparison(ratios), *[comparison(1 / STEADY**20, name=str(i)) for i in range(9)]])[
        0
    ]
    assert alone.verdict == "different" and among.verdict == "undecided"
    assert among.confidence > alone.confidence


# --- checks -----------------------------------------------------------------------------------------------


def test_a_check_that_reads_different_takes_every_verdict_of_its_kind_away():
    http, grpc = arm("HTTP"), arm("gRPC", protocol="grpc")
    both = comparison(STEADY * 1.2, name="http-grpc", a=http, b=grpc)
    only_http = comparison(STEADY * 1.2, name="http", a=http, b=arm("HTTP, two instances"))
    rate = comparison(STEADY * 1.2, name="rate", a=http, b=grpc, metric="throughput_images_per_s")
    good = {"is_check": True}
    checks = [
        comparison(STEADY, name="A/A http", a=http, b=http, **good),
        comparison(STEADY * 1.1, name="A/A grpc", a=grpc, b=grpc, **good),
        comparison(STEADY, name="A/A http rate", a=http, b=http, metric="throughput_images_per_s", **good),
    ]
    outcomes = {o.comparison.name: o for o in judge_pass([both, only_http, rate, *checks])}
    assert outcomes["http-grpc"].verdict == "undecided"
    assert "differed from itself by 10.0%" in comparison_sentence(outcomes["http-grpc"])
    assert outcomes["http"].verdict == "different"
    assert outcomes["rate"].verdict == "undecided"
    assert "no A/A arm of this pass vouches for throughput over grpc" in outcomes["rate"].because
    assert all(o.verdict == "different" for o in judge_pass([both, only_http, rate], checked=False))


def test_one_load_has_one_pooled_figure():
    value, low, high = pooled([18.95, 20.29, 20.85, 22.19, 22.49])
    assert low < value < high and 20 < value < 22 < 22.49
    with pytest.raises(PhotodupError, match="two or more"):
        pooled([20.0])


# --- how often it is wrong --------------------------------------------------------------------------------


def simulated(generator, effect: float, spread: float, n: int) -> np.ndarray:
    return np.exp(generator.normal(math.log1p(effect), spread, n))


@pytest.mark.parametrize(("plan", "rounds"), [(FIXED, 8), (EXTENDED, 12)])
def test_false_claims_at_the_edge_of_what_interests_nobody_stay_at_the_level(plan, rounds):
    """At a true effect of exactly 2 % the test is at its worst; a family of five may err in 5 % of passes."""
    generator, wrong = np.random.default_rng(5), 0
    for _ in range(300):
        first = [comparison(simulated(generator, 0.02, 0.02, rounds), name=str(i)) for i in range(5)]
        early = [replace(c, rounds=c.rounds[: plan.looks[0]]) for c in first]
        claims = [o.verdict == "different" for o in judge_family(early, plan)]
        claims += [o.verdict == "different" for o in judge_family(first, plan)]
        wrong += any(claims)
    assert wrong <= 22  # 95 % of the time at 5 %


def test_power_where_the_spread_is_small_and_its_lack_where_it_is_not():
    generator = np.random.default_rng(6)

    def power(effect, spread):
        said = [judged(simulated(generator, effect, spread, 8)).verdict for _ in range(120)]
        return said.count("different") / 120

    assert power(0.10, 0.025) >= 0.95
    assert power(0.10, 0.10) < 0.5
    assert power(0.05, 0.01) >= 0.9


def test_the_rounds_that_would_decide_do_decide_about_half_the_time():
    generator, decided, asked = np.random.default_rng(8), 0, 0
    for _ in range(200):
        outcome = judged(simulated(generator, 0.10, 0.08, 8))
        if outcome.verdict == "undecided" and outcome.rounds_to_decide:
            asked += 1
            n = min(outcome.rounds_to_decide, 60)
            again = simulated(generator, 0.10, 0.08, n)
            plan = Plan(looks=(n,))
            decided += judge_family([comparison(again)], plan)[0].verdict in ("different", "equal")
    assert asked > 50 and decided / asked > 0.35


# --- schedule ---------------------------------------------------------------------------------------------


def three_declared() -> list[Declared]:
    http, grpc = arm("HTTP", concurrency=8), arm("gRPC", protocol="grpc", concurrency=8)
    return [
        Declared("latency", "08", "latency_ms_p50", http, grpc, importance=3),
        Declared("rate", "08", "throughput_images_per_s", http, grpc, importance=3),
        Declared("one", "06", "latency_ms_p50", arm("HTTP"), arm("OpenVINO", engine="openvino")),
    ]


def test_what_is_compared_stands_together_though_others_have_the_same_load():
    names = ["a", "b", "c", "d", "e", "f"]
    one, two, three, four, five, six = (arm(name, engine=name) for name in names)
    declared = [
        Declared("first", "06", "latency_ms_p50", one, two),
        Declared("also first, through one", "06", "latency_ms_p50", three, one),
        Declared("second", "08", "latency_ms_p50", four, five),
        Declared("also second", "08", "latency_ms_p50", five, six),
    ]
    planned = schedule(declared, seconds=lambda _: 10.0, budget_s=36000)
    first = {one, two, three}
    for number in range(1, 9):
        here = [m.arm in first for m in planned.measurements if m.round == number]
        assert sum(a != b for a, b in pairwise(here)) == 1, "two groups, each in one piece"


def test_every_round_measures_every_arm_once_and_rounds_are_spread_over_the_pass():
    planned = schedule(three_declared(), seconds=lambda _: 10.0, budget_s=3600)
    arms = {arm for d in three_declared() for arm in (d.a, d.b)}
    first_again = {m.arm for m in planned.measurements if m.again}
    assert len(planned.measurements) == 8 * (len(arms) + len(first_again))
    assert math.isclose(planned.expected_s, 10 * len(planned.measurements))
    assert [m.round for m in planned.measurements] == sorted(m.round for m in planned.measurements)
    orders = set()
    for number in range(1, 9):
        here = [m for m in planned.measurements if m.round == number]
        assert {m.arm for m in here} == arms and len(set(here)) == len(here)
        loads = [m.arm.load for m in here]
        assert sum(a != b for a, b in pairwise(loads)) == 1  # a load's arms stand together
        orders.add(tuple(m.arm.side.label for m in here))
    assert len(orders) > 2
    kinds = {kind for check in planned.checks for kind in check.kinds}
    assert {(k.quantity, k.protocol, k.engine) for k in kinds} == {
        ("latency", "http", "onnx"),
        ("latency", "grpc", "onnx"),
        ("throughput", "http", "onnx"),
        ("throughput", "grpc", "onnx"),
        ("latency", "http", "openvino"),
    }
    assert len(first_again) == 3  # one arm vouches for latency and throughput at once
    assert schedule(three_declared(), seconds=lambda _: 10.0, budget_s=3600) == planned
    assert schedule(three_declared(), seconds=lambda _: 10.0, budget_s=3600, seed=1) != planned


def test_short_time_drops_the_least_important_and_says_so():
    planned = schedule(three_declared(), seconds=lambda _: 10.0, budget_s=330)
    assert [d.name for d in planned.kept] == ["latency", "rate"]
    assert [d.name for d in planned.dropped] == ["one"]
    assert "one is not measured: the pass would take 9.3 minutes with it, 5.5 are allowed" in (
        planned.dropped[0].because
    )
    with pytest.raises(PhotodupError, match=r"No comparison fits into 1\.0 minutes"):
        schedule(three_declared(), seconds=lambda _: 10.0, budget_s=60)


def test_bad_declarations_are_refused():
    good = three_declared()[0]
    for bad, match in (
        ([good, good], "called 'latency'"),
        ([replace(good, b=arm("B"))], "unlike loads"),
        ([replace(good, b=arm("B", machine="x", concurrency=8))], "two machines"),
        ([replace(good, metric="latency")], "no metric"),
    ):
        with pytest.raises(PhotodupError, match=match):
            schedule(bad, seconds=lambda _: 1.0, budget_s=3600)


def test_from_a_schedule_to_sentences():
    generator = np.random.default_rng(0)

    def measure(measurement: Measurement) -> Point:
        if measurement.round == 2 and measurement.arm.side.label == "gRPC":
            raise PhotodupError("The server did not answer: start it.")
        slower = 1.2 if measurement.arm.side.label == "OpenVINO" else 1.0
        value = 50 * slower * math.exp(generator.normal(0, 0.01))
        names = ("latency_ms_p50", "throughput_images_per_s")
        return Point(
            "valid", "", {n: Figure(n, value, value * 0.99, value * 1.01, 500, 400.0) for n in names}
        )

    planned = schedule(three_declared(), seconds=lambda _: 10.0, budget_s=3600)
    points = run(planned, measure)
    outcomes = {o.comparison.name: o for o in judge_pass(comparisons_of(planned, points))}
    assert outcomes["one"].verdict == "different"
    assert outcomes["latency"].verdict == "equal" and outcomes["latency"].n_rounds == 7
    assert outcomes["A/A latency, http, openvino"].verdict == "equal"
    stopped = run(planned, measure, is_time_up=lambda: True)
    assert {m.round for m in stopped} == {1}
    assert all(o.verdict is None for o in judge_pass(comparisons_of(planned, stopped)))


def test_only_a_planned_extension_adds_rounds_and_only_to_what_is_undecided():
    planned = schedule(three_declared(), seconds=lambda _: 10.0, budget_s=3600, rounds=range(1, 7))
    with pytest.raises(PhotodupError, match="one look"):
        extension(["one"], planned, FIXED)
    more = schedule(
        extension(["one"], planned, EXTENDED), seconds=lambda _: 10.0, budget_s=3600, rounds=range(7, 13)
    )
    assert {m.round for m in more.measurements} == set(range(7, 13))
    assert {m.arm.load.concurrency for m in more.measurements} == {1}
