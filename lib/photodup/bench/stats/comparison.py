"""The verdict of a comparison: from the log ratios of both sides' turns to an interval and one of five verdicts.

One observation is the log ratio of a block or of a quad of turns. Observations come in visits. The interval holds what
varies from observation to observation, its autocorrelation, and what varies from visit to visit (the server was started
anew, the machine's minutes are others): half-width = t · √(SE² + σ²_visits / visits). Four visits of one pair know little of
either, so all comparisons of a kind (one request in flight, or several) share the autocorrelation, and each variance between
visits is moderated by the others' (Smyth 2004, doi:10.2202/1544-6115.1027). It is not simply pooled, for it differs: a wait
of 10 ms is 30 % of an answer in one hour and 50 % in a faster one, while two processes of one configuration stay within 1 %.

Primary comparisons of a family are corrected by Holm; the others are exploratory and stand alone. How often these
statistics are wrong is measured by `benchmarks/statistics.py`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

import numpy as np

from photodup.bench.stats.facts import SMALLEST_EFFECT, Metric, metric_named

LEVEL = 0.05
DECIDES_WITHIN = 0.05  # "no difference found" decides a question if it excludes anything beyond this
LEAST_OBSERVATIONS = 6
CARRIED_OVER = 0.02  # of the others' turns: more processor time than this refuses a comparison
_BOOTSTRAPS = 400


class Verdict(StrEnum):
    """The verdicts of a comparison."""

    BEYOND = "different by more than 2 %"
    DIFFERENT = "different"
    EQUAL = "equal"
    NOT_FOUND = "no difference found"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Observed:
    """The observations of one comparison, from both sides' turns.

    Attributes:
        log_ratios: of b to a as natural logarithms, one array a visit, in the order of time.
        value_a, value_b: each side's figure over all visits, in the metric's unit.
        effect: for a percentile: the log ratio of both sides' pooled percentiles; None takes the mean of `log_ratios`.
        error: its standard error, by redrawing whole blocks of both sides.
    """

    log_ratios: tuple[np.ndarray, ...]
    value_a: float
    value_b: float
    effect: float | None = None
    error: float | None = None

    @property
    def n(self) -> int:
        return sum(map(len, self.log_ratios))

    @cached_property
    def mean(self) -> float:
        return float(np.concatenate(self.log_ratios).mean()) if self.effect is None else self.effect

    @cached_property
    def visit_means(self) -> list[float]:
        return [float(visit.mean()) for visit in self.log_ratios]

    @cached_property
    def variance(self) -> float:
        """Variance of one observation within its visit."""
        free = self.n - len(self.log_ratios)
        return sum(float(((v - v.mean()) ** 2).sum()) for v in self.log_ratios) / free if free > 0 else 0.0


@dataclass(frozen=True)
class Noise:
    """The noise that all comparisons of a kind share.

    Attributes:
        autocorrelation: of successive observations of a visit, 0 to .5.
        usual: variance of the mean of a visit that a comparison has of which nothing is known.
        free: degrees of freedom that `usual` is worth: few where the comparisons differ in it.
    """

    autocorrelation: float = 0.0
    usual: float = 0.0
    free: float = 0.0

    @property
    def inflation(self) -> float:
        """By how much the autocorrelation enlarges the variance of a mean."""
        return (1 + self.autocorrelation) / (1 - self.autocorrelation)


@dataclass(frozen=True)
class Question:
    """One comparison to be made: b against a.

    Attributes:
        name: unique in its pass.
        family: what Holm corrects together, commonly the notebook.
        load: the name of the load, link included.
        images: in one request.
        has_several_in_flight: noise is pooled over all comparisons with one request in flight, and over those with several.
        nulls: names of the nulls that check this load and its protocols.
        observed: what was measured, or the sentence why nothing was.
        carried_over: the largest share of processor time that one side used in the other's turns; None where unknown.
        notes: what a reader must know, one sentence each.
    """

    name: str
    family: str
    metric: str
    load: str
    label_a: str
    label_b: str
    observed: Observed | str
    is_primary: bool = False
    is_null: bool = False
    nulls: tuple[str, ...] = ()
    images: int = 1
    has_several_in_flight: bool = False
    n_failed: int = 0
    seconds: float = 0.0
    carried_over: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """The outcome of a comparison; fractions, not per cent.

    Attributes:
        effect, low, high: b relative to a (.05: 5 % more) with the interval at `confidence`.
        value_a, value_b: in the metric's unit.
        n, n_visits: observations and visits that it rests on: all that were made.
        spread: standard deviation of one observation.
        because: why there is no verdict; empty otherwise.
        null: of the nulls that check it, the outcome that lies farthest from zero; None where none was measured.
    """

    question: Question
    verdict: Verdict
    effect: float = math.nan
    low: float = math.nan
    high: float = math.nan
    confidence: float = 1 - LEVEL
    value_a: float = math.nan
    value_b: float = math.nan
    n: int = 0
    n_visits: int = 0
    spread: float = math.nan
    because: str = ""
    notes: tuple[str, ...] = field(default=())
    null: "Outcome | None" = None

    @property
    def metric(self) -> Metric:
        return metric_named(self.question.metric)

    @property
    def is_measured(self) -> bool:
        return self.verdict is not Verdict.NOT_MEASURED

    @property
    def is_different(self) -> bool:
        return self.verdict in (Verdict.BEYOND, Verdict.DIFFERENT)

    @property
    def excludes_beyond(self) -> float:
        """Relative differences beyond this are excluded in both directions; NaN where nothing was measured."""
        return max(abs(self.low), abs(self.high))

    @property
    def decides(self) -> bool:
        """An answer may rest on this outcome: it has a verdict, or its interval lies inside ±5 %."""
        return does_decide(self.verdict, self.excludes_beyond)

    def columns(self) -> dict[str, str | float | bool | int | None]:
        """Return this outcome as a row of `outcomes.json`; numbers that are not known are None."""

        def known(value: float) -> float | None:
            return None if math.isnan(value) else value

        asked = self.question
        return {
            "name": asked.name,
            "notebook": asked.family,
            "primary": asked.is_primary,
            "load": asked.load,
            "metric": asked.metric,
            "unit": self.metric.unit,
            "value_a": known(self.value_a),
            "value_b": known(self.value_b),
            "effect": known(self.effect),
            "low": known(self.low),
            "high": known(self.high),
            "verdict": str(self.verdict),
            "because": self.because,
            "excludes_beyond": known(self.excludes_beyond),
            "n": self.n,
            "seconds": asked.seconds,
            "null_low": known(self.null.low) if self.null else None,
            "null_high": known(self.null.high) if self.null else None,
        }


def does_decide(verdict: str, excludes_beyond: float) -> bool:
    """Return whether an answer may rest on an outcome with this verdict."""
    if verdict == Verdict.NOT_FOUND:
        return excludes_beyond <= DECIDES_WITHIN
    return verdict != Verdict.NOT_MEASURED


def judge(questions: Sequence[Question]) -> list[Outcome]:
    """Return the outcome of each question of a pass, in the order given; the nulls among them check the others.

    A null is a check and never a threshold: where its Holm-adjusted interval lies beyond ±2 %, the comparisons of its load
    and protocol carry a note that says so.
    """
    known = [
        (q, q.observed) for q in questions if isinstance(q.observed, Observed) and _has_enough(q.observed)
    ]
    noise = {
        several: noise_of([seen for q, seen in known if q.has_several_in_flight is several])
        for several in (False, True)
    }
    families: dict[tuple[str, str], list[int]] = {}
    for index, question in enumerate(questions):
        kind = "nulls" if question.is_null else question.family if question.is_primary else f"alone {index}"
        families.setdefault((str(question.is_null), kind), []).append(index)
    found: dict[int, Outcome] = {}
    for members in families.values():
        found |= dict(zip(members, _family([questions[i] for i in members], noise), strict=True))
    nulls = {o.question.name: o for o in found.values() if o.question.is_null}
    return [_checked(found[i], [nulls[n] for n in q.nulls if n in nulls]) for i, q in enumerate(questions)]


def one_sided(observed: Observed, level: float) -> tuple[float, float]:
    """Return the lower and the upper bound of one comparison that stands alone, each wrong at `level`; fractions."""
    return _estimate(observed, noise_of([observed])).bounds(2 * level)


def noise_of(seen: Sequence[Observed]) -> Noise:
    """Return the autocorrelation and the usual variance between visits of comparisons of a kind, or of one alone."""
    products, squares, lengths = 0.0, 0.0, []
    for observed in seen:
        scale = observed.variance or 1.0
        for visit in observed.log_ratios:
            left = visit - visit.mean()
            products += float((left[1:] * left[:-1]).sum()) / scale
            squares += float((left**2).sum()) / scale
            lengths.append(len(visit))
    correlation = _autocorrelation(products / squares, round(float(np.mean(lengths)))) if squares else 0.0
    several = [of for of in seen if len(of.log_ratios) > 1]
    own = np.array([np.var(of.visit_means, ddof=1) for of in several])
    usual, free = _usual_variance(own, np.array([len(of.log_ratios) - 1 for of in several]))
    return Noise(correlation, usual, free)


def _usual_variance(own: np.ndarray, free: np.ndarray) -> tuple[float, float]:
    """Return the variance around which variances lie, and the degrees of freedom that it is worth to one more of them.

    By the moments of their logarithms (Smyth 2004, section 6.2). It is worth nothing to the only one, and never more than
    the degrees of freedom of the others.

    Args:
        own: [n] estimates.
        free: [n] degrees of freedom of each.
    """
    from scipy.optimize import brentq
    from scipy.special import digamma, polygamma

    if len(own) < 2 or not np.median(own):
        return 0.0, 0.0
    half = free / 2
    # One that happens to be nothing would decide alone: its logarithm has no bound.
    logs = np.log(np.maximum(own, 1e-5 * np.median(own))) - digamma(half) + np.log(half)
    apart = float(np.var(logs, ddof=1) - polygamma(1, half).mean())
    most = float(free.sum() - free.mean())
    if apart <= polygamma(1, most / 2):
        return math.exp(logs.mean() + digamma(most / 2) - math.log(most / 2)), most
    worth = brentq(lambda x: polygamma(1, x) - apart, 1e-3, most / 2)
    return math.exp(logs.mean() + digamma(worth) - math.log(worth)), 2 * worth


def between_visits(observed: Observed, noise: Noise) -> tuple[float, float]:
    """Return the variance from visit to visit beyond what the observations explain, and its degrees of freedom."""
    n = len(observed.log_ratios)
    own = float(np.var(observed.visit_means, ddof=1)) if n > 1 else 0.0
    free = noise.free + n - 1
    per_visit = float(np.mean([1 / len(v) for v in observed.log_ratios]))
    explained = observed.variance * noise.inflation * per_visit
    return (max((noise.free * noise.usual + (n - 1) * own) / free - explained, 0.0) if free else 0.0), free


def _autocorrelation(lag_one: float, n: int) -> float:
    """Return the autocorrelation, 0 to .5, of which visits of `n` observations show `lag_one` once their mean is taken away.

    Five independent observations show -.2 then, and five with an autocorrelation of .4 show 0. Three or four know it so
    badly that more than .5 is mostly chance.
    """
    centre = np.eye(n) - 1 / n
    gaps = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    known = np.linspace(0, 0.5, 6)
    left = [centre @ rho**gaps @ centre for rho in known]
    return float(np.interp(lag_one, [np.trace(one, 1) / np.trace(one) for one in left], known))


@dataclass(frozen=True)
class _Estimate:
    mean: float
    error: float
    free: float

    def p_value(self) -> float:
        from scipy.special import stdtr

        if not self.error > 0:
            return float(self.mean == 0)
        return 2 * float(stdtr(self.free, -abs(self.mean) / self.error))

    def bounds(self, level: float) -> tuple[float, float]:
        from scipy.special import stdtrit

        reach = float(-stdtrit(self.free, level / 2)) * self.error
        return math.expm1(self.mean - reach), math.expm1(self.mean + reach)


def _estimate(observed: Observed, noise: Noise) -> _Estimate:
    """Both parts of the variance with their own degrees of freedom, joined as Welch and Satterthwaite do."""
    within = observed.variance * noise.inflation / observed.n if observed.error is None else observed.error**2
    variance, free_between = between_visits(observed, noise)
    between = variance / len(observed.log_ratios)
    free = max(observed.n - len(observed.log_ratios), 1)
    total = within + between
    if total == 0:
        return _Estimate(observed.mean, 0.0, free)
    together = total**2 / (within**2 / free + (between**2 / free_between if between else 0.0))
    return _Estimate(observed.mean, math.sqrt(total), together)


def _has_enough(observed: Observed) -> bool:
    return observed.n >= LEAST_OBSERVATIONS and min(map(len, observed.log_ratios)) > 1


def _family(questions: Sequence[Question], noise: Mapping[bool, Noise]) -> list[Outcome]:
    """Compare all that one family declared and correct it by Holm; members without a figure count."""
    estimates: dict[int, _Estimate] = {}
    refused: dict[int, str] = {}
    for index, question in enumerate(questions):
        observed = question.observed
        if isinstance(observed, str):
            refused[index] = observed
        elif not _has_enough(observed):
            refused[index] = (
                f"{observed.n} blocks of turns were measured, at least {LEAST_OBSERVATIONS} are needed."
            )
        elif question.carried_over is not None and question.carried_over > CARRIED_OVER:
            refused[index] = (
                f"one side computed for {question.carried_over:.0%} of the other side's turns: turn its spinning off."
            )
        else:
            estimates[index] = _estimate(observed, noise[question.has_several_in_flight])
    levels = _holm({i: e.p_value() for i, e in estimates.items()}, len(questions))
    return [
        _outcome(question, estimates[i], levels[i])
        if i in estimates
        else Outcome(question, Verdict.NOT_MEASURED, because=refused[i], notes=question.notes)
        for i, question in enumerate(questions)
    ]


def _holm(p_values: Mapping[int, float], size: int) -> dict[int, float]:
    """Return the level at which Holm tests each member: those that pass before it leave more to the next."""
    levels, left, stopped = {}, size, False
    for index in sorted(p_values, key=lambda i: p_values[i]):
        levels[index] = LEVEL / left
        stopped = stopped or p_values[index] > levels[index]
        left -= 0 if stopped else 1
    return levels


def _outcome(question: Question, estimate: _Estimate, level: float) -> Outcome:
    observed, metric = question.observed, metric_named(question.metric)
    assert isinstance(observed, Observed)
    low, high = estimate.bounds(level)
    notes = question.notes
    if low > SMALLEST_EFFECT or high < -SMALLEST_EFFECT:
        verdict = Verdict.BEYOND
    elif low > 0 or high < 0:
        verdict = Verdict.DIFFERENT
    elif max(abs(low), abs(high)) <= metric.margin:
        verdict = Verdict.EQUAL
    else:
        verdict = Verdict.NOT_FOUND
    is_opposite = (observed.value_b - observed.value_a) * estimate.mean < 0
    if is_opposite and verdict in (Verdict.BEYOND, Verdict.DIFFERENT):
        verdict = Verdict.NOT_FOUND
        notes += ("The median of the ratios and the ratio of the medians point in opposite directions.",)
    return Outcome(
        question,
        verdict,
        effect=math.expm1(estimate.mean),
        low=low,
        high=high,
        confidence=1 - level,
        value_a=observed.value_a,
        value_b=observed.value_b,
        n=observed.n,
        n_visits=len(observed.log_ratios),
        spread=math.sqrt(observed.variance),
        notes=notes,
    )


def _checked(outcome: Outcome, nulls: Sequence[Outcome]) -> Outcome:
    measured = [null for null in nulls if null.is_measured]
    if not measured or outcome.question.is_null or not outcome.is_measured:
        return outcome
    notes = tuple(
        f"The check failed: {null.question.label_b} differs from {null.question.label_a} "
        f"by [{null.low:+z.1%}, {null.high:+z.1%}]."
        for null in measured
        if has_failed(null)
    )
    farthest = max(measured, key=lambda null: abs(math.log1p(null.effect)))
    return replace(outcome, null=farthest, notes=(*outcome.notes, *notes))


def has_failed(null: Outcome) -> bool:
    """Return whether two processes of one configuration differ by more than 2 %."""
    return null.is_measured and (null.low > SMALLEST_EFFECT or null.high < -SMALLEST_EFFECT)


def percentile_ratio(
    blocks: Sequence[tuple[np.ndarray, np.ndarray]], percentile: float
) -> tuple[float, float, float, float]:
    """Return percentiles of both sides' pooled answers, the log ratio of b to a, and its standard error.

    Args:
        blocks: latencies of a and b, ms, in each block or quad.
        percentile: 0 to 100.
    """
    (a, b), again = redrawn(blocks, percentile)
    return a, b, math.log(b / a), float(np.std(np.diff(np.log(again)), ddof=1))


def redrawn(blocks: Sequence[Sequence[np.ndarray]], percentile: float) -> tuple[np.ndarray, np.ndarray]:
    """Return a percentile of each side's pooled answers, [n_sides], and of 400 draws of whole blocks, [400, n_sides].

    Args:
        blocks: [n_blocks][n_sides] latencies, ms; a block is drawn with all its sides.
    """
    draw = np.random.default_rng(0)

    def of(chosen: Iterable[int]) -> list[float]:
        sides = zip(*(blocks[i] for i in chosen), strict=True)
        return [float(np.percentile(np.concatenate(side), percentile)) for side in sides]

    again = [of(draw.integers(0, len(blocks), len(blocks))) for _ in range(_BOOTSTRAPS)]
    return np.array(of(range(len(blocks)))), np.array(again)
