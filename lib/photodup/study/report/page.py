"""Write a run's `index.html`, which is read first, and a page for each of its executed notebooks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from photodup.bench.record.record import load_records
from photodup.core.files import write_atomically
from photodup.core.pages import render_page
from photodup.study.notebook.files import notebooks, study_rows
from photodup.study.notebook.run import read_environment, run_directory
from photodup.study.report.cells import TEMPLATES, render_notebook
from photodup.study.report.facts import (
    FINDINGS,
    LEADING,
    executed_notebook,
    notebook_rows,
    run_facts,
)
from photodup.study.report.figures import PageFigure, notebook_figures


def write_report(run: str) -> Path:
    """Write index.html and one page per executed notebook under `results/<run>/`; return the index's path.

    Raises:
        PhotodupError: there is no such run, or a link in its folder where a page goes.
    """
    directory = run_directory(run)
    for source in notebooks():
        if executed := executed_notebook(run, source):
            place = directory / "notebooks" / f"{source.stem}.html"
            write_atomically(place, render_notebook(executed, run), within=directory.parent)
    figures = [figure for source in notebooks() for figure in notebook_figures(run, source)]
    rows = list(notebook_rows(run))
    best = list(_best(rows, figures))
    best_figures = [figure for _, _, figure in best]
    page = render_page(
        TEMPLATES / "report.html",
        run=run,
        **run_facts(directory),
        notebooks=rows,
        best=best,
        figures=[figure for figure in figures if figure not in best_figures],
        has_data={
            figure.name for figure in figures if (directory / "figures" / f"{figure.name}.csv").is_file()
        },
        sizes=" ".join(sorted({row.get("sizes", "full") for row in study_rows(directory)})) or "full",
        commit=_commit(directory),
        environment=sorted((k, _flat(v)) for k, v in read_environment(directory).items()),
    )
    index = directory / "index.html"
    write_atomically(index, page, within=directory.parent)
    return index


def _best(
    rows: Sequence[dict[str, Any]], figures: Sequence[PageFigure]
) -> Iterator[tuple[str, dict, PageFigure]]:
    """Yield question, row and figure of the leading findings that this run has with their figures."""
    by_stem, by_name = {row["stem"]: row for row in rows}, {figure.name: figure for figure in figures}
    complete = [row for row in FINDINGS if row[2] in by_name and by_stem[row[1]]["answer"]]
    for question, stem, name in complete[:LEADING]:
        yield question, by_stem[stem], by_name[name]


def _commit(directory: Path) -> str:
    """The commit of the run's records, where they agree on one."""
    commits = {record["git_commit"] for record in load_records(directory)}
    return commits.pop() or "" if len(commits) == 1 else ""


def _flat(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_flat(v)}" for k, v in value.items())
    if isinstance(value, list):
        return ", ".join(map(_flat, value)) or "none"
    return str(value)
