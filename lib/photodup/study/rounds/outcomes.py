"""What the rounds of a notebook's comparisons say: verdicts and sentences by the judge, one pooled figure for each arm."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from photodup.bench.stats import facts
from photodup.bench.stats.compare import Comparison, Outcome, Plan, judge_pass
from photodup.bench.stats.measured import COUNTED, MISSING, Measured, Round
from photodup.bench.stats.pool import pooled, pooled_p99, that_count
from photodup.bench.stats.sentence import comparison_row, comparison_sentence, plain_sentence
from photodup.embedding.backends import COLUMNS
from photodup.study.notebook.gaps import NotMeasured
from photodup.study.rounds.arms import Arm, read_round
from photodup.study.rounds.declared import Declarations, Pair, declarations
from photodup.study.rounds.sizes import SHORTEST_S
from photodup.study.rounds.stage import ROUNDS, measure_stage, plan_of, sides_of

if TYPE_CHECKING:
    import pandas as pd

    from photodup.study.notebook.run import Run


@dataclass(frozen=True)
class Compared:
    """The comparisons of one notebook, judged.

    Attributes:
        pairs: what was declared, in order.
        outcomes: by the comparison's name; one for each that was declared.
        checks: outcomes of the A/A arms.
        rounds: every measurement as a row (see `photodup.study.notebook.table`), with `side`, `load` and `again`.
        arms: one row for each side under each load: pooled figures with their 95 % intervals over the rounds.
    """

    pairs: tuple[Pair, ...]
    outcomes: Mapping[str, Outcome]
    checks: tuple[Outcome, ...]
    rounds: pd.DataFrame
    arms: pd.DataFrame

    def sentence(self, name: str) -> str:
        """Return the judge's sentence for a comparison, by its name."""
        return comparison_sentence(self[name])

    def plain(self, name: str) -> str:
        """Return a comparison, by its name, as an answer says it: with one number."""
        return plain_sentence(self[name])

    def __getitem__(self, name: str) -> Outcome:
        if name not in self.outcomes:
            raise NotMeasured(f"the comparison {name!r} is not declared in comparisons.yaml")
        return self.outcomes[name]

    def sentences(self) -> list[str]:
        """Return one sentence for each comparison, in the order declared."""
        return [comparison_sentence(self.outcomes[pair.name]) for pair in self.pairs]

    def decided(self) -> list[str]:
        """Return the names of the comparisons that got a verdict of a difference or of none, the most important first."""
        told = [p for p in self.pairs if self.outcomes[p.name].verdict in ("different", "equal")]
        return [pair.name for pair in sorted(told, key=lambda pair: -pair.importance)]

    def figure(self, side: str, load: str, metric: str) -> dict[str, float]:
        """Return the pooled figure of an arm: `value`, `low`, `high`, `n_rounds`.

        Raises:
            NotMeasured: fewer than two rounds carry it.
        """
        row = self.arms[(self.arms.side == side) & (self.arms.load == load)]
        if row.empty or not row[metric].notna().any():
            raise NotMeasured(f"{side} under the load {load!r} has no two rounds with {metric}")
        found = row.iloc[0]
        return {
            "value": found[metric],
            "low": found[f"{metric}_ci_low"],
            "high": found[f"{metric}_ci_high"],
            "n_rounds": found.n_rounds,
        }

    def table(self, *names: str) -> pd.DataFrame:
        """Return comparisons as a table, by default all: what stands behind an answer, which says one number of it."""
        import pandas as pd

        known = [name for name in names or [pair.name for pair in self.pairs] if name in self.outcomes]
        rows = [comparison_row(self.outcomes[name]) for name in known]
        return pd.DataFrame(rows, index=pd.Index(known, name="comparison", dtype=object))


def compare_rounds(
    run: Run,
    notebook: str,
    *,
    rounds: int = ROUNDS,
    budget_min: float = 30.0,
    at_least: int = 0,
    shortest_s: float = SHORTEST_S,
    found: Declarations | None = None,
    say: Callable[[str], None] = print,
) -> Compared:
    """Return what the judge says of a notebook's comparisons; measure them first where the run has none.

    `photodup study run` measures those of all notebooks together, before any of them runs.

    Args:
        notebook: file name without its ending.
        rounds, budget_min, at_least, shortest_s: for measuring; see `stage.measure_stage` and `comparisons.yaml`.
        found: other declarations than `notebooks/comparisons.yaml`.
    """
    found = found or declarations()
    own = found.of([notebook])
    if run.store.measures and not _complete(run, notebook, own):
        declared = (plan_of(run, notebook) or {}).get("declared")
        todo = [p for p in own if (p.name in declared if declared else p.importance >= at_least)]
        measure_stage(run, todo, budget_s=60 * budget_min, rounds=rounds, shortest_s=shortest_s, say=say)
    return read_rounds(run, notebook, found=found)


def read_rounds(run: Run, notebook: str, *, found: Declarations | None = None) -> Compared:
    """Return what the judge says of the recorded rounds of a notebook's comparisons; nothing is measured."""
    found = found or declarations()
    plan = plan_of(run, notebook) or {}
    # Without a plan nothing was measured: each comparison is then told as that.
    names = plan.get("declared", [p.name for p in found.of([notebook])])
    pairs = tuple(sides_of(run, p) for p in found.of([notebook]) if p.name in names)
    n_rounds, seen = plan.get("rounds", 0), _Seen(run)
    reasons = {row["name"]: row["because"] for row in plan.get("dropped", ())}
    comparisons = [
        _comparison(run, pair, n_rounds if pair.name not in reasons else 0, seen) for pair in pairs
    ]
    checks = []
    for row in plan.get("checks", ()):
        if row["side"] in found.sides and row["load"] in found.loads:
            arm = Arm(found.sides[row["side"]], found.loads[row["load"]])
            checks.append(_check(run, arm, row["metric"], n_rounds, seen))
    needed = Plan().needed
    judged = judge_pass([*comparisons, *checks], Plan(looks=(max(n_rounds, 1),), needed=needed))
    outcomes = {}
    for pair, outcome in zip(pairs, judged, strict=False):
        if pair.name in reasons:
            outcome = Outcome(outcome.comparison, None, reasons[pair.name])
        outcomes[pair.name] = outcome
    return Compared(pairs, outcomes, tuple(judged[len(pairs) :]), seen.table(), _arms(run, seen))


class _Seen:
    """The rounds that were read, each once."""

    def __init__(self, run: Run) -> None:
        self.run = run.reading()
        self.points: dict[tuple[str, str, int, bool], Mapping[str, Any]] = {}
        self.of: dict[tuple[str, str], Arm] = {}

    def point(self, arm: Arm, number: int, again: bool = False) -> Mapping[str, Any]:
        key = (arm.side.name, arm.asked.name, number, again)
        if key not in self.points:
            self.points[key] = read_round(self.run, arm, number, again=again)
            self.of[key[:2]] = arm
        return self.points[key]

    def table(self) -> pd.DataFrame:
        from photodup.study.notebook.table import as_table

        keys = ("side", "load", "round", "again")
        rows = [
            {**point, **dict(zip(keys, key, strict=True))}
            for key, point in self.points.items()
            if point.get("status") != "missing"
        ]
        table = as_table(rows)
        for name in (*keys, "latency_ms_p50"):
            if name not in table:
                table[name] = None
        return table


def _comparison(run: Run, pair: Pair, n_rounds: int, seen: _Seen) -> Comparison:
    a, b = Arm(pair.a, pair.asked), Arm(pair.b, pair.asked)
    declared = pair.as_declared(run.name)
    rounds = [
        Round(n, Measured.of(seen.point(a, n), pair.metric), Measured.of(seen.point(b, n), pair.metric))
        for n in range(1, n_rounds + 1)
    ]
    return Comparison(pair.name, pair.notebook, pair.metric, declared.a, declared.b, _begun(rounds))


def _check(run: Run, arm: Arm, metric: str, n_rounds: int, seen: _Seen) -> Comparison:
    judged = facts.Arm(arm.side.as_judged(run.name), arm.asked.as_judged())
    rounds = [
        Round(n, Measured.of(seen.point(arm, n), metric), Measured.of(seen.point(arm, n, again=True), metric))
        for n in range(1, n_rounds + 1)
    ]
    name = f"A/A {facts.metric_named(metric).quantity}, {arm.side.label}, {arm.asked.name}"
    return Comparison(name, "A/A", metric, judged, judged, _begun(rounds), is_check=True)


def _begun(rounds: Sequence[Round]) -> tuple[Round, ...]:
    """A round that was never begun on either side is none."""
    return tuple(r for r in rounds if (r.a.verdict, r.b.verdict) != (MISSING, MISSING))


def _complete(run: Run, notebook: str, pairs: Sequence[Pair]) -> bool:
    """Whether the plan of a notebook and a record of each of its rounds are there."""
    if (plan := plan_of(run, notebook)) is None:
        return False
    seen = _Seen(run)
    return all(
        seen.point(Arm(side, pair.asked), number).get("status") != "missing"
        for pair in (sides_of(run, pair) for pair in pairs)
        if pair.name in plan["kept"]
        for side in (pair.a, pair.b)
        for number in range(1, plan["rounds"] + 1)
    )


POOLED = ("latency_ms_p50", "latency_ms_p90", "latency_ms_mean", "throughput_images_per_s")


def _arms(run: Run, seen: _Seen) -> pd.DataFrame:
    """One row an arm: what its rounds pool to. The second arm of an A/A check is left out, as in comparisons."""
    import pandas as pd

    rows = []
    for (side, load), arm in seen.of.items():
        points = [p for key, p in seen.points.items() if key[:2] == (side, load) and not key[3]]
        begun = [p for p in points if p.get("status") != "missing"]
        counted = [p for p in points if p.get("verdict") in COUNTED]
        n_failed = len(begun) - len(counted)
        counted = that_count(counted, lambda p: p["verdict"] == "valid", Plan().needed)
        row = {"side": side, "load": load, "label": arm.side.label, **arm.side.backend.columns()}
        unsteady = sum(p["verdict"] != "valid" for p in counted)
        row |= {"n_rounds": len(counted), "n_unsteady": unsteady, "n_failed": n_failed}
        for metric in POOLED:
            values = [p[metric] for p in counted if p.get(metric)]
            figures = pooled(values) if len(values) >= 2 else (None, None, None)
            row |= dict(zip((metric, f"{metric}_ci_low", f"{metric}_ci_high"), figures, strict=True))
        row |= _tail(run, counted)
        rows.append(row)
    names = [
        "side",
        "load",
        "label",
        *COLUMNS,
        "n_rounds",
        "n_unsteady",
        "n_failed",
        *(f"{m}{e}" for m in (*POOLED, TAIL) for e in ENDS),
    ]
    return pd.DataFrame(rows, columns=names)  # a frame of nothing has them too


TAIL, ENDS = "latency_ms_p99", ("", "_ci_low", "_ci_high")


def _tail(run: Run, points: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    from photodup.bench.record import latencies

    # What is too small a sample is not read at all.
    enough = sum(p["n_requests"] for p in points) >= facts.metric_named(TAIL).min_answers
    raw = [latencies.read(run.directory, p["record"]).get("latency_ms") for p in points if enough]
    found = pooled_p99([one for one in raw if one is not None and len(one)])
    return dict(zip((f"{TAIL}{end}" for end in ENDS), found or (None, None, None), strict=True))
