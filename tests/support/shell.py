"""A notebook's cells in one IPython shell of this process: what a kernel does, without a process for each notebook."""

import contextlib
import io
import sys
import warnings
from collections.abc import Iterable

from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config


def run_cells(sources: Iterable[str]) -> list[str]:
    """Run cells in a fresh shell; return what each printed, its last expression included. An error is raised."""
    main, printed = sys.modules["__main__"], []
    quiet = Config({"HistoryManager": {"enabled": False}})
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance(config=quiet)  # takes over the name __main__
    shell.displayhook.write_output_prompt = lambda: None
    try:
        for source in sources:
            with contextlib.redirect_stdout(io.StringIO()) as out, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                done = shell.run_cell(source, store_history=True)
            done.raise_error()
            printed.append(out.getvalue())
    finally:
        InteractiveShell.clear_instance()
        sys.modules["__main__"] = main
        if pyplot := sys.modules.get("matplotlib.pyplot"):
            pyplot.close("all")
    return printed


def executed(path, root, monkeypatch, **parameters) -> str:
    """Execute a notebook in a project from its records and return what its answer cell printed."""
    from papermill.iorw import load_notebook_node
    from papermill.parameterize import parameterize_notebook

    plain = load_notebook_node(str(path))
    notebook = parameterize_notebook(plain, parameters, kernel_name="python3", language="python")
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for name, value in {"PHOTODUP_ROOT": root, "PHOTODUP_MEASURE": 0, "MPLBACKEND": "agg"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.chdir(root / "notebooks")
    printed = run_cells(cell.source for cell in cells)
    (answer,) = (text for cell, text in zip(cells, printed, strict=True) if "answer" in cell.metadata["tags"])
    return answer
