"""The tables and the answer of notebook 13, from what was recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from photodup.bench.stats.comparison import Outcome, Verdict
from photodup.bench.stats.rate_search import rate_words
from photodup.bench.stats.sentence import number, row
from photodup.bench.verify.checks import NOT_ASKED, RIGHT, TOLERATED
from photodup.serving.check import listed
from photodup.study.peers.alone import RECOVERY_LIMIT_S, ByServer

if TYPE_CHECKING:
    import pandas as pd


def under_bound(rates: ByServer) -> pd.DataFrame:
    """Return one row a server: the highest rate with its interval, or why there is none."""
    rows = {}
    for label, rate in rates.items():
        figure = [rate.get(end) for end in ("rate_per_s", "low", "high")]
        reason = rate["error"] or rate["because"]
        rows[label] = {"highest rate": rate_words(*figure) if figure[0] else f"none: {reason}"}
    return _table(rows)


def server_costs(costs: ByServer) -> pd.DataFrame:
    """Return memory, start-up and what twice its rate did, one row a server."""
    rows = {}
    for label, cost in costs.items():
        if cost["error"]:
            continue
        first_s, load = sorted(cost["first_answer_s"]), cost["overload"]
        back_s, median_ms = load["recovered_s"], load["latency_ms_p50"]
        rows[label] = {
            "memory (MiB)": number(cost["memory_loaded_mib"]),
            "first answer (s), median": number(float(np.median(first_s))),
            "fastest and slowest start (s)": f"{number(first_s[0])} and {number(first_s[-1])}",
            "offered (requests/s)": number(load["offered_per_s"]),
            "answered": load["answered"],
            "refused or failed": load["failed"],
            "median of the answers (ms)": "none came" if median_ms is None else number(median_ms),
            "as before after (s)": f"more than {RECOVERY_LIMIT_S:.0f}" if back_s is None else f"{back_s:.1f}",
        }
    return _table(rows)


def _table(rows: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(rows.values(), index=pd.Index(rows, name="server")) if rows else pd.DataFrame()


def verdicts(verified: ByServer) -> pd.DataFrame:
    """Return what `photodup verify` found, one row a check and one column a server."""
    import pandas as pd

    by_label = {label: {r["name"]: r["verdict"] for r in _rows(checks)} for label, checks in verified.items()}
    names = dict.fromkeys(name for column in by_label.values() for name in column)
    return pd.DataFrame(by_label, index=pd.Index(names, name="check", dtype=object)).fillna(NOT_ASKED)


def faults(verified: ByServer) -> list[str]:
    """Return one line for each finding that is neither right nor tolerated, with its checks and the servers it holds for."""
    by_words: dict[tuple[str, str], list[str]] = {}
    for label, checks in verified.items():
        for check in _faulty(checks):
            words = f"{check['verdict']}, {check['words'].rstrip('.')}"
            by_words.setdefault((label, words), []).append(check["name"])
    by_finding: dict[str, list[str]] = {}
    for (label, words), names in by_words.items():
        by_finding.setdefault(f"{listed(names)}: {words}", []).append(label)
    return [f"{words} ({listed(labels)})" for words, labels in by_finding.items()]


def _rows(checks: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a verified server; one where it could not be verified."""
    failed = {"name": "every check", "verdict": "not checked", "words": checks["error"]}
    return [failed] if checks["error"] else checks["rows"]


def _faulty(checks: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [check for check in _rows(checks) if check["verdict"] not in (RIGHT, TOLERATED, NOT_ASKED)]


def answer(fp32: Mapping[str, Outcome], fastest: Mapping[str, Outcome], verified: ByServer) -> str:
    """Return the answer: who is faster than ours and who slower, in FP32 and at its fastest, and whose answers are faulty.

    Args:
        fp32, fastest: the outcomes of both families.
    """
    lines = [_standing("In FP32", fp32), _standing("At their fastest", fastest)]
    lines.append(refused({**fp32, **fastest}))
    if not any(lines):
        lines = ["No servers were compared in this run."]
    if n_faulty := sum(bool(_faulty(checks)) for checks in verified.values()):
        lines.append(f"`photodup verify` finds faults in {n_faulty} of {len(verified)} servers.")
    return "\n".join(filter(None, lines))


def refused(outcomes: Mapping[str, Outcome]) -> str:
    """Return which comparisons were measured and refused, in one sentence; empty where none was."""
    outcomes_refused = [outcome for outcome in outcomes.values() if outcome.verdict is Verdict.REFUSED]
    return f"Measured and refused: {_servers(outcomes_refused)}." if outcomes_refused else ""


def _standing(words: str, outcomes: Mapping[str, Outcome]) -> str:
    """Say which servers of a family are faster than ours and which slower; where all are slower, how near the nearest is."""
    measured = [outcome for outcome in outcomes.values() if outcome.is_measured]
    if not measured:
        return ""
    faster = [outcome for outcome in measured if outcome.is_different and _is_faster(outcome)]
    slower = [outcome for outcome in measured if outcome.is_different and not _is_faster(outcome)]
    ours, loads = measured[0].comparison.label_a, [outcome.comparison.load for outcome in measured]
    if len(slower) == len(measured):
        fullest = max(loads, key=loads.count)
        nearest = min((o for o in measured if o.comparison.load == fullest), key=lambda o: abs(o.effect))
        by = f"{nearest.comparison.label_b}, {nearest.metric.words} {row(nearest)['difference']}"
        return f"{words} all are slower than {ours}; the nearest: {by}."
    also = f"; slower: {_servers(slower)}" if slower else ""
    return f"{words} {_servers(faster) or 'no server'} is measurably faster than {ours}{also}."


def _servers(outcomes: Sequence[Outcome]) -> str:
    """Return the servers of outcomes with their loads: `LitServe and mosec with one in flight`."""
    loads: dict[str, dict[str, None]] = {}
    for outcome in outcomes:
        loads.setdefault(outcome.comparison.label_b, {})[outcome.comparison.load] = None
    labels: dict[tuple[str, ...], list[str]] = {}
    for label, loads_of_it in loads.items():
        labels.setdefault(tuple(loads_of_it), []).append(label)
    return ", ".join(f"{listed(names)} with {listed([*key])} in flight" for key, names in labels.items())


def _is_faster(outcome: Outcome) -> bool:
    """Return whether the second side has less latency, or more throughput."""
    return (outcome.effect < 0) == (outcome.metric.quantity == "latency")
