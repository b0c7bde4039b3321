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
    rows = list(notebook_rows(run))
    page = render_page(
        TEMPLATES / "report.html",
        run=run,
        **run_facts(directory),
        notebooks=rows,
        findings=list(_findings(directory, rows)),
        sizes=" ".join(sorted({row.get("sizes", "full") for row in study_rows(directory)})) or "full",
        commit=_commit(directory),
        environment=sorted((k, _flat(v)) for k, v in read_environment(directory).items()),
    )
    index = directory / "index.html"
    write_atomically(index, page, within=directory.parent)
    return index


def _findings(directory: Path, rows: Sequence[dict[str, Any]]) -> Iterator[tuple[str, dict, str, str]]:
    """Yield question, row, figure (PNG as base64 text) and its data's address, of the leading findings that a run has."""
    by_stem = {row["stem"]: row for row in rows if row["figure"]}
    for question, stem, name in [finding for finding in FINDINGS if finding[1] in by_stem][:LEADING]:
        data = f"figures/{name}.csv"
        yield question, by_stem[stem], by_stem[stem]["figure"], data if (directory / data).is_file() else ""


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
