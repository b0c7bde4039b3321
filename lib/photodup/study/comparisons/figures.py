"""Figures of comparisons: the values of each side, one visit, and how far the sides of each comparison differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from photodup.bench.stats.facts import SMALLEST_EFFECT
from photodup.study.comparisons.outcomes import Compared
from photodup.study.notebook import charts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS = {"fastapi": "o", "triton": "s", "local": "D"}
SERVERS = {"fastapi": "FastAPI", "triton": "Triton", "local": "in process"}


def draw_frontier(ax: Axes, compared: Compared) -> None:
    """Draw each side: throughput with eight in flight (x, images/s), median latency with one (y, ms), 95% intervals.

    Colour is the engine, shape the server. The faint line upwards ends at the 99th percentile of latency.
    """
    from matplotlib.patheffects import withStroke

    sides = compared.sides
    at_one = sides[sides.load == "one"].set_index("side")
    at_many = sides[sides.load == "eight"].set_index("side")
    rates = at_many.throughput_images_per_s.astype(float).dropna()
    fastest = at_many.engine[rates.idxmax()] if len(rates) else None
    latencies = at_one.astype({"latency_ms_p50": float}).dropna(subset="latency_ms_p50")
    upper = set(latencies.groupby(["engine", "precision"]).latency_ms_p50.idxmax())
    for side in sides_under(compared, "one", "eight"):
        lone, many = at_one.loc[side], at_many.loc[side]
        x, y = many.throughput_images_per_s, lone.latency_ms_p50
        if not (x and y and x > 0 and y > 0):
            continue
        color = charts.engine_color(lone.engine)
        reach_x = [[x - many.throughput_images_per_s_ci_low], [many.throughput_images_per_s_ci_high - x]]
        reach_y = [[y - lone.latency_ms_p50_ci_low], [lone.latency_ms_p50_ci_high - y]]
        text = f"{lone.precision.upper()}, {SERVERS.get(lone.server, lone.server)}"
        ax.errorbar(x, y, reach_y, reach_x, fmt="none", ecolor=color, elinewidth=1.2, zorder=2)
        if (p99 := lone.latency_ms_p99) and p99 > y:
            ax.plot([x, x], [y, p99], color=color, alpha=0.3, linewidth=1, zorder=1, label="_to p99")
            ax.plot(x, p99, "_", color=color, alpha=0.5, zorder=1, label="_to p99")
        ax.plot(x, y, MARKERS.get(lone.server, "o"), color=color, markersize=8, zorder=3, label=f"_{side}")
        # Two servers with one engine lie on each other: the upper one's name is above, the lower one's below. Two engines
        # lie side by side: the names of the one that gives most are on the right.
        to_right = lone.engine == fastest
        name = ax.annotate(
            text,
            (x, y),
            xytext=(10 if to_right else -10, 6 if side in upper else -13),
            textcoords="offset points",
            fontsize=8,
            color=color,
            ha="left" if to_right else "right",
            zorder=4,
        )
        name.set_path_effects([withStroke(linewidth=3, foreground="white")])  # over its neighbour's bars
    ax.margins(x=0.14, y=0.1)  # room for the names


def sides_under(compared: Compared, *loads: str) -> list[str]:
    """Return the sides that were measured under each of these loads."""
    measured = [compared.sides.side[compared.sides.load == load].tolist() for load in loads]
    return [side for side in measured[0] if all(side in sides for sides in measured)]


def draw_values(ax: Axes, compared: Compared, load: str, metric: str) -> int:
    """Draw each side's value under one load with its 95% interval, one row a side; return how many there are."""
    sides = compared.sides[(compared.sides.load == load) & (compared.sides[metric].astype(float) > 0)]
    for row, (_, side) in enumerate(sides.iterrows()):
        interval = (side[f"{metric}_ci_low"], side[f"{metric}_ci_high"])
        marker = MARKERS.get(side.server, "o")
        charts.interval_row(
            ax, row, side[metric], interval, color=charts.engine_color(side.engine), marker=marker
        )
    charts.name_rows(ax, sides.label)
    ax.tick_params("y", labelsize=8)
    ax.set_xlim(left=0)
    return len(sides)


def draw_visit(ax: Axes, compared: Compared, name: str) -> None:
    """Draw the last visit of a comparison: each counted answer at its time (x, seconds) and its latency (y, ms).

    Of visits without times, x is the number of the answer.
    """
    import numpy as np

    visit, comparison = compared.visits[name][-1], compared[name].comparison
    at = visit.at_s if len(visit.at_s) else np.arange(len(visit.side))
    colors = "#c9a227", charts.FOUND
    for index, (label, color) in enumerate(
        zip((comparison.label_a, comparison.label_b), colors, strict=True)
    ):
        of_side = visit.side == index
        ax.plot(at[of_side], visit.latency_ms[of_side], ".", color=color, markersize=3, label=label)
    ax.set(xlabel="seconds" if len(visit.at_s) else "answer", ylabel="latency (ms)", ylim=(0, None))
    ax.legend(fontsize=8)


def draw_effects(ax: Axes, compared: Compared, names: Sequence[str]) -> None:
    """Draw comparisons as intervals of the relative effect, in percent: filled where a difference was found.

    What was not measured has its name and no point. The grey band is what is too small to matter (`SMALLEST_EFFECT`).
    """
    from matplotlib.lines import Line2D

    ax.axvspan(-100 * SMALLEST_EFFECT, 100 * SMALLEST_EFFECT, color="#9aa0aa", alpha=0.2, linewidth=0)
    for row, name in enumerate(reversed(list(names))):
        outcome = compared[name]
        if not outcome.is_measured:
            charts.not_measured(ax, row)
            continue
        interval = (100 * outcome.low, 100 * outcome.high)
        color, is_hollow = (charts.FOUND, False) if outcome.is_different else (charts.MUTED, True)
        charts.interval_row(ax, row, 100 * outcome.effect, interval, color=color, is_hollow=is_hollow)
    charts.name_rows(ax, list(reversed(list(names))))
    looks = ("a difference was found", charts.FOUND, charts.FOUND), ("none was found", charts.MUTED, "white")
    handles = [
        Line2D([], [], color=c, marker="o", markerfacecolor=face, label=text) for text, c, face in looks
    ]
    if len(names) > 1:  # it would hide a lone interval; another panel has a legend
        ax.legend(handles=handles, loc="best", fontsize=8)
