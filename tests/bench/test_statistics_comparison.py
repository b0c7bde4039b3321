"""From log ratios to a verdict and a sentence: by hand, as laws, and with planted faults."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from photodup.bench.stats import comparison
from photodup.bench.stats.metrics import METRICS, SMALLEST_EFFECT, Load
from photodup.bench.stats.sentence import cells_of, load_of, sentence

WIGGLE = np.array([0.001, -0.001, 0.001, -0.001])  # of the means of visits


def observed(effect: float, n_visits: int = 4, wiggle=WIGGLE) -> comparison.Observed:
    """Visits with this relative effect; side a reads 50."""
    visits = tuple(math.log1p(effect) + by + np.array([-0.01, 0.01]) for by in wiggle[:n_visits])
    return comparison.Observed(visits, 50.0, 50.0 * (1 + effect))


def question(seen, name="c", *, metric="latency_ms_p50", **others) -> comparison.Comparison:
    family, load = others.pop("family", "06"), others.pop("load", "one")
    return comparison.Comparison(name, family, metric, load, "A", "B", seen, **others)


def judged(seen, **others) -> comparison.Outcome:
    return comparison.compare_all([question(seen, **others)])[0]


# --- by hand ----------------------------------------------------------------------------------------------


def test_an_estimate_as_computed_by_hand():
    """Visits alone count, however much was observed in each: variance 8/3 e-4 of a visit, 3 degrees of freedom."""
    visits = tuple(np.full(7, mean) for mean in (0.03, 0.05, 0.05, 0.07))
    seen = comparison.Observed(visits, 50.0, 50 * math.exp(0.05))
    assert comparison.noise_of([seen]) == comparison.Noise(0.0, 0.0), (
        "others tell nothing, for there are none"
    )
    outcome = judged(seen)
    reach = stats.t.ppf(0.975, 3) * math.sqrt(8e-4 / 3 / 4)
    assert math.isclose(outcome.effect, math.expm1(0.05), rel_tol=1e-9)
    assert math.isclose(outcome.low, math.expm1(0.05 - reach), rel_tol=1e-6)
    assert math.isclose(outcome.high, math.expm1(0.05 + reach), rel_tol=1e-6)
    assert (outcome.n, outcome.n_visits, outcome.verdict) == (28, 4, comparison.Verdict.BEYOND)
    # Worth 6 degrees of freedom, the others raise a smaller variance, and lower none.
    others = comparison.Noise(4e-4 / 3, 6.0)
    assert np.allclose(others.moderated(1e-4 / 3, 3.0), (1e-4, 9.0))
    assert np.allclose(others.moderated(8e-4 / 3, 3.0), (8e-4 / 3, 9.0))


def moved(spread: float, generator) -> comparison.Observed:
    """Four visits whose means vary by `spread`; what they observe varies by next to nothing."""
    return comparison.Observed(tuple(m + 1e-6 * WIGGLE for m in generator.normal(0, spread, 4)), 50.0, 50.0)


def test_the_noise_of_a_kind_is_shared():
    """What looks steadier than the others is trusted less, by the comparisons of its own kind alone."""
    generator = np.random.default_rng(0)
    others = [question(moved(0.02, generator), str(i), load="eight") for i in range(30)]
    alone = judged(observed(0.0))
    among = comparison.compare_all([question(observed(0.0)), *others])[0]
    several = [replace(q, requests=Load("closed_loop", concurrency=8)) for q in others]
    apart = comparison.compare_all([question(observed(0.0)), *several])[0]
    assert among.high > 3 * alone.high
    assert apart.high == alone.high


def test_comparisons_that_vary_alike_share_more_than_those_that_do_not():
    """Even ones are worth nearly all degrees of freedom of the others; where one varies a hundredfold, few."""
    generator = np.random.default_rng(1)
    even = comparison.noise_of([moved(0.01, generator) for _ in range(40)])
    uneven = comparison.noise_of([moved(0.1 ** (1 + i % 3), generator) for i in range(40)])
    assert even.dof > 20 and math.isclose(even.prior, 1e-4, rel_tol=0.3)
    assert 0 < uneven.dof < 3
    assert comparison.noise_of([observed(0.0, wiggle=0 * WIGGLE)] * 5).prior == 0, "visits that are all alike"


def test_holm_as_in_the_textbook():
    """Four p values at .05: .005 and .01 pass (.0125, .0167), .03 fails (.025), .04 is not tested further."""
    levels = comparison._holm({0: 0.01, 1: 0.04, 2: 0.03, 3: 0.005}, 4)
    assert np.allclose([levels[i] for i in range(4)], [0.05 / 3, 0.025, 0.025, 0.0125])
    assert comparison._holm({0: 0.01}, 4) == {0: 0.0125}, "members that could not be measured count"


# --- verdicts and sentences -------------------------------------------------------------------------------


def test_each_verdict_has_its_sentence():
    beyond = judged(observed(0.10))
    assert beyond.verdict is comparison.Verdict.BEYOND and beyond.decides
    assert sentence(beyond).startswith("B takes 10% longer than A [")
    assert "(median latency 55 against 50 ms)" in sentence(beyond)
    slower = judged(observed(-0.10), metric="throughput_images_per_s")
    assert sentence(slower).startswith("B has 10% lower throughput than A [")
    small = judged(observed(0.015))
    assert small.verdict is comparison.Verdict.DIFFERENT and small.low > 0
    equal = judged(observed(0.0))
    assert equal.verdict is comparison.Verdict.EQUAL
    assert "the same median latency within 5%" in sentence(equal) and load_of(equal) == "1 in flight"
    wide = judged(observed(0.0, wiggle=100 * WIGGLE))
    assert wide.verdict is comparison.Verdict.NOT_FOUND and not wide.decides
    assert f"anything beyond {100 * wide.excludes_beyond:.0f}% is excluded" in sentence(wide)
    none = judged("A was away.", requests=Load("closed_loop", batch=8, concurrency=4), link="far")
    assert load_of(none) == "8 images a request, 4 in flight, over far"
    assert not none.is_measured and not none.decides and sentence(none).endswith("not measured. A was away.")
    assert "nan" not in " ".join(cells_of(none).values())
    columns = json.loads(json.dumps(none.columns(), allow_nan=False))
    assert columns["effect"] is None and columns["because"] == "A was away."
    assert json.loads(json.dumps(beyond.columns()))["verdict"] == "different by more than 2%"


@pytest.mark.parametrize(("seen", "others", "because"), [
    (observed(0.1, n_visits=1), {}, "1 visits were measured, at least 2 are needed"),
    (observed(0.1), {"carried_over": 0.03}, "one side computed for 3% of the other side's turns"),
    ("a side answered nothing: refused", {}, "refused"),
])  # fmt: skip
def test_what_is_refused_has_its_reason_and_counts_in_its_family(seen, others, because):
    refused = question(seen, "refused", is_primary=True, **others)
    members = [question(observed(0.1), str(i), is_primary=True) for i in range(2)]
    for was_tried, size in ((False, 2), (True, 3)):  # what a run left out widens nothing
        first, *rest = comparison.compare_all([replace(refused, was_tried=was_tried), *members])
        assert max(outcome.confidence for outcome in rest) == 1 - 0.05 / size
    was_measured = "carried_over" in others
    assert (first.verdict is comparison.Verdict.REFUSED) == was_measured and because in first.reason
    assert not first.is_measured and not first.decides
    assert judged(observed(0.1), carried_over=0.01).is_measured


def test_no_direction_is_claimed_where_ratio_and_values_disagree():
    against = judged(replace(observed(0.1), value_b=49.0))
    assert against.verdict is comparison.Verdict.NOT_FOUND and "opposite directions" in against.notes[0]


def test_only_primary_comparisons_of_one_notebook_are_corrected_together():
    asked = [question(observed(0.1), str(i), is_primary=i < 3, family="06" if i else "07") for i in range(5)]
    confidences = [outcome.confidence for outcome in comparison.compare_all(asked)]
    assert confidences[0] == confidences[3] == confidences[4] == 0.95
    assert sorted(confidences[1:3]) == [0.95, 0.975]


def test_a_null_that_fails_marks_its_comparisons_and_no_other():
    nulls = [
        question(observed(0.001), "passes", is_null=True),
        question(observed(0.08), "fails", is_null=True),
    ]
    families = (("passes", "fails"), ("passes",), ())
    both, one, none = (question(observed(0.1), str(i), nulls=n) for i, n in enumerate(families))
    outcomes = {o.comparison.name: o for o in comparison.compare_all([both, one, none, *nulls])}
    assert comparison.has_failed(outcomes["fails"]) and not comparison.has_failed(outcomes["passes"])
    assert outcomes["0"].verdict is outcomes["1"].verdict is comparison.Verdict.BEYOND, (
        "a null is no threshold"
    )
    assert "B differs from A by" in outcomes["0"].notes[0] and outcomes["0"].null.comparison.name == "fails"
    assert not outcomes["1"].notes and outcomes["1"].null.comparison.name == "passes"
    assert outcomes["2"].null is None
    near = judged(observed(0.019), is_null=True)
    assert near.is_different and not comparison.has_failed(near), "two processes may differ by less than 2%"


# --- laws -------------------------------------------------------------------------------------------------

log_ratios = st.integers(-500, 500).map(lambda thousandths: thousandths / 1000)
visit_lists = st.lists(st.lists(log_ratios, min_size=3, max_size=5), min_size=3, max_size=5)


def seen_of(visits) -> comparison.Observed:
    arrays = tuple(np.array(visit) for visit in visits)
    return comparison.Observed(arrays, 50.0, 50.0 * math.exp(np.mean([array.mean() for array in arrays])))


@given(families=st.lists(visit_lists, min_size=1, max_size=5), metric=st.sampled_from(sorted(METRICS)))
@settings(max_examples=100)
def test_a_verdict_says_what_its_interval_says(families, metric):
    asked = [question(seen_of(v), str(i), metric=metric, is_primary=True) for i, v in enumerate(families)]
    for outcome in comparison.compare_all(asked):
        low, high, margin = outcome.low, outcome.high, outcome.metric.margin
        assert low <= outcome.effect <= high
        is_found, is_beyond = low > 0 or high < 0, low > SMALLEST_EFFECT or high < -SMALLEST_EFFECT
        within = max(abs(low), abs(high))
        assert outcome.is_different == is_found
        assert (outcome.verdict is comparison.Verdict.BEYOND) == is_beyond
        assert (outcome.verdict is comparison.Verdict.EQUAL) == (not is_found and within <= margin)
        assert outcome.decides == (is_found or within <= margin or within <= 0.05)


@given(visits=visit_lists)
@settings(max_examples=60)
def test_swapping_the_sides_turns_the_signs(visits):
    one = judged(seen_of(visits))
    other = judged(seen_of([[-value for value in visit] for visit in visits]))
    assert one.is_different == other.is_different
    assert math.isclose(1 + one.effect, 1 / (1 + other.effect), rel_tol=1e-9)
    assert math.isclose(1 + one.low, 1 / (1 + other.high), rel_tol=1e-9)
