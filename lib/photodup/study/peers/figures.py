"""The figures, tables and the answer of notebook 13, from what was recorded."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from photodup.bench.judge.compare import Outcome
from photodup.study.notebook import charts
from photodup.study.peers.outcomes import Compared, ours
from photodup.study.peers.peers import SERVERS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


def draw_servers(ax: Axes, found: Compared, load: str, *, tail: str = "") -> int:
    """Draw each server's pooled figure under a load with its interval; return how many were drawn.

    Args:
        tail: column of `arms` that is drawn as a faint line to its own mark.
    """
    servers = list(reversed(SERVERS.values()))
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
        ax.plot([row[f"{load}_low"], row[f"{load}_high"]], [place, place], color=color, linewidth=2)
        ax.plot(value, place, "s" if server.name == "triton" else "o", color=color, markersize=7)
        drawn += 1
    ax.set_yticks(range(len(servers)), [server.label for server in servers])
    ax.set_ylim(-0.6, len(servers) - 0.4)
    ax.set_xlim(left=0)
    ax.grid(False, axis="y")
    return drawn


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
    """Return the answer in sentences that carry their comparisons: latency, throughput, and what was not decided."""
    if not found.outcomes:
        return "Not measured: no server was measured in this run."
    said = []
    for load, words, low_is_good in (
        ("one", "With one photograph at a time", True),
        ("eight", "With eight in flight", False),
    ):
        better, worse, alike, open_ones = [], [], [], []
        for label, outcome in found.verdicts(load).items():
            if outcome.verdict == "different":
                (better if (outcome.effect < 0) == low_is_good else worse).append((label, outcome))
            else:
                (alike if outcome.verdict == "equal" else open_ones).append((label, outcome))
        parts = [_listed(better, ("is faster", "are faster") if low_is_good else ("gives more", "give more"))]
        parts += [_listed(worse, ("is slower", "are slower") if low_is_good else ("gives less", "give less"))]
        parts += [f"{_names(alike)} {'is' if len(alike) == 1 else 'are'} equal" if alike else ""]
        parts += [f"undecided: {_names(open_ones)}" if open_ones else ""]
        said.append(f"{words}, compared with {ours().label}: {'; '.join(p for p in parts if p)}.")
    of_triton = (found.outcomes.get(f"{SERVERS['triton'].label}, {load}") for load in ("one", "eight"))
    if any(outcome and outcome.verdict == "different" for outcome in of_triton):
        said.append(
            "Triton computes with ONNX Runtime, all others with PyTorch: notebook 06 compares servers with one engine."
        )
    return "\n".join(said)


def _listed(found: list[tuple[str, Outcome]], verb: tuple[str, str]) -> str:
    """Return who differs and by how much, the most different first; `verb` for one and for several."""
    ordered = sorted(found, key=lambda pair: -abs(pair[1].effect))
    named = [f"{label} ({o.effect:+.0%} [{o.low:+.0%}, {o.high:+.0%}])" for label, o in ordered]
    return f"{_joined(named)} {verb[len(named) > 1]}" if named else ""


def _names(found: list[tuple[str, Outcome]]) -> str:
    return _joined([label for label, _ in found])


def _joined(words: list[str]) -> str:
    return " and ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)
