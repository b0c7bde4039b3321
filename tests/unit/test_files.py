"""Files are written whole or not at all, and cores are those that this process may use."""

import os
import stat
import subprocess
import sys
import threading

import pytest

from photodup.files import available_cores, replacing, write_atomically


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
        "import os, signal, sys; from pathlib import Path; from photodup.files import replacing\n"
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


def test_a_link_is_replaced_and_what_it_led_to_stays(tmp_path):
    (tmp_path / "theirs").write_text("theirs")
    (tmp_path / "ours").symlink_to(tmp_path / "theirs")
    write_atomically(tmp_path / "ours", "ours")
    assert (tmp_path / "theirs").read_text() == "theirs" and not (tmp_path / "ours").is_symlink()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux pins processes to cores")
def test_cores_are_those_that_this_process_may_use():
    assert available_cores() == len(os.sched_getaffinity(0))
    program = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from photodup.files import available_cores; print(available_cores())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
