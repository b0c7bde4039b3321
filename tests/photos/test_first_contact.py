"""What an owner meets first: one command is enough, and nothing is passed over without a word."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image, PngImagePlugin
from support.command import photodup
from support.review_library import only_group, photo, write

from photodup.photos.library.catalogue import Catalogue
from photodup.photos.library.scan import scan
from photodup.photos.review import serve


def test_group_scans_what_is_new(tmp_path):
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        write(photo("coffee"), folder / "one.jpg")
    scan(tmp_path, only=["a"], progress=False)
    first, second = photodup("group", *folders), photodup("group", *folders)
    assert "same bytes" in first.stdout and "2 photographs found, 1 read" in first.stderr
    assert first.stdout == second.stdout and "2 photographs found, 0 read" in second.stderr
    write(photo("coffee"), folders[1] / "added.jpg")
    assert "b/added.jpg" in photodup("group", *folders).stdout
    (tmp_path / "c").mkdir()
    refused = photodup("group", tmp_path / "a", tmp_path / "c")
    assert refused.returncode == 2 and "c has no photo" in refused.stderr


@pytest.mark.parametrize(
    "environment",
    [{"PYTHONIOENCODING": "latin-1"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}],
)
def test_names_that_the_terminal_has_no_letters_for_end_no_list(tmp_path, environment):
    for name in ("a.jpg", "日本.jpg", os.fsdecode(b"bad\xff.jpg")):
        write(photo("coffee"), tmp_path / name)
    command = [sys.executable, "-m", "photodup", "group", str(tmp_path)]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, check=True)
    assert done.stdout.count(b"same bytes") == 2 and b"??.jpg" in done.stdout


@pytest.mark.parametrize(("environment", "has_browser"), [
    ({"DISPLAY": ":0"}, True), ({"WAYLAND_DISPLAY": "w"}, True), ({}, False), ({"DISPLAY": ":0", "CI": "1"}, False),
    ({"DISPLAY": ":0", "SSH_CONNECTION": "1"}, False),
])  # fmt: skip
def test_a_browser_opens_where_somebody_sits_before_it(monkeypatch, environment, has_browser):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "CI", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", "linux")
    assert serve._has_browser() == has_browser


def test_what_is_not_looked_at_is_named(tmp_path):
    write(photo("coffee"), tmp_path / "a.jpg")
    for name in ("DSCF1.MPO", "ball.insp", "scan.jp2", "notes.txt"):
        (tmp_path / name).write_bytes(b"x")
    os.mkfifo(tmp_path / "pipe.jpg")
    report = scan(tmp_path, progress=False)
    assert "3 pictures of other formats, not looked at (DSCF1.MPO, ball.insp and scan.jp2)." in str(report)
    assert [str(problem) for problem in report.problems] == ["pipe.jpg: no regular file, not looked at"]


def test_files_that_nothing_decodes_are_compared_by_their_bytes(tmp_path):
    for name, data in {"Camera/IMG_1.jpg": b"\xff\xd8\xff broken", "IMG_1 (1).jpg": b"\xff\xd8\xff broken",
                       "x.jpg": b"\xff\xd8\xff another", "empty.jpg": b"", "empty2.jpg": b""}.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    group = only_group(tmp_path)
    assert group.keeper.path == Path("Camera/IMG_1.jpg")
    assert [(one.path, group.difference(one)) for one in group.others] == [(Path("IMG_1 (1).jpg"), "")]
    with Catalogue(tmp_path) as catalogue:
        assert catalogue.photos() == [] and len(catalogue.problems()) == 5


def test_a_png_with_long_texts_is_read(tmp_path):
    texts = PngImagePlugin.PngInfo()
    texts.add_text("workflow", "node " * 500_000, zip=True)
    write(Image.new("RGB", (60, 60)), tmp_path / "a.png", pnginfo=texts)
    assert scan(tmp_path, progress=False).problems == []
