"""Kills in the middle of removals, and the law that must hold afterwards.

Run as a program of its own: forking is only safe where there is one thread, and a test run has several.

    python tests/support/trash_kills.py every-step FOLDER remove
    python tests/support/trash_kills.py random FOLDER 1000
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from photodup.photos.trash.trash import Trash
from photodup.photos.trash.trash_entries import Removal
from photodup.photos.trash.trash_files import TRASH_FOLDER, md5_of


def make_library(folder: Path, sizes: dict[str, int]) -> dict[str, str]:
    """Write random files; return name -> md5."""
    content = random.Random(0)
    for name, size in sizes.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.randbytes(size))
        os.utime(path, ns=(10**18 + 1, 10**18 + 12345))
    return {name: md5_of(folder / name) for name in sizes}


def removal(folder, md5, name="a/copy.jpg", keeper="keep.jpg", sidecars=("a/copy.jpg.xmp",)):
    return Removal(
        folder / name, md5[name], [(folder / keeper, md5[keeper])], [folder / s for s in sidecars], "smaller"
    )


def present(folder: Path) -> dict[str, str]:
    return {
        str(p.relative_to(folder)): md5_of(p)
        for p in folder.rglob("*")
        if p.is_file() and TRASH_FOLDER not in p.parts
    }


WORK = {"keep.jpg": 300, "copy.jpg": 200, "copy.MOV": 100, "deep/er/copy2.jpg": 150}


def act(folder: Path, md5: dict[str, str], what: str, on_step) -> None:
    """One of the three things a user can do, in a process that will be killed."""
    trash = Trash(folder, on_step)
    if what == "remove":
        trash.remove(
            [
                removal(folder, md5, "copy.jpg", sidecars=("copy.MOV",)),
                removal(folder, md5, "deep/er/copy2.jpg", sidecars=()),
            ]
        )
    elif what == "restore":
        trash.restore(trash.contents().listing)
    elif what == "purge":
        trash.purge(trash.contents().listing)


def killed_at(step: int, folder: Path, md5: dict[str, str], what: str) -> bool:
    """Act in a child that SIGKILLs itself at the given step; return whether it got that far."""
    child = os.fork()
    if child == 0:
        seen = 0

        def on_step(name: str) -> None:
            nonlocal seen
            seen += 1
            if seen == step:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            act(folder, md5, what, on_step)
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def assert_one_place_each(folder: Path, md5: dict[str, str], may_be_purged: bool = False) -> None:
    """The law: after recovery each file is in one place, whole, and the journal says which."""
    trash = Trash(folder)  # opening recovers
    home, operations = present(folder), trash.contents().operations
    assert not [o for o in operations if o.state.endswith("ing")], "nothing is unfinished after recovery"
    last = {moved.home: (operation, moved) for operation in operations for moved in operation.files}
    on_disk = [p for p in (folder / TRASH_FOLDER).rglob("*") if p.is_file() and "items" in p.parts]
    listed = []
    for name, digest in md5.items():
        operation, moved = last.get(name, (None, None))
        state = operation.state if operation else "never touched"
        in_trash = bool(moved) and (trash.root / moved.trash).exists()
        where = (name in home, in_trash, state == "purged")
        assert sum(where) == 1, f"{name} is in {sum(where)} places, journal says {state}"
        assert where == (
            state in ("never touched", "taken back", "restored"),
            state == "removed",
            state == "purged",
        )
        assert state != "purged" or may_be_purged
        if in_trash:
            listed.append(trash.root / moved.trash)
            assert md5_of(trash.root / moved.trash) == digest
        elif name in home:
            assert home[name] == digest
    assert sorted(listed) == sorted(on_disk), "nothing in the trash that the journal does not name"
    assert set(home) <= set(md5), "no stray files in the library"


def fresh(folder: Path, what: str) -> dict[str, str]:
    shutil.rmtree(folder, ignore_errors=True)
    md5 = make_library(folder, WORK)
    if what != "remove":
        act(folder, md5, "remove", lambda name: None)
    return md5


def every_step(folder: Path, what: str) -> None:
    """Kill at each step in turn; print how many there were."""
    step = 0
    while True:
        step += 1
        md5 = fresh(folder, what)
        if not killed_at(step, folder, md5, what):
            break
        assert_one_place_each(folder, md5, may_be_purged=what == "purge")
    print(step - 1)


def random_kills(folder: Path, wanted: int) -> None:
    """Kill anywhere: in removals, restores, purges, and in the recovery from an earlier kill."""
    choose, kills = random.Random(7), 0
    while kills < wanted:
        md5 = fresh(folder, "remove")
        for _ in range(8):
            what = choose.choice(["remove", "restore", "remove", "restore", "recover", "purge"])
            kills += killed_at(choose.randint(1, 24), folder, md5, what)
            assert_one_place_each(folder, md5, may_be_purged=True)
            if any(operation.state == "purged" for operation in Trash(folder).contents().operations):
                break
    print(kills)


def from_outside(folder: Path, rounds: int) -> None:
    """No injection: kill at any moment; print how many kills fell inside the work."""
    choose, landed = random.Random(3), 0
    sizes = {"keep.jpg": 50} | {f"{n:03}.jpg": 40_000 for n in range(40)}
    for _ in range(rounds):
        shutil.rmtree(folder, ignore_errors=True)
        md5 = make_library(folder, sizes)
        child = os.fork()
        if child == 0:
            try:
                Trash(folder).remove([removal(folder, md5, n, sidecars=()) for n in md5 if n != "keep.jpg"])
            finally:
                os._exit(0)
        time.sleep(choose.uniform(0.002, 0.05))
        os.kill(child, signal.SIGKILL)
        landed += os.WIFSIGNALED(os.waitpid(child, 0)[1])
        assert_one_place_each(folder, md5)
    print(landed)


def across_volumes(folder: Path, items: Path) -> None:
    """Kill at each step with the trash's items on another volume; print how many kills there were.

    Run it where it may mount, such as under `unshare --mount --map-root-user`.
    """
    steps = 0
    for what in ("remove", "restore"):
        for step in range(1, 60):
            if (folder / TRASH_FOLDER / "items").is_mount():
                subprocess.run(["umount", folder / TRASH_FOLDER / "items"], check=True)
            shutil.rmtree(folder, ignore_errors=True)
            shutil.rmtree(items, ignore_errors=True)
            md5 = make_library(folder, WORK)
            (folder / TRASH_FOLDER).mkdir()
            items.mkdir(parents=True)
            (folder / TRASH_FOLDER / "items").mkdir()
            subprocess.run(["mount", "--bind", items, folder / TRASH_FOLDER / "items"], check=True)
            if what == "restore":
                act(folder, md5, "remove", lambda name: None)
            if not killed_at(step, folder, md5, what):
                break
            trash = Trash(folder)
            there = {p.name for p in items.rglob("*") if p.is_file()}
            where = [(name in present(folder), Path(name).name in there) for name in md5]
            assert all(sum(places) == 1 for places in where), (what, step, where)
            assert all(md5_of(p) in md5.values() for p in items.rglob("*") if p.is_file())
            assert not [o for o in trash.contents().operations if o.state.endswith("ing")]
            steps += 1
    print(steps)


def read_only(folder: Path) -> None:
    """Become another user, whom permissions bind, and print the sentence."""
    md5 = make_library(folder, {"keep.jpg": 900, "a/copy.jpg": 500})
    os.chmod(folder / "a", 0o555)
    os.chmod(folder, 0o777)
    os.setresuid(65534, 65534, 65534)
    os.environ["PHOTODUP_CONFIG"] = str(folder / "config")
    _, refused = Trash(folder).remove([removal(folder, md5, sidecars=())])
    assert set(present(folder)) - {"config/key"} == set(md5)
    print(refused[0][1])


if __name__ == "__main__":
    command, where, *rest = sys.argv[1:]
    if command == "every-step":
        every_step(Path(where), rest[0])
    elif command == "random":
        random_kills(Path(where), int(rest[0]))
    elif command == "outside":
        from_outside(Path(where), int(rest[0]))
    elif command == "across-volumes":
        across_volumes(Path(where), Path(rest[0]))
    elif command == "read-only":
        read_only(Path(where))
