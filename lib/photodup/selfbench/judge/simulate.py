"""What is planted, and how often the judge finds it, makes it up, or misses it.

A simulated point is resampled from a recorded one in stretches of whole waves, so that its bursts are real and its
truth is known. A round adds what a machine adds: drift that both sides share, a spread between rounds that each side
has for itself, slow spells that hit one side. Points go through the planned looks, rounds through the plan, families
through Holm, passes through their A/A arms: the whole judge is measured, not its parts.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from photodup.bench.stats.compare import FIXED, Comparison, Outcome, Plan, judge_pass
from photodup.bench.stats.facts import METRICS, Arm, Load, Side
from photodup.bench.stats.measured import Round
from photodup.bench.stats.point import Looks, Point, Sample, measure_point
from photodup.bench.stats.schedule import measured
from photodup.selfbench.stats.traces import Source, disturbed, scaled

FAMILY_SIZE = 5
COMPARED = ("latency_ms_p50", "latency_ms_mean", "throughput_images_per_s")
SPREADS = (0.005, 0.01, 0.015, 0.02, 0.03, 0.045, 0.06)
SPREAD_BINS = ((0.0, 0.025), (0.025, 0.05), (0.05, math.inf))
WAVES, MAX_ANSWERS, MIN_WAVES = 200, 3200, 100


@dataclass(frozen=True)
class Verdicts:
    """How a set of comparisons with one planted effect came out; counts, and shares by spread between rounds.

    Attributes:
        planted: the true effect, relative.
        wrong: claims that are not true: *different* where nothing was planted or in the other direction, *equal*
            where the planted effect is outside the margin.
        power: share called different in the right direction, by measured spread; None where nothing fell in a bin.
    """

    planted: float
    plan: tuple[int, ...]
    n: int
    different: int
    equal: int
    undecided: int
    not_compared: int
    wrong: int
    power: dict[str, float | None]
    n_by_spread: dict[str, int]


@dataclass(frozen=True)
class Coverage:
    """How often intervals held the truth: valid points only, by metric."""

    n_points: int
    n_valid: int
    share: dict[str, float]
    n: dict[str, int]


def n_answers_for(source: Source) -> int:
    """Return the length of a simulated point: a hundred waves, fewer of large ones."""
    return source.wave * max(MIN_WAVES, min(WAVES, MAX_ANSWERS // source.wave))


def simulated_point(sample: Sample, wave: int) -> Point:
    """Judge a simulated sample as it would be measured: at three planned looks, stopping at the first valid one."""
    whole_s = float(sample.finished_s[-1])
    load = Load(concurrency=wave)

    def extend(length_s: float) -> Sample:
        until = int(np.searchsorted(sample.finished_s, length_s, side="right"))
        return Sample(sample.latency_ms[:until], sample.finished_s[:until])

    return measure_point(extend, load, Looks(lengths_s=(whole_s / 4, whole_s / 2, whole_s)))


def coverage(sources: Sequence[Source], generator: np.random.Generator, n_valid: int = 1000) -> Coverage:
    """Return how often the intervals of simulated valid points hold the truth.

    Every second source is disturbed by slow spells first; its truth is then that of the disturbed trace.
    """
    held = dict.fromkeys(METRICS, 0)
    told = dict.fromkeys(METRICS, 0)
    points = valid = 0
    while valid < n_valid and points < 5 * n_valid:
        source = sources[int(generator.integers(len(sources)))]
        if points % 2:
            source = _spelled(source, generator)
        points += 1
        point = simulated_point(source.draw(n_answers_for(source), generator), source.wave)
        if point.verdict != "valid":
            continue
        valid += 1
        for name, figure in point.figures.items():
            told[name] += 1
            held[name] += figure.low <= source.truth(name) <= figure.high
    share = {name: held[name] / told[name] for name in METRICS if told[name]}
    return Coverage(points, valid, share, {name: told[name] for name in share})


def verdicts(
    sources: Sequence[Source],
    generator: np.random.Generator,
    *,
    planted: float,
    n: int = 400,
    plan: Plan = FIXED,
) -> Verdicts:
    """Return how `n` comparisons come out when side b takes `planted` longer (0: A/A), in passes of families."""
    outcomes: list[Outcome] = []
    while len(outcomes) < n:
        outcomes += simulated_pass(sources, generator, planted=planted, plan=plan)
    return _count(outcomes[:n], planted, plan)


def simulated_pass(
    sources: Sequence[Source], generator: np.random.Generator, *, planted: float, plan: Plan
) -> list[Outcome]:
    """Return the outcomes of one pass: a family of comparisons judged with an A/A arm for latency and one for throughput.

    The family shares what the machine does to it (the spread between rounds); each comparison has its own trace.
    """
    spread = float(generator.choice(SPREADS))
    drift = np.cumsum(generator.normal(0, 0.02, plan.looks[-1]))
    comparisons = [
        _comparison(f"{i}", COMPARED[i % len(COMPARED)], sources, generator, planted, spread, drift)
        for i in range(FAMILY_SIZE)
    ]
    for metric in COMPARED[1:]:
        check = _comparison(f"A/A {metric}", metric, sources, generator, 0.0, spread, drift)
        comparisons.append(replace(check, family="A/A", is_check=True))
    if len(plan.looks) > 1:
        comparisons = _extended_if_undecided(comparisons, plan)
    return [o for o in judge_pass(comparisons, plan) if not o.comparison.is_check]


def _extended_if_undecided(comparisons: list[Comparison], plan: Plan) -> list[Comparison]:
    """Keep the later rounds only of comparisons that the first look leaves undecided, as an extension does."""
    first = [replace(c, rounds=c.rounds[: plan.looks[0]]) for c in comparisons]
    seen = judge_pass(first, plan)
    return [
        full if full.is_check or outcome.verdict in (None, "undecided") else early
        for full, early, outcome in zip(comparisons, first, seen, strict=True)
    ]


def _comparison(
    name: str,
    metric: str,
    sources: Sequence[Source],
    generator: np.random.Generator,
    planted: float,
    spread: float,
    drift: np.ndarray,
) -> Comparison:
    source = sources[int(generator.integers(len(sources)))]
    load = Load(concurrency=source.wave)
    arms = [Arm(Side(label, "server", "engine", "fp32", "http", "fp32"), load) for label in ("A", "B")]
    rounds = []
    for number, shared in enumerate(np.exp(drift), start=1):
        points = []
        for factor in (1.0, 1 + planted):
            own = math.exp(generator.normal(0, spread / math.sqrt(2)))
            sample = scaled(source.draw(n_answers_for(source), generator), factor * own * float(shared))
            spells = int(generator.random() < 0.1)
            sample = disturbed(
                sample,
                generator,
                drift=float(generator.normal(0, 0.01)),
                spells=spells,
                slowdown=float(generator.uniform(1.2, 2.5)),
            )
            points.append(measured(simulated_point(sample, source.wave), metric))
        rounds.append(Round(number, *points))
    a, b = arms
    return Comparison(name, "simulated", metric, a, b, tuple(rounds))


def _spelled(source: Source, generator: np.random.Generator) -> Source:
    """Slow a tenth of the waves down, in short spells that come again and again: part of what such a server is.

    A spell so rare that a whole point may pass without one is no matter of a point's interval, which speaks of its own
    time only. It shows between rounds, and there it is planted (`disturbed`).
    """
    waves = len(source.latency_ms) // source.wave
    slow = generator.random(waves) < 0.1
    slow[1:] |= slow[:-1] & (generator.random(waves - 1) < 0.5)
    factor = np.repeat(np.where(slow, generator.uniform(1.1, 1.6), 1.0), source.wave)
    return replace(source, latency_ms=source.latency_ms * factor, gap_s=source.gap_s * factor)


def _count(outcomes: Sequence[Outcome], planted: float, plan: Plan) -> Verdicts:
    def is_right(outcome: Outcome) -> bool:
        up = outcome.metric.quantity == "latency"  # a planted delay lengthens latency and lowers throughput
        return outcome.verdict == "different" and planted != 0 and (outcome.effect > 0) == up

    def is_wrong(outcome: Outcome) -> bool:
        if outcome.verdict == "equal":
            true_effect = 1 + planted if outcome.metric.quantity == "latency" else 1 / (1 + planted)
            return abs(math.log(true_effect)) > math.log1p(outcome.metric.margin) * (1 + 1e-9)
        return outcome.verdict == "different" and not is_right(outcome)

    said = [outcome.verdict for outcome in outcomes]
    power, counts = {}, {}
    for low, high in SPREAD_BINS:
        here = [o for o in outcomes if o.verdict is not None and low <= o.spread < high]
        name = f"{low:.1%} to {high:.1%}" if math.isfinite(high) else f"above {low:.1%}"
        counts[name] = len(here)
        power[name] = round(sum(map(is_right, here)) / len(here), 3) if here and planted else None
    return Verdicts(
        planted,
        plan.looks,
        len(outcomes),
        said.count("different"),
        said.count("equal"),
        said.count("undecided"),
        said.count(None),
        sum(map(is_wrong, outcomes)),
        power,
        counts,
    )


def as_plain(result: Verdicts | Coverage) -> dict:
    """Return a result as JSON can hold it, shares with three digits."""
    plain = asdict(result)
    if isinstance(result, Coverage):
        plain["share"] = {name: round(share, 3) for name, share in result.share.items()}
    return plain
