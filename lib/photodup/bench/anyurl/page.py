"""The tables and figures of the page of a run, a search or a comparison."""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from photodup.bench.anyurl.measure import Measured, with_interval
from photodup.bench.anyurl.versus import Versus
from photodup.bench.load.workers import ROW
from photodup.bench.stats.figures import Figure
from photodup.bench.stats.rate_search import HighestRate
from photodup.bench.stats.sentence import row
from photodup.core.extras import import_extra

_MOST_DOTS = 4000


def measurement_row(measured: Measured) -> dict[str, Any]:
    """Return a measurement as the cells of a table's row."""
    percentiles = measured.percentiles_ms
    return {
        "load": measured.spec.words,
        "requests/s": with_interval(measured.requests_per_s),
        **{f"p{p}, ms": with_interval(percentiles[p]) if percentiles else "" for p in (50, 95, 99)},
        "visits": len(measured.windows),
        "answers": measured.n_answered,
        "failed": measured.n_failed,
    }


def comparison_rows(versus: Versus) -> list[dict[str, str]]:
    """Return one row for each comparison, the check first."""
    cells = ("figure", "verdict", "difference", "values", "observations", "notes")
    return [
        {"sides": f"{o.comparison.label_b} against {o.comparison.label_a}"}
        | {name: row(o)[name] for name in cells}
        for o in versus.outcomes
    ]


def latency_figures(measured: Measured) -> list[tuple[str, str]]:
    """Return the figure of a single load: latency over time."""
    due_s, done_s = (
        np.concatenate([w.began_s + w.rows[:, ROW.index(name)] for w in measured.windows])
        for name in ("due", "done")
    )
    if not len(done_s):
        return []
    failed_s = [w.began_s + at for w in measured.windows for at, _ in w.errors]
    every = max(1, len(done_s) // _MOST_DOTS)
    figure, axes = axes_of("seconds", "latency, ms")
    axes.plot(done_s[::every], 1000 * (done_s - due_s)[::every], ".", ms=3, alpha=0.5, color="#2a6f97")
    for at in failed_s[:_MOST_DOTS]:
        axes.axvline(at, color="#b4442f", lw=0.5)
    axes.set_ylim(bottom=0)
    few = f" Every {every}th is drawn." if every > 1 else ""
    lines = "; red lines: failed requests." if failed_s else "."
    return [(f"Each request when it was answered{lines}{few}", svg(figure))]


def frontier_figures(sweep: Sequence[Measured]) -> list[tuple[str, str]]:
    """Return the figure of a sweep: latency against throughput, one dot for each number of requests in flight."""
    steps = [step for step in sweep if step.n_answered]
    if not steps:
        return []
    figure, axes = axes_of("requests/s answered", "latency, ms")
    rates = [step.requests_per_s for step in steps]
    for percentile, color in ((50, "#2a6f97"), (95, "#b4442f")):
        latencies = [step.percentiles_ms[percentile] for step in steps]
        axes.errorbar(
            [rate[0] for rate in rates], [latency[0] for latency in latencies], xerr=_errors(rates),
            yerr=_errors(latencies), fmt="o-", ms=4, lw=1, elinewidth=0.8, color=color, label=f"p{percentile}",
        )  # fmt: skip
    for step in steps:
        at = step.requests_per_s[0], step.percentiles_ms[95][0]
        axes.annotate(str(step.spec.concurrency), at, xytext=(4, 4), textcoords="offset points", fontsize=8)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8, frameon=False)
    caption = (
        "Numbers are requests in flight, bars 95% intervals between visits. Where the curve turns up, more of them only "
        "wait longer."
    )
    return [(caption, svg(figure))]


def _errors(figures: Sequence[Figure]) -> list[list[float]]:
    """Return how far each interval reaches down and up, as an error bar wants it."""
    ends = [
        (value, value if low is None else low, value if high is None else high)
        for value, low, high in figures
    ]
    return [[value - low for value, low, _ in ends], [high - value for value, _, high in ends]]


def rate_figures(rate: HighestRate) -> list[tuple[str, str]]:
    """Return the figure of a search: the percentile at each rate, and where the bound is crossed."""
    if not rate.windows:
        return []
    figure, axes = axes_of("requests/s offered", f"p{rate.bound.percentile:g} of latency, ms")
    x = [s.rate_per_s for s in rate.windows]
    y = [s.latency_ms for s in rate.windows]
    axes.plot(x, y, "o", ms=4, color="#2a6f97")
    axes.axhline(rate.bound.bound_ms, color="#b4442f", lw=0.8)
    if np.isfinite(rate.high):
        axes.axvspan(rate.low, rate.high, color="#2f7d5b", alpha=0.15)
        axes.axvline(rate.rate_per_s, color="#2f7d5b", lw=0.8)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(lambda value, _: "")
    caption = "Each dot is a window; the red line is the bound, the band the rate's interval."
    return [(caption, svg(figure))]


def versus_figures(versus: Versus) -> list[tuple[str, str]]:
    """Return the figure of a comparison: every observation behind the verdict and the check, in the order of time."""
    metric = versus.outcomes[0].metric
    figure, axes = axes_of("half of a palindrome of turns", f"difference in {metric.words}, %")
    looks = (
        ("check: server 1 through other connections", "#98a2b3"),
        ("server 2 against server 1", "#2a6f97"),
    )
    for place, (outcome, (label, color)) in enumerate(zip(versus.outcomes[:2], looks, strict=True), start=1):
        ratios = np.concatenate([visit.log_ratios(place) for visit in versus.visits])
        axes.plot(np.arange(1, len(ratios) + 1), 100 * np.expm1(ratios), "o", ms=4, color=color, label=label)
        if outcome.is_measured:
            axes.axhspan(100 * outcome.low, 100 * outcome.high, color=color, alpha=0.2, linewidth=0)
    axes.axhline(0, color="#667085", lw=0.7)
    axes.legend(fontsize=8, frameon=False)
    axes.xaxis.get_major_locator().set_params(integer=True)
    return [("Each dot is one block of each server; the bands are the 95% intervals.", svg(figure))]


def axes_of(x: str, y: str) -> tuple[Any, Any]:
    import_extra("matplotlib")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 3.4), layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def svg(figure: Any) -> str:
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "photodup"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]
