"""What `photodup report` was asked for: a run's page, runs side by side, or a deck."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from photodup.errors import PhotodupError
from photodup.study.report.compare_page import write_comparison
from photodup.study.report.page import write_report
from photodup.study.report.slides import write_slides


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
        return write_comparison(runs, output)
    if len(runs) != 1:
        raise PhotodupError(
            f"One run at a time, or side by side: photodup report --compare {' '.join(runs)}."
        )
    if slides:
        return write_slides(runs[0], output)
    if output is not None:
        raise PhotodupError(
            "--output names the file of --compare or --slides; a report is results/RUN/index.html."
        )
    return write_report(runs[0])
