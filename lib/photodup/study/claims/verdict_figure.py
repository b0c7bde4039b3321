"""Draw verdicts so that they can be read: the claim, what was published, what is seen here, and how sure that is."""

import textwrap
from typing import TYPE_CHECKING, Any

from photodup.study.claims.outcome import (
    CONTRADICTED,
    GOAL_MET,
    GOAL_MISSED,
    NOT_TESTABLE,
    REPRODUCED,
    UNDECIDED,
)
from photodup.study.notebook.charts import BAD, GOOD, MUTED

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

AMBER, INK, GREY = "#a67c00", "#1f2937", "#4b5563"
LOOK = {  # verdict -> its sign and colour, in the order of the figure
    REPRODUCED: ("✓", GOOD),
    CONTRADICTED: ("✗", BAD),
    UNDECIDED: ("≈", AMBER),
    GOAL_MET: ("◆", GOOD),
    GOAL_MISSED: ("◇", BAD),
    NOT_TESTABLE: ("–", MUTED),
}
WIDTH, LINE, HEAD = 8.6, 0.64, 0.42  # inches: the figure, a claim, a verdict's heading
TITLE, FOOT = 0.45, 1.1  # inches: above all, and below for the axis and a caption
SPAN = 32.0  # the axis shows effects from 1/SPAN to SPAN times the published one
CHARACTERS = 62  # of a statement, in a line


def draw(verdicts: "pd.DataFrame", title: str = "") -> "Figure":
    """Return the figure for one run's verdicts, under a heading each; claims not testable here are left out.

    A dot is one comparison's effect here divided by the published one, its line the interval. Beyond the axis a dot
    becomes an arrow. Claims that print no number have no dots, and neither have goals, which no run decides.
    """
    import matplotlib.pyplot as plt

    groups = [(v, verdicts[verdicts["verdict"] == v].to_dict("records")) for v in LOOK if v != NOT_TESTABLE]
    groups = [(verdict, rows) for verdict, rows in groups if rows]
    height = sum(HEAD + LINE * len(rows) for _, rows in groups) or LINE
    figure, (words, chart) = plt.subplots(
        1, 2, figsize=(WIDTH, TITLE + height + FOOT), width_ratios=(2.1, 1), layout="constrained"
    )
    top = 0.0
    for verdict, rows in groups:
        sign, color = LOOK[verdict]
        words.text(
            0.0,
            top + HEAD * 0.62,
            f"{sign} {verdict}",
            color=color,
            fontsize=11.5,
            fontweight="bold",
            va="center",
        )
        top += HEAD
        for index, row in enumerate(rows):
            for ax in (words, chart):
                ax.axhspan(top, top + LINE, color=color, alpha=0.11 if index % 2 else 0.06, lw=0)
            _words(words, top, row)
            _dots(chart, top + LINE / 2, row, color)
            top += LINE
    for ax in (words, chart):
        ax.set_ylim(height, 0)
    words.set_xlim(0, 1)
    words.axis("off")
    chart.axvline(1, color=GREY, lw=1)
    chart.set(xscale="log", xlim=(1 / SPAN, SPAN), xlabel="effect here ÷ published effect")
    chart.set_xticks([1 / 16, 1 / 4, 1, 4, 16], ["1/16", "1/4", "1", "4", "16"])
    chart.tick_params(axis="y", left=False, labelleft=False)
    chart.minorticks_off()
    chart.grid(visible=False, axis="y")
    figure.suptitle(title, x=0.012, ha="left", fontsize=13, fontweight="bold", color=INK)
    return figure


def _words(ax: Any, top: float, row: dict[str, Any]) -> None:
    statement = textwrap.shorten(row["statement"], 2 * CHARACTERS - 8, placeholder=" …")
    ax.text(
        0.012,
        top + (0.24 if len(statement) > CHARACTERS else 0.29),
        textwrap.fill(statement, CHARACTERS),
        fontsize=9.2,
        va="center",
        linespacing=1.05,
        color=INK,
    )
    published = "" if row["published"] == "–" else f"published {row['published']}, "
    ax.text(0.012, top + 0.53, f"{published}here {row['here']}", fontsize=8.6, va="center", color=GREY)


def _dots(ax: Any, y: float, row: dict[str, Any], color: str) -> None:
    published = row["effect_published"]
    if published is None or not published > 0 or row["verdict"] in (GOAL_MET, GOAL_MISSED):
        return
    many = len(row["effects"])
    for index, (effect, low, high) in enumerate(row["effects"]):
        if not effect > 0:
            continue
        ratio = effect / published
        low, high = (max(end / published, 1e-9) for end in (low, high))
        at = y + (index - (many - 1) / 2) * min(0.09, 0.42 / many)
        shown = min(max(ratio, 1 / SPAN * 1.15), SPAN / 1.15)
        marker = "o" if shown == ratio else "<" if ratio < 1 else ">"
        ax.plot(
            [min(max(low, 1 / SPAN), SPAN), max(min(high, SPAN), 1 / SPAN)], [at, at], color=color, lw=1.6
        )
        ax.plot([shown], [at], marker, color=color, ms=6 if many < 3 else 4)


def changes(verdicts: "pd.DataFrame") -> "pd.DataFrame":
    """Return one row per claim that some run could judge and one column per run: its sign, verdict and effect."""

    def cell(row: "pd.Series") -> str:
        sign = LOOK[row["verdict"]][0]
        seen = "" if row["here"] == "–" else f", {row['here']}"
        return f"{sign} {row['verdict']}{seen}"

    table = verdicts.assign(cell=verdicts.apply(cell, axis=1)).pivot(
        index="statement", columns="run", values="cell"
    )
    judged = verdicts[verdicts["verdict"] != NOT_TESTABLE]["statement"]
    order = [s for s in dict.fromkeys(verdicts["statement"]) if s in set(judged)]
    return table.loc[order, list(dict.fromkeys(verdicts["run"]))]
