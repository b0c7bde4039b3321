"""Charts of comparisons: the values of each side, one visit, and how far the sides of each comparison differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from photodup.bench.stats.metrics import SMALLEST_EFFECT
from photodup.study.comparisons.outcomes import Comparisons
from photodup.study.notebook import charts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = {"fastapi": "o", "triton": "s", "local": "D"}


def draw_sides(compared: Comparisons) -> Figure | None:
    """Draw a row for each side: median latency with one request in flight, throughput with eight, and 95% intervals.

    Colour is the engine, shape the server. Return None if nothing was measured.
    """
    import matplotlib.pyplot as plt

    panels = (
        ("one", "latency_ms_p50", "Latency, one in flight", "median (ms)"),
        ("eight", "throughput_images_per_s", "Throughput, eight in flight", "images/s"),
    )
    sides = compared.side_figures
    measured = [
        sides[(sides.load == load) & (sides[metric].astype(float) > 0)].sort_values(metric).set_index("side")
        for load, metric, *_ in panels
    ]
    names = list(dict.fromkeys([*measured[0].index, *measured[1].index[::-1]]))[::-1]  # the fastest on top
    if not names:
        return None
    labels = measured[1].label.to_dict() | measured[0].label.to_dict()
    figure, axes = plt.subplots(1, 2, figsize=(8.8, 1.2 + 0.26 * len(names)), sharey=True)
    for ax, rows, (_, metric, title, unit) in zip(axes, measured, panels, strict=True):
        for row, name in enumerate(names):
            if name in rows.index:
                side = rows.loc[name]
                interval = (side[f"{metric}_ci_low"], side[f"{metric}_ci_high"])
                marker, color = MARKERS.get(side.server, "o"), charts.engine_color(side.engine)
                charts.interval_row(ax, row, side[metric], interval, color=color, marker=marker)
        ax.set(title=title, xlabel=unit)
        ax.set_xlim(left=0)
    charts.name_rows(axes[0], [labels[name] for name in names])
    axes[0].tick_params("y", labelsize=8)
    return figure


def draw_visit(ax: Axes, compared: Comparisons, name: str) -> None:
    """Draw the last visit of a comparison: each counted answer at its time (x, seconds) and its latency (y, ms).

    Of visits without times, x is the number of the answer.
    """
    import numpy as np

    visit, comparison = compared.visits[name][-1], compared[name].comparison
    at = visit.at_s if len(visit.at_s) else np.arange(len(visit.side))
    colors = "#c9a227", charts.FOUND
    labels = comparison.label_a, comparison.label_b
    for index, (label, color) in enumerate(zip(labels, colors, strict=True)):
        of_side = visit.side == index
        ax.plot(at[of_side], visit.latency_ms[of_side], ".", color=color, markersize=3, label=label)
    ax.set(xlabel="seconds" if len(visit.at_s) else "answer", ylabel="latency (ms)", ylim=(0, None))
    ax.legend(fontsize=8)


def draw_effects(ax: Axes, compared: Comparisons, names: Sequence[str]) -> None:
    """Draw comparisons as intervals of the relative effect, in percent: filled where a difference was found.

    A comparison that was not measured has a row without a point. The grey band covers differences too small to matter
    (`SMALLEST_EFFECT`).
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
    if len(names) > 2:  # it would hide one of few intervals
        ax.legend(handles=handles, loc="best", fontsize=8)
