"""The reference run: of one commit, part by part, resumed where it broke off."""

import json
import subprocess
from pathlib import Path

import pytest

from benchmarks import reference
from benchmarks.block_lengths import PAIRS
from benchmarks.reference import Part
from photodup.bench.pairs.declared import declarations
from photodup.core.errors import PhotodupError


def git(root: Path, *arguments: str) -> None:
    author = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", *author, *arguments], cwd=root, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit, in which parts only note that they ran; the first fails until `mended` is there."""
    (tmp_path / "code.py").write_text("x = 1\n")
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    run = tmp_path / "results" / "reference-cpu"
    note = "import pathlib, sys; p = pathlib.Path('results/reference-cpu'); p.mkdir(parents=True, exist_ok=True); "
    note += "open(p / 'ran', 'a').write(sys.argv[1] + ' '); (p / 'outcomes.json').write_text('[]')"
    fails = f"{note}; sys.exit(not pathlib.Path('results/mended').exists())"
    parts = [
        Part("first", 5, ("-c", fails, "first")),
        Part("second", 5, ("-c", note, "second")),
        Part("long", 60, ("-c", note, "long")),
    ]
    monkeypatch.setattr(reference, "parts", lambda run, rehearse: parts)
    monkeypatch.setattr(reference, "project_root", lambda: tmp_path)
    return run


def test_a_run_goes_on_where_it_broke_off_and_leaves_out_what_would_not_end(checkout: Path, capsys) -> None:
    with pytest.raises(PhotodupError, match="first ended with status 1"):
        reference.main(minutes=30)
    (checkout.parent / "mended").touch()
    reference.main(minutes=30)
    assert (checkout / "ran").read_text() == "first first second "
    assert "long: left out" in capsys.readouterr().out
    facts = json.loads((checkout / "reference.json").read_text())
    assert set(facts["minutes"]) == {"first", "second"} and len(facts["commit"]) == 40 and facts["machine"]


def test_records_are_of_one_commit(checkout: Path) -> None:
    root = checkout.parents[1]
    (checkout.parent).mkdir(parents=True, exist_ok=True)
    (checkout.parent / "mended").touch()
    (root / "code.py").write_text("x = 2\n")
    with pytest.raises(PhotodupError, match=r"commit code\.py first"):
        reference.main(minutes=30)
    git(root, "checkout", "code.py")
    reference.main(minutes=30)
    git(root, "commit", "--allow-empty", "-m", "second")
    with pytest.raises(PhotodupError, match="another commit or processor"):
        reference.main(minutes=30)
    reference.main(minutes=30, again=True)
    assert (checkout / "ran").read_text() == "first second "


def test_the_parts_fit_into_two_hours() -> None:
    assert sum(part.minutes for part in reference.parts("reference-cpu")) <= 130


def test_the_comparisons_of_the_block_lengths_are_declared() -> None:
    assert set(PAIRS.values()) <= {pair.name for pair in declarations().pairs}
