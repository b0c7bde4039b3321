"""Verdicts, what a predicate saw, and the noise floors that it is judged with."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

REPRODUCED, CONTRADICTED, UNDECIDED = "reproduced", "contradicted", "undecided"
NOT_TESTABLE = "not testable here"
GOAL_MET, GOAL_MISSED = "own goal met", "own goal missed"
VERDICTS = (REPRODUCED, CONTRADICTED, UNDECIDED, GOAL_MET, GOAL_MISSED, NOT_TESTABLE)


@dataclass(frozen=True)
class NoiseFloors:
    """The largest |ln ratio| seen between a backend and itself: one for latencies, one for throughputs."""

    latency: float = 0.05
    throughput: float = 0.05
    source: str = "assumed: the run has no A/A comparison"

    def of(self, metric: str) -> float:
        """Return the floor for a column: throughputs have their own, every other time has the latencies'."""
        return self.throughput if metric.startswith(("throughput", "goodput")) else self.latency

    def __str__(self) -> str:
        return (
            f"{math.expm1(self.latency):.1%} for latencies and {math.expm1(self.throughput):.1%} for "
            f"throughputs ({self.source})"
        )


@dataclass(frozen=True)
class Seen:
    """One comparison: its verdict, its effect with interval, and the keys of the records behind it."""

    verdict: str
    effect: float
    low: float
    high: float
    records: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What a predicate saw at one place, or a claim at all of them: a verdict, its comparisons, and why.

    Several comparisons are never averaged: their effects are a range, and only one alone has an interval.
    """

    verdict: str
    seen: tuple[Seen, ...] = ()
    because: str = ""

    @property
    def split(self) -> bool:
        """Whether some comparisons reproduce the claim and others contradict it."""
        return {REPRODUCED, CONTRADICTED} <= {one.verdict for one in self.seen}

    @property
    def effect(self) -> float | None:
        return self.seen[0].effect if len(self.seen) == 1 else None

    @property
    def low(self) -> float | None:
        """Lower end of the one comparison's interval, or the smallest effect of several."""
        ends = [one.low for one in self.seen] if len(self.seen) == 1 else [one.effect for one in self.seen]
        return min(ends, default=None)

    @property
    def high(self) -> float | None:
        """Upper end of the one comparison's interval, or the largest effect of several."""
        ends = [one.high for one in self.seen] if len(self.seen) == 1 else [one.effect for one in self.seen]
        return max(ends, default=None)

    @property
    def records(self) -> list[str]:
        return list(dict.fromkeys(key for one in self.seen for key in one.records))

    def text(self, unit: str) -> str:
        """Say the effect in its unit: with its interval, or from the smallest to the largest of several."""
        if len(self.seen) == 1:
            return number(self.effect, unit, self.low, self.high)
        if not self.seen:
            return "–"
        space = "" if unit in ("×", "%") else " "
        ends = list(dict.fromkeys((digits(self.low or 0.0), digits(self.high or 0.0))))
        return f"{' to '.join(ends)}{space}{unit}, {len(self.seen)} comparisons"


def outcome_of(seen: Sequence[Seen], what: str, *, floor_used: bool = False) -> Outcome:
    """Make one outcome of the comparisons at one place: all must agree, otherwise nothing is decided."""
    said = f"{len(seen)} comparison{'s' if len(seen) > 1 else ''} of {what}"
    said += ", interval from the noise floor" if floor_used else ""
    verdicts = {one.verdict for one in seen}
    if len(verdicts) > 1:
        effects = [one.effect for one in seen]
        said += f" disagree: {min(effects):.3g} to {max(effects):.3g}"
        return Outcome(UNDECIDED, tuple(seen), said)
    verdict = verdicts.pop()
    reaches = ", interval or noise floor reaches the bound" if verdict == UNDECIDED else ""
    return Outcome(verdict, tuple(seen), said + reaches)


def number(value: float | None, unit: str, low: float | None = None, high: float | None = None) -> str:
    """Return a value with its unit and, where it has one, its interval; "–" for none."""
    if value is None or value != value:
        return "–"
    space = "" if unit in ("×", "%") else " "
    text = f"{digits(value)}{space}{unit}"
    return text if low is None or high is None or low == high else f"{text} ({digits(low)} to {digits(high)})"


def digits(value: float) -> str:
    """Return three digits, whole numbers with thousands marked, or all that matters of a value just below 1."""
    if 0.999 <= value < 1:
        return f"{value:.6f}".rstrip("0")
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"
