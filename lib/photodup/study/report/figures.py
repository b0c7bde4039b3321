"""The figures of an executed notebook, each with the heading that it stands under."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from photodup.study.notebook.files import read_notebook
from photodup.study.notebook.opening import fewer_colours
from photodup.study.report.cells import is_png
from photodup.study.report.facts import executed_notebook

SAVED = re.compile(r"charts\.save\(\w+, run, [\"']([\w-]+)[\"']\)")
# README's picture: results/<reference run>/figures/<this>.png, the one committed PNG
DECISION = "06_frontier"
LARGEST_BYTES = 400_000  # contact sheets of photographs stay on their notebook's page


@dataclass(frozen=True)
class PageFigure:
    """One figure: `png` is base64 text, `heading` the section it stands in, `caption` what its notebook says before it.

    `name` is the name of its file; empty where its cell saves none or several.
    """

    notebook: str
    title: str
    heading: str
    png: str
    caption: str = ""
    name: str = ""


def notebook_figures(run: str, source: Path) -> list[PageFigure]:
    """Return the figures that a notebook drew in `run`, in order; none where it has not been executed.

    A drawing is stored with 256 colours, which halves its size and changes nothing that the eye sees. Contact
    sheets of photographs (over `LARGEST_BYTES`) are left out.
    """
    executed = executed_notebook(run, source)
    if executed is None:
        return []
    figures, title, heading, caption = [], source.stem, "", ""
    for cell in read_notebook(executed).cells:
        if cell.cell_type == "markdown":
            for line in cell.source.splitlines():
                if line.startswith("# "):
                    title = line.removeprefix("# ").strip()
                elif line.startswith("## "):
                    heading = line.removeprefix("## ").strip()
            caption = _caption(cell.source)
            continue
        for output in cell.get("outputs", []):
            png = output.get("data", {}).get("image/png", "")
            if len(png) * 3 // 4 <= LARGEST_BYTES and is_png(png):
                names = SAVED.findall(cell.source)
                name = names[0] if len(names) == 1 else ""
                figures.append(PageFigure(source.stem, title, heading, fewer_colours(png), caption, name))
    return figures


def _caption(prose: str) -> str:
    """Return the last paragraph of prose before a figure, without marks; lists, tables and headings are no captions."""
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n", prose)]
    plain = [
        part for part in paragraphs if part and not part.startswith(("#", "|", "-", "*", "!", ">", "1."))
    ]
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", plain[-1]) if plain else ""
    return re.sub(r"[*`]", "", text).rstrip(":")
