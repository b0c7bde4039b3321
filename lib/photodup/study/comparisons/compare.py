"""The comparisons of a notebook: measure those that the run lacks, and return the outcomes of all."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from photodup.bench.load.plan import WindowPlan
from photodup.bench.pairs.alternate import VisitPlan
from photodup.bench.pairs.declared import Declarations, Pair, declarations
from photodup.bench.stats.figures import FEWEST_VISITS
from photodup.study.comparisons.measure import Amount, measure_comparisons, missing_visits, obstacle, offered
from photodup.study.comparisons.outcomes import Comparisons, read_comparisons, write_outcomes
from photodup.study.notebook.points import FigureSpec, measure_windows, missing_windows, windows_s
from photodup.study.notebook.run import Run, ready_to_measure

if TYPE_CHECKING:
    from collections.abc import Sequence

BLOCKS = 4  # of a palindrome of two sides


def compare(
    run: Run,
    notebook: str,
    *,
    names: Sequence[str] = (),
    explore: bool = True,
    visits: int = 4,
    visit_s: float = 10.0,
    figures: Sequence[FigureSpec] = (),
    window: WindowPlan | None = None,
    declared: Declarations | None = None,
) -> Comparisons:
    """Measure what the run lacks of a notebook's comparisons and figures, and return the outcomes of all comparisons.

    It first prints how many minutes that takes, and what they cost where the endpoints have a price. Each visit is recorded
    when it ends, so after an interruption the next call goes on. Where no server answers it prints how to start one and
    returns what the run has.

    Args:
        notebook: file name without its ending.
        names: only these comparisons, with the nulls that check them.
        explore: False measures only the comparisons of the quick study, and against servers elsewhere the primary ones.
        visits: of each comparison; fewer than three measure only what `explore=False` does.
        visit_s: length of the turns in a visit, seconds.
        figures: that `measure_figures` then reads, so that one sentence has the minutes of both.
        window: the plan of their windows.
        declared: other declarations than `notebooks/comparisons.yaml`.
    """
    declared = declared or declarations()
    is_quick = not explore or visits < FEWEST_VISITS
    pairs = list(declared.pairs_of([notebook], quick=is_quick and run.is_here))
    if names:
        pairs = [pair for pair in pairs if pair.name in names]
    elif is_quick and not run.is_here:  # the quick study's pairs may need what only this machine has
        pairs = [pair for pair in pairs if pair.is_primary]
    offered_pairs = [pair for pair in pairs if not obstacle(run, offered(run, pair))]
    pairs += declared.nulls_of(offered_pairs, quick=is_quick)
    amount, window = amount_of_turns(visits, visit_s), window or WindowPlan()
    asks_servers = bool(figures) or not all(pair.a.server for pair in pairs)

    def missing(run: Run) -> tuple[list[tuple[int, Pair]], list[tuple[int, FigureSpec]]]:
        return missing_visits(run, pairs, amount), missing_windows(run, figures, window)

    if any(missing(run)) and (ready := ready_to_measure(run, asks_servers=asks_servers)):
        due_visits, due_windows = missing(ready)  # without servers that do not answer
        counts = {"visits": len(due_visits), "windows": len(due_windows)}
        if due := " and ".join(f"{n} {name}" for name, n in counts.items() if n):
            seconds = sum(amount.visit_s(ready, pair) for _, pair in due_visits)
            ready.announce(due, seconds + windows_s(ready, due_windows, window))
            with ready.store:
                measure_comparisons(ready, pairs, amount)
                write_outcomes(ready)
                measure_windows(ready, due_windows, window)
    return read_comparisons(run, notebook, declared=declared)


def amount_of_turns(visits: int, visit_s: float) -> Amount:
    """Return visits whose turns take about so many seconds, in short blocks where not even one palindrome would fit."""
    usual = VisitPlan()
    plan = replace(
        usual,
        min_answers=max(3, min(usual.min_answers, round(visit_s))),
        min_waves=max(1, min(usual.min_waves, round(visit_s))),
        block_s=min(usual.block_s, visit_s / BLOCKS),
        alone_s=min(usual.alone_s, 0.2 * visit_s),
        warmup_s=min(usual.warmup_s, 0.1 * visit_s),
    )
    return Amount(visits, plan, turns_s=visit_s)
