"""The page of a run: sentences, what is wrong with them, figures. One file, no script, no network."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from photodup.bench.anyurl.measure import Measured
from photodup.bench.load.workers import ROW
from photodup.extras import need

_MOST_DOTS = 4000


def page(
    title: str,
    facts: dict[str, Any],
    sentences: Sequence[str],
    notes: Sequence[str],
    measured: Sequence[tuple[str, Measured]],
    figures: Sequence[tuple[str, str]],
) -> str:
    """Return the page.

    Args:
        sentences: what was found, each carrying its interval.
        notes: what is wrong with it.
        figures: caption and SVG.
    """
    jinja2 = need("jinja2")
    template = jinja2.Environment(autoescape=True).from_string(
        Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    )
    rows = [
        {
            "number": number,
            "url": url,
            "load": one.asked.words,
            "answers": len(one.sample.latency_ms),
            "failed": len(one.errors),
            "median": f"{np.median(one.sample.latency_ms):.3g}" if len(one.sample.latency_ms) else "",
            "verdict": one.point.verdict,
            "because": one.point.because,
        }
        for number, (url, one) in enumerate(measured)
    ]
    return template.render(
        title=title, facts=facts, sentences=sentences, notes=notes, rows=rows, figures=figures
    )


def load_figures(one: Measured) -> list[tuple[str, str]]:
    """Return the figures of a single load: latency over time, and its distribution."""
    if not len(one.rows):
        return []
    done = one.rows[:, ROW.index("done")]
    latency = (done - one.rows[:, ROW.index("due")]) * 1000
    every = max(1, len(done) // _MOST_DOTS)
    figure, axes = _axes("seconds", "latency, ms")
    axes.plot(done[::every], latency[::every], ".", ms=3, alpha=0.5, color="#2a6f97")
    for at, _ in one.errors[:_MOST_DOTS]:
        axes.axvline(at, color="#b4442f", lw=0.5)
    axes.set_ylim(bottom=0)
    few = f" Every {every}th is drawn." if every > 1 else ""
    time = (
        "Each request when it was answered" + ("; red lines: failed requests." if one.errors else ".") + few
    )
    over_time = (time, _svg(figure))
    figure, axes = _axes("latency, ms", "share of requests that took longer")
    ordered = np.sort(latency)
    share = 1 - np.arange(len(ordered)) / len(ordered)
    axes.step(ordered, share, where="post", color="#2a6f97")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.4g}")
    for name, bound in (("p50", 0.5), ("p95", 0.05), ("p99", 0.01)):
        if len(ordered) * bound >= 5:
            axes.axhline(bound, color="#98a2b3", lw=0.7, ls=":")
            axes.annotate(name, (ordered[-1], bound), ha="right", va="bottom", color="#667085", fontsize=8)
    return [over_time, (f"How many of the {len(ordered):,} requests took longer than a time.", _svg(figure))]


def rate_figures(found: Any) -> list[tuple[str, str]]:
    """Return the figure of a search: the percentile at each rate, and where the bound is crossed."""
    rate = found.rate
    if rate is None or not rate.seen:
        return []
    figure, axes = _axes("requests/s offered", f"p{found.bound.percentile:g} of latency, ms")
    x = [s.rate_per_s for s in rate.seen]
    y = [s.latency_ms for s in rate.seen]
    low, high = [s.latency_ms - s.low_ms for s in rate.seen], [s.high_ms - s.latency_ms for s in rate.seen]
    axes.errorbar(x, y, yerr=[low, high], fmt="o", ms=4, color="#2a6f97", elinewidth=0.8)
    axes.axhline(rate.bound_ms, color="#b4442f", lw=0.8)
    if np.isfinite(rate.rate_per_s):
        axes.axvspan(rate.low, rate.high, color="#2f7d5b", alpha=0.15)
        axes.axvline(rate.rate_per_s, color="#2f7d5b", lw=0.8)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(lambda value, _: "")
    caption = "Each dot is a measurement with its interval; the red line is the bound, the band the rate's interval."
    return [(caption, _svg(figure))]


def versus_figures(versus: Any) -> list[tuple[str, str]]:
    """Return the figure of a comparison: the median of each server in each round."""
    points = [
        (label, number, m.point.figures["latency_ms_p50"], m.point.verdict)
        for label, number, m in versus.measured
        if "latency_ms_p50" in m.point.figures
    ]
    if not points:
        return []
    figure, axes = _axes("round", "median latency, ms")
    for place, label in enumerate(dict.fromkeys(p[0] for p in points)):
        color = ("#2a6f97", "#d08c34")[place % 2]
        mine = [p for p in points if p[0] == label]
        x = [p[1] + (place - 0.5) * 0.2 for p in mine]
        y = [p[2].value for p in mine]
        bars = [[p[2].value - p[2].low for p in mine], [p[2].high - p[2].value for p in mine]]
        axes.errorbar(x, y, yerr=bars, fmt="none", elinewidth=0.8, color=color)
        axes.plot(x, y, "o", ms=5, color=color, label=label)
        hollow = [(at, p[2].value) for at, p in zip(x, mine, strict=True) if p[3] != "valid"]
        if hollow:
            axes.plot(*zip(*hollow, strict=True), "o", ms=3, color="white")
    axes.legend(fontsize=8, frameon=False)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_ylim(bottom=0)
    caption = (
        "The median of each measurement with its interval; hollow ones are not valid and were not compared."
    )
    return [(caption, _svg(figure))]


def _axes(x: str, y: str) -> tuple[Any, Any]:
    need("matplotlib")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 3.4), layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _svg(figure: Any) -> str:
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "photodup"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]
