"""SIGKILL at each system call of removals, of copies and of an undo on the review page.

The law that must hold afterwards stands here too. Run as a program of its own: forking is only safe where there is one
thread, and a test run has several.

    cd tests; python -m support.trash_kills every-step FOLDER remove
    cd tests; python -m support.trash_kills undo FOLDER, or copy FOLDER
"""

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from photodup.core import safe_open
from photodup.core.errors import PhotodupError
from photodup.photos.across.contained import Contained, Location, OldPhoto
from photodup.photos.across.copy_new import copy_new
from photodup.photos.groups.tiers import find_tiers
from photodup.photos.library.several import as_one_library
from photodup.photos.review.session import ReviewSession
from photodup.photos.trash.entries import Note, Removal
from photodup.photos.trash.files import TRASH_FOLDER, md5_of
from photodup.photos.trash.quarantine import Trash


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
    keepers, beside = [(folder / keeper, md5[keeper])], [folder / s for s in sidecars]
    return Removal(folder / name, md5[name], keepers, beside, "smaller")


def note(folder: Path, md5: dict[str, str], name: str, *sources: str, data: bytes = b"what they said"):
    return Note(folder / name, md5.get(name), data, frozenset(folder / source for source in sources), "said")


def present(folder: Path) -> dict[str, str]:
    files = (p for p in folder.rglob("*") if p.is_file() and TRASH_FOLDER not in p.parts)
    return {str(p.relative_to(folder)): md5_of(p) for p in files}


def at_home(folder: Path) -> dict[str, str]:
    """What is there beside photodup's own files."""
    return {name: md5 for name, md5 in present(folder).items() if not name.startswith(".photodup")}


# Two folders of one library, as they are reviewed together: what is kept in one, and copies of it in both.
WORK = {"A/keep.jpg": 300, "A/copy.jpg": 200, "A/copy.MOV": 100, "B/er/copy2.jpg": 150, "A/keep.jpg.xmp": 80}


def act(folder: Path, md5: dict[str, str], what: str) -> None:
    """One of the three things a user can do, in a process that will be killed."""
    trash = Trash(folder)
    if what == "remove":
        trash.remove(
            [
                removal(folder, md5, "A/copy.jpg", "A/keep.jpg", sidecars=("A/copy.MOV",)),
                removal(folder, md5, "B/er/copy2.jpg", "A/keep.jpg", sidecars=()),
            ],
            [
                note(folder, md5, "A/keep.jpg.xmp", "A/copy.jpg"),
                note(folder, md5, "B/new.xmp", "B/er/copy2.jpg"),
            ],
        )
    elif what == "restore":
        trash.restore(trash.contents().listing)
    elif what == "purge":
        trash.purge(trash.contents().listing)


CALLS = ("fsync", "link", "mkdir", "open", "rename", "replace", "rmdir", "unlink", "utime", "write")


def killed_at(step: int, prepare: Callable[[], Callable[[], object]]) -> bool:
    """Prepare work in a child and do it, up to so many system calls; return whether there were as many."""
    if child := os.fork():
        ended = os.waitpid(child, 0)[1]
        assert os.WIFSIGNALED(ended) or ended == 0, "its traceback stands above"
        return os.WIFSIGNALED(ended)
    left = step

    def counted(call):
        def one(*arguments, **options):
            nonlocal left
            left -= 1
            return call(*arguments, **options) if left else os.kill(os.getpid(), signal.SIGKILL)

        return one

    try:
        work = prepare()
        vars(os).update({name: counted(getattr(os, name)) for name in CALLS})
        safe_open._rename_in_one_step = counted(safe_open._rename_in_one_step)
        work()
        os._exit(0)
    finally:
        os._exit(1)


def assert_one_place_each(folder: Path, md5: dict[str, str], may_be_purged: bool = False) -> None:
    """The law: after recovery each file is in one place, whole, and the journal says which."""
    trash = Trash(folder)  # opening recovers
    home, operations = present(folder), trash.contents().operations
    assert not [o for o in operations if o.state.endswith("ing")], "nothing is unfinished after recovery"
    written = {o.written.home: o for o in operations if o.written and o.state in ("removed", "purged")}
    assert {n: home.pop(n, None) for n in written} == {n: o.written.md5 for n, o in written.items()}
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
        act(folder, md5, "remove")
    return md5


def every_step(folder: Path, what: str) -> None:
    """Kill at each step in turn; print how many there were."""
    step = 0
    while True:
        step += 1
        md5 = fresh(folder, what)
        if not killed_at(step, partial(partial, act, folder, md5, what)):
            break
        assert_one_place_each(folder, md5, may_be_purged=what == "purge")
    print(step - 1)


def undo(folder: Path) -> int:
    """Kill an undo at every ninth call: each file is in one place, the next page knows where, and finishes the undo."""
    from support.review_library import make_library as make_photos
    from support.review_library import remove_all

    library, step = folder / "library", 1
    together = partial(find_tiers, only=("2020", "2021", "Backup", "Edited", "Shared"))

    def removed() -> Callable[[], object]:
        session = ReviewSession(library, find=together)
        remove_all(session)
        return session.undo

    while True:
        shutil.rmtree(library, ignore_errors=True)
        make_photos(library)
        before = at_home(library)
        if not killed_at(step, removed):
            return step // 9
        session = ReviewSession(library, find=together)
        listing = session.trash.contents().listing
        lies = {moved.home: moved.md5 for operation in listing for moved in operation.files}
        assert not session.trash.contents().interrupted and lies.keys().isdisjoint(at_home(library)), step
        assert at_home(library) | lies == before, step
        with session.open() as catalogue:
            shown = {str(photo.path) for photo in catalogue.photos()}
        assert shown == {name for name in at_home(library) if name.endswith(".jpg")}, step
        session.restore([operation.id for operation in listing])
        assert at_home(library) == before and len(session.photos) == 6
        assert not session.trash.contents().listing
        step += 9


def copy(folder: Path) -> int:
    """Kill a copy of what a library lacks at every step: what has a name is whole, and the next copy does the rest."""
    old, target, step = folder / "old", folder / "target", 1
    md5 = make_library(old, WORK)
    photos = [OldPhoto(Path(n), md5[n], size, Location.ONLY_HERE, None, "") for n, size in WORK.items()]
    found = Contained(old, folder / "library", tuple(photos), (), (), ())

    def prepare() -> Callable[[], object]:  # by link and unlink, between which the part has two names
        safe_open._rename_in_one_step = lambda source, target: False
        return lambda: copy_new(found, photos, target)

    while killed_at(step, prepare):
        named = {name: one for name, one in at_home(target).items() if not name.endswith(".photodup-part")}
        assert named.items() <= md5.items(), step
        n_copied, n_there, refused = copy_new(found, photos, target)
        assert (n_copied + n_there, n_there >= len(named), refused) == (len(md5), True, []), step
        assert at_home(target) == md5, step
        shutil.rmtree(target)
        step += 1
    return step - 1


def across_volumes(folder: Path, items: Path) -> None:
    """Kill at each step with the trash's items on another volume; print how many kills there were.

    Run it where it may mount, such as under `unshare --mount --map-root-user`.
    """
    steps = 0
    for what in ("remove", "restore"):
        for step in range(1, 600, 4):
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
                act(folder, md5, "remove")
            if not killed_at(step, partial(partial, act, folder, md5, what)):
                break
            trash = Trash(folder)
            there = {p.name for p in items.rglob("*") if p.is_file()}
            where = [(present(folder).get(name) == md, Path(name).name in there) for name, md in md5.items()]
            assert all(sum(places) == 1 for places in where), (what, step, where)
            assert all(md5_of(p) in md5.values() for p in items.rglob("*") if p.is_file())
            assert not [o for o in trash.contents().operations if o.state.endswith("ing")]
            steps += 1
    print(steps)


def read_only(folder: Path) -> None:
    """Become another user, whom permissions bind, and print the sentences."""
    md5 = make_library(folder, {"keep.jpg": 900, "a/copy.jpg": 500, "b/c/1.jpg": 9, "b/d/2.jpg": 8})
    os.chmod(folder / "a", 0o555)
    os.chmod(folder, 0o777)
    os.setresuid(65534, 65534, 65534)
    os.environ["PHOTODUP_CONFIG"] = str(folder / "config")
    _, refused = Trash(folder).remove([removal(folder, md5, sidecars=())])
    assert set(present(folder)) - {"config/key"} == set(md5)
    print(refused[0][1])
    together = as_one_library([folder / "a", folder / "config"])
    print(together.untouched, *together.notes)
    try:
        as_one_library([folder / "b/c", folder / "b/d"])
    except PhotodupError as error:
        print(error)


if __name__ == "__main__":
    command, where, *rest = sys.argv[1:]
    if command == "every-step":
        every_step(Path(where), rest[0])
    elif command in ("undo", "copy"):
        print({"undo": undo, "copy": copy}[command](Path(where)))
    elif command == "across-volumes":
        across_volumes(Path(where), Path(rest[0]))
    elif command == "read-only":
        read_only(Path(where))
