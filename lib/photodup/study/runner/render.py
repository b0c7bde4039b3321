"""Execute the committed notebooks in place, from the records of the reference run alone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import nbformat

from photodup.errors import PhotodupError
from photodup.files import write_atomically
from photodup.paths import project_root
from photodup.settings import inherited
from photodup.study.notebook.files import notebooks, source_sha256
from photodup.study.notebook.opening import write_opening
from photodup.study.notebook.run import REFERENCE


def render_notebooks(only: Iterable[str] = (), *, cell_timeout_s: int = 300) -> list[Path]:
    """Re-execute notebooks (by default all, and the template) with their own parameters; return their paths.

    Nothing is measured: a point without a record stays a gap, so what is committed is what the reference
    run found. The opening cell quotes the answer and shows the figure that the notebook computes, and each is stamped
    with the digest of its source; a test compares both.

    Raises:
        PhotodupError: a cell failed; names the notebook and the error.
    """
    paths = sorted(notebooks(only), key=lambda path: path.name.startswith("00"))  # it quotes the others
    if not only:
        paths.append(project_root() / "notebooks" / "_template.ipynb")
    for path in paths:
        _render(path, cell_timeout_s)
    return paths


def _render(path: Path, cell_timeout_s: int) -> None:
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=cell_timeout_s,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        record_timing=False,
        coalesce_streams=True,  # how many pieces a text came in is chance
    )
    try:
        client.execute(env=inherited(PHOTODUP_MEASURE="0"))
    except CellExecutionError as error:
        raise PhotodupError(f"{path.name} does not render from the records of {REFERENCE}: {error}") from None
    write_opening(notebook)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        cell.metadata.pop("papermill", None)
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "photodup": {"run": REFERENCE, "source_sha256": source_sha256(path)},
    }
    write_atomically(path, nbformat.writes(notebook) + "\n")
