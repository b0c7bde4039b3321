"""The verdict of a comparison: different, equal or undecided, from rounds in which both sides were measured.

The log ratio of a round is one observation. *Different* is said when the hypothesis |effect| <= 2 % is rejected by
two one-sided t tests (each at half the level), *equal* when two one-sided tests put the effect inside the metric's
margin. Both kinds of statement are corrected by Holm over the family declared beforehand: members that could not be
measured count. The interval of an outcome is that of the step at which it was tested, so it lies outside ±2 % when
and only when *different* is said, and inside the margin when *equal* is.

The rounds count whose points are valid. Where fewer than needed are, every round counts in which both sides have a
figure: its log ratio is one observation, and what an unsteady window did to it shows in the spread between the rounds,
from which the interval comes. The sentence says how many such rounds there are. (On two cores at eight requests in flight
five of eight rounds were not steady by themselves, and their throughputs agreed within 3 %: to say nothing of them would
say less than is known.)

METHOD §10.3 is followed but for that and one more thing: the extension's looks at 6 and 12 rounds use the levels .01
and .04, not .01 and .045. Simulated with two million pairs of looks, .045 gives 5.14 % false claims, and 5.4 % after
Holm over five or more; .04 gives 4.7 to 4.9 % and holds without a simulation, since the two levels add to .05.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from photodup.bench.stats.facts import SMALLEST_EFFECT, Arm, Kind, Metric, metric_named
from photodup.bench.stats.measured import COUNTED, Round
from photodup.bench.stats.pool import that_count
from photodup.errors import PhotodupError

LEVEL = 0.05
MOST_ROUNDS = 400


@dataclass(frozen=True)
class Plan:
    """When rounds are judged.

    Attributes:
        looks: rounds measured at each look, ascending.
        levels: the level of each look; together at most .05.
        needed: complete rounds below which nothing is said.
    """

    looks: tuple[int, ...] = (8,)
    levels: tuple[float, ...] = (LEVEL,)
    needed: int = 6

    def __post_init__(self) -> None:
        if (
            len(self.looks) != len(self.levels)
            or not self.looks
            or list(self.looks) != sorted(set(self.looks))
        ):
            raise PhotodupError("A plan of rounds needs growing looks and a level for each.")
        if sum(self.levels) > LEVEL + 1e-12:
            raise PhotodupError(
                f"The levels of a plan's looks add up to {sum(self.levels):g}: {LEVEL} is the most."
            )

    def look(self, measured: int) -> tuple[int, float]:
        """Return how many rounds count and at which level, once so many were measured.

        Rounds beyond a look wait for the next one: who counts them as they come decides when it suits.
        Before the first look everything counts at its level (the pass ended early, which no result decided).
        """
        reached = [i for i, rounds in enumerate(self.looks) if measured >= rounds]
        at = reached[-1] if reached else 0
        return min(measured, self.looks[at]), self.levels[at]


FIXED = Plan()
EXTENDED = Plan(looks=(6, 12), levels=(0.01, 0.04))


@dataclass(frozen=True)
class Comparison:
    """Two arms, one metric, the rounds.

    Attributes:
        name: of this comparison; unique in its pass.
        family: what is corrected together: all that one notebook declares beforehand.
        a, b: the arms; the effect is b relative to a.
        is_check: the same thing measured as two arms (A/A).
    """

    name: str
    family: str
    metric: str
    a: Arm
    b: Arm
    rounds: tuple[Round, ...] = ()
    is_check: bool = False

    @property
    def kinds(self) -> frozenset[Kind]:
        return frozenset(Kind.of(self.metric, arm.side) for arm in (self.a, self.b))


@dataclass(frozen=True)
class Outcome:
    """What a comparison says.

    Attributes:
        verdict: `different`, `equal`, `undecided`; None where no comparison can be made, see `because`.
        because: one sentence where there is no verdict, or where a check took it away.
        effect, low, high: b relative to a (0.1: 10 % more), with the adjusted interval.
        confidence: of that interval, 0 to 1.
        n_rounds, n_dropped: complete rounds that count, and those left out because a side has no figure.
        n_unsteady: of those that count, how many have a point that is not valid by itself.
        spread: standard deviation of the log ratio between rounds, relative.
        rounds_to_decide: about how many rounds would decide at the spread and effect seen; None when more than
            `MOST_ROUNDS` would be needed, or when it is decided.
        p_different, p_equal: unadjusted.
        value_a, value_b: each arm's figure pooled over the rounds (geometric mean), in the metric's unit.
    """

    comparison: Comparison
    verdict: str | None
    because: str = ""
    effect: float = math.nan
    low: float = math.nan
    high: float = math.nan
    confidence: float = math.nan
    n_rounds: int = 0
    n_dropped: int = 0
    n_unsteady: int = 0
    spread: float = math.nan
    rounds_to_decide: int | None = None
    p_different: float = 1.0
    p_equal: float = 1.0
    value_a: float = math.nan
    value_b: float = math.nan

    @property
    def metric(self) -> Metric:
        return metric_named(self.comparison.metric)


@dataclass(frozen=True)
class _Seen:
    """Log ratios of the rounds that count, and what follows from them alone."""

    mean: float
    error: float
    n: int
    level: float
    margin: float
    facts: Mapping[str, Any] = field(default_factory=dict)

    def tail(self, distance: float) -> float:
        """One-sided p that the mean lies `distance` above a bound by chance."""
        from scipy.special import stdtr

        if self.error == 0:
            return 0.0 if distance > 0 else 1.0
        return float(stdtr(self.n - 1, -distance / self.error))

    def reach(self, tail: float, n: int | None = None) -> float:
        from scipy.special import stdtrit

        n = n or self.n
        return float(-stdtrit(n - 1, tail)) * self.error * math.sqrt(self.n / n)

    @property
    def p_different(self) -> float:
        return min(1.0, 2 * self.tail(abs(self.mean) - math.log1p(SMALLEST_EFFECT)))

    @property
    def p_equal(self) -> float:
        return self.tail(math.log1p(self.margin) - abs(self.mean))


def judge_pass(
    comparisons: Sequence[Comparison], plan: Plan = FIXED, *, checked: bool = True
) -> list[Outcome]:
    """Judge all comparisons of a pass, family by family, and let its A/A arms check them.

    Args:
        checked: an A/A arm is wanted for each kind; what no arm vouches for is undecided. False leaves the checks
            out, for records made before there were any.

    Returns:
        One outcome for each comparison, in the order given. An A/A arm's own outcome is among them.
    """
    outcomes: dict[int, Outcome] = {}
    families: dict[str, list[int]] = {}
    for index, comparison in enumerate(comparisons):
        # Each check is a family of its own: sharing one level among many checks would weaken every one.
        family = f"check {index}" if comparison.is_check else f"family {comparison.family}"
        families.setdefault(family, []).append(index)
    for members in families.values():
        judged = judge_family([comparisons[i] for i in members], plan)
        outcomes |= dict(zip(members, judged, strict=True))
    if checked:
        checks = [o for o in outcomes.values() if o.comparison.is_check]
        outcomes = {i: _checked(o, checks) for i, o in outcomes.items()}
    return [outcomes[i] for i in range(len(comparisons))]


def judge_family(comparisons: Sequence[Comparison], plan: Plan = FIXED) -> list[Outcome]:
    """Judge the comparisons of one family, all that was declared, and correct them by Holm."""
    seen = [_see(comparison, plan) for comparison in comparisons]
    told = [s for s in seen if isinstance(s, _Seen)]
    levels_different = _holm([s.p_different for s in told], [s.level for s in told], len(comparisons))
    levels_equal = _holm([s.p_equal for s in told], [s.level for s in told], len(comparisons))
    adjusted = iter(zip(levels_different, levels_equal, strict=True))
    return [
        _outcome(c, s, *next(adjusted)) if isinstance(s, _Seen) else Outcome(c, None, s)
        for c, s in zip(comparisons, seen, strict=True)
    ]


def _see(comparison: Comparison, plan: Plan) -> "_Seen | str":
    """Return the numbers of a comparison, or the sentence why there are none."""
    metric = metric_named(comparison.metric)
    if unlike := comparison.a.load.differences(comparison.b.load):
        return f"The loads are not the same: {'; '.join(unlike)}. Measure both sides under one load."
    machines = [arm.side.machine for arm in (comparison.a, comparison.b)]
    if machines[0] != machines[1]:
        return f"The sides ran on different machines ({machines[0]} and {machines[1]}): measure both on one."
    if not comparison.rounds:
        return "There are no rounds: measure both sides one after the other, several times."
    numbers = [r.number for r in comparison.rounds]
    if len(set(numbers)) != len(numbers):
        return "Two rounds have the same number: give each round of the pass its own."
    counted, level = plan.look(len(comparison.rounds))
    rounds = sorted(comparison.rounds, key=lambda r: r.number)[:counted]
    complete = that_count((r for r in rounds if r.complete), lambda r: r.is_steady, plan.needed)
    if len(complete) < plan.needed:
        reasons = {
            side.because or f"a point is {side.verdict}"
            for r in rounds
            for side in (r.a, r.b)
            if side.verdict not in COUNTED or side.value is None
        }
        why = f" ({sorted(reasons)[0]})" if reasons else ""
        return f"{len(complete)} of {len(rounds)} rounds are complete, {plan.needed} are needed{why}: measure more."
    logs_a = np.log(np.array([r.a.value for r in complete], float))
    logs_b = np.log(np.array([r.b.value for r in complete], float))
    ratios = logs_b - logs_a
    n, spread = len(ratios), float(ratios.std(ddof=1))
    facts = {
        "n_rounds": n,
        "n_dropped": len(rounds) - n,
        "n_unsteady": sum(not r.is_steady for r in complete),
        "spread": spread,
        "value_a": math.exp(logs_a.mean()),
        "value_b": math.exp(logs_b.mean()),
    }
    return _Seen(float(ratios.mean()), spread / math.sqrt(n), n, level, metric.margin, facts)


def _holm(p_values: Sequence[float], levels: Sequence[float], family_size: int) -> list[float]:
    """Return the level at which Holm tests each member: those that pass before it leave more to the next."""
    tested = [0.0] * len(p_values)
    left, stopped = family_size, False
    for index in sorted(range(len(p_values)), key=lambda i: p_values[i] / levels[i]):
        tested[index] = levels[index] / left
        stopped = stopped or p_values[index] > tested[index]
        left -= 0 if stopped else 1
    return tested


def _outcome(comparison: Comparison, seen: _Seen, level_different: float, level_equal: float) -> Outcome:
    equal = seen.p_equal <= level_equal
    different = seen.p_different <= level_different
    verdict = "equal" if equal else "different" if different else "undecided"
    reach = seen.reach(level_equal) if equal else seen.reach(level_different / 2)
    needed = None if verdict != "undecided" else _rounds_to_decide(seen, level_different, level_equal)
    return Outcome(
        comparison,
        verdict,
        effect=math.expm1(seen.mean),
        low=math.expm1(seen.mean - reach),
        high=math.expm1(seen.mean + reach),
        confidence=1 - (2 * level_equal if equal else level_different),
        rounds_to_decide=needed,
        p_different=seen.p_different,
        p_equal=seen.p_equal,
        **seen.facts,
    )


def _rounds_to_decide(seen: _Seen, level_different: float, level_equal: float) -> int | None:
    beyond = abs(seen.mean) - math.log1p(SMALLEST_EFFECT)
    inside = math.log1p(seen.margin) - abs(seen.mean)
    for n in range(seen.n + 1, MOST_ROUNDS + 1):
        if seen.reach(level_different / 2, n) < beyond or seen.reach(level_equal, n) < inside:
            return n
    return None


def _checked(outcome: Outcome, checks: Sequence[Outcome]) -> Outcome:
    """Take a verdict away where an A/A arm of its kind reads different, or none vouches for the kind."""
    if outcome.verdict in (None, "undecided") or outcome.comparison.is_check:
        return outcome
    for kind in sorted(outcome.comparison.kinds, key=str):
        arms = [c for c in checks if kind in c.comparison.kinds and c.verdict is not None]
        what = f"{kind.quantity} over {kind.protocol} with {kind.engine}"
        if not arms:
            because = f"no A/A arm of this pass vouches for {what}"
        elif apart := [c for c in arms if c.verdict == "different"]:
            because = f"the same server differed from itself by {abs(apart[0].effect):.1%} ({what})"
        else:
            continue
        return replace(outcome, verdict="undecided", because=because, rounds_to_decide=None)
    return outcome
