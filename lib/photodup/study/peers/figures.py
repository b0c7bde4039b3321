"""The figures, tables and the answer of notebook 13, from what was recorded."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from photodup.bench.stats.compare import Outcome
from photodup.bench.stats.sentence import comparison_row
from photodup.study.notebook import charts
from photodup.study.peers.outcomes import Compared, ours
from photodup.study.peers.peers import SERVERS, fastest
from photodup.study.peers.stage import LOADS, METRIC

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


def draw_servers(ax: Axes, found: Compared, load: str, *, tail: str = "", is_fastest: bool = False) -> int:
    """Draw each server's pooled figure under a load with its interval; return how many were drawn.

    Args:
        tail: column of `arms` that is drawn as a faint line to its own mark.
        is_fastest: the rounds are those of each server's fastest precision.
    """
    servers = [fastest(server) if is_fastest else server for server in reversed(SERVERS.values())]
    known = {row["server"]: row for row in found.arms.to_dict("records")}
    drawn = 0
    for place, server in enumerate(servers):
        row = known.get(server.name, {})
        value = row.get(load)
        if not value or value != value:
            ax.text(
                0.02,
                place,
                "not measured",
                va="center",
                fontsize=8,
                color=charts.MUTED,
                transform=ax.get_yaxis_transform(),
            )
            continue
        color = charts.engine_color(server.engine)
        end = row.get(tail) if tail else None
        if end and end == end:
            ax.plot([value, end], [place, place], color=color, alpha=0.3, linewidth=1)
            ax.plot(end, place, "|", color=color, alpha=0.6)
        interval, marker = (row[f"{load}_low"], row[f"{load}_high"]), "s" if server.name == "triton" else "o"
        charts.interval_row(ax, place, value, interval, color=color, marker=marker)
        drawn += 1
    charts.name_rows(ax, [server.label for server in servers])
    ax.set_xlim(left=0)
    return drawn


def engines(fast: Compared) -> str:
    """Return which servers compute with which engine and precision where each is at its fastest, as one caption."""
    by_engine: dict[str, list[str]] = {}
    for row in fast.arms.to_dict("records"):
        server = fastest(SERVERS[row["server"]])
        engine = {"pytorch": "PyTorch", "openvino": "OpenVINO"}.get(server.engine, server.engine)
        by_engine.setdefault(f"{engine} {server.computed.upper()}", []).append(server.label)
    return "; ".join(f"{engine}: {_joined(names)}" for engine, names in by_engine.items()) + "."


def costs(found: Compared) -> pd.DataFrame:
    """Return memory and start-up as a table, one row a server."""
    import pandas as pd

    rows = []
    for name, alone in found.alone.items():
        first = sorted(alone["first_answer_s"])
        rows.append(
            {
                "server": SERVERS[name].label,
                "memory (MiB)": f"{alone['memory_loaded_mib']:,.0f}",
                "first answer (s), middle of the starts": f"{first[len(first) // 2]:.1f}",
                "fastest and slowest start (s)": f"{first[0]:.1f}, {first[-1]:.1f}",
            }
        )
    return pd.DataFrame(rows or [{"server": "none was measured in this run"}])


def overload(found: Compared) -> pd.DataFrame:
    """Return what each server did at twice its rate, one row a server."""
    import pandas as pd

    rows = []
    for name, alone in found.alone.items():
        seen = alone["overload"]
        p50, back = seen["latency_ms_p50"], seen["recovered_s"]
        rows.append(
            {
                "server": SERVERS[name].label,
                "offered (requests/s)": f"{seen['offered_per_s']:.1f}",
                "answered": seen["answered"],
                "refused or failed": seen["failed"],
                "median of the answers (ms)": f"{p50:,.0f}" if p50 is not None else "",
                "as before after (s)": f"{back:.1f}" if back is not None else "more than 30",
                "what it said": _short(seen["error"]),
            }
        )
    return pd.DataFrame(rows or [{"server": "none was measured in this run"}])


def _short(error: str) -> str:
    """Return the beginning of a server's sentence: the table has to fit a page."""
    text = re.sub(r'^\w+: |\{"detail":"|",".*$', "", error)
    return text if len(text) <= 90 else text[:89].rsplit(" ", 1)[0] + " …"


def answer(found: Compared) -> str:
    """Return the answer in plain words: who needs less time for one photograph, who gives more under load, the caveat."""
    if not found.outcomes:
        return "Not measured: no server was measured in this run."
    faster, open_one = _better(found, "one")
    if faster:
        first, outcome = faster[0]
        said = f"In FP32 one photograph takes {abs(outcome.effect):.0%} less time with {first} than with {ours().label}"
        said += f", and less, too, with {_joined([name for name, _ in faster[1:]])}" if faster[1:] else ""
    else:
        said = f"In FP32 no server is found to take less time for one photograph than {ours().label}"
        said += f"; undecided: {_joined(open_one)}" if open_one else ""
    more, open_eight = _better(found, "eight")
    who = f"only {_joined([name for name, _ in more])}" if more else "no server"
    parts = [f"{said}.", f"With eight in flight {who} is found to give more."]
    if faster and open_one:
        parts.append(f"Undecided for one photograph: {_joined(open_one)}.")
    if open_eight:
        parts.append(f"Undecided with eight in flight: {_joined(open_eight)}.")
    if SERVERS["triton"].label in dict([*faster, *more]):
        parts.append(
            "Triton computes with ONNX Runtime and the others with PyTorch, so this is engine and server together."
        )
    return "\n".join(parts)


def fastest_sentence(fast: Compared) -> str:
    """Return who is found slower than ours under every load where each computes in its fastest precision; "" if unknown."""
    peers = [server for server in SERVERS.values() if not server.is_ours]
    judged = {load: verdicts for load in METRIC if (verdicts := fast.verdicts(load))}
    slower = [s.label for s in peers if judged and all(_is_slower(v.get(s.label)) for v in judged.values())]
    if not slower:
        return ""
    precision = fastest(ours()).precision.upper()
    who = "every peer" if len(slower) == len(peers) else _joined(slower)
    many = _joined([str(LOADS[load].concurrency) for load in judged])
    return f"Each at its fastest precision, {ours().label} in {precision} is found faster than {who} with {many} in flight."


def _is_slower(outcome: Outcome | None) -> bool:
    if outcome is None or outcome.verdict != "different":
        return False
    return outcome.effect > 0 if "latency" in outcome.comparison.metric else outcome.effect < 0


def answer_table(found: Compared) -> pd.DataFrame:
    """Return what stands behind the answer, one row a server: verdict, effect and interval under both loads."""
    import pandas as pd

    loads = {"one": "time of one photograph", "eight": "throughput, eight in flight"}
    cells = {words: found.verdicts(load) for load, words in loads.items()}
    index = list(dict.fromkeys(label for outcomes in cells.values() for label in outcomes))
    columns = {words: [_cell(outcomes.get(label)) for label in index] for words, outcomes in cells.items()}
    return pd.DataFrame(columns, index=pd.Index(index, name=f"against {ours().label}", dtype=object))


def _cell(outcome: Outcome | None) -> str:
    row = comparison_row(outcome) if outcome else {"verdict": "not compared", "effect": ""}
    return ", ".join(part for part in (row["verdict"], row["effect"]) if part)


def _better(found: Compared, load: str) -> tuple[list[tuple[str, Outcome]], list[str]]:
    """Return who is found better than ours under a load, the most different first, and who stays undecided."""
    verdicts, sign = found.verdicts(load), -1 if load == "one" else 1
    better = [(name, o) for name, o in verdicts.items() if o.verdict == "different" and sign * o.effect > 0]
    undecided = [name for name, o in verdicts.items() if o.verdict not in ("different", "equal")]
    return sorted(better, key=lambda pair: -abs(pair[1].effect)), undecided


def _joined(words: list[str]) -> str:
    return " and ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)
