"""No notebook ends because something was not measured: each is executed from records with planted gaps.

`GAP_SEEDS=5 pytest tests/test_notebooks_with_gaps.py` plants five random sixths in place of one. Every test has a
folder and a kernel of its own, so that they can run in parallel processes.
"""

import json
import os
import random
import re
import shutil

import pytest
from support.paths import ROOT

from photodup.study.notebook.files import notebooks
from photodup.study.notebook.run import REFERENCE
from photodup.study.report.facts import state_of

SEEDS = range(int(os.environ.get("GAP_SEEDS", "1")))
CASES = [*(f"random sixth, seed {seed}" for seed in SEEDS), "every link dead", "nothing measured"]


def is_dead(record: dict, case: str, chance: random.Random) -> bool:
    """Say whether a record is marked failed in a case."""
    if case in ("nothing measured", "no gap"):
        return case != "no gap"
    if case == "every link dead":
        over = {record["config"].get("link"), record["result"].get("link")} - {None, "", "loopback"}
        return bool(over) or record["key"].startswith(("ladder-", "link-", "parallel-"))
    return chance.random() < 1 / 6


def planted(root, case: str):
    """Make a project root whose reference run has gaps: everything else of it is a link to this one."""
    for path in ROOT.iterdir():
        if path.name not in ("results", ".git"):
            (root / path.name).symlink_to(path)
    run = root / "results" / REFERENCE
    shutil.copytree(
        ROOT / "results" / REFERENCE, run, ignore=shutil.ignore_patterns("figures", "notebooks", "*.html")
    )
    (root / "results" / "published").symlink_to(ROOT / "results" / "published")
    chance = random.Random(case)
    for path in sorted((run / "records").glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        if is_dead(record, case, chance):
            record |= {"status": "failed", "error": "the link was down", "result": {}, "has_raw": False}
            path.write_text(json.dumps(record), encoding="utf-8")
    return root


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)
def test_a_notebook_goes_on_where_records_are_missing(path, case, tmp_path):
    told = executed(path, planted(tmp_path, case))
    assert told.strip(), "an answer says what is missing"


EXPLORING = [path for path in notebooks() if "EXPLORE: bool" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", EXPLORING, ids=lambda path: path.stem)
def test_the_comparisons_alone_answer(path, tmp_path):
    assert len(EXPLORING) == 4
    told = executed(path, planted(tmp_path, "no gap"), EXPLORE=False)
    # Decided or not is the reference run's affair; what was compared is said, with its rounds or its factor.
    compared = re.search(r"\d rounds|times as fast|\[[+-]?\d+%, [+-]?\d+%\]", told)
    assert state_of("passed", told.strip()) == "decided" or compared, told


def executed(path, root, **parameters) -> str:
    """Execute a notebook in a project from its records and return what its answer cell printed."""
    from nbclient import NotebookClient
    from papermill.iorw import load_notebook_node
    from papermill.parameterize import parameterize_notebook

    notebook = parameterize_notebook(
        load_notebook_node(str(path)), parameters, kernel_name="python3", language="python"
    )
    client = NotebookClient(
        notebook,
        timeout=120,
        kernel_name="python3",
        resources={"metadata": {"path": str(root / "notebooks")}},
    )
    client.execute(
        env={**os.environ, "PHOTODUP_ROOT": str(root), "PHOTODUP_MEASURE": "0", "MPLBACKEND": "agg"}
    )
    answer = next(cell for cell in notebook.cells if "answer" in cell.metadata.get("tags", []))
    return "".join(output.get("text", "") for output in answer.outputs)
