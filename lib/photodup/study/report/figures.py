"""The figures of an executed notebook, each with the heading that it stands under."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import nbformat

from photodup.study.notebook.opening import fewer_colours
from photodup.study.report.facts import executed_notebook

DECISION = (
    "06_frontier"  # README's picture: results/<reference run>/figures/<this>.png, the one committed PNG
)
DECISION_NOTEBOOK = "06_compare_three_backends"  # its first figure is that picture; it opens the index, too
LARGEST_BYTES = 400_000  # contact sheets of photographs stay on their notebook's page


@dataclass(frozen=True)
class Figure:
    """One figure: `png` is base64 text, `heading` the section it stands in, `title` its notebook's."""

    notebook: str
    title: str
    heading: str
    png: str


def notebook_figures(run: str, source: Path) -> list[Figure]:
    """Return the figures that a notebook drew in `run`, in order; none where it has not been executed.

    A drawing is stored with 256 colours, which halves its size and changes nothing that the eye sees. Contact
    sheets of photographs (over `LARGEST_BYTES`) are left out.
    """
    executed = executed_notebook(run, source)
    if executed is None:
        return []
    found, title, heading = [], source.stem, ""
    for cell in nbformat.read(executed, as_version=4).cells:
        if cell.cell_type == "markdown":
            for line in cell.source.splitlines():
                if line.startswith("# "):
                    title = line.removeprefix("# ").strip()
                elif line.startswith("## "):
                    heading = line.removeprefix("## ").strip()
            continue
        for output in cell.get("outputs", []):
            png = output.get("data", {}).get("image/png", "")
            if png and len(png) * 3 // 4 <= LARGEST_BYTES:
                found.append(Figure(source.stem, title, heading, fewer_colours(png)))
    return found
