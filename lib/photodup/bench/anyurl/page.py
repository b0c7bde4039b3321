"""The tables and figures of the page of a load or a comparison."""

import io
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from photodup.bench import Columns
from photodup.bench.anyurl.comparison import ServerComparison
from photodup.bench.anyurl.measure import MeasuredLoad, with_interval
from photodup.bench.load.workers import COLUMNS
from photodup.bench.stats.figures import Figure
from photodup.bench.stats.sentence import cells_of

_MOST_DOTS = 4000
BLUE, RED, GREY = "#2a6f97", "#b4442f", "#98a2b3"


def measurement_row(measured: MeasuredLoad) -> Columns:
    """Return a measurement as the cells of a table's row."""
    percentiles = measured.percentiles_ms
    return {
        "load": measured.spec.description,
        "requests/s": with_interval(measured.requests_per_s),
        **{f"p{p}, ms": with_interval(percentiles[p]) if percentiles else "" for p in (50, 95, 99)},
        "visits": len(measured.windows),
        "answers": measured.n_answered,
        "failed": measured.n_failed,
    }


def comparison_rows(comparison: ServerComparison) -> list[dict[str, str]]:
    """Return one row for each comparison, the check first."""
    cells = ("figure", "verdict", "difference", "values", "visits", "notes")
    return [
        {"sides": f"{o.comparison.label_b} against {o.comparison.label_a}"}
        | {name: cells_of(o)[name] for name in cells}
        for o in comparison.outcomes
    ]


def latency_charts(measured: MeasuredLoad) -> list[tuple[str, str]]:
    """Return the figure of a single load: latency over time."""
    due_s, done_s = (
        np.concatenate([w.began_s + w.rows[:, COLUMNS.index(name)] for w in measured.windows])
        for name in ("due", "done")
    )
    failed_s = [w.began_s + at for w in measured.windows for at, _ in w.errors][:_MOST_DOTS]
    every = math.ceil(len(done_s) / _MOST_DOTS) or 1

    def draw(axes: Any) -> None:
        latency_ms = 1000 * (done_s - due_s)
        axes.plot(done_s[::every], latency_ms[::every], ".", color=BLUE, ms=4, label="answered")
        if failed_s:
            axes.plot(failed_s, np.zeros(len(failed_s)), "|", color=RED, ms=4, label="failed")

    few = f" Every {every}th is drawn." if every > 1 else ""
    caption = f"Each request when it was answered, or when it failed.{few}"
    return _chart(caption, "seconds", "latency, ms", draw) if len(done_s) else []


def frontier_charts(sweep: Sequence[MeasuredLoad]) -> list[tuple[str, str]]:
    """Return the figure of a sweep: latency against throughput, one dot a load."""
    loads = [load for load in sweep if load.n_answered]

    def draw(axes: Any) -> None:
        rates, rate_bars = _with_bars([load.requests_per_s for load in loads])
        for p, color in ((50, BLUE), (95, RED)):
            latencies, bars = _with_bars([load.percentiles_ms[p] for load in loads])
            style = {"fmt": "o-", "color": color, "ms": 4, "lw": 1, "label": f"p{p}"}
            axes.errorbar(rates, latencies, xerr=rate_bars, yerr=bars, **style)

    dots = ", ".join(load.spec.label for load in loads)
    bars = "bars: 95% intervals between visits. Where the curve turns up, requests wait for each other"
    caption = f"Dots: {dots}; {bars}."
    return _chart(caption, "requests/s answered", "latency, ms", draw) if loads else []


def _with_bars(figures: Sequence[Figure]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return figures [n] and their error bars, [2][n]: how far each interval reaches down and up."""
    ends = [
        (value, value if low is None else low, value if high is None else high)
        for value, low, high in figures
    ]
    values, lows, highs = np.array(ends).T
    return values, [values - lows, highs - values]


def comparison_charts(comparison: ServerComparison) -> list[tuple[str, str]]:
    """Return the figure of a comparison: every observation behind the verdict and the check, in the order of time."""
    labels = (("check: server 1 through other connections", GREY), ("server 2 against server 1", BLUE))

    def draw(axes: Any) -> None:
        for side, (label, color) in enumerate(labels, start=1):
            ratios = np.concatenate([visit.log_ratios(side) for visit in comparison.visits])
            halves = np.arange(1, len(ratios) + 1)
            axes.plot(halves, 100 * np.expm1(ratios), "o", color=color, ms=4, label=label)

    y = f"difference in {comparison.outcomes[0].metric.label}, %"
    return _chart("Each dot is one block of each server.", "half of a palindrome of turns", y, draw)


def _chart(caption: str, x: str, y: str, draw: Callable[[Any], None]) -> list[tuple[str, str]]:
    """Return a caption with its figure as SVG."""
    import matplotlib  # here and not above: it would be loaded before the first request
    from matplotlib.figure import Figure as Chart

    chart = Chart(figsize=(7.5, 3.4), layout="constrained")
    axes = chart.subplots()
    axes.set(xlabel=x, ylabel=y)
    draw(axes)
    axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))  # zero is in sight
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False)
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "photodup"}):
        chart.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    return [(caption, text[text.index("<svg") :])]
