"""One look for every figure: style, colours, caption, and where the file goes.

A notebook draws with seaborn or matplotlib itself; this module only removes the decisions that must be the
same everywhere. Colour means the engine, in every figure.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from photodup.bench.stats.figures import FEWEST_VISITS
from photodup.core.files import write_atomically
from photodup.core.paths import project_root
from photodup.embedding.backends import engine_family
from photodup.study.notebook.gaps import running_shell
from photodup.study.notebook.table import as_markdown

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from photodup.study.notebook.run import Run

ENGINE_COLORS = {
    "pytorch": "#e07a5f",
    "onnx": "#2a6f97",
    "openvino": "#3d9970",
    "trt": "#6a4c93",
    "emulated": "#8e6c8a",
}
GOOD, BAD, MUTED = "#3d9970", "#c8553d", "#9aa0aa"
FOUND = "#2f5d8a"  # a difference in either direction: no colour says better or worse


def use_style() -> None:
    """Apply the repository's matplotlibrc to this process, and let notebooks show every table with `as_markdown`.

    Call it once, in a notebook's import cell.

    It also seeds NumPy's global generator, from which seaborn draws the jitter of a strip plot: an
    unchanged figure is then an unchanged file.
    """
    import matplotlib.pyplot as plt
    import pandas as pd

    pd.set_option("display.notebook_repr_html", False)
    if shell := running_shell():
        formatters = shell.display_formatter.formatters
        formatters["text/markdown"].for_type(pd.DataFrame, as_markdown)
        formatters["text/plain"].for_type(pd.DataFrame, lambda table, text, _: text.text(as_markdown(table)))
    plt.style.use(project_root() / "matplotlibrc")
    np.random.seed(0)


def engine_color(engine: str) -> str:
    """Return the colour that stands for `engine` (`emulated-a100` and its kin share one)."""
    return ENGINE_COLORS.get(engine_family(engine), MUTED)


def draw_figures(
    ax: Axes, x: Sequence[float], figures: pd.DataFrame, metric: str, *, color: str, **style: Any
) -> None:
    """Draw a line through figures, each with its interval as a bar where it has one.

    Args:
        x: where the figures lie, in the order of the line.
        figures: rows of `measure_figures`; one without the metric is left out.
        style: of the line, as matplotlib takes it: `label`, `linestyle`, `marker`.
    """
    nothing = np.full(len(figures), np.nan)
    ends = ("", "_ci_low", "_ci_high")
    y, low, high = (np.asarray(figures.get(f"{metric}{end}", nothing), float) for end in ends)
    places, is_measured = np.asarray(x, float), np.isfinite(y)
    ax.plot(places[is_measured], y[is_measured], color=color, **{"marker": "o"} | style)
    barred = is_measured & np.isfinite(high - low) & (np.asarray(figures["n_visits"], float) >= FEWEST_VISITS)
    ax.vlines(places[barred], low[barred], high[barred], color=color, linewidth=1.2)


def intervals_of(figures: pd.DataFrame) -> str:
    """Return what a caption says of the intervals: the visits that they rest on, or why there are none."""
    visits = int(figures["n_visits"].max())
    if visits >= FEWEST_VISITS:
        return f"Intervals: 95% between {visits} visits."
    return f"{'Two visits' if visits == 2 else 'One visit'} a figure, so no intervals."


def caption(figure: Figure, text: str, *, width: int = 118) -> Figure:
    """Write `text` (machine, n, what is emulated) under the figure in small grey letters; return it."""
    lines = textwrap.fill(" ".join(text.split()), width=width)
    figure.supxlabel(lines, x=0.01, ha="left", fontsize=8, color="#6b7280")
    return figure


def finding(figure: Figure, text: str) -> Figure:
    """Write over a figure what it shows, in one sentence; return it. A panel's title says what was measured."""
    lines = textwrap.fill(text, int(8.6 * figure.get_figwidth()))
    figure.suptitle(lines, x=0.01, ha="left", fontweight="bold")
    return figure


def save(figure: Figure, run: Run, name: str) -> Path:
    """Write the figure as `results/<run>/figures/<name>.png` and return the path.

    The PNG carries no creation date or software version, so an unchanged figure is an unchanged file.
    """
    path = run.directory / "figures" / f"{name}.png"
    image = io.BytesIO()
    figure.savefig(image, format="png", metadata={"Software": None})
    write_atomically(path, image.getvalue(), within=run.directory.parent)
    return path


def interval_row(
    ax: Axes,
    row: float,
    value: float,
    interval: tuple[float, float],
    *,
    color: str,
    marker: str = "o",
    is_hollow: bool = False,
) -> None:
    """Draw a value with its interval (low, high) along one row of a figure."""
    ax.plot(interval, [row, row], color=color, linewidth=2)
    face = "white" if is_hollow else color
    ax.plot(value, row, marker, color=color, markerfacecolor=face, markersize=7)


def not_measured(ax: Axes, row: float) -> None:
    """Write into a row that it was not measured."""
    place = ax.get_yaxis_transform()
    ax.text(0.02, row, "not measured", va="center", fontsize=7, color=MUTED, transform=place)


def name_rows(ax: Axes, names: Sequence[str]) -> None:
    """Name the rows of a figure, the first at the bottom."""
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(-0.6, max(len(names), 1) - 0.4)
    ax.grid(False, axis="y")
