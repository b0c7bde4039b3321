"""Which notebooks there are, what identifies one of them, and the small JSON files that a study keeps."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from photodup.errors import PhotodupError
from photodup.paths import project_root


def notebooks(only: Iterable[str] = ()) -> list[Path]:
    """Return the numbered notebooks in order, or those whose name starts with one of `only` (`03`, `03_set`).

    Raises:
        PhotodupError: a prefix that matches no notebook.
    """
    every = sorted((project_root() / "notebooks").glob("[0-9][0-9]_*.ipynb"))
    wanted = tuple(only)
    for prefix in wanted:
        if not any(path.name.startswith(prefix) for path in every):
            raise PhotodupError(
                f"No notebook begins with {prefix!r}: there are {', '.join(p.stem for p in every)}."
            )
    return [path for path in every if not wanted or path.name.startswith(wanted)]


def source_sha256(notebook: Path) -> str:
    """Return the digest of what a notebook does: its code cells and their tags, not prose, not outputs."""
    cells = read_json(notebook, None)["cells"]
    code = [c for c in cells if c["cell_type"] == "code"]
    source = json.dumps([["".join(c["source"]), c["metadata"].get("tags", [])] for c in code])
    return hashlib.sha256(source.encode()).hexdigest()


def read_json(path: Path, default: Any) -> Any:
    """Return what a JSON file holds, or `default` where there is no such file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return default
