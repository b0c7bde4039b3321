"""No notebook ends because something was not measured: each is executed from records with planted gaps.

`GAP_SEEDS=5 pytest tests/repository/test_notebooks_with_gaps.py` plants five random sixths in place of one.
"""

import functools
import json
import os
import random
import re
import shutil

import pytest
from support.paths import ROOT
from support.shell import executed

from photodup.study.notebook.files import notebooks
from photodup.study.notebook.run import REFERENCE

SEEDS = range(int(os.environ.get("GAP_SEEDS", "1")))
CASES = [*(f"random sixth, seed {seed}" for seed in SEEDS), "every link dead", "nothing measured"]
# Or quote who does; to the others a dead link is no gap.
READ_LINKS = ("00", "04", "06", "07", "08", "10", "11")


def is_dead(record: dict, case: str, chance: random.Random) -> bool:
    """Say whether a record is marked failed in a case."""
    if case in ("nothing measured", "no gap"):
        return case != "no gap"
    if case == "every link dead":
        over = {record["config"].get("link"), record["result"].get("link")} - {None, "", "loopback"}
        return bool(over) or record["key"].startswith(("ladder-", "link-", "parallel-"))
    return chance.random() < 1 / 6


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project root for each case, made once: notebooks read records, they write none."""
    return functools.cache(lambda case: planted(tmp_path_factory.mktemp("project"), case))


def planted(root, case: str):
    """Make a project root whose runs have gaps: everything else of it is a link to this one."""
    for path in ROOT.iterdir():
        if path.name not in ("results", "notebooks", "matplotlibrc", ".git"):
            (root / path.name).symlink_to(path)
    # Nobody looks at these pictures: all is drawn, and nothing is laid out, which takes as long again.
    style = (ROOT / "matplotlibrc").read_text("utf-8").replace("layout.use: True", "layout.use: False")
    (root / "matplotlibrc").write_text(style.replace("savefig.dpi: 150", "savefig.dpi: 50"), "utf-8")
    shutil.copytree(ROOT / "notebooks", root / "notebooks")  # nothing is read through a link
    ignore = shutil.ignore_patterns("figures", "notebooks", "*.html")
    for run in (REFERENCE, "drawn", "drawn-again", "peers"):
        shutil.copytree(ROOT / "results" / run, root / "results" / run, ignore=ignore)
    for folder in ("published", "control-plane"):
        (root / "results" / folder).symlink_to(ROOT / "results" / folder)
    chance = random.Random(case)
    for path in sorted((root / "results").glob("*/records/*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        if is_dead(record, case, chance):
            record |= {"status": "failed", "error": "the link was down", "result": {}, "has_raw": False}
            path.write_text(json.dumps(record), encoding="utf-8")
    return root


def cases():
    for path in notebooks():
        for case in CASES:
            if case == "every link dead" and path.stem[:2] not in READ_LINKS:
                continue
            yield pytest.param(path, case, id=f"{path.stem}-{case}")


@pytest.mark.parametrize(("path", "case"), list(cases()))
def test_a_notebook_goes_on_where_records_are_missing(path, case, project, monkeypatch):
    few = {"N": 4} if path.stem.startswith("14") else {}  # passes that it simulates, whatever was measured
    told = executed(path, project(case), monkeypatch, **few)
    assert told.strip(), "an answer says what is missing"


EXPLORING = [path for path in notebooks() if "EXPLORE: bool" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", EXPLORING, ids=lambda path: path.stem)
def test_the_comparisons_alone_answer(path, project, monkeypatch):
    assert len(EXPLORING) == 6
    told = executed(path, project("no gap"), monkeypatch, EXPLORE=False)
    # A comparison has its interval, or the answer says that the reference run has none.
    assert re.search(r"\[[+\d.]+, [+\d.]+\]|anything beyond|[Nn]ot measured", told), told
