"""Draw what a run shows of the published claims: each effect here, divided by the published one."""

import textwrap
from statistics import geometric_mean
from typing import TYPE_CHECKING

from photodup.study.notebook import charts

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

SPAN = 16.0  # the axis shows effects from 1/SPAN to SPAN times the published one


def draw_effects(verdicts: "pd.DataFrame") -> "Figure":
    """Return the figure for one run's verdicts: a row for each claim that prints a number and has one here.

    A filled dot is a judged effect with its interval; several have their range, and the dot is their geometric mean. A
    hollow dot is shown and not judged. Beyond the axis a dot becomes an arrow.
    """
    import matplotlib.pyplot as plt

    rows = [row for row in map(_row, verdicts.to_dict("records")) if row]
    rows.sort(key=lambda row: (row[4], row[1]), reverse=True)  # judged ones on top
    figure, ax = plt.subplots(figsize=(8.6, 1.2 + 0.36 * len(rows)))
    for y, (_, value, low, high, is_hollow) in enumerate(rows):
        shown = min(max(value, 1 / SPAN * 1.1), SPAN / 1.1)
        marker = "o" if shown == value else "<" if value < 1 else ">"
        interval = min(max(low, 1 / SPAN), SPAN), max(min(high, SPAN), 1 / SPAN)
        color = charts.MUTED if is_hollow else charts.FOUND
        charts.interval_row(ax, y, shown, interval, color=color, marker=marker, is_hollow=is_hollow)
    charts.name_rows(ax, [row[0] for row in rows])
    ax.axvline(1, color=charts.MUTED, lw=1, zorder=0)
    ax.set(xscale="log", xlim=(1 / SPAN, SPAN), xlabel="effect here ÷ published effect")
    ax.set_xticks([1 / 16, 1 / 4, 1, 4, 16], ["1/16", "1/4", "as published", "4", "16"])
    ax.minorticks_off()
    ax.tick_params("y", labelsize=8)
    return figure


def _row(claim: dict) -> tuple[str, float, float, float, bool] | None:
    """Return the label, the effect with its ends divided by the published one, and whether it is shown only."""
    published = claim["effect_published"]
    effects = claim["effects"] or claim["shown"]
    if not published or published != published or not effects or min(value for value, _, _ in effects) <= 0:
        return None
    ends = effects[0] if len(effects) == 1 else [v for v, _, _ in effects]
    value = effects[0][0] if len(effects) == 1 else geometric_mean(ends)
    label = textwrap.fill(textwrap.shorten(claim["statement"], 84, placeholder=" …"), 46)
    return (
        label,
        value / published,
        max(min(ends), 1e-9) / published,
        max(ends) / published,
        not claim["effects"],
    )
