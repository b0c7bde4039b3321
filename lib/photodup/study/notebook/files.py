"""Which notebooks there are, what identifies one of them, and the small JSON files that a study keeps."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from photodup.bench.record.json_files import read_json, read_text, reading
from photodup.core.errors import PhotodupError
from photodup.core.paths import project_root


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


def study_rows(directory: Path) -> list[dict[str, Any]]:
    """Return the rows of a run's `study.json`, one for each notebook; none where there is no such file."""
    return read_json(
        directory / "study.json", [], notebook=str, status=str, seconds=(int, float), parameters=dict
    )


def read_notebook(path: Path) -> Any:
    """Return a notebook that may be somebody else's.

    Raises:
        RecordError: it is damaged; names the file.
    """
    import nbformat

    text = read_text(path)
    with reading(path):
        notebook = nbformat.v4.reads(text)
        nbformat.validate(notebook)
    return notebook
