"""One order for all measurements of a pass: every comparison's rounds, interleaved, with its A/A arms.

All notebooks declare their comparisons before anything runs. Round 1 of every load is measured, then round 2 of every
load, and so on: what slows the machine for minutes then meets one round of everything, not one comparison. Arms that
are compared with each other stand side by side in random order, so that their ratio does not see the drift. An arm that
several comparisons need is measured once in a round.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from photodup.bench.stats.compare import Comparison, Plan
from photodup.bench.stats.facts import Arm, Kind, metric_named
from photodup.bench.stats.measured import Measured, Round
from photodup.bench.stats.point import Point
from photodup.errors import PhotodupError


@dataclass(frozen=True)
class Declared:
    """A comparison as a notebook declares it, before it is measured.

    Attributes:
        name: unique among all notebooks.
        family: what Holm corrects together, commonly the notebook.
        importance: where time is short, the lowest goes first.
    """

    name: str
    family: str
    metric: str
    a: Arm
    b: Arm
    importance: int = 1


@dataclass(frozen=True)
class Measurement:
    """One measurement of a pass: an arm in a round; `again` marks the second arm of an A/A check."""

    round: int
    arm: Arm
    again: bool = False


@dataclass(frozen=True)
class Dropped:
    """A comparison that does not fit, and one sentence why."""

    name: str
    because: str


@dataclass(frozen=True)
class Schedule:
    """The order of a pass.

    Attributes:
        measurements: in the order to be made.
        kept: the comparisons they serve.
        checks: the A/A arms; compared like any other, `is_check` set, without rounds yet.
        dropped: what the time did not allow.
        expected_s: what the pass is expected to take, seconds.
    """

    measurements: tuple[Measurement, ...]
    kept: tuple[Declared, ...]
    checks: tuple[Comparison, ...]
    dropped: tuple[Dropped, ...]
    expected_s: float


def schedule(
    declared: Sequence[Declared],
    *,
    seconds: Callable[[Arm], float],
    budget_s: float,
    rounds: range = range(1, 9),
    seed: int = 0,
) -> Schedule:
    """Return the order of a pass.

    Args:
        seconds: what measuring an arm once is expected to take, starting its server included.
        budget_s: the pass may take this long; the least important comparisons are dropped until it does.
        rounds: numbers of the rounds; an extension goes on counting (`range(7, 13)`).

    Raises:
        PhotodupError: two comparisons share a name, a comparison has unlike loads or machines, or not even the
            most important one fits.
    """
    _check(declared)
    kept, dropped = list(declared), []
    while kept and (needed_s := _cost(kept, seconds, len(rounds))) > budget_s:
        without = {d.name: _cost([k for k in kept if k is not d], seconds, len(rounds)) for d in kept}
        # Among the least important, the one whose absence frees most.
        last = min(kept, key=lambda d: (d.importance, without[d.name], d.name))
        kept.remove(last)
        because = (
            f"{last.name} is not measured: the pass would take {needed_s / 60:.1f} minutes with it, "
            f"{budget_s / 60:.1f} are allowed; allow more time or raise its importance."
        )
        dropped.append(Dropped(last.name, because))
    if declared and not kept:
        cheapest = min(_cost([d], seconds, len(rounds)) for d in declared)
        raise PhotodupError(
            f"No comparison fits into {budget_s / 60:.1f} minutes: the shortest takes {cheapest / 60:.1f} "
            f"with its A/A arms; allow more time or fewer rounds."
        )
    checks = _checks(kept)
    order = _order(kept, checks, rounds, random.Random(seed))
    return Schedule(
        tuple(order), tuple(kept), tuple(checks), tuple(dropped), _cost(kept, seconds, len(rounds))
    )


def run(
    planned: Schedule,
    measure: Callable[[Measurement], Point],
    *,
    is_time_up: Callable[[], bool] = lambda: False,
) -> dict[Measurement, Point]:
    """Measure in the planned order; between rounds, stop when the time is up.

    A measurement that raises `PhotodupError` is a failed point with its sentence: the pass goes on.
    """
    points: dict[Measurement, Point] = {}
    last_round = None
    for measurement in planned.measurements:
        if last_round is not None and measurement.round != last_round and is_time_up():
            break
        last_round = measurement.round
        try:
            points[measurement] = measure(measurement)
        except PhotodupError as error:
            points[measurement] = Point("failed", str(error))
    return points


def comparisons_of(planned: Schedule, points: Mapping[Measurement, Point]) -> list[Comparison]:
    """Return every kept comparison and every A/A check with its rounds, ready for `judge_pass`."""
    rounds = sorted({m.round for m in points})
    unmeasured = [Comparison(d.name, d.family, d.metric, d.a, d.b) for d in planned.kept]
    filled = []
    for comparison in [*unmeasured, *planned.checks]:
        second = comparison.is_check
        pairs = [
            (number, Measurement(number, comparison.a), Measurement(number, comparison.b, again=second))
            for number in rounds
        ]
        told = tuple(
            Round(n, measured(points[a], comparison.metric), measured(points[b], comparison.metric))
            for n, a, b in pairs
            if a in points and b in points
        )
        filled.append(replace(comparison, rounds=told))
    return filled


def measured(point: Point, metric: str) -> Measured:
    """Return what a point gives to a round."""
    figure = point.figures.get(metric)
    if point.verdict != "valid":
        return Measured(figure.value if figure else None, point.verdict, point.because)
    if figure is None:
        return Measured(None, "imprecise", f"the sample is too small for the {metric_named(metric).words}")
    return Measured(figure.value)


def extension(outcomes_undecided: Sequence[str], planned: Schedule, plan: Plan) -> list[Declared]:
    """Return what an extension measures: the kept comparisons that were undecided at the plan's first look.

    Raises:
        PhotodupError: the plan has one look, so nothing may be added once its rounds were seen.
    """
    if len(plan.looks) < 2:
        raise PhotodupError(
            "This plan has one look: rounds may not be added after it. Declare an extended plan."
        )
    return [d for d in planned.kept if d.name in set(outcomes_undecided)]


def _check(declared: Sequence[Declared]) -> None:
    names = [d.name for d in declared]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise PhotodupError(f"Two comparisons are called {twice[0]!r}: give each a name of its own.")
    for one in declared:
        metric_named(one.metric)
        if unlike := one.a.load.differences(one.b.load):
            raise PhotodupError(
                f"{one.name} compares unlike loads ({'; '.join(unlike)}): give both sides one load."
            )
        if one.a.side.machine != one.b.side.machine:
            raise PhotodupError(f"{one.name} compares two machines: measure both sides on one.")


def _checks(kept: Sequence[Declared]) -> list[Comparison]:
    """Return one A/A check for each kind, on the arm of the most important comparison that needs it."""
    checks: dict[Kind, Comparison] = {}
    twice: set[Arm] = set()  # an arm measured twice already vouches for another quantity for nothing
    for one in sorted(kept, key=lambda d: -d.importance):
        for arm in (one.a, one.b):
            kind = Kind.of(one.metric, arm.side)
            if kind in checks:
                continue
            arm = next((t for t in sorted(twice, key=str) if Kind.of(one.metric, t.side) == kind), arm)
            twice.add(arm)
            name = f"A/A {kind.quantity}, {kind.protocol}, {kind.engine}"
            checks[kind] = Comparison(name, "A/A", one.metric, arm, arm, is_check=True)
    return list(checks.values())


def _arms(kept: Sequence[Declared], checks: Sequence[Comparison]) -> dict[tuple[Arm, bool], None]:
    arms = {(arm, False): None for d in kept for arm in (d.a, d.b)}
    return arms | {(check.a, True): None for check in checks}


def _cost(kept: Sequence[Declared], seconds: Callable[[Arm], float], n_rounds: int) -> float:
    return n_rounds * sum(seconds(arm) for arm, _ in _arms(kept, _checks(kept)))


def _order(
    kept: Sequence[Declared], checks: Sequence[Comparison], rounds: range, generator: random.Random
) -> list[Measurement]:
    group_of = _groups(kept)
    groups: dict[Arm, list[tuple[Arm, bool]]] = {}
    for arm, again in _arms(kept, checks):
        groups.setdefault(group_of[arm], []).append((arm, again))
    order = []
    for number in rounds:
        for group in generator.sample(list(groups.values()), len(groups)):
            order += [Measurement(number, arm, again) for arm, again in generator.sample(group, len(group))]
    return order


def _groups(kept: Sequence[Declared]) -> dict[Arm, Arm]:
    """Return for each arm one that stands for all that it is compared with, directly or through others."""
    stands_for = {arm: arm for one in kept for arm in (one.a, one.b)}
    for one in kept:
        old, new = stands_for[one.b], stands_for[one.a]
        stands_for = {arm: new if first == old else first for arm, first in stands_for.items()}
    return stands_for
