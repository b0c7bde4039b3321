"""Make a deck from the executed notebooks: one finding a slide with the figure that decides it, then the conclusion.

What is shown is chosen in the notebooks, by the cell metadata `slideshow.slide_type` that JupyterLab's property
inspector writes and nbconvert reads: `slide` begins a slide, `fragment` continues it, `subslide` begins one of its own.
A cell without it is not in the deck. nbconvert's own deck loads reveal.js from a CDN; this one is a single file that
scrolls and snaps with plain CSS, so it opens with no network and prints one slide a page.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from photodup.errors import PhotodupError
from photodup.study.notebook.files import notebooks, read_notebook
from photodup.study.notebook.run import run_directory
from photodup.study.report.cells import Cell, environment, render_cells
from photodup.study.report.facts import (
    FINDINGS,
    executed_notebook,
    first_sentence,
    notebook_rows,
    run_facts,
    run_verdicts,
    tally,
    write_page,
)

ROWS = 8  # verdicts that fit one slide at 1280 × 720
MOST_CONCLUSIONS = 6
TYPES = ("slide", "subslide", "fragment")


@dataclass
class Slide:
    """One slide: either a notebook's finding (its answer's first sentence) with its figures, or cells as they are."""

    title: str = ""
    finding: str = ""
    question: str = ""
    answer: str = ""
    href: str = ""
    cells: list[Cell] = field(default_factory=list)


def write_slides(run: str, output: Path | None = None) -> Path:
    """Write `results/<run>/slides.html` (or `output`) and return its path.

    Raises:
        PhotodupError: no such run, or none of its notebooks has been executed.
    """
    directory = run_directory(run)
    slides = list(run_slides(run))
    if not slides:
        raise PhotodupError(
            f"No notebook of the run {run!r} has been executed: photodup study run --run {run}."
        )
    verdicts, n_not_testable = run_verdicts(directory)
    page = (
        environment()
        .get_template("slides.html")
        .render(
            run=run,
            **run_facts(directory),
            slides=slides,
            verdict_pages=[verdicts[i : i + ROWS] for i in range(0, len(verdicts), ROWS)],
            conclusions=_conclusions(run),
            tally=tally(verdicts),
            n_not_testable=n_not_testable,
        )
    )
    return write_page(page, directory / "slides.html", output)


def _conclusions(run: str) -> list[dict[str, Any]]:
    """Return the findings that the deck ends with, each with its notebook: those of README, else the first ones."""
    answered = {row["stem"]: row for row in notebook_rows(run) if row["answer"]}
    told = {stem: row for stem, row in answered.items() if not row["answer"].startswith("Not measured")}
    chosen = [stem for _, stems, _ in FINDINGS for stem in stems if stem in told]
    rows = [told[stem] for stem in chosen or list(told)[:MOST_CONCLUSIONS]]
    return [row | {"finding": first_sentence(row["answer"])[0]} for row in rows]


def run_slides(run: str) -> Iterator[Slide]:
    """Yield the slides of every executed notebook, in order."""
    rows = {row["stem"]: row for row in notebook_rows(run)}
    for source in notebooks():
        if executed := executed_notebook(run, source):
            yield from notebook_slides(read_notebook(executed).cells, rows[source.stem])


def notebook_slides(cells: list[Any], row: dict[str, Any]) -> Iterator[Slide]:
    """Yield the slides that the cells of one notebook mark.

    The opening cell becomes its title, question and this run's answer (its text quotes the reference run's).

    Raises:
        PhotodupError: an unknown slide type; names the notebook.
    """
    slide: Slide | None = None
    for index, cell in enumerate(cells):
        kind = cell.metadata.get("slideshow", {}).get("slide_type", "")
        if kind in ("", "-", "skip", "notes"):
            continue
        if kind not in TYPES:
            raise PhotodupError(f"{row['stem']}, cell {index}: {kind!r} is none of {', '.join(TYPES)}.")
        if kind != "fragment" or slide is None:
            if slide is not None:
                yield slide
            slide = Slide(href=row["href"])
        if index == 0:
            slide.title, slide.question = row["title"], row["question"]
            slide.finding, slide.answer = first_sentence(row["answer"])
        else:
            slide.cells += _shown(cell)
    if slide is not None:
        yield slide


def _shown(cell: Any) -> list[Cell]:
    """A figure is shown without the code that drew it, and without what the cell printed beside it."""
    rendered = render_cells([cell])
    for found in rendered:
        if found.kind == "code":
            found.html = ""
            found.outputs = [o for o in found.outputs if "<img" in o] or found.outputs
    return rendered
