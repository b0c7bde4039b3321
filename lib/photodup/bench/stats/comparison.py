"""The verdict of a comparison: from the log ratios of both sides' visits to an interval and a `Verdict`.

The visit is the unit of observation; its value is the mean log ratio over its halves of palindromes. Most of the variance
lies between visits: the machine's speed has changed, and often the servers were started anew. Four visits of one pair
estimate it poorly, so a small variance is raised towards that of the other comparisons of the kind (Smyth 2004,
doi:10.2202/1544-6115.1027). Pooling would be wrong, since comparisons differ in it: a wait of 10 ms is 30% of a latency in
one hour and 50% in a faster one, while two processes of one configuration stay within 1%.

Primary comparisons of a family are corrected by Holm, and each interval is at the level at which Holm tested it. One that
was tried counts, whatever came of it. One that its pass left out does not: a later declaration changes no earlier interval.
The others are exploratory and stand alone. How often these statistics are wrong is measured by `benchmarks/statistics.py`.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property, partial

import numpy as np

from photodup.bench.stats.metrics import SMALLEST_EFFECT, Load, Metric, metric_named

LEVEL = 0.05
DECIDES_WITHIN = 0.05  # "no difference found" decides a comparison if it excludes anything beyond this
LEAST_VISITS = 2  # that a verdict needs; three or more are measured
MAX_CARRIED_OVER = 0.02  # share of the other side's turns: more processor time in them refuses a comparison


class Verdict(StrEnum):
    """The verdicts of a comparison."""

    BEYOND = "different by more than 2%"
    DIFFERENT = "different"
    EQUAL = "equal"
    NOT_FOUND = "no difference found"
    REFUSED = "measured and refused"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Observed:
    """The observations of one comparison.

    Attributes:
        log_ratios: of b to a as natural logarithms, one array a visit; of a percentile one number a visit.
        value_a, value_b: each side's figure over all visits, in the metric's unit.
    """

    log_ratios: tuple[np.ndarray, ...]
    value_a: float
    value_b: float

    @property
    def n(self) -> int:
        return sum(map(len, self.log_ratios))

    @property
    def n_visits(self) -> int:
        return len(self.log_ratios)

    @cached_property
    def visit_means(self) -> np.ndarray:
        return np.array([float(visit.mean()) for visit in self.log_ratios])

    @cached_property
    def mean(self) -> float:
        return float(self.visit_means.mean())

    @cached_property
    def variance(self) -> float:
        """Of one visit's mean."""
        return float(self.visit_means.var(ddof=1)) if self.n_visits > 1 else 0.0


@dataclass(frozen=True)
class Noise:
    """The variance between visits that is usual for comparisons of a kind.

    Attributes:
        prior: variance of a visit's mean log ratio.
        dof: degrees of freedom of `prior`: few where the comparisons differ in it.
    """

    prior: float = 0.0
    dof: float = 0.0

    def moderated(self, variance: float, dof: float) -> tuple[float, float]:
        """Return a comparison's own variance, raised towards the usual one, and the degrees of freedom of both.

        It is never lowered, or comparisons whose few visits spread more than the others' would be called different too often
        (as in the modified Hartung-Knapp interval: Röver, Knapp and Friede 2015, doi:10.1186/s12874-015-0091-1).
        """
        total_dof = self.dof + dof
        shared = (self.dof * self.prior + dof * variance) / total_dof if total_dof else 0.0
        return max(shared, variance), total_dof


@dataclass(frozen=True)
class Comparison:
    """One comparison to be made: b against a.

    Attributes:
        name: unique in its pass.
        family: what Holm corrects together, commonly the notebook.
        load: the name of the load, link included.
        requests: the load; how many are in flight is part of `kind`: with one the noise is another than with several.
        link: that is emulated; empty without one.
        nulls: names of the nulls that check this load and its protocols.
        observed: what was measured, or the sentence why nothing was.
        carried_over: the largest share of processor time that one side used in the other's turns; None where unknown.
        notes: what a reader must know, one sentence each.
        was_tried: False where its pass did not try to measure it: it counts in no family.
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
    requests: Load = field(default_factory=partial(Load, "single_stream"))
    link: str = ""
    seconds: float = 0.0
    carried_over: float | None = None
    notes: tuple[str, ...] = ()
    was_tried: bool = True

    @property
    def kind(self) -> tuple[bool, str]:
        """Comparisons of a kind share their noise."""
        return self.requests.concurrency != 1, self.metric


@dataclass(frozen=True)
class Outcome:
    """The outcome of a comparison; fractions, not per cent.

    Attributes:
        effect, low, high: b relative to a (.05: 5% more) with the interval at `confidence`.
        value_a, value_b: in the metric's unit.
        n, n_visits: observations and visits that it rests on: all that were made.
        reason: why there is no verdict; empty otherwise.
        null: of the nulls that check it, the outcome that lies farthest from zero; None where none was measured.
    """

    comparison: Comparison
    verdict: Verdict
    effect: float = math.nan
    low: float = math.nan
    high: float = math.nan
    confidence: float = 1 - LEVEL
    value_a: float = math.nan
    value_b: float = math.nan
    n: int = 0
    n_visits: int = 0
    reason: str = ""
    notes: tuple[str, ...] = ()
    null: "Outcome | None" = None

    @property
    def metric(self) -> Metric:
        return metric_named(self.comparison.metric)

    @property
    def is_measured(self) -> bool:
        return self.verdict not in (Verdict.NOT_MEASURED, Verdict.REFUSED)

    @property
    def is_different(self) -> bool:
        return self.verdict in (Verdict.BEYOND, Verdict.DIFFERENT)

    @property
    def excludes_beyond(self) -> float:
        """Relative differences beyond this are excluded in both directions; NaN where nothing was measured."""
        return max(abs(self.low), abs(self.high))

    @property
    def decides(self) -> bool:
        """An answer may rest on this outcome: it has a verdict, or its interval lies inside ±5%."""
        return does_decide(self.verdict, self.excludes_beyond)

    def columns(self) -> dict[str, str | float | bool | int | None]:
        """Return this outcome as a row of `outcomes.json`; numbers that are not known are None."""

        def or_none(value: float) -> float | None:
            return None if math.isnan(value) else value

        comparison = self.comparison
        return {
            "name": comparison.name,
            "notebook": comparison.family,
            "primary": comparison.is_primary,
            "load": comparison.load,
            "metric": comparison.metric,
            "unit": self.metric.unit,
            "value_a": or_none(self.value_a),
            "value_b": or_none(self.value_b),
            "effect": or_none(self.effect),
            "low": or_none(self.low),
            "high": or_none(self.high),
            "verdict": str(self.verdict),
            "because": self.reason,
            "excludes_beyond": or_none(self.excludes_beyond),
            "n": self.n,
            "seconds": comparison.seconds,
            "null_low": or_none(self.null.low) if self.null else None,
            "null_high": or_none(self.null.high) if self.null else None,
        }


def does_decide(verdict: str, excludes_beyond: float) -> bool:
    """Return whether an answer may rest on an outcome with this verdict."""
    if verdict == Verdict.NOT_FOUND:
        return excludes_beyond <= DECIDES_WITHIN
    return verdict not in (Verdict.NOT_MEASURED, Verdict.REFUSED)


def compare_all(comparisons: Sequence[Comparison]) -> list[Outcome]:
    """Return the outcome of each comparison of a pass, in the order given; the nulls among them check the others.

    A null compares two processes of one configuration. Where its Holm-adjusted interval lies beyond ±2%, the comparisons
    that name it carry a note; their verdicts stay.
    """
    kinds: dict[tuple[bool, str], list[Observed]] = defaultdict(list)
    families: dict[tuple[bool | str, int], list[int]] = defaultdict(list)
    for index, comparison in enumerate(comparisons):
        if isinstance(comparison.observed, Observed):
            kinds[comparison.kind].append(comparison.observed)
        is_alone = not (comparison.is_null or comparison.is_primary) or not comparison.was_tried
        families[comparison.is_null or comparison.family, is_alone and index + 1].append(index)
    noise = {kind: noise_of(observed) for kind, observed in kinds.items()}
    outcomes: dict[int, Outcome] = {}
    for members in families.values():
        outcomes |= dict(zip(members, _family([comparisons[i] for i in members], noise), strict=True))
    nulls = {o.comparison.name: o for o in outcomes.values() if o.comparison.is_null}
    return [
        _checked(outcomes[i], [nulls[n] for n in c.nulls if n in nulls]) for i, c in enumerate(comparisons)
    ]


def one_sided(observed: Observed, level: float) -> tuple[float, float]:
    """Return the lower and the upper bound of one comparison that stands alone, each wrong at `level`; fractions."""
    return _estimate(observed, Noise()).bounds(2 * level)


def noise_of(observed: Sequence[Observed]) -> Noise:
    """Return the noise that comparisons of a kind share, by the moments of the variances' logarithms (Smyth 2004, 6.2).

    It is worth at most the degrees of freedom of all comparisons but one; a single one has no prior, and gives 0.
    """
    from scipy.optimize import brentq
    from scipy.special import digamma, polygamma

    several = [each for each in observed if each.n_visits > 1]
    variances = np.array([each.variance for each in several])
    dof = np.array([each.n_visits - 1.0 for each in several])
    if len(several) < 2 or not np.median(variances):
        return Noise()
    half = dof / 2
    # A variance of nearly 0 would decide alone: its logarithm has no lower bound.
    logs = np.log(np.maximum(variances, 1e-5 * np.median(variances))) - digamma(half) + np.log(half)
    excess = float(np.var(logs, ddof=1) - polygamma(1, half).mean())
    half_dof = float(dof.sum() - dof.mean()) / 2
    if excess > polygamma(1, half_dof):
        half_dof = brentq(lambda x: polygamma(1, x) - excess, 1e-3, half_dof)
    return Noise(math.exp(logs.mean() + digamma(half_dof) - math.log(half_dof)), 2 * half_dof)


@dataclass(frozen=True)
class _Estimate:
    mean: float
    error: float
    dof: float

    def p_value(self) -> float:
        from scipy.special import stdtr

        if not self.error > 0:
            return float(self.mean == 0)
        return 2 * float(stdtr(self.dof, -abs(self.mean) / self.error))

    def bounds(self, level: float) -> tuple[float, float]:
        from scipy.special import stdtrit

        half_width = float(-stdtrit(self.dof, level / 2)) * self.error
        return math.expm1(self.mean - half_width), math.expm1(self.mean + half_width)


def _estimate(observed: Observed, noise: Noise) -> _Estimate:
    variance, dof = noise.moderated(observed.variance, observed.n_visits - 1)
    return _Estimate(observed.mean, math.sqrt(variance / observed.n_visits), dof)


def _family(comparisons: Sequence[Comparison], noise: Mapping[tuple[bool, str], Noise]) -> list[Outcome]:
    """Compare all that one family declared and correct it by Holm; members without a figure count."""
    estimates: dict[int, _Estimate] = {}
    refused: dict[int, tuple[Verdict, str]] = {}
    for index, comparison in enumerate(comparisons):
        observed = comparison.observed
        if isinstance(observed, str):
            refused[index] = Verdict.NOT_MEASURED, observed
        elif observed.n_visits < LEAST_VISITS:
            visits = f"{observed.n_visits} visits were measured, at least {LEAST_VISITS} are needed."
            refused[index] = Verdict.NOT_MEASURED, visits
        elif comparison.carried_over is not None and comparison.carried_over > MAX_CARRIED_OVER:
            spinning = f"one side computed for {comparison.carried_over:.0%} of the other side's turns"
            refused[index] = Verdict.REFUSED, f"{spinning}: turn its spinning off."
        else:
            estimates[index] = _estimate(observed, noise[comparison.kind])
    levels = _holm({i: e.p_value() for i, e in estimates.items()}, len(comparisons))
    return [
        _outcome(comparison, estimates[i], levels[i])
        if i in estimates
        else Outcome(comparison, refused[i][0], reason=refused[i][1], notes=comparison.notes)
        for i, comparison in enumerate(comparisons)
    ]


def _holm(p_values: Mapping[int, float], size: int) -> dict[int, float]:
    """Return the level at which Holm tests each member: each rejection leaves a higher level to the next."""
    levels, left, stopped = {}, size, False
    for index in sorted(p_values, key=lambda i: p_values[i]):
        levels[index] = LEVEL / left
        stopped = stopped or p_values[index] > levels[index]
        left -= 0 if stopped else 1
    return levels


def _outcome(comparison: Comparison, estimate: _Estimate, level: float) -> Outcome:
    observed, metric = comparison.observed, metric_named(comparison.metric)
    assert isinstance(observed, Observed)
    low, high = estimate.bounds(level)
    notes = comparison.notes
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
        comparison,
        verdict,
        effect=math.expm1(estimate.mean),
        low=low,
        high=high,
        confidence=1 - level,
        value_a=observed.value_a,
        value_b=observed.value_b,
        n=observed.n,
        n_visits=observed.n_visits,
        notes=notes,
    )


def _checked(outcome: Outcome, nulls: Sequence[Outcome]) -> Outcome:
    measured = [null for null in nulls if null.is_measured]
    if not measured or outcome.comparison.is_null or not outcome.is_measured:
        return outcome
    notes = tuple(
        f"The check failed: {null.comparison.label_b} differs from {null.comparison.label_a} "
        f"by [{null.low:+z.1%}, {null.high:+z.1%}]."
        for null in measured
        if has_failed(null)
    )
    farthest = max(measured, key=lambda null: abs(math.log1p(null.effect)))
    return replace(outcome, null=farthest, notes=(*outcome.notes, *notes))


def has_failed(null: Outcome) -> bool:
    """Return whether two processes of one configuration differ by more than 2%."""
    return null.is_measured and (null.low > SMALLEST_EFFECT or null.high < -SMALLEST_EFFECT)
