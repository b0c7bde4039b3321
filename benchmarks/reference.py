"""The reference run (make reference): every part in order, unattended, of one commit, on one machine that does nothing else.

    python -m benchmarks.reference [--minutes 130] [--again] [--rehearse]

A part begins only if its minutes are left; none is ended. A run that broke off goes on where it ended, if commit and
processor are still the same. `reference.json` in the run's folder says what ran, how long, where, and of which commit.
"""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from photodup.core.errors import PhotodupError
from photodup.core.files import write_atomically
from photodup.core.paths import project_root
from photodup.study.notebook.machine import this_machine
from photodup.study.notebook.run import REFERENCE

PHOTODUP = ("-P", "-m", "photodup", "study")


@dataclass(frozen=True)
class Part:
    """A part of the run: its name, the minutes it should take, and the arguments of Python."""

    name: str
    minutes: int
    arguments: tuple[str, ...]


def parts(run: str, rehearse: bool = False) -> list[Part]:
    """Return the parts in the order of their importance; a rehearsal has them all at their smallest."""
    notebooks = ("run", "--run", run, "--sizes", "smoke" if rehearse else "full")
    # Another hour of the same machine: the only test of "repeats within x %".
    again = (
        "pairs",
        "--run",
        f"{run}-2",
        "--only",
        "06",
        "--primary",
        *(["--visits", "2"] if rehearse else []),
    )
    bench = ("service", "load_generator", "one_pass", "starts")
    only = [word for name in (bench[1:2] if rehearse else bench) for word in ("--only", name)]
    rows = ("-m", "benchmarks", "--json", str(project_root() / "results" / run / "bench.json"), *only)
    return [
        Part("notebooks", 105, (*PHOTODUP, *notebooks)),
        Part("second pass", 13, (*PHOTODUP, *again)),
        Part("bench", 12, rows),
    ]


def changed_files(root: Path) -> list[str]:
    """Return the files that differ from the commit, but for results."""
    lines = subprocess.run(
        ["git", "status", "--porcelain"], cwd=root, check=True, capture_output=True, text=True
    )
    return [line[3:] for line in lines.stdout.splitlines() if not line[3:].startswith("results/")]


def identity(root: Path) -> dict[str, str]:
    """Return the commit and the machine.

    Raises:
        PhotodupError: a file differs from the commit.
    """
    if changed := changed_files(root):
        raise PhotodupError(f"A reference run is of one commit: commit {', '.join(changed[:5])} first.")
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=root, check=True, capture_output=True, text=True
    )
    return {"commit": commit.stdout.strip(), "machine": str(this_machine())}


def half_widths(run: str) -> Iterator[str]:
    """Yield the median half-width of the ratios of the primary comparisons, with one request in flight and with several."""
    outcomes = json.loads((project_root() / "results" / run / "outcomes.json").read_text(encoding="utf-8"))
    widths: dict[str, list[float]] = {"one in flight": [], "several in flight": []}
    for row in outcomes:
        if row["primary"] and row["low"] is not None:
            words = "one in flight" if row["load"].startswith("one") else "several in flight"
            widths[words].append((row["high"] - row["low"]) / 2 / (1 + row["effect"]))
    for words, of_ratios in widths.items():
        if of_ratios:
            yield f"{len(of_ratios)} primary comparisons, {words}: half-width {np.median(of_ratios):.1%} (median)"


def main(
    minutes: Annotated[float, typer.Option(help="after which no part begins that could not end")] = 130,
    again: Annotated[bool, typer.Option("--again", help="delete the run's records and begin anew")] = False,
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="the smallest sizes, in results/rehearsal")
    ] = False,
) -> None:
    """Measure the reference run, or what is missing of it."""
    run, root = "rehearsal" if rehearse else REFERENCE, project_root()
    folder, began = root / "results" / run, time.monotonic()
    journal = folder / "reference.json"
    measured_on, done = identity(root), dict[str, float]()
    if again or not journal.is_file():
        for name in (run, f"{run}-2"):
            shutil.rmtree(root / "results" / name, ignore_errors=True)
    else:
        facts = json.loads(journal.read_text(encoding="utf-8"))
        if {name: facts[name] for name in measured_on} != measured_on:
            raise PhotodupError("The records are of another commit or processor: begin anew with --again.")
        done = facts["minutes"]
    _write(journal, measured_on, done)  # now: where the first part breaks off, its records are kept
    for part in parts(run, rehearse):
        left = minutes - (time.monotonic() - began) / 60
        if part.name in done or (part.minutes > left and not rehearse):
            state = "done before" if part.name in done else f"left out, {left:.0f} minutes are left"
            print(f"{part.name}: {state}", flush=True)
            continue
        print(f"{part.name}: about {part.minutes} minutes", flush=True)
        started = time.monotonic()
        status = subprocess.run([sys.executable, *part.arguments], cwd=root).returncode
        if status:
            raise PhotodupError(
                f"{part.name} ended with status {status}: mend it and start again, it goes on there."
            )
        done[part.name] = round((time.monotonic() - started) / 60, 1)
        _write(journal, measured_on, done)
        if identity(root) != measured_on:
            raise PhotodupError(
                "The commit changed while this ran: the records are of two, begin anew with --again."
            )
        print(f"{part.name}: {done[part.name]:.1f} minutes", flush=True)
    print("\n".join(half_widths(run)))


def _write(journal: Path, measured_on: dict[str, str], done: dict[str, float]) -> None:
    journal.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(journal, json.dumps(measured_on | {"minutes": done}, indent=1) + "\n")


if __name__ == "__main__":
    try:
        typer.run(main)
    except PhotodupError as error:
        raise SystemExit(str(error)) from None
