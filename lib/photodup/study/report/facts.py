"""Read the answers and their evidence from the records and executed notebooks of a run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from photodup.bench.pairs.declared import Evidence, declarations
from photodup.bench.record.json_files import read_json, slug
from photodup.bench.stats.comparison import does_decide
from photodup.core.paths import project_root
from photodup.study.notebook.files import notebooks, read_notebook, read_study
from photodup.study.notebook.machine import read_machine
from photodup.study.notebook.opening import answer_chart, printed_answer
from photodup.study.notebook.run import REFERENCE

# A question, the notebook that answers it, and its figure. README and a run's page lead with those that have one.
FINDINGS = (
    ("Are its suggestions safe?", "01_scan_photos", "01_drawn"),
    ("Which precision may be served?", "05_trt_fp16", "05_decisions"),
    ("Why is a remote server slow?", "10_explain_remote_latency", "10_rate_or_rtt"),
    ("Which server and engine?", "06_compare_three_backends", "06_sides"),
    ("What survives of the published study?", "12_audit_published_claims", "12_verdicts"),
)
LEADING = 3  # findings that README, a run's page and notebook 00 show with their figures
BADGES = {"decided": "answered", "partly": "partly", "undecided": "open"}  # other states are their own words


def executed_notebook(run: str, source: Path) -> Path | None:
    """Return the executed copy of a notebook in `run`: for the reference run, the committed notebook itself."""
    if run == REFERENCE:
        stamped = read_notebook(source).metadata.get("photodup", {})
        if stamped.get("run") == REFERENCE:
            return source
    path = project_root() / "results" / run / "notebooks" / source.name
    return path if path.is_file() else None


@dataclass(frozen=True)
class NotebookAnswer:
    """A numbered notebook with what it answers in one run.

    Attributes:
        answer, chart: what its cells tagged so printed and drew (PNG as base64 text) in this run; empty if they did not.
        state: of `state_of`.
        badges: the state in the words of a page, and `needs a GPU` where the question is about GPUs and the run had none.
        seconds: how long it took; None where it was not run by `photodup study run`.
        href: where a run's index links to; empty if the notebook was not executed.
    """

    stem: str
    title: str
    question: str
    answer: str
    chart: str
    state: str
    badges: tuple[str, ...]
    seconds: float | None
    href: str


def notebook_answers(run: str) -> Iterator[NotebookAnswer]:
    """Yield every numbered notebook with its answer in a run."""
    directory = project_root() / "results" / run
    without_gpu = read_machine(directory).device == "cpu"
    outcomes = {outcome.notebook: outcome for outcome in read_study(directory)}
    for source in notebooks():
        executed = executed_notebook(run, source)
        opening = read_notebook(source).cells[0].source
        outcome = outcomes.get(source.stem)
        notebook = read_notebook(executed) if executed else None
        state = state_of(evidence(directory, source.stem), outcome.status if outcome else "passed")
        needs_gpu = without_gpu and "gpu" in declarations().rests_on.get(source.stem, Evidence()).devices
        # The reference run's pages are built, not committed, so its index links to what a clone holds.
        page = f"../../notebooks/{source.name}" if run == REFERENCE else f"notebooks/{source.stem}.html"
        yield NotebookAnswer(
            stem=source.stem,
            title=_first(r"(?m)^#\s*(.+)$", opening) or source.stem,
            question=_first(r"(?s)\*\*Question\.?\*\*\.?\s*(.+?)(?:\n\s*\n|\Z)", opening),
            answer=printed_answer(notebook) if notebook else "",
            chart=answer_chart(notebook) if notebook else "",
            state=state,
            badges=(BADGES.get(state, state), *(["needs a GPU"] if needs_gpu else [])),
            seconds=outcome.seconds if outcome else None,
            href=page if executed else "",
        )


def evidence(directory: Path, stem: str) -> dict[str, str]:
    """Return the state of everything that an answer rests on, by name: `decides`, `open` or `not measured`.

    Read from the run's records, never from printed text. Primary comparisons that this run did not plan are left out. A
    comparison decides by its verdict, or by an interval inside ±5% (`does_decide`).
    """
    declared = declarations()
    basis = declared.rests_on.get(stem, Evidence())
    names = [p.name for p in declared.pairs if p.is_primary and (p.notebook == stem or p.name in basis.pairs)]
    numbers = (int, float, type(None))
    rows = read_json(directory / "outcomes.json", [], name=str, verdict=str, excludes_beyond=numbers)
    comparisons = {
        row["name"]: "decides" if does_decide(row["verdict"], row["excludes_beyond"]) else "open"
        for row in rows
        if row["name"] in names
    }
    places = [(name, directory, name) for name in basis.files]
    for name in basis.records:
        run, _, begins = name.rpartition("/")
        places.append((name, directory.parent / run if run else directory, f"records/{slug(begins)}*.json"))
    files = {n: "decides" if any(folder.glob(at)) else "not measured" for n, folder, at in places}
    return comparisons | files


def state_of(evidence: Mapping[str, str], status: str) -> str:
    """Return in a word what became of a question, from its `evidence` and how its notebook ended.

    `decided`: everything that the answer rests on was measured, and each primary comparison that this run planned decides.
    `partly`: that is true of a part. `undecided`: no primary comparison decides. `not measured`; or the status of a notebook
    that did not pass.
    """
    if status != "passed":
        return status.replace("_", " ")
    words = set(evidence.values())
    if words <= {"not measured"}:
        return "not measured"
    return "decided" if words == {"decides"} else "partly" if "decides" in words else "undecided"


def _first(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return " ".join(match.group(1).split()) if match else ""
