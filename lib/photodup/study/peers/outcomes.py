"""What the judge says of the recorded rounds of the servers, and the tables of the notebook; nothing is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from photodup.bench.record import latencies
from photodup.bench.stats.compare import Comparison, Outcome, Plan, judge_pass
from photodup.bench.stats.facts import metric_named
from photodup.bench.stats.measured import COUNTED, Measured, Round
from photodup.bench.stats.pool import pooled, pooled_p99, that_count
from photodup.bench.stats.sentence import comparison_sentence
from photodup.study.notebook.weights import choose_weights
from photodup.study.peers.peers import SERVERS, Server, fastest
from photodup.study.peers.stage import (
    ALONE,
    METRIC,
    OURS,
    PASSES,
    PLAN,
    RATE,
    Pass,
    arm_of,
    config_of,
    declared,
    plan_config,
    rate_config,
    round_config,
    round_key,
)

if TYPE_CHECKING:
    import pandas as pd

    from photodup.study.notebook.run import Run


@dataclass(frozen=True)
class Compared:
    """What is known of the servers.

    Attributes:
        servers: those with records, ours first.
        missing: one sentence for each server without any.
        outcomes: comparison's name (`LitServe, one`) → what the judge says.
        checks: of the A/A arms.
        arms: one row for each server: pooled figures with intervals.
        alone: server → what was measured of it alone.
    """

    servers: tuple[Server, ...]
    missing: tuple[str, ...]
    outcomes: Mapping[str, Outcome]
    checks: tuple[Outcome, ...]
    arms: pd.DataFrame
    alone: Mapping[str, Mapping[str, Any]]

    def sentences(self, load: str) -> list[str]:
        """Return the judge's sentence for each server under a load."""
        return [comparison_sentence(o) for name, o in self.outcomes.items() if name.endswith(f", {load}")]

    def verdicts(self, load: str) -> dict[str, Outcome]:
        """Return label → outcome under a load."""
        return {
            name.rpartition(", ")[0]: o for name, o in self.outcomes.items() if name.endswith(f", {load}")
        }


def compared(run: Run, *, passes: Sequence[str] = ("fp32",)) -> Compared:
    """Read what a run has of the servers.

    Args:
        passes: names in `PASSES`, of one precision: FP32 unless told otherwise.
    """
    reading, weights = run.reading(), choose_weights()
    alone = {
        s.name: found
        for s in SERVERS.values()
        if (found := reading.measure_or_load(ALONE, _never, config=config_of(s, weights), may_fail=True)).get(
            "ready_s"
        )
    }
    names: dict[str, None] = {}
    outcomes: dict[str, Outcome] = {}
    checks: list[Outcome] = []
    tables: list[pd.DataFrame] = []
    for one in (PASSES[name] for name in passes):
        plan = reading.measure_or_load(PLAN, _never, config=plan_config(one, weights), may_fail=True)
        read = _Rounds(reading, one, weights, plan.get("rounds", 0))
        names |= dict.fromkeys(plan.get("servers", ()))
        said, of_itself = _judged(run.name, plan, one, read)
        outcomes |= said
        checks += of_itself
        tables.append(_arms(plan.get("servers", ()), one, read))
    servers = tuple(s for s in SERVERS.values() if s.name in names or s.name in alone)
    missing = tuple(
        f"{s.label} was not measured in this run" + (f": {s.missing}." if s.missing else ".")
        for s in SERVERS.values()
        if s not in servers
    )
    return Compared(servers, missing, outcomes, tuple(checks), _beside(tables), alone)


def rates(run: Run) -> dict[str, Mapping[str, Any]]:
    """Return server → its highest rate under the bound at its fastest precision (see `alone.highest_rate`), where asked."""
    reading, weights = run.reading(), choose_weights()
    found = {
        s.name: reading.measure_or_load(RATE, _never, config=rate_config(fastest(s), weights), may_fail=True)
        for s in SERVERS.values()
    }
    return {name: one for name, one in found.items() if "seen" in one}


def _judged(
    machine: str, plan: Mapping[str, Any], one: Pass, read: _Rounds
) -> tuple[dict[str, Outcome], list[Outcome]]:
    comparisons = [
        Comparison(
            d.name,
            d.family,
            d.metric,
            d.a,
            d.b,
            read.pairs(d.a.side.server, d.b.side.server, d.name, d.metric),
        )
        for d in declared(plan.get("servers", ()), machine, one)
        if d.name in plan.get("kept", ())
    ]
    checks = []
    for row in plan.get("checks", ()):
        arm = arm_of(one.server(row["server"]), row["load"], machine)
        pairs = read.against_itself(row["server"], row["load"], row["metric"])
        name = f"A/A {metric_named(row['metric']).quantity}, {SERVERS[row['server']].label}, {row['load']}"
        checks.append(Comparison(name, "A/A", row["metric"], arm, arm, pairs, is_check=True))
    judged = judge_pass([*comparisons, *checks], Plan(looks=(max(plan.get("rounds", 0), 1),)))
    return {c.name: o for c, o in zip(comparisons, judged, strict=False)}, judged[len(comparisons) :]


def _never() -> dict[str, Any]:
    raise AssertionError("a run that is only read measures nothing")


class _Rounds:
    """The recorded rounds, each read once."""

    def __init__(self, run: Run, of: Pass, weights: str, rounds: int) -> None:
        self.run, self.of, self.weights, self.numbers = run, of, weights, range(1, rounds + 1)
        self._seen: dict[tuple[str, str, int, bool], Mapping[str, Any]] = {}

    def point(self, name: str, load: str, number: int, again: bool = False) -> Mapping[str, Any]:
        """Return a round's point; empty where there is none."""
        key = (name, load, number, again)
        if key not in self._seen:
            config = round_config(self.of.server(name), load, number, again, self.weights)
            found = self.run.measure_or_load(
                round_key(SERVERS[name], load), _never, config=config, may_fail=True
            )
            self._seen[key] = found.get("point") or {}
        return self._seen[key]

    def pairs(self, a: str, b: str, name: str, metric: str) -> tuple[Round, ...]:
        load = name.rpartition(", ")[2]
        return self._told((self.point(a, load, n), self.point(b, load, n), n) for n in self.numbers)(metric)

    def against_itself(self, name: str, load: str, metric: str) -> tuple[Round, ...]:
        return self._told(
            (self.point(name, load, n), self.point(name, load, n, True), n) for n in self.numbers
        )(metric)

    @staticmethod
    def _told(found: Any) -> Any:
        seen = [(a, b, n) for a, b, n in found if a or b]
        return lambda metric: tuple(
            Round(n, Measured.of(a, metric), Measured.of(b, metric)) for a, b, n in seen
        )

    def raw(self, name: str, load: str) -> list[np.ndarray]:
        """Return the latencies of each valid round, ms."""
        found = []
        for n in self.numbers:
            if self.point(name, load, n).get("valid"):
                config = round_config(self.of.server(name), load, n, False, self.weights)
                stem = self.run.store.name_of(round_key(SERVERS[name], load), config=config)
                found.append(latencies.read(self.run.directory, stem).get("latency_ms"))
        return [one for one in found if one is not None and len(one)]


def _arms(names: Sequence[str], of: Pass, read: _Rounds) -> pd.DataFrame:
    import pandas as pd

    rows = []
    for server in map(of.server, names):
        row: dict[str, Any] = {"server": server.name}
        for load in of.loads:
            points = [read.point(server.name, load, n) for n in read.numbers]
            counted = [p for p in points if p.get("verdict") in COUNTED]
            counted = that_count(counted, lambda p: p["verdict"] == "valid", Plan().needed)
            values = [p[METRIC[load]] for p in counted if p.get(METRIC[load])]
            figures = pooled(values) if len(values) >= 2 else (None, None, None)
            row |= dict(zip((load, f"{load}_low", f"{load}_high"), figures, strict=True))
            row[f"{load}_rounds"] = len(values)
            if load == "one":
                tail = pooled_p99(read.raw(server.name, load)) or (None, None, None)
                row |= dict(zip(("p99", "p99_low", "p99_high"), tail, strict=True))
        rows.append(row)
    return pd.DataFrame(rows, columns=None if rows else ["server"])


def _beside(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the tables of several passes as one, a row for each server."""
    whole = tables[0]
    for table in tables[1:]:
        whole = whole.merge(table, on="server", how="outer", sort=False)
    return whole


def ours() -> Server:
    """Return the server that all others are compared with."""
    return SERVERS[OURS]
