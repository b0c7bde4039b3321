"""The outcomes of the recorded visits of the servers, and the tables of the notebook; nothing is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from photodup.bench.pairs import read
from photodup.bench.pairs.alternate import Visit
from photodup.bench.stats.comparison import Outcome, Question, judge
from photodup.bench.stats.sentence import sentence
from photodup.study.comparisons.outcomes import NOT_PLANNED, recorded
from photodup.study.notebook.run import Run
from photodup.study.notebook.weights import choose_weights
from photodup.study.peers import stage
from photodup.study.peers.peers import FASTEST_OF_PEERS, SERVERS, fastest

if TYPE_CHECKING:
    import pandas as pd


NOTEBOOK = "13_compare_servers"


@dataclass(frozen=True)
class ComparedServers:
    """The servers of a run, compared.

    Attributes:
        outcomes: comparison's name (`LitServe, one`) → outcome against ours.
        checks: outcomes of a second process of ours against the first.
        arms: one row for each server: the engine and precision it computed with, and its figures over all visits with
            95 % intervals.
        alone: server → what was measured of it alone.
    """

    outcomes: Mapping[str, Outcome]
    checks: tuple[Outcome, ...]
    arms: pd.DataFrame
    alone: Mapping[str, Mapping[str, Any]]

    def sentences(self, load: str) -> list[str]:
        """Return one sentence for each server under a load."""
        return [sentence(outcome) for outcome in self.verdicts(load).values()]

    def verdicts(self, load: str) -> dict[str, Outcome]:
        """Return label → outcome under a load."""
        return {o.question.label_b: o for name, o in self.outcomes.items() if name.endswith(f", {load}")}


def compared(run: Run, *, passes: Sequence[str] = ("fp32",)) -> ComparedServers:
    """Read what a run has of the servers.

    Args:
        passes: names in `PASSES`, of one precision: FP32 unless told otherwise.
    """
    import pandas as pd

    weights = choose_weights()
    alone = {
        name: found
        for name, server in SERVERS.items()
        if (found := run.store.read(stage.ALONE, config=stage.config_of(server, weights))) is not None
    }
    questions: list[Question] = []
    rows: dict[str, dict[str, Any]] = {}
    loads = [(name, load) for name in passes for load in stage.PASSES[name].loads]
    for of, load in loads:
        seen: dict[str, list[tuple[Visit, int]]] = {}
        lost: dict[str, str] = {}
        about: dict[str, Mapping[str, str]] = {}
        for record, visit in recorded(
            run, stage.visit_key(load), partial(stage.visit_config, of, load, weights)
        ):
            lost |= record["result"].get("lost", {})
            about |= record["result"].get("about", {})
            if visit is not None:
                for index, key in enumerate(record["result"]["servers"]):
                    seen.setdefault(key, []).append((visit, index))
        for key in (key for key in (*SERVERS, stage.AGAIN) if key in seen or key in lost):
            if key != stage.AGAIN:
                asked = about.get(key, {})
                one = replace(SERVERS[key], precision=asked.get("precision", "fp32"))
                row = {"server": key, "engine": asked.get("engine", one.engine), "precision": one.computed}
                rows.setdefault(key, row).update(_figures(seen.get(key, ()), load))
            if key != stage.OURS:
                questions.append(_question(key, load, seen.get(key, ()), lost.get(key, "")))
    found = {outcome.question.name: outcome for outcome in judge(questions)}
    outcomes = {name: outcome for name, outcome in found.items() if not outcome.question.is_null}
    checks = tuple(outcome for outcome in found.values() if outcome.question.is_null)
    arms = pd.DataFrame(list(rows.values()), columns=None if rows else ["server"])
    return ComparedServers(outcomes, checks, arms, alone)


def rates(run: Run) -> dict[str, Mapping[str, Any]]:
    """Return server → its highest rate under the bound at its fastest precision: `rate_per_s`, `low`, `high`, `because`.

    As `alone.highest_rate` found it. Without a rate `because` names the reason. Who was not measured is absent.
    """
    weights, found = choose_weights(), dict[str, Mapping[str, Any]]()
    for name, server in SERVERS.items():
        # The run's processor need not be this one, so either precision of a peer may be on record.
        for asked in (fastest(server), server, replace(server, precision=FASTEST_OF_PEERS)):
            if (record := run.store.record(stage.RATE, config=stage.rate_config(asked, weights))) is not None:
                unknown = {"precision": asked.computed, "rate_per_s": None, "because": record["error"]}
                found[name] = unknown | record["result"]
    return found


def verified(run: Run) -> dict[str, Mapping[str, Any]]:
    """Return server → what `photodup verify` found of it in FP32, as `VerifiedServer.as_record`; without those not asked.

    Where it could not be checked, there is one row, `every check`, with the reason.
    """
    found, weights = dict[str, Mapping[str, Any]](), choose_weights()
    for name, server in SERVERS.items():
        record = run.store.record(stage.VERIFY, config=stage.config_of(server, weights))
        if record is not None:
            failed = {"name": "every check", "verdict": "not checked", "words": record["error"]}
            found[name] = {"rows": [failed], **record["result"]}
    return found


def _question(key: str, load: str, seen: Sequence[tuple[Visit, int]], lost: str) -> Question:
    is_null, null = key == stage.AGAIN, f"{SERVERS[stage.OURS].label} again, {load}"
    label = f"{SERVERS[stage.OURS].label} again" if is_null else SERVERS[key].label
    question = Question(
        f"{label}, {load}",
        NOTEBOOK,
        read.usual_metric(stage.LOADS[load]),
        load,
        SERVERS[stage.OURS].label,
        label,
        lost or NOT_PLANNED,
        is_primary=not is_null,
        is_null=is_null,
        nulls=(null,),
        notes=(f"It was left out of later visits: {lost}",) if lost and seen else (),
    )
    return read.answered(question, [visit.against(index) for visit, index in seen], stage.LOADS[load])


def _figures(seen: Sequence[tuple[Visit, int]], load: str) -> dict[str, Any]:
    """Return a server's figure under a load, with one in flight its 99th percentile, too; None where unknown."""
    found = read.figures(seen) if seen else {}
    names = {load: read.usual_metric(stage.LOADS[load])} | (
        {"p99": "latency_ms_p99"} if load == "one" else {}
    )
    return {
        f"{name}{end}": value
        for name, metric in names.items()
        for end, value in zip(("", "_low", "_high"), found.get(metric, (None,) * 3), strict=True)
    }
