"""Two passes over the same comparisons, made at different times: the outcome of each, and whether they agree."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from photodup.bench.stats.comparison import Outcome, Verdict
from photodup.study.comparisons.outcomes import read_all

if TYPE_CHECKING:
    from photodup.study.notebook.run import Run


@dataclass(frozen=True)
class Twice:
    """One comparison in two passes."""

    first: Outcome
    second: Outcome

    @property
    def is_decided(self) -> bool:
        """One of both passes decides the comparison."""
        return self.first.decides or self.second.decides

    @property
    def agrees(self) -> bool:
        """The two intervals overlap: both passes may be right about one value."""
        return self.first.low <= self.second.high and self.second.low <= self.first.high

    @property
    def is_opposite(self) -> bool:
        """Both passes find a difference, in opposite directions."""
        both = self.first.is_different and self.second.is_different
        return both and (self.first.effect > 0) != (self.second.effect > 0)

    @property
    def cells(self) -> tuple[str, ...]:
        """The comparison's name, its effect in both passes, and in a word whether the two intervals overlap."""
        word = "yes" if self.agrees else "opposite" if self.is_opposite else "no"
        return self.first.question.name, _cell(self.first), _cell(self.second), word


def twice(first: Run, second: Run) -> list[Twice]:
    """Return the comparisons that both runs measured of the same sides, nulls left out, in the order declared."""
    sides = lambda of: (of.question.name, of.question.label_a, of.question.label_b)  # noqa: E731
    others = {sides(outcome): outcome for outcome in read_all(second) if outcome.is_measured}
    found = [one for one in read_all(first) if one.is_measured and not one.question.is_null]
    return [Twice(one, others[sides(one)]) for one in found if sides(one) in others]


def summary(comparisons: Iterable[Twice]) -> str:
    """Return one sentence: how many are decided in either pass, agree, and contradict each other."""
    decided = [one for one in comparisons if one.is_decided]
    if not decided:
        return "Neither pass decides a comparison that both measured."
    same, opposite = (sum(getattr(one, name) for one in decided) for name in ("agrees", "is_opposite"))
    counts = f"the intervals of both passes overlap in {same} of them, and {opposite} differ in opposite directions."
    return f"Either pass decides {len(decided)} comparisons: {counts}"


def lines(comparisons: Iterable[Twice], names: tuple[str, str]) -> list[str]:
    """Return a Markdown table: each comparison with its effect and interval in both passes, named so."""
    head = [f"| notebook | comparison | {names[0]} | {names[1]} | overlap |", "|---|---|---|---|---|"]
    return head + [f"| {' | '.join((one.first.question.family[:2], *one.cells))} |" for one in comparisons]


def _cell(outcome: Outcome) -> str:
    """Return an effect with its interval; starred where there is more to it than no difference found."""
    mark = "" if outcome.verdict is Verdict.NOT_FOUND else "*"
    return f"{mark}{outcome.effect:+z.1%} [{outcome.low:+z.1%}, {outcome.high:+z.1%}]{mark}"
