"""The tables and the answer of notebook 13, from what was recorded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from photodup.bench.stats.comparison import Outcome, Verdict
from photodup.bench.stats.sentence import cells_of, number, percent
from photodup.bench.verify.checks import NOT_ASKED, RIGHT, TOLERATED
from photodup.core.names import in_short
from photodup.study.peers.alone import RECOVERY_LIMIT_S, ByServer

if TYPE_CHECKING:
    import pandas as pd


def server_costs(costs: ByServer) -> pd.DataFrame:
    """Return memory, start-up times and the overload at twice its rate, one row a server."""
    import pandas as pd

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
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("server")


def _checks(verified: ByServer) -> pd.DataFrame:
    """Return one row a check of a server: `server`, `name`, `verdict`, `words`; one where a server could not be verified."""
    import pandas as pd

    columns = ["server", "name", "verdict", "words"]
    rows = []
    for label, record in verified.items():
        failed = {"name": "every check", "verdict": "not checked", "words": record["error"]}
        rows += [{"server": label, **check} for check in ([failed] if record["error"] else record["rows"])]
    return pd.DataFrame(rows, columns=columns)


def verdicts(verified: ByServer) -> pd.DataFrame:
    """Return what `photodup verify` found, one row a check and one column a server."""
    checks = _checks(verified)
    table = checks.pivot(index="name", columns="server", values="verdict").rename_axis("check")
    return table.reindex(index=checks.name.unique(), columns=checks.server.unique()).fillna(NOT_ASKED)


def _faulty(verified: ByServer) -> pd.DataFrame:
    checks = _checks(verified)
    return checks[~checks.verdict.isin((RIGHT, TOLERATED, NOT_ASKED))]


def faults(verified: ByServer) -> list[str]:
    """Return one line for each finding that is neither right nor tolerated, with its checks and the servers it holds for."""
    checks = _faulty(verified)
    words = checks.verdict + ", " + checks.words.str.rstrip(".")
    names = checks.name.groupby([checks.server, words], sort=False).agg(lambda names: in_short(names, None))
    findings: dict[str, list[str]] = {}
    for (label, sentence), of_server in names.items():
        findings.setdefault(f"{of_server}: {sentence}", []).append(label)
    return [f"{sentence} ({in_short(labels, None)})" for sentence, labels in findings.items()]


def answer(
    fp32: Mapping[str, Outcome], fastest: Mapping[str, Outcome], verified: ByServer, precision: str = "FP32"
) -> str:
    """Return the answer: who is faster than ours and who slower, in FP32 and at its fastest, and whose answers are faulty.

    Args:
        fp32, fastest: the outcomes of both families.
        precision: of the others at their fastest.
    """
    lines = [_standing("In FP32", fp32), _standing(f"In {precision}", fastest)]
    lines.append(refused({**fp32, **fastest}))
    if not any(lines):
        lines = ["No servers were compared in this run."]
    if n_faulty := _faulty(verified).server.nunique():
        lines.append(f"`photodup verify` finds faults in {n_faulty} of {len(verified)} servers.")
    return "\n".join(filter(None, lines))


def refused(outcomes: Mapping[str, Outcome]) -> str:
    """Return which comparisons were measured and refused, in one sentence; empty where none was."""
    servers = _servers(outcome for outcome in outcomes.values() if outcome.verdict is Verdict.REFUSED)
    return f"Measured and refused: {servers}." if servers else ""


def _standing(words: str, outcomes: Mapping[str, Outcome]) -> str:
    """Say which servers of a family are faster than ours and which slower, and how many comparisons do not tell.

    Where all are slower, say how near the nearest is.
    """
    measured = [outcome for outcome in outcomes.values() if outcome.is_measured]
    if not measured:
        return ""
    different = [outcome for outcome in measured if outcome.is_different]
    faster = [outcome for outcome in different if _is_faster(outcome)]
    slower = [outcome for outcome in different if not _is_faster(outcome)]
    ours = measured[0].comparison.label_a
    if len(slower) == len(measured):
        nearest = min(slower, key=lambda outcome: abs(outcome.effect))
        by = f"{nearest.comparison.label_b}, {nearest.metric.label} {cells_of(nearest)['difference']}"
        return f"{words} all are slower than {ours}; nearest: {by}."
    equal = [outcome for outcome in measured if outcome.verdict is Verdict.EQUAL]
    widths = [o.excludes_beyond for o in measured if o.verdict is Verdict.NOT_FOUND]
    groups = {"faster": faster, "slower": slower, "equal": equal}
    clauses = [f"{word}: {_servers(servers)}" for word, servers in groups.items() if servers]
    if widths:
        clauses.append(
            f"undecided: {len(widths)} of {len(measured)} (±{percent(min(widths))} to ±{percent(max(widths))})"
        )
    return f"{words}, against {ours}, {'; '.join(clauses)}."


def _servers(outcomes: Iterable[Outcome]) -> str:
    """Return the servers of outcomes with their loads: `LitServe and mosec with one in flight`."""
    loads: dict[str, dict[str, None]] = {}  # of both families, each once
    for outcome in outcomes:
        loads.setdefault(outcome.comparison.label_b, {})[outcome.comparison.load] = None
    labels: dict[str, list[str]] = {}
    for label, of_server in loads.items():
        labels.setdefault(in_short(of_server, None), []).append(label)
    return ", ".join(f"{in_short(names, None)} with {words} in flight" for words, names in labels.items())


def _is_faster(outcome: Outcome) -> bool:
    """Return whether the second side has less latency, or more throughput."""
    return (outcome.effect < 0) == (outcome.metric.quantity == "latency")
