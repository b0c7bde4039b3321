"""Files are written whole or not at all, and cores are those that this process may use."""

import os
import stat
import subprocess
import sys
import threading
from contextlib import suppress

import pytest
from support.command import one_sentence, run_python
from support.plants import PLANTS

from photodup.core.errors import PhotodupError
from photodup.core.files import available_cores, replacing, write_atomically


def test_a_reader_never_sees_a_part(tmp_path):
    path, contents = tmp_path / "a.json", [b"a" * 1_000_000, b"b" * 1_000_000]
    write_atomically(path, contents[0])
    done = threading.Event()

    def write() -> None:
        for turn in range(60):
            write_atomically(path, contents[turn % 2])
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = {path.read_bytes() for _ in iter(done.is_set, True)}
    writer.join()
    assert seen and seen <= set(contents)
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_kill_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.json"
    write_atomically(path, "old")
    program = (
        "import os, signal, sys; from pathlib import Path; from photodup.core.files import replacing\n"
        "with replacing(Path(sys.argv[1])) as new:\n"
        "    new.write_text('new'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(path)]).returncode == -9
    assert path.read_text() == "old"


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.json"
    write_atomically(path, "old")
    with pytest.raises(KeyboardInterrupt), replacing(path) as new:
        new.write_text("new")
        raise KeyboardInterrupt
    with pytest.raises(OSError), replacing(path):
        pass  # nothing was written
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["a.json"]


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_the_mode_is_the_one_asked_for_else_the_umasks(tmp_path, umask):
    before = os.umask(umask)
    try:
        write_atomically(tmp_path / "key", "secret", mode=0o600, fsync=True)
        write_atomically(tmp_path / "page", "text\n", mode=0o644)
        write_atomically(tmp_path / "sub" / "plain", "text")
    finally:
        os.umask(before)
    found = {p.name: stat.S_IMODE(p.stat().st_mode) for p in tmp_path.rglob("*") if p.is_file()}
    assert found == {"key": 0o600, "page": 0o644, "plain": 0o666 & ~umask}


@pytest.mark.parametrize("planted", PLANTS)
@pytest.mark.parametrize("way", ["write_atomically", "replacing"])
def test_nothing_is_written_through_what_is_no_file_of_its_own(tmp_path, mine, planted, way):
    path = tmp_path / "run" / "ours"
    path.parent.mkdir()
    PLANTS[planted](path, mine / "letter")
    before = path.lstat()
    with pytest.raises(PhotodupError, match=r"ours is not written \(.*\): .* delete it or move it away\.$"):
        if way == "replacing":
            with replacing(path, within=path.parent) as new:
                new.write_text("ours")
        else:
            write_atomically(path, "ours", within=path.parent)
    assert path.lstat() == before and os.listdir(path.parent) == ["ours"]  # before reading changes the times
    assert (mine / "letter").read_text() == "mine" and os.listdir(mine) == ["letter"]


@pytest.mark.parametrize("planted", [name for name in PLANTS if name != "a folder"])
def test_no_folder_below_the_one_given_is_a_link(tmp_path, mine, planted):
    (tmp_path / "run").mkdir()
    PLANTS[planted](tmp_path / "run" / "sub", mine if planted == "a symbolic link" else mine / "letter")
    for name in ("letter", "deeper/letter"):
        with one_sentence(r"run/sub is not written \(.*(folder|directory).*\): photodup writes"):
            write_atomically(tmp_path / "run" / "sub" / name, "ours", within=tmp_path / "run")
    assert (mine / "letter").read_text() == "mine" and os.listdir(mine) == ["letter"]
    with pytest.raises(ValueError):
        write_atomically(tmp_path / "run" / ".." / "mine" / "letter", "ours", within=tmp_path / "run")


@pytest.mark.parametrize("planted", PLANTS)
def test_in_our_own_folder_a_hard_link_is_replaced_and_what_leads_elsewhere_refused(tmp_path, mine, planted):
    """An exported model and the one that Triton reads are one file with two names."""
    PLANTS[planted](tmp_path / "ours", mine / "letter")
    if planted == "a hard link":
        write_atomically(tmp_path / "ours", "ours")
        with replacing(tmp_path / "ours") as new:
            new.hardlink_to(mine / "letter")
        assert os.path.samefile(tmp_path / "ours", mine / "letter")
    else:
        with pytest.raises(PhotodupError, match="ours is not written"):
            write_atomically(tmp_path / "ours", "ours")
    assert (mine / "letter").read_text() == "mine" and os.listdir(mine) == ["letter"]


def test_a_new_file_never_takes_the_name_of_another(tmp_path):
    for content in ("first", "second"):
        with suppress(FileExistsError):
            write_atomically(tmp_path / "key", content, is_new=True)
    assert (tmp_path / "key").read_bytes() == b"first" and os.listdir(tmp_path) == ["key"]
    assert (tmp_path / "key").stat().st_nlink == 1


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux pins processes to cores")
def test_cores_are_those_that_this_process_may_use():
    assert available_cores() == len(os.sched_getaffinity(0))
    program = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from photodup.core.files import available_cores; print(available_cores())"
    )
    done = run_python(program, check=True)
    assert done.stdout == "1\n"
