"""Which notebooks there are, what identifies one of them, and the small JSON files that a study keeps."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from photodup.bench.record.json_files import read_json, read_json_text, reading
from photodup.core.errors import PhotodupError
from photodup.core.files import write_atomically
from photodup.core.paths import project_root

if TYPE_CHECKING:
    import nbformat

Parameters = dict[str, object]


@dataclass
class NotebookOutcome:
    """The outcome of one notebook: `passed`, `failed`, `timeout` or `not_run`."""

    notebook: str
    status: str = "not_run"
    seconds: float = 0.0
    error: str = ""
    source_sha256: str = ""
    parameters: Parameters = field(default_factory=dict)
    sizes: str = "full"


_OUTCOMES = TypeAdapter(list[NotebookOutcome])


def notebooks(only: Iterable[str] = ()) -> list[Path]:
    """Return the numbered notebooks in order, or those whose name starts with one of `only` (`03`, `03_set`).

    Raises:
        PhotodupError: a prefix that matches no notebook.
    """
    every = sorted((project_root() / "notebooks").glob("[0-9][0-9]_*.ipynb"))
    prefixes = tuple(only)
    for prefix in prefixes:
        if not any(path.name.startswith(prefix) for path in every):
            raise PhotodupError(
                f"No notebook begins with {prefix!r}: there are {', '.join(p.stem for p in every)}."
            )
    return [path for path in every if not prefixes or path.name.startswith(prefixes)]


def source_sha256(notebook: Path) -> str:
    """Return the digest of what a notebook does: its code cells and their tags, not prose, not outputs."""
    cells = read_notebook(notebook).cells
    code = [c for c in cells if c["cell_type"] == "code"]
    source = json.dumps([["".join(c["source"]), c["metadata"].get("tags", [])] for c in code])
    return hashlib.sha256(source.encode()).hexdigest()


def read_study(directory: Path) -> list[NotebookOutcome]:
    """Return the outcomes in a run's `study.json`; none where there is no such file.

    Raises:
        RecordError: it is damaged; names the file.
    """
    path = directory / "study.json"
    with reading(path):
        return _OUTCOMES.validate_python(read_json(path, []))


def write_study(directory: Path, outcomes: Iterable[NotebookOutcome]) -> None:
    """Write the outcomes of a run's notebooks, in the order of their names."""
    text = _OUTCOMES.dump_json(sorted(outcomes, key=lambda outcome: outcome.notebook), indent=1)
    write_atomically(directory / "study.json", text + b"\n", within=directory.parent)


def read_notebook(path: Path) -> nbformat.NotebookNode:
    """Read and validate a notebook, which may come from a stranger.

    Raises:
        RecordError: it is damaged; names the file.
    """
    import nbformat

    text = read_json_text(path)
    with reading(path):
        notebook = nbformat.v4.reads(text)
        nbformat.validate(notebook)
    return notebook
