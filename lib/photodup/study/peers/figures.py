"""The figures, tables and the answer of notebook 13, from what was recorded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from photodup.bench.stats.comparison import Outcome, Verdict
from photodup.bench.stats.sentence import number, row, sentence
from photodup.bench.verify.verify import NOT_ASKED, RIGHT, TOLERATED
from photodup.serving.check import listed
from photodup.study.notebook import charts
from photodup.study.peers.outcomes import ComparedServers, compared
from photodup.study.peers.outcomes import verified as read_verified
from photodup.study.peers.peers import SERVERS
from photodup.study.peers.stage import LOADS, OURS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from photodup.study.notebook.run import Run

NOT_RUN = "not run here"
ADVICE = "Turn an upload by EXIF and decode it whole before a model sees it, and answer 400 if that fails."
NOT_MEASURED = "Who is faster was not measured in this run: `photodup study peers` lets them take turns."


def draw_servers(ax: Axes, found: ComparedServers, load: str) -> None:
    """Draw each server's figure under a load with its interval; a faint line to the 99th percentile where it is known."""
    servers, latency = list(reversed(SERVERS.values())), "latency (ms), median"
    known = {arm["server"]: arm for arm in found.arms.to_dict("records")}
    for place, server in enumerate(servers):
        arm = known.get(server.name, {})
        value = arm.get(load)
        if not value or value != value:
            charts.not_measured(ax, place)
            continue
        color = charts.engine_color(arm["engine"])
        end = arm.get("p99") if load == "one" else None
        if end and end == end:
            latency = "latency (ms), median and 99th percentile"
            ax.plot([value, end], [place, place], color=color, alpha=0.3, linewidth=1)
            ax.plot(end, place, "|", color=color, alpha=0.6)
        interval, marker = (arm[f"{load}_low"], arm[f"{load}_high"]), "s" if server.name == "triton" else "o"
        charts.interval_row(ax, place, value, interval, color=color, marker=marker)
    charts.name_rows(ax, [server.label for server in servers])
    words = latency if load == "one" else "throughput (images/s)"
    ax.set(title=f"{load.capitalize()} in flight", xlabel=words, xlim=(0, None))


def visits(found: ComparedServers) -> str:
    """Return how many visits the figures rest on, in words."""
    counts = sorted({outcome.n_visits for outcome in found.outcomes.values() if outcome.n_visits})
    return f"{' to '.join(str(n) for n in dict.fromkeys((*counts[:1], *counts[-1:])))} visits"


def engines(fast: ComparedServers) -> str:
    """Return which servers compute with which engine and precision where each is at its fastest, as one caption."""
    by_engine: dict[str, list[str]] = {}
    for arm in fast.arms.to_dict("records"):
        engine = {"pytorch": "PyTorch", "openvino": "OpenVINO"}.get(arm["engine"], arm["engine"])
        computed = f"{engine} {arm['precision'].upper()}"
        by_engine.setdefault(computed, []).append(SERVERS[arm["server"]].label)
    told = "; ".join(f"{engine}: {listed(names)}" for engine, names in by_engine.items())
    return f"{told}." if told else ""


def at_fastest(fp32: ComparedServers, fast: ComparedServers) -> pd.DataFrame:
    """Return one row a server: precision, engine, latency of one request and throughput at 8 and 32, with the gain."""
    before = {row["server"]: row for row in fp32.arms.to_dict("records")}
    rows = []
    for arm in fast.arms.to_dict("records"):
        was = before.get(arm["server"], {})
        rows.append(
            {
                "server": SERVERS[arm["server"]].label,
                "precision, engine": f"{arm['precision']}, {arm['engine']}",
                "one in flight (ms)": _with_interval(arm, "one"),
                "÷ FP32's latency": _ratio(arm, was, "one"),
                "eight in flight (images/s)": _with_interval(arm, "eight"),
                "÷ FP32's throughput": _ratio(arm, was, "eight"),
                "thirty-two in flight (images/s)": _with_interval(arm, "thirty-two"),
            }
        )
    table = _table(rows)
    return table.loc[:, (table != "–").any()]  # a load that nobody was measured under


def under_bound(found: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Return one row a server: the highest rate with its interval, or why there is none."""
    rows = [
        {
            "server": SERVERS[name].label,
            "precision": rate["precision"],
            "highest rate (requests/s)": None if rate["because"] else rate["rate_per_s"],
            "between": "" if rate["because"] else f"{number(rate['low'])} to {number(rate['high'])}",
            "why not": rate["because"],
        }
        for name, rate in found.items()
    ]
    return _table(rows)


def _table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(rows or [{"server": "none was measured in this run"}])


def _with_interval(row: Mapping[str, Any], load: str) -> str:
    value, low, high = (row.get(f"{load}{end}") or 0.0 for end in ("", "_low", "_high"))
    return f"{number(value)} [{number(low)}, {number(high)}]" if value and value == value else "–"


def _ratio(row: Mapping[str, Any], was: Mapping[str, Any], load: str) -> str:
    now, then = row.get(load), was.get(load)
    return f"{now / then:.2f}" if now and then and now == now and then == then else "–"


def costs(found: ComparedServers) -> pd.DataFrame:
    """Return memory and start-up as a table, one row a server."""
    rows = []
    for name, alone in found.alone.items():
        first = sorted(alone["first_answer_s"])
        rows.append(
            {
                "server": SERVERS[name].label,
                "memory (MiB)": alone["memory_loaded_mib"],
                "first answer (s), median": float(np.median(first)),
                "fastest start (s)": first[0],
                "slowest start (s)": first[-1],
            }
        )
    return _table(rows)


def verified(found: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Return what `photodup verify` found, one row a check and one column a server; see `outcomes.verified`."""
    import pandas as pd

    seen = {name: {row["name"]: row["verdict"] for row in one["rows"]} for name, one in found.items()}
    checks = list(dict.fromkeys(check for verdicts in seen.values() for check in verdicts)) or ["every check"]
    columns = {
        server.label: [seen[name].get(c, NOT_ASKED) if name in seen else NOT_RUN for c in checks]
        for name, server in SERVERS.items()
    }
    return pd.DataFrame(columns, index=pd.Index(checks, name="check"))


def why_wrong(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return one line for each finding that is neither right nor tolerated, with its checks and the servers it holds for."""
    by_words: dict[tuple[str, str], list[str]] = {}
    for name, one in found.items():
        for check in _faults(one):
            words = f"{check['verdict']}, {check['words'].rstrip('.')}"
            by_words.setdefault((SERVERS[name].label, words), []).append(check["name"])
    by_finding: dict[str, list[str]] = {}
    for (label, words), checks in by_words.items():
        by_finding.setdefault(f"{listed(checks)}: {words}", []).append(label)
    told = [f"{words} ({listed(servers)})" for words, servers in by_finding.items()]
    return told or ["Nothing was found wrong." if found else "No server was verified in this run."]


def _faults(one: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [row for row in one["rows"] if row["verdict"] not in (RIGHT, TOLERATED, NOT_ASKED)]


def overload(found: ComparedServers) -> pd.DataFrame:
    """Return what each server did at twice its rate, one row a server."""
    rows = []
    for name, alone in found.alone.items():
        seen = alone["overload"]
        back = seen["recovered_s"]
        rows.append(
            {
                "server": SERVERS[name].label,
                "offered (requests/s)": seen["offered_per_s"],
                "answered": seen["answered"],
                "refused or failed": seen["failed"],
                "median of the answers (ms)": seen["latency_ms_p50"],
                "as before after (s)": f"{back:.1f}" if back is not None else "more than 30",
                "what it said": _short(seen["error"]),
            }
        )
    return _table(rows)


def _short(error: str) -> str:
    """Return the beginning of a server's sentence: the table has to fit a page."""
    text = re.sub(r'^\w+: |\{"detail":"|",".*$', "", error)
    return text if len(text) <= 90 else text[:89].rsplit(" ", 1)[0] + " …"


def answer(found: ComparedServers) -> str:
    """Return the answer in FP32: who is better than ours with one and with eight in flight, and the caveat."""
    if not found.outcomes:
        return NOT_MEASURED
    lines, better = [], []
    for load, words in (("one", "one request in flight"), ("eight", "eight requests in flight")):
        verdicts = found.verdicts(load)
        here = sorted((o for o in verdicts.values() if _is_better(o)), key=lambda o: -abs(o.effect))
        lines += [f"In FP32 with {words}: {sentence(outcome)}" for outcome in here]
        if not here:
            lines.append(f"In FP32 with {words} no server was measurably faster than {SERVERS[OURS].label}.")
        if names := [name for name, o in verdicts.items() if not o.is_measured]:
            lines.append(f"Not measured with {words}: {listed(names)}.")
        better += [outcome.question.label_b for outcome in here]
    if SERVERS["triton"].label in better:
        lines.append(
            "Triton computes with ONNX Runtime and the others with PyTorch, so this is engine and server together."
        )
    return "\n".join(lines)


def answer_of(run: Run) -> str:
    """Return the whole answer of a run."""
    fp32, fast = compared(run), compared(run, passes=("fastest", "many"))
    lines = [*fastest_sentences(fast), answer(fp32) if fp32.outcomes or not fast.outcomes else ""]
    checked = read_verified(run)
    faulty = [name for name, one in checked.items() if _faults(one)]
    sound = [SERVERS[name].label for name in checked if name not in faulty]
    seen = [f"nothing wrong with {listed(sound)}"] if sound else []
    seen += [f"faults in {listed([SERVERS[name].label for name in faulty])}"] if faulty else []
    lines += [f"`photodup verify` finds {', but '.join(seen)}."] if seen else []
    lines += [ADVICE] if faulty else []
    return "\n".join(line for line in lines if line)


def fastest_sentences(fast: ComparedServers) -> list[str]:
    """Say who is worse than ours under every load, each at its fastest precision, and by how much the nearest of them.

    Empty where that is nobody, or not known.
    """
    loads = {load: verdicts for load in LOADS if (verdicts := fast.verdicts(load))}
    peers = [server.label for server in SERVERS.values() if not server.is_ours]
    slower = [one for one in peers if loads and all(_is_worse(v.get(one)) for v in loads.values())]
    if not slower:
        return []
    who, n = listed(slower), listed([str(LOADS[load].concurrency) for load in loads])
    faster = f"{SERVERS[OURS].label} is faster than {who} with {n} in flight"
    load, verdicts = next(iter(loads.items()))
    nearest = sentence(min((verdicts[one] for one in slower), key=lambda outcome: abs(outcome.effect)))
    return [
        f"Each at its fastest precision, {faster} ({engines(fast).rstrip('.')}).",
        f"The nearest of these, with {load} in flight: {nearest}",
    ]


def _is_better(outcome: Outcome) -> bool:
    """Return whether the second side is found better: less latency, or more throughput."""
    sign = -1 if outcome.metric.quantity == "latency" else 1
    return outcome.is_different and sign * outcome.effect > 0


def _is_worse(outcome: Outcome | None) -> bool:
    return outcome is not None and outcome.is_different and not _is_better(outcome)


def answer_table(found: ComparedServers) -> pd.DataFrame:
    """Return what stands behind the answer, one row a server: verdict, difference and interval under both loads."""
    import pandas as pd

    loads = {"one": "time of one photograph", "eight": "throughput, eight in flight"}
    cells = {words: found.verdicts(load) for load, words in loads.items()}
    index = list(dict.fromkeys(label for outcomes in cells.values() for label in outcomes))
    columns = {words: [_cell(outcomes.get(label)) for label in index] for words, outcomes in cells.items()}
    return pd.DataFrame(columns, index=pd.Index(index, name=f"against {SERVERS[OURS].label}", dtype=object))


def _cell(outcome: Outcome | None) -> str:
    if outcome is None:
        return str(Verdict.NOT_MEASURED)
    cells = row(outcome)
    return ", ".join(part for part in (cells["verdict"], cells["difference"]) if part)
