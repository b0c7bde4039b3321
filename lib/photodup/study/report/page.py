"""Turn a run's records and executed notebooks into `results/<run>/index.html`, which people read first."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import nbformat

from photodup.errors import PhotodupError
from photodup.paths import project_root
from photodup.study.notebook.run import REFERENCE, describe_machine, describe_weights, read_environment
from photodup.study.report.cells import environment, render_notebook
from photodup.study.runner.execute import notebooks

DECISION = "06_stages"  # the figure that says most about which backend to choose; README shows it as well


def write_reports(
    runs: Sequence[str], *, compare: bool = False, slides: bool = False, output: Path | None = None
) -> Path:
    """Write what `photodup report` was asked for and return its path: a run's page, a comparison or a deck.

    Raises:
        PhotodupError: an unknown run, or options that ask for two things at once.
    """
    if compare and slides:
        raise PhotodupError("Ask for --compare or --slides, not both: they are two different pages.")
    if compare:
        from photodup.study.report.compare_page import write_comparison

        return write_comparison(runs, output)
    if len(runs) != 1:
        raise PhotodupError(
            f"One run at a time, or side by side: photodup report --compare {' '.join(runs)}."
        )
    if slides:
        from photodup.study.report.slides import write_slides

        return write_slides(runs[0], output)
    if output is not None:
        raise PhotodupError(
            "--output names the file of --compare or --slides; a report is results/RUN/index.html."
        )
    return write_report(runs[0])


def write_report(run: str) -> Path:
    """Write index.html and one page per executed notebook under `results/<run>/`; return the index's path.

    Raises:
        PhotodupError: there is no such run.
    """
    directory = run_directory(run)
    for source in notebooks():
        if executed := executed_notebook(run, source):
            page = directory / "notebooks" / f"{source.stem}.html"
            page.parent.mkdir(exist_ok=True)
            page.write_text(render_notebook(executed, run), encoding="utf-8")
    verdicts, n_not_measured = run_verdicts(directory)
    figures = list(_figures(directory))
    page = (
        environment()
        .get_template("report.html")
        .render(
            run=run,
            **run_facts(directory),
            notebooks=list(notebook_rows(run)),
            verdicts=verdicts,
            n_not_measured=n_not_measured,
            decision=next((f for f in figures if f["stem"] == DECISION), None),
            figures=[f for f in figures if f["stem"] != DECISION],
            tally=tally(verdicts),
            commit=_commit(directory),
            environment=sorted((k, _flat(v)) for k, v in read_environment(directory).items()),
        )
    )
    index = directory / "index.html"
    index.write_text(page, encoding="utf-8")
    return index


def run_directory(run: str) -> Path:
    """Return the folder of a run that exists.

    Raises:
        PhotodupError: there is no such run; names those there are.
    """
    directory = project_root() / "results" / run
    if not directory.is_dir():
        known = sorted(p.name for p in directory.parent.glob("*/") if (p / "records").is_dir())
        raise PhotodupError(
            f"There is no run {run!r} under results/: there are {', '.join(known) or 'none yet'}."
        )
    return directory


def run_facts(directory: Path) -> dict[str, Any]:
    """Return what every page says first: `machine`, `weights` and `facts`, pairs of label and text."""
    env = read_environment(directory)
    facts = [("machine", describe_machine(env)), ("weights", describe_weights(env))] if env else []
    facts.append(("records", str(len(list((directory / "records").glob("*.json"))))))
    return {
        "machine": describe_machine(env),
        "weights": env.get("model", {}).get("pretrained", ""),
        "facts": facts,
    }


def run_verdicts(directory: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the rows of `verdicts.json` that were judged, and how many claims could not be."""
    rows = _read_json(directory / "verdicts.json", [])
    judged = [row for row in rows if row["verdict"] != "not measured"]
    return judged, len({row["claim"] for row in rows} - {row["claim"] for row in judged})


def executed_notebook(run: str, source: Path) -> Path | None:
    """Return the executed copy of a notebook in `run`: for the reference run, the committed notebook itself."""
    if run == REFERENCE:
        stamped = nbformat.read(source, as_version=4).metadata.get("photodup", {})
        if stamped.get("run") == REFERENCE:
            return source
    path = project_root() / "results" / run / "notebooks" / source.name
    return path if path.is_file() else None


def notebook_rows(run: str) -> Iterator[dict[str, Any]]:
    """Yield title, question, this run's answer and state of every numbered notebook.

    The answer is what the cell tagged `answer` printed in this run, never the prose of another one.
    """
    outcomes = {
        row["notebook"]: row for row in _read_json(project_root() / "results" / run / "study.json", [])
    }
    for source in notebooks():
        executed = executed_notebook(run, source)
        opening = nbformat.read(source, as_version=4).cells[0].source
        outcome = outcomes.get(source.stem, {})
        yield {
            "stem": source.stem,
            "title": _first(r"^#\s*(.+)$", opening) or source.stem,
            "question": _first(r"\*\*Question\.?\*\*\.?\s*(.+?)(?:\n\s*\n|\Z)", opening),
            "answer": printed_answer(executed) if executed else "",
            "status": outcome.get("status", "not_run"),
            "seconds": outcome.get("seconds"),
            "href": f"notebooks/{source.stem}.html" if executed else "",
        }


def printed_answer(executed: Path) -> str:
    """Return what the cell tagged `answer` of an executed notebook printed, or an empty string."""
    for cell in nbformat.read(executed, as_version=4).cells:
        if "answer" in cell.metadata.get("tags", []):
            return " ".join("".join(o.get("text", "") for o in cell.get("outputs", [])).split())
    return ""


def tally(verdicts: Sequence[dict[str, Any]]) -> str:
    """Return how many rows have each verdict, in words."""
    words = sorted({row["verdict"] for row in verdicts})
    return ", ".join(f"{sum(row['verdict'] == word for row in verdicts)} {word}" for word in words)


def finding_rows(run: str) -> Iterator[dict[str, Any]]:
    """Yield what became of the claims of the published executive summary in `run`, in the order it makes them.

    Rows of `verdicts.json`, with `finding` added: the number of the finding, or a dash for its tables.
    """
    rows = _read_json(project_root() / "results" / run / "verdicts.json", [])
    found = [
        row | {"finding": _first(r"finding (\d+)", row["source"]) or "–"}
        for row in rows
        if row["source"].startswith("executive-summary")
    ]
    yield from sorted(found, key=lambda row: (row["finding"] == "–", row["finding"]))


def _commit(directory: Path) -> str:
    """The commit of the run's records, where they agree on one."""
    commits = {_read_json(path, {}).get("git_commit") for path in (directory / "records").glob("*.json")}
    return commits.pop() or "" if len(commits) == 1 else ""


def _figures(directory: Path) -> Iterator[dict[str, str]]:
    # Contact sheets of photographs weigh megabytes and stay on their notebook's page.
    for path in sorted(p for p in (directory / "figures").glob("*.png") if not p.name.startswith("01_")):
        yield {
            "stem": path.stem,
            "name": path.stem.replace("_", " "),
            "data": base64.b64encode(path.read_bytes()).decode(),
        }


def _first(pattern: str, text: str) -> str:
    match = re.search(pattern, text, re.MULTILINE | re.DOTALL if "+?" in pattern else re.MULTILINE)
    return " ".join(match.group(1).split()) if match else ""


def _flat(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_flat(v)}" for k, v in value.items())
    if isinstance(value, list):
        return ", ".join(map(_flat, value)) or "none"
    return str(value)


def _read_json(path: Path, default: Any) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else default
