"""The outcomes of a run's comparisons, read from its records, and each side's figures; nothing is measured here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from photodup.bench.pairs import read
from photodup.bench.pairs.alternate import Visit
from photodup.bench.pairs.declared import Declarations, Pair, Side, declarations
from photodup.bench.record.json_files import reading
from photodup.bench.stats.comparison import Outcome, compare_all
from photodup.bench.stats.metrics import METRICS
from photodup.bench.stats.sentence import brief, cells_of, load_of, sentence
from photodup.core.files import write_atomically
from photodup.embedding.backends import COLUMNS
from photodup.study.comparisons.measure import obstacle, offered, visit_config, visit_key
from photodup.study.notebook.gaps import NotMeasured

if TYPE_CHECKING:
    import pandas as pd

    from photodup.study.notebook.run import Run

NOT_PLANNED = "this run does not include it."


@dataclass(frozen=True)
class Comparisons:
    """The comparisons of one notebook, or of all.

    Attributes:
        pairs: what was declared, in order.
        outcomes: by the comparison's name; one for each that was declared, and for each of its further percentiles.
        nulls: outcomes of two equal processes, for all loads of the run that it planned.
        side_figures: one row for each side under each load: its figures over all visits with their 95% intervals.
        visits: of each comparison that has some, by its name.
    """

    pairs: tuple[Pair, ...]
    outcomes: Mapping[str, Outcome]
    nulls: tuple[Outcome, ...]
    side_figures: pd.DataFrame
    visits: Mapping[str, list[Visit]]

    def __getitem__(self, name: str) -> Outcome:
        if name not in self.outcomes:
            raise NotMeasured(f"the comparison {name!r} is not declared in comparisons.yaml")
        return self.outcomes[name]

    def sentence(self, name: str) -> str:
        """Return the sentence of a comparison, by its name; of a measured one, its load first."""
        outcome = self[name]
        return f"{load_of(outcome)}: {sentence(outcome)}" if outcome.is_measured else sentence(outcome)

    def brief(self, name: str) -> str:
        """Return the sentence of a comparison without its values, for an answer."""
        return brief(self[name])

    def sentences(self) -> list[str]:
        """Return one sentence for each comparison that the run planned, in the order declared, and one for the others.

        Links that cannot be emulated have one sentence.
        """
        planned = [name for name, outcome in self.outcomes.items() if outcome.reason != NOT_PLANNED]
        sentences = list(dict.fromkeys(map(self.sentence, planned)))
        if n_left_out := len(self.outcomes) - len(planned):
            sentences.append(f"This run leaves out {n_left_out} of {len(self.outcomes)} comparisons.")
        return sentences

    def reasons(self) -> str:
        """Return why comparisons were not measured, each reason once."""
        reasons = dict.fromkeys(o.reason for o in self.outcomes.values() if not o.is_measured)
        return " ".join(reason[:1].upper() + reason[1:] for reason in reasons)

    def measured(self) -> list[str]:
        """Return the names of the comparisons that were measured, the primary ones first."""
        pairs = [pair for pair in self.pairs if self.outcomes[pair.name].is_measured]
        return [pair.name for pair in sorted(pairs, key=lambda pair: not pair.is_primary)]

    def outcome_table(self, *names: str) -> pd.DataFrame:
        """Return comparisons as a table, by default all of them."""
        import pandas as pd

        rows = []
        for outcome in [self.outcomes[name] for name in names or self.outcomes if name in self.outcomes]:
            kind = "" if outcome.comparison.is_primary else " (exploratory)"
            cells = cells_of(outcome)
            figure = cells.pop("figure")
            values = cells["values"] and f"{figure} {cells['values']}"
            rows.append({"comparison": outcome.comparison.name + kind, **cells, "values": values})
        return pd.DataFrame(rows).set_index("comparison") if rows else pd.DataFrame()


def read_comparisons(run: Run, *notebooks: str, declared: Declarations | None = None) -> Comparisons:
    """Return the outcomes of comparisons from the records of a run.

    Args:
        notebooks: whose comparisons: file names without their ending; all unless given.
        declared: other declarations than `notebooks/comparisons.yaml`.
    """
    declared = declared or declarations()
    all_outcomes, visits = _all_outcomes(run, declared)
    outcomes = {outcome.comparison.name: outcome for outcome in all_outcomes}
    nulls = tuple(outcomes[null.name] for null in declared.nulls)
    chosen = notebooks or {pair.notebook for pair in declared.pairs}
    pairs = tuple(pair for pair, _ in visits if pair.notebook in chosen)
    # A side's figure under a load is one figure: every comparison that has the side adds its visits.
    used = {(side.name, pair.load_name) for pair in pairs for side in (pair.a, pair.b)}
    return Comparisons(
        pairs,
        {name: o for name, o in outcomes.items() if o.comparison.family in chosen},
        tuple(null for null in nulls if null.is_measured),
        _figures_of_sides(visits, used),
        {pair.name: measured for pair, measured in visits if measured and pair in pairs},
    )


def read_all(run: Run) -> list[Outcome]:
    """Return the outcomes of all comparisons of a run, nulls last."""
    return _all_outcomes(run, declarations())[0]


def write_outcomes(run: Run) -> list[Outcome]:
    """Write every comparison that a run planned to its `outcomes.json` and return them; no file where there is none."""
    outcomes = [outcome for outcome in read_all(run) if outcome.reason != NOT_PLANNED]
    if outcomes:
        text = json.dumps([outcome.columns() for outcome in outcomes], indent=1) + "\n"
        write_atomically(run.directory / "outcomes.json", text, within=run.directory.parent)
    return outcomes


def _all_outcomes(run: Run, declared: Declarations) -> tuple[list[Outcome], list[tuple[Pair, list[Visit]]]]:
    records = [_visits(run, pair) for pair in (*declared.pairs, *declared.nulls)]
    comparisons = []
    for pair, visits, notes, was_tried in records:
        gap = NOT_PLANNED if visits or not notes else notes[0]
        usual = read.comparison_of(pair, gap, declared.checks_of(pair), notes if visits else ())
        usual = replace(usual, was_tried=was_tried)
        of_percentiles = (
            replace(usual, name=f"{pair.name}, {metric}", metric=metric, is_primary=False, nulls=())
            for metric in pair.also
        )
        comparisons += [read.with_observations(each, visits) for each in (usual, *of_percentiles)]
    return compare_all(comparisons), [(pair, visits) for pair, visits, *_ in records]


def _visits(run: Run, pair: Pair) -> tuple[Pair, list[Visit], tuple[str, ...], bool]:
    """Return a comparison with the sides that were measured, its visits, what went wrong in them, and whether it had any."""
    for a, b in ((pair.a, pair.b), *pair.alternatives):
        pair = replace(pair, a=a, b=b)
        key, number, visits, notes = visit_key(pair), 1, list[Visit](), list[str | None]()
        while record := run.store.record(key, config=visit_config(pair, number)):
            notes.append(record["error"] or record["result"].get("link_late"))
            if record["status"] == "ok":
                config = visit_config(pair, number)
                with reading(run.store.path_of(key, config)):
                    visits.append(Visit.of_record(record["result"], run.store.raw(key, config=config)))
            number += 1
        if number > 1:
            return pair, visits, tuple(dict.fromkeys(filter(None, notes))), True
    pair = offered(run, pair)
    return pair, [], tuple(filter(None, [obstacle(run, pair)])), False


def _figures_of_sides(visits: list[tuple[Pair, list[Visit]]], used: set[tuple[str, str]]) -> pd.DataFrame:
    """Return one row for each side and load, from all visits of all comparisons and nulls that have it."""
    import pandas as pd

    visits_of: dict[tuple[str, str], list[tuple[Visit, int]]] = {}
    sides: dict[tuple[str, str], Side] = {}
    for pair, measured in visits:
        for index, side in enumerate((pair.a, pair.b) if measured else ()):
            key = side.name, pair.load_name
            if key in used and not (pair.is_null and index):
                sides.setdefault(key, side)
                visits_of.setdefault(key, []).extend((visit, index) for visit in measured)
    rows = []
    for (name, load), with_side in visits_of.items():
        # A visit of more than two sides stands in the records of all its pairs.
        own_visits = list(
            {visit.latencies(index).tobytes(): (visit, index) for visit, index in with_side}.values()
        )
        side = sides[name, load]
        n_failed = sum(visit.n_failed[index] for visit, index in own_visits)
        facts = {"side": name, "load": load, "label": side.label, **side.backend.columns()}
        rows.append({**facts, "n_visits": len(own_visits), "n_failed": n_failed, **read.figures(own_visits)})
    metrics = [f"{metric}{end}" for metric in METRICS for end in ("", "_ci_low", "_ci_high")]
    names = ["side", "load", "label", *COLUMNS, "n_visits", "n_failed", *metrics]
    # An empty frame has these columns too.
    return pd.DataFrame(rows, columns=names).astype(dict.fromkeys(metrics, float))
