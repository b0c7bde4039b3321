"""Every notebook has the anatomy a reader can rely on, and none is committed stale, leaking or unexecuted."""

import ast
import copy
import itertools
import json
import re
import shutil
import subprocess
import sys

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output
from support.paths import ROOT

from photodup import study
from photodup.study.notebook.files import notebooks, source_sha256
from photodup.study.notebook.opening import printed_answer

NUMBERED = notebooks()
TEMPLATE = ROOT / "notebooks" / "_template.ipynb"
COMMON = {"RUN", "ENDPOINTS", "GPU", "GPUS", "PRICE_PER_HOUR", "STRICT"}
DRAWS = re.compile(r"\bplt\.|charts\.save")
VISIBLE_LINES = 40  # at most, before the first figure that a notebook draws
LEAK = re.compile(r"(?<![\w.])/(?:home/\w+|root|tmp|work|Users/\w+)/")


@pytest.fixture(params=[*NUMBERED, TEMPLATE], ids=lambda path: path.stem)
def path(request):
    return request.param


@pytest.fixture
def notebook(path):
    return nbformat.read(path, as_version=4)


def faults(notebook) -> list[str]:
    """Say what is wrong with the anatomy; an empty list is a notebook as it should be."""
    found = []
    cells = notebook.cells
    opening = cells[0]
    if opening.cell_type != "markdown" or not re.match(r"# (\d\d|NN) · \S", opening.source):
        found.append("cell 0 is no markdown with a title '# NN · Verb ...'")
    words = ("Question", "Answer", "Needs", "Time")
    found += [f"cell 0 lacks **{word}**" for word in words if f"**{word}" not in opening.source]
    if cells[1].cell_type != "code" or "import" not in cells[1].source:
        found.append("cell 1 does not import")
    if "parameters" not in cells[2].metadata.get("tags", []):
        found.append("cell 2 is not tagged parameters")
    else:
        found += parameter_faults(cells[2].source)
    if "open_run(" not in cells[3].source:
        found.append("cell 3 does not open the run")
    found += [
        f"cell {i} is code without prose before it"
        for i, (before, cell) in enumerate(itertools.pairwise(cells[3:]), start=4)
        if cell.cell_type == "code"
        and before.cell_type == "code"
        and "follows" not in cell.metadata.get("tags", [])
    ]
    found += [
        f"cell {i} ends by announcing an output"
        for i, (cell, after) in enumerate(itertools.pairwise(cells))
        if cell.cell_type == "markdown" and after.cell_type == "code" and cell.source.endswith(":")
    ]
    found += [
        f"cell {i} has {len(cell.source.splitlines())} lines"
        for i, cell in enumerate(cells)
        if cell.cell_type == "code" and len(cell.source.splitlines()) > 30
    ]
    answers = [cell for cell in cells if "answer" in cell.metadata.get("tags", [])]
    if len(answers) != 1:
        found.append("there is not exactly one cell tagged answer")
    found += [
        f"cell {i} draws, and its code is not folded"
        for i, cell in enumerate(cells)
        if cell.cell_type == "code" and DRAWS.search(cell.source) and not is_folded(cell)
    ]
    found += [f"cell {i} is not folded" for i in (1, 2, 3) if not is_folded(cells[i])]
    headings = [line for cell in cells if cell.cell_type == "markdown" for line in cell.source.splitlines()]
    found += [
        f"there is no section '{title}'"
        for title in ("## What would change this answer", "## References", "## Next")
        if title not in headings
    ]
    return found


def is_folded(cell) -> bool:
    return cell.metadata.get("jupyter", {}).get("source_hidden", False)


def parameter_faults(source: str) -> list[str]:
    found = []
    for node, line in ((n, source.splitlines()[n.lineno - 1]) for n in ast.parse(source).body):
        if not isinstance(node, ast.AnnAssign):
            found.append(f"parameter line {line!r} is no annotated assignment")
            continue
        try:
            ast.literal_eval(node.value)
        except ValueError:
            found.append(f"{line!r} computes: papermill injects after this cell, so it would be stale")
        if "#" not in source.splitlines()[node.end_lineno - 1]:
            found.append(f"{line!r} has no trailing comment, papermill's help text")
    declared = {n.target.id for n in ast.parse(source).body if isinstance(n, ast.AnnAssign)}
    if missing := COMMON - declared:
        found.append(f"parameters lack {', '.join(sorted(missing))}")
    return found


def test_anatomy(notebook):
    assert faults(notebook) == []


def test_notebooks_name_each_other_by_the_beginning_of_their_titles(notebook):
    titles = {p.name: nbformat.read(p, as_version=4).cells[0].source.removeprefix("# ") for p in NUMBERED}
    prose = " ".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    links = re.findall(r"\[(\d\d · [^]]+)\]\((\d\d_\w+\.ipynb)\)", prose)
    assert links and [name for name, file in links if not titles[file].startswith(name)] == []


def test_anatomy_check_sees_planted_faults():
    good = nbformat.read(TEMPLATE, as_version=4)

    def broken(change):
        notebook = copy.deepcopy(good)
        change(notebook.cells)
        return faults(notebook)

    assert broken(lambda c: c[0].update(source="no title"))
    assert broken(lambda c: c[2].metadata.update(tags=[]))
    assert broken(lambda c: c[2].update(source=c[2].source + "\nN = 3"))
    assert broken(lambda c: c[2].update(source=c[2].source + "\nN: int = 2 * 3  # computed"))
    assert broken(lambda c: c[2].update(source=c[2].source.replace("GPUS", "GPUSS")))
    assert broken(lambda c: c.insert(4, copy.deepcopy(c[3])))
    assert broken(lambda c: c.pop())
    assert broken(lambda c: c[4].update(source="The numbers:"))
    assert broken(lambda c: c[2].metadata.pop("jupyter"))
    assert broken(lambda c: next(cell for cell in c if "plt." in cell.source).metadata.pop("jupyter"))


def test_committed_outputs_are_whole_and_current(path, notebook):
    code = [c for c in notebook.cells if c.cell_type == "code" and c.source.strip()]
    assert all(c.execution_count is not None for c in code), "nbval compares nothing in an unexecuted cell"
    assert not any(o.output_type == "error" for c in code for o in c.outputs)
    assert notebook.metadata.get("photodup", {}).get("source_sha256") == source_sha256(path), (
        "outputs are older than the source: run `photodup study render`"
    )
    assert not LEAK.search(path.read_text(encoding="utf-8")), "a path of somebody's machine"
    for cell in code:
        text = [o for o in cell.outputs if "image/png" not in o.get("data", {})]
        assert len(json.dumps(text)) < 200_000, "an output too large to read"


def test_first_cell_quotes_the_answer_that_the_notebook_computes(notebook):
    cell = next(c for c in notebook.cells if "answer" in c.metadata.get("tags", []))
    computed = " ".join("".join(o.get("text", "") for o in cell.outputs).split())
    assert computed
    assert "nbval-check-output" in cell.metadata.tags
    assert sum("nbval-check-output" in c.metadata.get("tags", []) for c in notebook.cells) >= 2
    assert computed in " ".join(notebook.cells[0].source.split())


def test_the_first_screen_shows_a_figure_and_the_sections(path, notebook):
    cells = notebook.cells
    opening, lines = cells[0], 0
    assert "**Contents** [" in opening.source
    if path.stem.startswith("00"):
        assert cells[4].source.startswith("## What was found"), "the findings come first"
        assert any("![" in cell.source for cell in cells[5:8]), "the picture of the whole"
    figures = [cell for cell in cells if "figure" in cell.metadata.get("tags", [])]
    gap = any("Not measured" in output.get("text", "") for cell in figures for output in cell.outputs)
    assert path.stem.startswith("00") or opening.get("attachments") or gap, "no cell tagged `figure`"
    for cell in cells:
        if cell.cell_type == "code":
            lines += 0 if is_folded(cell) else len(cell.source.splitlines())
            if cell in figures or any("image/png" in output.get("data", {}) for output in cell.outputs):
                break
    assert lines <= VISIBLE_LINES or path.stem.startswith("00")


def test_an_answer_that_changed_fails_make_test(tmp_path):
    """What `make test-notebooks` runs, on two cells that print an answer: one prints another than it did."""
    answer = next(
        c for c in nbformat.read(NUMBERED[2], as_version=4).cells if "answer" in c.metadata.get("tags", [])
    )
    text = "".join(output.get("text", "") for output in answer.outputs)
    printed = [text, re.sub(r"\d", "7", text)]
    assert printed[0] != printed[1]
    cells = [
        new_code_cell(
            f"print({text!r}, end='')",
            metadata=answer.metadata,
            execution_count=1,
            outputs=[new_output("stream", text=said)],
        )
        for said in printed
    ]
    nbformat.write(new_notebook(cells=cells), tmp_path / "planted.ipynb")
    shutil.copy(ROOT / "notebooks" / "conftest.py", tmp_path)
    command = (
        (ROOT / "Makefile").read_text().split("test-notebooks: install\n\t$(PYTEST)")[1].split("\n\n")[0]
    )
    options = command.replace("\\\n", " ").replace("tests/", f"{ROOT}/tests/").split()[:-1]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, "planted.ipynb"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and "mismatch" in done.stdout, done.stdout + done.stderr
    assert "1 failed, 1 passed" in done.stdout, "that cell and no other"


def test_no_ci_branches(notebook):
    source = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    assert not re.search(r"\bif\s+(?:CI|TEST|FAST|QUICK)\b|environ.*\bCI\b", source)


def test_links_between_notebooks_lead_somewhere(path, notebook):
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    targets = [t for t in re.findall(r"\]\(([^)#\s]+)\)", prose) if not t.startswith(("http", "attachment:"))]
    assert [t for t in targets if not (path.parent / t).exists()] == []


def prose_words(notebook) -> int:
    """Count the words that somebody wrote: no generated answer or contents, and of a link its text alone."""
    text = "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    text = re.sub(r"\*\*(?:Contents\*\*|Answer\*\* \().*", "", text)
    return len(re.findall(r"\w\S*", re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", text)))


@pytest.mark.parametrize(
    "path", [p for p in NUMBERED if p.stem[:2] not in ("10", "12")], ids=lambda p: p.stem
)
def test_prose_is_short(path):
    assert prose_words(nbformat.read(path, as_version=4)) <= 1000


def test_an_answer_is_short(notebook):
    assert len(printed_answer(notebook).split()) <= 60


def test_figures_are_few_and_say_what_they_show():
    cells = [cell for path in NUMBERED for cell in nbformat.read(path, as_version=4).cells]
    pictures = [o for cell in cells for o in cell.get("outputs", []) if "image/png" in o.get("data", {})]
    assert len(pictures) <= 38


def test_notebooks_import_few_modules_and_use_every_name_that_the_study_offers():
    cells = [cell for path in NUMBERED for cell in nbformat.read(path, as_version=4).cells]
    trees = [ast.parse(cell.source) for cell in cells if cell.cell_type == "code"]
    imports = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in imports if node.module.partition(".")[0] == "photodup"]
    assert len({node.module for node in ours}) <= 30
    names = {alias.name for node in ours if node.module == "photodup.study" for alias in node.names}
    assert set(study._PATHS) <= names and all(hasattr(study, name) for name in study._PATHS)
    assert not hasattr(study, "nonesuch")
