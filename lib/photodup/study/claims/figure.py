"""Draw what a run shows of the published claims: each judged effect here, divided by the published one."""

import textwrap
from statistics import geometric_mean
from typing import TYPE_CHECKING

from photodup.study.notebook import charts

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

SPAN = 16.0  # the axis shows effects from 1/SPAN to SPAN times the published one


def draw_effects(judged: "pd.DataFrame") -> "Figure":
    """Return the figure for verdicts that rest on numbers: a row for each, with an effect published and one here.

    A dot is an effect with its interval; several have their range, and the dot is their geometric mean. Beyond the axis
    a dot becomes an arrow.
    """
    import matplotlib.pyplot as plt

    rows = sorted(map(_row, judged.to_dict("records")), key=lambda row: row[1], reverse=True)
    figure, ax = plt.subplots(figsize=(8.6, 1.6 + 0.4 * len(rows)))
    for y, (_, value, low, high) in enumerate(rows):
        shown = min(max(value, 1 / SPAN * 1.1), SPAN / 1.1)
        marker = "o" if shown == value else "<" if value < 1 else ">"
        interval = min(max(low, 1 / SPAN), SPAN), max(min(high, SPAN), 1 / SPAN)
        charts.interval_row(ax, y, shown, interval, color=charts.FOUND, marker=marker)
    charts.name_rows(ax, [row[0] for row in rows])
    ax.axvline(1, color=charts.MUTED, lw=1, zorder=0)
    ax.set(xscale="log", xlim=(1 / SPAN, SPAN), xlabel="effect here ÷ published effect")
    ax.set_xticks([1 / 16, 1 / 4, 1, 4, 16], ["1/16", "1/4", "as published", "4", "16"])
    ax.minorticks_off()
    ax.tick_params("y", labelsize=8)
    return figure


def _row(claim: dict) -> tuple[str, float, float, float]:
    """Return the label, and the effect with its ends divided by the published one."""
    published, effects = claim["effect_published"], claim["effects"]
    ends = effects[0] if len(effects) == 1 else [v for v, _, _ in effects]
    value = effects[0][0] if len(effects) == 1 else geometric_mean(ends)
    label = textwrap.fill(textwrap.shorten(claim["statement"], 84, placeholder=" …"), 46)
    return label, value / published, max(min(ends), 1e-9) / published, max(ends) / published
