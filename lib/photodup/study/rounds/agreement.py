"""Two passes over the same comparisons, made at different times: what each says, and whether they agree."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from photodup.bench.stats.sentence import comparison_sentence
from photodup.study.rounds.declared import declarations
from photodup.study.rounds.outcomes import read_rounds

if TYPE_CHECKING:
    from photodup.bench.stats.compare import Outcome
    from photodup.study.notebook.run import Run

DECIDED = ("different", "equal")


@dataclass(frozen=True)
class Twice:
    """One comparison in two passes.

    Attributes:
        notebook, name: which.
        first, second: what the judge says of each pass.
    """

    notebook: str
    name: str
    first: Outcome
    second: Outcome

    @property
    def is_decided(self) -> bool:
        """Whether either pass decides it."""
        return self.first.verdict in DECIDED or self.second.verdict in DECIDED

    @property
    def agrees(self) -> bool:
        """Whether both passes say the same, and of a difference the same direction."""
        return _said(self.first) == _said(self.second)

    @property
    def is_opposite(self) -> bool:
        """Whether both passes say *different*, in opposite directions."""
        both = self.first.verdict == self.second.verdict == "different"
        return both and (self.first.effect > 0) != (self.second.effect > 0)


def twice(first: Run, second: Run) -> list[Twice]:
    """Return the comparisons that both runs have rounds of, in the order declared."""
    found = []
    for notebook in dict.fromkeys(pair.notebook for pair in declarations().pairs):
        one, two = (read_rounds(run, notebook) for run in (first, second))
        for pair in one.pairs:
            if pair.name in two.outcomes and all(c[pair.name].verdict is not None for c in (one, two)):
                found.append(Twice(notebook, pair.name, one[pair.name], two[pair.name]))
    return found


def summary(comparisons: Iterable[Twice]) -> str:
    """Return one sentence: how many are decided in either pass, agree, and contradict each other."""
    decided = [one for one in comparisons if one.is_decided]
    if not decided:
        return "Neither pass decides a comparison that both measured."
    same, opposite = (sum(getattr(one, name) for one in decided) for name in ("agrees", "is_opposite"))
    return (
        f"Of {len(decided)} comparisons that either pass decides, {same} ({same / len(decided):.0%}) have the same "
        f"verdict and direction in both, and {opposite} differ in opposite directions."
    )


def lines(comparisons: Iterable[Twice], names: tuple[str, str]) -> list[str]:
    """Return a Markdown table: each comparison with its verdict, effect and interval in both passes, named so."""
    table = [f"| notebook | comparison | {names[0]} | {names[1]} | agree |", "|---|---|---|---|---|"]
    for one in comparisons:
        agree = "yes" if one.agrees else "**opposite**" if one.is_opposite else "no"
        table.append(
            f"| {one.notebook[:2]} | {one.name} | {_cell(one.first)} | {_cell(one.second)} | "
            f"{agree if one.is_decided else '–'} |"
        )
    return table


def sentences(comparisons: Iterable[Twice]) -> list[str]:
    """Return the judge's two sentences for each comparison on which the passes do not agree."""
    return [
        f"{one.name}: {comparison_sentence(one.first)} Then: {comparison_sentence(one.second)}"
        for one in comparisons
        if one.is_decided and not one.agrees
    ]


def _said(outcome: Outcome) -> tuple[str | None, bool | None]:
    return outcome.verdict, outcome.effect > 0 if outcome.verdict == "different" else None


def _cell(outcome: Outcome) -> str:
    return f"{outcome.verdict} {outcome.effect:+.1%} [{outcome.low:+.1%}, {outcome.high:+.1%}]"
