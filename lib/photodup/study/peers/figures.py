"""The tables and the answer of notebook 13, from what was recorded."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from photodup.bench.stats.comparison import Outcome, Verdict
from photodup.bench.stats.sentence import number, sentence
from photodup.bench.stats.slo import rate_words
from photodup.bench.verify.verify import NOT_ASKED, RIGHT, TOLERATED
from photodup.serving.check import listed
from photodup.study.peers.alone import RECOVERY_LIMIT_S, Found
from photodup.study.peers.servers import sides_by_server

if TYPE_CHECKING:
    import pandas as pd

NOT_RUN = "not run here"


def under_bound(rates: Found) -> pd.DataFrame:
    """Return one row a server: the highest rate with its interval, or why there is none."""
    rows = {}
    for label, rate in rates.items():
        because = rate["error"] or rate["because"]
        known = [rate.get(end) for end in ("rate_per_s", "low", "high")]
        rows[label] = {"highest rate": rate_words(*known) if known[0] else f"none: {because}"}
    return _table(rows)


def start_and_memory(costs: Found) -> pd.DataFrame:
    """Return memory and start-up, one row a server."""
    rows = {}
    for label, cost in _finished(costs):
        first_s = sorted(cost["first_answer_s"])
        rows[label] = {
            "memory (MiB)": number(cost["memory_loaded_mib"]),
            "first answer (s), median": number(float(np.median(first_s))),
            "fastest and slowest start (s)": f"{number(first_s[0])} and {number(first_s[-1])}",
        }
    return _table(rows)


def overload(costs: Found) -> pd.DataFrame:
    """Return what each server did at twice its rate, one row a server."""
    rows = {}
    for label, cost in _finished(costs):
        load = cost["overload"]
        back_s, median_ms = load["recovered_s"], load["latency_ms_p50"]
        rows[label] = {
            "offered (requests/s)": number(load["offered_per_s"]),
            "answered": load["answered"],
            "refused or failed": load["failed"],
            "median of the answers (ms)": "none came" if median_ms is None else number(median_ms),
            "as before after (s)": f"more than {RECOVERY_LIMIT_S:.0f}" if back_s is None else f"{back_s:.1f}",
            "error": textwrap.shorten(load["error"], 90),  # the table has to fit a page
        }
    return _table(rows)


def _finished(costs: Found) -> list[tuple[str, Mapping[str, Any]]]:
    return [(label, cost) for label, cost in costs.items() if not cost["error"]]


def _table(rows: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    import pandas as pd

    if not rows:
        return pd.DataFrame([{"server": "none was measured in this run"}])
    return pd.DataFrame(rows.values(), index=pd.Index(rows, name="server")).fillna("")


def verdicts(verified: Found) -> pd.DataFrame:
    """Return what `photodup verify` found, one row a check and one column a server."""
    import pandas as pd

    by_label = {
        label: {row["name"]: row["verdict"] for row in _rows(checks)} for label, checks in verified.items()
    }
    names = list(dict.fromkeys(name for column in by_label.values() for name in column)) or ["every check"]
    columns = {
        server.label: [by_label[server.label].get(name, NOT_ASKED) for name in names]
        if server.label in by_label
        else [NOT_RUN] * len(names)
        for server in sides_by_server()
    }
    return pd.DataFrame(columns, index=pd.Index(names, name="check"))


def faults(verified: Found) -> list[str]:
    """Return one line for each finding that is neither right nor tolerated, with its checks and the servers it holds for."""
    by_words: dict[tuple[str, str], list[str]] = {}
    for label, checks in verified.items():
        for row in _faulty(checks):
            by_words.setdefault((label, f"{row['verdict']}, {row['words'].rstrip('.')}"), []).append(
                row["name"]
            )
    by_finding: dict[str, list[str]] = {}
    for (label, words), names in by_words.items():
        by_finding.setdefault(f"{listed(names)}: {words}", []).append(label)
    lines = [f"{words} ({listed(labels)})" for words, labels in by_finding.items()]
    return lines or ["No fault was found." if verified else "No server was verified in this run."]


def _rows(checks: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a verified server; one where it could not be verified."""
    failed = {"name": "every check", "verdict": "not checked", "words": checks["error"]}
    return [failed] if checks["error"] else checks["rows"]


def _faulty(checks: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [row for row in _rows(checks) if row["verdict"] not in (RIGHT, TOLERATED, NOT_ASKED)]


def answer(fp32: Mapping[str, Outcome], fastest: Mapping[str, Outcome], verified: Found) -> str:
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
    by_load: dict[str, dict[str, None]] = {}
    for outcome in outcomes.values():
        if outcome.verdict is Verdict.REFUSED:
            by_load.setdefault(outcome.question.load, {})[outcome.question.label_b] = None
    parts = [f"{load} in flight: {listed(list(labels))}" for load, labels in by_load.items()]
    return f"Measured and refused, {'; '.join(parts)}." if parts else ""


def _standing(words: str, outcomes: Mapping[str, Outcome]) -> str:
    """Say which servers of a family are faster than ours and which slower; where all are slower, how near the nearest is."""
    measured = [outcome for outcome in outcomes.values() if outcome.is_measured]
    if not measured:
        return ""
    ours, different = measured[0].question.label_a, [outcome for outcome in measured if outcome.is_different]
    faster = dict.fromkeys(outcome.question.label_b for outcome in different if _is_faster(outcome))
    slower = dict.fromkeys(o.question.label_b for o in different if o.question.label_b not in faster)
    if len(slower) == len({outcome.question.label_b for outcome in outcomes.values()}):
        loads = [outcome.question.load for outcome in measured]
        most = max(loads, key=loads.count)
        nearest = min((o for o in measured if o.question.load == most), key=lambda o: abs(o.effect))
        return f"{words} all are slower, the nearest: {sentence(nearest)}"
    who = f"{listed(list(faster))} {'are' if len(faster) > 1 else 'is'}" if faster else "no server is"
    also = f"; {listed(list(slower))} {'are' if len(slower) > 1 else 'is'} slower" if slower else ""
    return f"{words} {who} measurably faster than {ours}{also}."


def _is_faster(outcome: Outcome) -> bool:
    """Return whether the second side has less latency, or more throughput."""
    return (outcome.effect < 0) == (outcome.metric.quantity == "latency")
