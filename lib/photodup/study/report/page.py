"""Write a run's `index.html`, which is read first, and a page for each of its executed notebooks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from photodup.bench.record import latencies
from photodup.bench.record.store import load_records
from photodup.core.files import write_atomically
from photodup.core.pages import render_page
from photodup.study.notebook.files import notebooks, read_study
from photodup.study.notebook.machine import read_machine
from photodup.study.notebook.run import run_directory
from photodup.study.report.cells import TEMPLATES, render_notebook
from photodup.study.report.facts import FINDINGS, LEADING, executed_notebook, notebook_answers


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
    machine, rows = read_machine(directory), list(notebook_answers(run))
    latencies.check_readable(directory)
    commits = [record["git_commit"] for record in load_records(directory)]
    drawn = {row.stem: row for row in rows if row.chart}
    findings = [
        (question, drawn[stem], data if (directory / data).is_file() else "")
        for question, stem, name in FINDINGS
        if stem in drawn
        for data in [f"figures/{name}.csv"]
    ]
    page = render_page(
        TEMPLATES / "report.html",
        run=run,
        machine=machine,
        n_records=len(commits),
        notebooks=rows,
        findings=findings[:LEADING],
        sizes=" ".join(sorted({outcome.sizes for outcome in read_study(directory)})) or "full",
        commit=commits[0] if len(set(commits)) == 1 else None,
        environment=sorted((k, _flat(v)) for k, v in machine.model_dump(exclude_unset=True).items()),
    )
    index = directory / "index.html"
    write_atomically(index, page, within=directory.parent)
    return index


def _flat(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_flat(v)}" for k, v in value.items())
    if isinstance(value, list):
        return ", ".join(map(_flat, value)) or "none"
    return str(value)
