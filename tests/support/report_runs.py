"""A project of two small runs, for the tests of the pages made from records."""

import shutil

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from support.paths import ROOT

REFERENCE = ROOT / "results" / "reference-cpu"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def two_runs(tmp_path, monkeypatch):
    """Make a project of two runs, `a` and `b`, that hold the same few committed records; a test changes `b`."""
    tmp_path.mkdir(exist_ok=True)
    monkeypatch.setenv("PHOTODUP_ROOT", str(tmp_path))
    (tmp_path / "notebooks").mkdir()
    shutil.copy(ROOT / "matplotlibrc", tmp_path)
    kept = [
        path
        for pattern in ("figure-*-single-stream-b1-c1-????????.json", "reference-embeddings-*.json")
        for path in sorted((REFERENCE / "records").glob(pattern))
    ]
    assert len(kept) > 4
    for name in ("a", "b"):
        records = tmp_path / "results" / name / "records"
        records.mkdir(parents=True)
        shutil.copy(REFERENCE / "environment.json", records.parent)
        for path in kept:
            shutil.copy(path, records)
    return tmp_path


def write_notebook(path, title, question, printed="42 of them"):
    opening = new_markdown_cell(
        f"# {title}\n\n**Question.** {question}\n\n**Answer** (reference run). other\n\n**Needs**"
    )
    answer = new_code_cell("print()", outputs=[new_output("stream", text=printed)])
    answer.metadata["tags"] = ["answer"]
    figure = new_code_cell("secret_code()", outputs=[new_output("display_data", {"image/png": PIXEL})])
    nbformat.write(new_notebook(cells=[opening, new_markdown_cell("left out"), figure, answer]), path)


def add_notebooks(project):
    """Give the project two executed notebooks, enough for a report."""
    executed = project / "results" / "a" / "notebooks"
    executed.mkdir()
    for name in ("01_one", "02_two"):
        for folder in (project / "notebooks", executed):
            write_notebook(folder / f"{name}.ipynb", f"{name[:2]} · Look at {name[3:]}", "Is it <so>?")
    return project
