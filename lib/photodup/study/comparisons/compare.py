"""A notebook's comparisons: what the run lacks is measured, then all are judged."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from photodup.bench.pairs.alternate import VisitPlan
from photodup.bench.pairs.declared import Declarations, Pair, declarations
from photodup.core import settings
from photodup.serving.check import check, say_answers
from photodup.study.comparisons.measure import Sizes, measure_comparisons, missing_visits
from photodup.study.comparisons.outcomes import Compared, read_comparisons, write_outcomes
from photodup.study.notebook.run import Run, answering, was_measured_elsewhere

if TYPE_CHECKING:
    from collections.abc import Sequence

START = "Start servers on this machine with `photodup serve --embedded`, or name others with ENDPOINTS."
BLOCKS = 4  # of a palindrome of two sides


def compare(
    run: Run,
    notebook: str,
    *,
    names: Sequence[str] = (),
    explore: bool = True,
    visits: int = 4,
    visit_s: float = 10.0,
    declared: Declarations | None = None,
) -> Compared:
    """Measure the visits of a notebook's comparisons that the run lacks, and return the outcomes of all.

    It first prints how many minutes that takes, and what they cost where the endpoints have a price. Each visit is recorded
    when it ends, so after an interruption the next call goes on. Where no server answers it prints how to start one and
    judges what the run has.

    Args:
        notebook: file name without its ending.
        names: only these comparisons, with the nulls that check them.
        explore: False measures only what the quick study does: what the answers rest on.
        visits: of each comparison, three or more.
        visit_s: length of the turns in a visit, seconds.
        declared: other declarations than `notebooks/comparisons.yaml`.
    """
    declared = declared or declarations()
    pairs = [p for p in declared.of([notebook], quick=not explore) if not names or p.name in names]
    pairs += declared.nulls_of(pairs, quick=not explore)
    sizes = Sizes(visits, plan_of(visit_s))
    if missing_visits(run, pairs, sizes) and (measuring := _ready_to_measure(run)):
        _measure(measuring, pairs, sizes)
    return read_comparisons(run, notebook, declared=declared)


def plan_of(visit_s: float) -> VisitPlan:
    """Return a plan whose turns take so many seconds, with the usual blocks unless not even one palindrome fits."""
    usual = VisitPlan()
    return replace(
        usual,
        palindromes=max(1, round(visit_s / (BLOCKS * usual.block_s))),
        block_s=min(usual.block_s, visit_s / BLOCKS),
        alone_s=min(usual.alone_s, 0.2 * visit_s),
        warmup_s=min(usual.warmup_s, 0.1 * visit_s),
    )


def _ready_to_measure(run: Run) -> Run | None:
    """Return the run with the servers that answer; None, after a sentence, where nothing can be measured into it."""
    if not settings.environment().may_measure:
        return None
    if was_measured_elsewhere(run):
        print(f"Run {run.name} was measured on another machine: name a RUN of your own to measure here.")
        return None
    rows = check(run.endpoints)
    ready = answering(run, rows)
    if ready is None:
        print(f"{say_answers(rows)} {START}")
    return ready


def _measure(run: Run, pairs: Sequence[Pair], sizes: Sizes) -> None:
    n_visits = len(missing_visits(run, pairs, sizes))
    if not n_visits:
        return
    minutes = n_visits * sizes.visit_s / 60
    price = run.endpoints.price_per_hour_usd
    cost = f" and {minutes / 60 * price:.2f} USD" if price else ""
    print(
        f"{n_visits} visits are missing: about {minutes:.0f} minutes{cost}. After an interruption, run the cell again.",
        flush=True,
    )
    with run.store:
        measure_comparisons(run, pairs, sizes)
        write_outcomes(run)
