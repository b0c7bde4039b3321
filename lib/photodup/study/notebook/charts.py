"""One look for every figure: style, colours, caption, and where the file goes.

A notebook draws with seaborn or matplotlib itself; this module only removes the decisions that must be the
same everywhere. Colour means the engine, in every figure.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from photodup.embedding.backends import engine_family
from photodup.files import write_atomically
from photodup.paths import project_root

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from photodup.study.notebook.run import Run

ENGINE_COLORS = {
    "pytorch": "#e07a5f",
    "onnx": "#2a6f97",
    "openvino": "#3d9970",
    "trt": "#3d9970",
    "emulated": "#8e6c8a",
    "published": "#6b7280",
}
GOOD, BAD, MUTED = "#3d9970", "#c8553d", "#9aa0aa"
FOUND = "#2f5d8a"  # a difference was found, in either direction: better or worse is never said by a colour


def use_style() -> None:
    """Apply the repository's matplotlibrc to this process, and let tables show their texts whole.

    Call it once, in a notebook's import cell.

    It also seeds NumPy's global generator, from which seaborn draws the jitter of a strip plot: an
    unchanged figure is then an unchanged file.
    """
    import matplotlib.pyplot as plt
    import numpy as np
    import pandas as pd

    pd.set_option("display.max_colwidth", None, "display.max_columns", None)
    plt.style.use(project_root() / "matplotlibrc")
    np.random.seed(0)


def engine_color(engine: str) -> str:
    """Return the colour that stands for `engine` (`emulated-a100` and its kin share one)."""
    return ENGINE_COLORS.get(engine_family(engine), MUTED)


def draw_points(
    ax, x, y, valid, *, color, label: str | None = None, linestyle: str = "-", marker: str = "o"
) -> None:
    """Draw a line through the valid points of a sweep; a point that is not valid is hollow and on no line.

    Args:
        x, y, valid: of the same length, in the order of the line; NaN is left out.
    """
    import numpy as np

    x, y, valid = np.asarray(x, float), np.asarray(y, float), np.asarray(valid, bool)
    good, bad = valid & np.isfinite(y), ~valid & np.isfinite(y)
    ax.plot(x[good], y[good], color=color, linestyle=linestyle, marker=marker, label=label)
    ax.plot(x[bad], y[bad], color=color, linestyle="none", marker=marker, markerfacecolor="white")


def caption(figure: Figure, text: str, *, width: int = 118) -> Figure:
    """Write `text` (machine, n, what is emulated) under the figure in small grey letters; return it."""
    lines = textwrap.fill(" ".join(text.split()), width=width)
    figure.supxlabel(lines, x=0.01, ha="left", fontsize=8, color="#6b7280")
    return figure


def save(figure: Figure, run: Run, name: str) -> Path:
    """Write the figure as `results/<run>/figures/<name>.png` for the report and return the path.

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
    ax.text(
        0.02, row, "not measured", va="center", fontsize=7, color=MUTED, transform=ax.get_yaxis_transform()
    )


def name_rows(ax: Axes, names: Sequence[str]) -> None:
    """Name the rows of a figure, the first at the bottom."""
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(-0.6, max(len(names), 1) - 0.4)
    ax.grid(False, axis="y")
