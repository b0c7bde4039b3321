"""A notebook's first cell: its answer, the figure that shows it and its contents, written from what the cells say.

Nothing there is typed by hand, so the first screen can never disagree with the rest.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterable, Iterator

import nbformat

from photodup.study.notebook.run import REFERENCE

CHART = "answer.png"
MOST_PIXELS = 50_000_000
_PART = re.compile(r"(\*\*Answer\*\* )\(.*?\)\..*?(?=\n\n\*\*Needs\*\*)", re.DOTALL)
_CONTENTS = re.compile(r"\n\n\*\*Contents\*\*.*?(?=\n\n|\Z)", re.DOTALL)


def is_tagged(cell: nbformat.NotebookNode, tag: str) -> bool:
    """Return True where a cell has a tag: `answer` prints the answer, `figure` draws what the first screen shows."""
    return tag in cell.metadata.get("tags", [])


def write_opening(notebook: nbformat.NotebookNode, run: str = REFERENCE) -> None:
    """Put the answer that `run` computed, its figure and the list of sections into the opening cell."""
    opening = notebook.cells[0]
    source = "reference run" if run == REFERENCE else f"run {run}"
    answer = printed_answer(notebook).replace("<", "&lt;")  # prose is shown as HTML
    picture, cells = answer_chart(notebook), with_headings(notebook.cells)
    outputs = (
        (o, text) for cell, text in cells if is_tagged(cell, "figure") for o in cell.get("outputs", [])
    )
    texts = (alternative(output, text) for output, text in outputs if "image/png" in output.get("data", {}))
    image = f"\n\n![{next(texts)}](attachment:{CHART})" if picture else ""
    opening.source = _PART.sub(lambda m: f"{m.group(1)}({source}). {answer}{image}", opening.source, count=1)
    opening.pop("attachments", None)
    if picture:
        opening.attachments = {CHART: {"image/png": picture}}
    opening.source = _CONTENTS.sub("", opening.source) + _contents(notebook)


def with_headings(cells: Iterable[nbformat.NotebookNode]) -> Iterator[tuple[nbformat.NotebookNode, str]]:
    """Yield each cell with the heading that it stands under."""
    heading = ""
    for cell in cells:
        if cell.cell_type == "markdown":
            titles = [line.lstrip("# ") for line in cell.source.splitlines() if line.startswith("#")]
            heading = titles[-1] if titles else heading
        yield cell, heading


def alternative(output: nbformat.NotebookNode, heading: str) -> str:
    """Return the alternative text of a figure: its finding (`charts.finding`), else the heading that it stands under."""
    return output.get("metadata", {}).get("image/png", {}).get("alt") or f"Figure: {heading}"


def is_png(encoded: str) -> bool:
    """Return whether a text is a PNG file in base64 that decodes, and nothing but that."""
    from PIL import Image

    try:
        content = base64.b64decode("".join(encoded.split()), validate=True)
        with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
            return image.width * image.height <= MOST_PIXELS and image.load() is not None
    except Exception:  # decoders raise nearly anything on hostile bytes
        return False


def _fewer_colours(png: str) -> str:
    """Return a drawing (base64 text) with 256 colours, which halves its size and changes nothing that the eye sees."""
    from PIL import Image

    raw = base64.b64decode(png)
    with Image.open(io.BytesIO(raw)) as image:
        small = io.BytesIO()
        image.convert("RGB").quantize(256).save(small, "PNG", optimize=True)
    return base64.b64encode(min(small.getvalue(), raw, key=len)).decode()


def printed_answer(notebook: nbformat.NotebookNode) -> str:
    """Return what the cell tagged `answer` printed, in one line, or an empty string."""
    outputs = [o for cell in notebook.cells if is_tagged(cell, "answer") for o in cell.get("outputs", [])]
    return " ".join("".join(output.get("text", "") for output in outputs).split())


def answer_chart(notebook: nbformat.NotebookNode) -> str:
    """Return the figure of the cell tagged `figure` as base64 text of a PNG; empty without one."""
    outputs = [o for cell in notebook.cells if is_tagged(cell, "figure") for o in cell.get("outputs", [])]
    pictures = [output.data["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    return _fewer_colours(pictures[0]) if pictures and is_png(pictures[0]) else ""


def _contents(notebook: nbformat.NotebookNode) -> str:
    """Return the sections as links; Jupyter's and the pages' anchors are the titles with dashes for spaces."""
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    titles = [title.strip() for title in re.findall(r"(?m)^## (.*)$", prose)]
    links = " · ".join(f"[{title}](#{title.replace(' ', '-')})" for title in titles)
    return f"\n\n**Contents** {links}" if titles else ""
