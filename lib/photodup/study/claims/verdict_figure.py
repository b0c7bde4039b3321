"""Draw verdicts as a table that can be read: the claim, what was published, what is seen here, and how sure that is."""

import math
import textwrap
from typing import TYPE_CHECKING, Any

from photodup.study.claims.predicates import CONTRADICTED, INCONCLUSIVE, NOT_MEASURED, REPRODUCED
from photodup.study.notebook.charts import BAD, GOOD, MUTED

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

LOOK = {REPRODUCED: ("✓", GOOD), CONTRADICTED: ("✗", BAD), INCONCLUSIVE: ("≈", "#a67c00")}
LINE = 0.36  # height of a row, inches
SPAN = 32.0  # the axis shows effects from 1/SPAN to SPAN times the published one


def draw(verdicts: "pd.DataFrame", title: str = "") -> "Figure":
    """Return the figure for one run's verdicts, decided ones first; claims that were not measured are left out.

    The dot is the effect here divided by the published one, its line the interval; grey is the noise floor. Beyond
    the axis a dot becomes an arrow. Claims that print no number have none.
    """
    import matplotlib.pyplot as plt

    order = {word: i for i, word in enumerate(LOOK)}
    rows = verdicts[verdicts["verdict"] != NOT_MEASURED]
    rows = rows.sort_values("verdict", key=lambda c: c.map(order), kind="stable").to_dict("records")
    height = LINE * (len(rows) + 2.4) + 0.5
    figure, axes = plt.subplots(
        1, 2, figsize=(13, height), width_ratios=(3.4, 1), sharey=True, layout="constrained"
    )
    words, chart = axes
    for y, row in enumerate(rows):
        _words(words, y, row)
        _dot(chart, y, row)
        for ax in axes:
            ax.axhspan(y - 0.5, y + 0.5, color=LOOK[row["verdict"]][1], alpha=0.09 if y % 2 else 0.05, lw=0)
    for x, text, side in ((0.035, "claim", "left"), (0.73, "published", "right"), (0.99, "here", "right")):
        words.text(x, -0.85, text, ha=side, va="center", fontsize=9, fontweight="bold", color="#4b5563")
    words.set(xlim=(0, 1), ylim=(len(rows) - 0.4, -1.3))
    words.axis("off")
    floor = math.exp(rows[0]["noise_floor"]) if rows else 1.05
    chart.axvspan(1 / floor, floor, color=MUTED, alpha=0.4, lw=0)
    chart.axvline(1, color="#4b5563", lw=1)
    chart.set(xscale="log", xlim=(1 / SPAN, SPAN), xlabel="here ÷ published (grey: noise floor)")
    chart.set_xticks([1 / 16, 1 / 4, 1, 4, 16], ["1/16", "1/4", "as published", "4", "16"])
    chart.tick_params(axis="y", left=False, labelleft=False)
    chart.minorticks_off()
    chart.grid(visible=False, axis="y")
    figure.suptitle(title, x=0.02, ha="left")
    return figure


def _words(ax: Any, y: int, row: dict[str, Any]) -> None:
    symbol, color = LOOK[row["verdict"]]
    ax.text(0.005, y, symbol, color=color, fontsize=15, fontweight="bold", va="center", family="DejaVu Sans")
    ax.text(0.035, y, textwrap.fill(row["statement"], 78), fontsize=8.6, va="center", linespacing=0.95)
    ax.text(0.73, y, row["published"], fontsize=8.6, va="center", ha="right", color="#4b5563")
    ax.text(0.99, y, row["here"], fontsize=8.6, va="center", ha="right", color=color, fontweight="bold")


def _dot(ax: Any, y: int, row: dict[str, Any]) -> None:
    published, here = row["effect_published"], row["effect"]
    if published is None or here is None or not (published > 0 and here > 0):
        return
    color, ratio = LOOK[row["verdict"]][1], here / published
    low, high = (max((row[f"effect_{end}"] or here) / published, 1e-9) for end in ("low", "high"))
    shown = min(max(ratio, 1 / SPAN * 1.15), SPAN / 1.15)
    marker = "o" if shown == ratio else "<" if ratio < 1 else ">"
    ax.plot([min(max(low, 1 / SPAN), SPAN), max(min(high, SPAN), 1 / SPAN)], [y, y], color=color, lw=2)
    ax.plot([shown], [y], marker, color=color, ms=7)


def changes(verdicts: "pd.DataFrame") -> "pd.DataFrame":
    """Return one row per claim that some run could judge and one column per run: its symbol, verdict and effect."""

    def cell(row: "pd.Series") -> str:
        if row["verdict"] == NOT_MEASURED:
            return "not measured"
        return f"{LOOK[row['verdict']][0]} {row['verdict']}, {row['here']}"

    table = verdicts.assign(cell=verdicts.apply(cell, axis=1)).pivot(
        index="statement", columns="run", values="cell"
    )
    judged = verdicts[verdicts["verdict"] != NOT_MEASURED]["statement"]
    order = [s for s in dict.fromkeys(verdicts["statement"]) if s in set(judged)]
    return table.loc[order, list(dict.fromkeys(verdicts["run"]))]
