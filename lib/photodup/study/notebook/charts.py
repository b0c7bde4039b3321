"""One look for every figure: style, colours, caption, and where the file goes.

A notebook draws with seaborn or matplotlib itself; this module only removes the decisions that must be the
same everywhere. Colour means the engine, in every figure.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
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
    from matplotlib.axis import Axis
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


def caption(figure: Figure, text: str) -> Figure:
    """Write `text` (machine, n, what is emulated) under the figure in small grey letters; return it."""
    lines = textwrap.fill(" ".join(text.split()), int(16 * figure.get_figwidth()))
    figure.supxlabel(lines, x=0.01, ha="left", fontsize=8, color="#6b7280")
    return figure


def finding(figure: Figure, text: str) -> Figure:
    """Write over a figure what it shows, in one sentence; return it. A panel's title says what was measured."""
    lines = textwrap.fill(text, int(9.6 * figure.get_figwidth()))
    figure.suptitle(lines, x=0.01, ha="left", fontweight="bold")
    if shell := running_shell():
        formatter = shell.display_formatter.formatters["image/png"]
        draw = formatter.type_printers.get(type(figure))
        if draw and getattr(draw, "func", None) is not _with_alternative:
            formatter.for_type(type(figure), partial(_with_alternative, draw))
    return figure


def _with_alternative(draw: Callable[[Figure], str], figure: Figure) -> tuple[str, dict[str, str]]:
    """Return what a notebook shows of a figure, with its finding as the alternative text."""
    return draw(figure), {"alt": " ".join(figure.get_suptitle().split())}


def save(figure: Figure, run: Run, name: str) -> Path:
    """Write the figure as `results/<run>/figures/<name>.png`, its data as `.csv` beside it, and return the picture's path.

    The PNG carries no creation date or software version, so an unchanged figure is an unchanged file.
    """
    path = run.directory / "figures" / f"{name}.png"
    image = io.BytesIO()
    figure.savefig(image, format="png", metadata={"Software": None})
    for file, content in ((path, image.getvalue()), (path.with_suffix(".csv"), data_of(figure).encode())):
        write_atomically(file, content, within=run.directory.parent)
    return path


def data_of(figure: Figure) -> str:
    """Return what a figure shows as CSV, one row a drawn point.

    Columns: `panel` (its title or number), `series` (its label, else what a legend calls its colour, else what the axis of
    its values is called), `x` and `y` (a row's or column's name where the axis has names), and `value`, of a matrix alone.
    """
    import pandas as pd

    rows, names = [], _named_colors(figure)
    for number, ax in enumerate(figure.axes, 1):
        panel = ax.get_title() or ax.get_title(loc="left") or str(number)
        x_names, y_names = _names(ax.xaxis), _names(ax.yaxis)
        unit = ax.get_xlabel() if y_names else ax.get_ylabel()
        for series, x, y, value in _drawn(ax, names):
            if x == x and y == y:
                place = x_names.get(round(x), f"{x:.6g}"), y_names.get(round(y), f"{y:.6g}")
                rows.append((panel, series or unit, *place, value))
    table = pd.DataFrame(rows, columns=["panel", "series", "x", "y", "value"])
    return table.dropna(axis="columns", how="all").to_csv(index=False, float_format="%.6g")


def _named_colors(figure: Figure) -> dict[str, str]:
    """Return what the legends of a figure call each colour."""
    from matplotlib.colors import to_hex, to_rgba_array

    names = {}
    for legend in filter(None, (ax.get_legend() for ax in figure.axes)):
        handles: list[Any] = list(legend.legend_handles)
        for handle, text in zip(handles, legend.get_texts(), strict=True):
            color = handle.get_color() if hasattr(handle, "get_color") else handle.get_facecolor()
            names[to_hex(to_rgba_array(color)[0])] = text.get_text()
    return names


def _drawn(ax: Axes, names: Mapping[str, str]) -> Iterator[tuple[str | None, float, float, float | None]]:
    """Yield series, x, y and a matrix's value of all that is drawn in data coordinates."""
    from matplotlib.collections import LineCollection, PathCollection, QuadMesh
    from matplotlib.colors import to_hex
    from matplotlib.container import BarContainer

    def named(artist, color: Any) -> str:
        """A label that begins with _ stands in no legend; matplotlib's own of that kind say nothing."""
        label = str(artist.get_label())
        is_chosen = not label.startswith(("_child", "_container", "_nolegend"))
        return label.removeprefix("_") if is_chosen else names.get(to_hex(color), "")

    for line in ax.lines:
        if line.get_transform() == ax.transData:  # no line across the whole panel
            series = named(line, line.get_color())
            yield from ((series, *point, None) for point in np.asarray(line.get_xydata(), float))
    for bars in ax.containers:
        if isinstance(bars, BarContainer):
            for bar, value in zip(bars, np.asarray(bars.datavalues, float), strict=True):
                middle = bar.get_y() + bar.get_height() / 2
                yield named(bars, bar.get_facecolor()), value, middle, None
    for drawn in ax.collections:
        if isinstance(drawn, PathCollection):
            colors = np.asarray(drawn.get_facecolor())
            for place, point in enumerate(np.asarray(drawn.get_offsets(), float)):
                yield named(drawn, colors[place % len(colors)]), *point, None
        elif isinstance(drawn, LineCollection):
            for part in drawn.get_segments():
                yield from (("interval", *point, None) for point in part)
        elif isinstance(drawn, QuadMesh):
            for (row, column), value in np.ndenumerate(np.asarray(drawn.get_array(), float)):
                yield None, column, row, value


def _names(axis: Axis) -> dict[int, str]:
    """Return the tick labels of an axis by position; none where they are numbers."""
    from matplotlib.category import StrCategoryFormatter
    from matplotlib.ticker import FixedFormatter, FuncFormatter

    if not isinstance(axis.get_major_formatter(), FixedFormatter | FuncFormatter | StrCategoryFormatter):
        return {}
    places = axis.get_ticklocs()
    texts = axis.get_major_formatter().format_ticks(list(places))
    names = {int(place): " ".join(str(text).split()) for place, text in zip(places, texts, strict=True)}
    texts = [text for text in names.values() if text]
    return names if texts and all(re.match(r"[^\d.,]", text) for text in texts) else {}


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
    ax.plot(interval, [row, row], color=color, linewidth=2, label="_interval")
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
