"""What another program does to a file while photodup moves, restores, deletes, writes or copies it loses nothing."""

import errno
import os
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from support.trash_kills import make_library, note, present, removal

from photodup.core import safe_open
from photodup.photos.across.contained import Contained, Location, OldPhoto
from photodup.photos.across.copy_new import copy_new
from photodup.photos.state import journal as journal_module
from photodup.photos.state.journal import JournalError
from photodup.photos.trash import files as trash_files
from photodup.photos.trash.entries import Removal, TrashError
from photodup.photos.trash.files import TRASH_FOLDER, md5_of
from photodup.photos.trash.quarantine import Trash

FILES = {"keep.jpg": 90, "keep.jpg.xmp": 14, "a/copy.jpg": 50, "a/copy.MOV": 40}
RACED = ("a/copy.jpg", "a/copy.MOV", "keep.jpg.xmp")
SAID = b"what they said"  # as long as the sidecar that it replaces


# ---- what another program does: the size and the time of change stay what they were ----------------------


def replaced(path: Path, content: bytes, status: os.stat_result) -> None:
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(content)
    os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns))
    os.replace(new, path)


def written_into(path: Path, content: bytes, status: os.stat_result) -> None:
    with suppress(FileNotFoundError), open(path, "r+b") as file:
        file.write(content)
        file.flush()
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def made_a_folder(path: Path, content: bytes, status: os.stat_result) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()
    (path / "inside.jpg").write_bytes(content)


def made_a_link(path: Path, content: bytes, status: os.stat_result) -> None:
    path.unlink(missing_ok=True)
    path.with_name(f"target of {path.name}").write_bytes(content)
    path.symlink_to(f"target of {path.name}")


RACES = [replaced, written_into, made_a_folder, made_a_link]


# ---- what a file system can do ----------------------------------------------------------------------------


def refuse(*_: object, **__: object) -> None:
    raise OSError(errno.EPERM, "Operation not permitted")


def limit(monkeypatch: pytest.MonkeyPatch, file_system: str) -> None:
    if file_system in ("only links", "neither"):  # as NFS; as FAT, or with a file of another owner
        monkeypatch.setattr(safe_open, "_rename_in_one_step", lambda source, target: False)
    if file_system == "neither":
        monkeypatch.setattr(os, "link", refuse)
    if file_system == "another volume":
        move = trash_files.move_without_replacing

        def across(source, target, **options):
            if source.folder != target.folder:
                raise OSError(errno.EXDEV, "Invalid cross-device link")
            move(source, target, **options)

        monkeypatch.setattr(trash_files, "move_without_replacing", across)


FILE_SYSTEMS = ["one step", "only links", "neither", "another volume"]


def contents_of(folder: Path) -> set[str]:
    """Return the MD5 of all that is there, in the trash too."""
    parts = TRASH_FOLDER, "journal.jsonl"
    return {
        md5_of(path)
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink() and path.parts[-2:] != parts
    }


def remove(trash: Trash, md5: dict[str, str]) -> None:
    leaving = removal(trash.library, md5, "a/copy.jpg", "keep.jpg", ("a/copy.MOV",))
    trash.remove([leaving], [note(trash.library, md5, "keep.jpg.xmp", "a/copy.jpg", data=SAID)])


def restore(trash: Trash, md5: dict[str, str]) -> None:
    trash.restore(trash.contents().listing)


def purge(trash: Trash, md5: dict[str, str]) -> None:
    trash.purge(trash.contents().listing)


def raced(folder: Path, act: Callable, race: Callable, turn: int) -> set[str] | None:
    """Do something in a fresh library, with a race before its step of that number.

    Returns:
        The MD5 of all that was there right after the race and must not be lost; None if there were fewer steps.
    """
    shutil.rmtree(folder, ignore_errors=True)
    md5 = make_library(folder, FILES)
    status = (folder / "keep.jpg").stat()
    if act is not remove:
        remove(Trash(folder), md5)
    raced_paths = [folder / name for name in RACED]
    if act is purge:
        raced_paths += sorted(p for p in (folder / TRASH_FOLDER / "items").rglob("*") if p.is_file())
    there: set[str] | None = None
    steps = 0

    def on_step(name: str) -> None:
        nonlocal there, steps
        if name != "journal line":
            steps += 1
            if steps == turn:
                for number, path in enumerate(raced_paths):
                    if path.parent.is_dir() and not path.is_dir():
                        size = 14 if path.suffix == ".xmp" else FILES["a/" + path.name]
                        race(path, bytes([number]) * size, status)
                there = contents_of(folder)

    with suppress(TrashError):
        act(Trash(folder, on_step), md5)
    if there is None:
        return None
    gone = {md5[name] for name in RACED} if act is purge else set()
    (folder / "said").write_bytes(SAID)
    return there - gone - {md5_of(folder / "said")}


@pytest.mark.parametrize("file_system", FILE_SYSTEMS)
@pytest.mark.parametrize("race", RACES)
@pytest.mark.parametrize("act", [remove, restore, purge])
def test_what_another_program_does_at_any_step_loses_nothing(
    fast_folder, monkeypatch, act, race, file_system
):
    limit(monkeypatch, file_system)
    turn = 1
    while (there := raced(fast_folder, act, race, turn)) is not None:
        trash = Trash(fast_folder)  # recovers
        contents = trash.contents()
        assert not contents.interrupted and not contents.problems, turn
        listed = [*contents.listing, *contents.unsigned]
        lying = {trash.root / moved.trash for operation in listed for moved in operation.files}
        lying |= {path for place in lying if place.is_dir() for path in place.rglob("*")}
        items = (path for path in (trash.root / "items").rglob("*") if not path.is_symlink())
        items = {path for path in items if path.is_file()}
        assert items <= lying, (turn, "not listed")
        assert there <= contents_of(fast_folder), (turn, "lost")
        for operations, confirmed in ((contents.listing, False), (contents.unsigned, True)):
            with suppress(TrashError):  # what came back changed is said
                trash.restore(operations, confirmed=confirmed)
        if (
            listing := trash.contents().listing
        ):  # a sidecar that was written since stays until its owner moves it
            with suppress(FileNotFoundError):
                (fast_folder / "keep.jpg.xmp").rename(fast_folder / "written since.xmp")
            with suppress(TrashError):
                trash.restore(listing)
        assert not [path for path in items if path.is_file()], (turn, "not restored")
        assert there <= contents_of(fast_folder), (turn, "lost in restoring")
        assert not list(fast_folder.rglob(".*.photodup-part*")), turn
        turn += 1
    assert turn > 6


@pytest.mark.parametrize("file_system", FILE_SYSTEMS)
@pytest.mark.parametrize("race", [replaced, written_into])
def test_what_is_saved_at_the_last_moment_keeps_its_name(fast_folder, monkeypatch, race, file_system):
    limit(monkeypatch, file_system)
    md5 = make_library(fast_folder, FILES)
    copy, status = fast_folder / "a/copy.jpg", (fast_folder / "keep.jpg").stat()

    def on_step(name: str) -> None:
        if name == "move":
            race(copy, b"n" * 50, status)

    trash = Trash(fast_folder, on_step)
    done, refused = trash.remove([removal(fast_folder, md5, sidecars=())])
    assert done == [] and len(refused) == 1 and "\n" not in refused[0][1]
    assert copy.read_bytes() == b"n" * 50 and copy.stat().st_mtime_ns == status.st_mtime_ns
    assert not list((fast_folder / TRASH_FOLDER).rglob("*.jpg"))
    assert [operation.state for operation in trash.contents().operations] == ["taken back"]


# ---- the keeper ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("race", [*RACES, lambda path, *_: path.unlink()])
def test_a_keeper_that_changes_half_way_keeps_the_copies_that_are_left(fast_folder, race):
    copies = {f"copy {number}.jpg": 50 for number in range(6)}
    md5 = make_library(fast_folder, {"keep.jpg": 50} | copies)
    status, looks = (fast_folder / "keep.jpg").stat(), []

    def on_step(name: str) -> None:
        looks.append(name)
        if looks.count("look") == 3 and name == "look":  # two have gone, the third lies in the trash
            race(fast_folder / "keep.jpg", b"x" * 50, status)

    leaving = [removal(fast_folder, md5, name, "keep.jpg", ()) for name in copies]
    done, refused = Trash(fast_folder, on_step).remove(leaving)
    assert [operation.home for operation in done] == ["copy 0.jpg", "copy 1.jpg"]
    assert len(refused) == 4 and all("one must remain" in sentence for _, sentence in refused)
    assert {name for name in copies if (fast_folder / name).exists()} == set(list(copies)[2:])


def test_another_keeper_is_enough_and_one_that_is_unchanged_is_read_once(fast_folder, monkeypatch):
    md5 = make_library(fast_folder, {"keep.jpg": 50, "second.jpg": 50, "a.jpg": 9, "b.jpg": 8})
    keepers = [(fast_folder / name, md5[name]) for name in ("keep.jpg", "second.jpg")]
    leaving = [Removal(fast_folder / name, md5[name], keepers) for name in ("a.jpg", "b.jpg")]
    reads = []
    monkeypatch.setattr(trash_files, "md5_of", lambda path: reads.append(path.name) or md5_of(path))

    def on_step(name: str) -> None:
        if name == "look" and (fast_folder / "keep.jpg").exists():
            (fast_folder / "keep.jpg").unlink()

    done, refused = Trash(fast_folder, on_step).remove(leaving)
    assert (len(done), refused) == (2, [])
    assert reads.count("keep.jpg") == reads.count("second.jpg") == 1


# ---- a journal that a disk damages ------------------------------------------------------------------------


def test_a_flipped_bit_in_any_line_hides_no_photo(fast_folder):
    sizes = {"keep.jpg": 90, "keep.jpg.xmp": 14, "b/back.jpg": 20} | {f"a/{n}.jpg": 30 + n for n in range(3)}
    md5 = make_library(fast_folder, sizes)
    trash = Trash(fast_folder)
    for name in ("a/0.jpg", "b/back.jpg", "a/1.jpg", "a/2.jpg"):
        notes = [note(fast_folder, md5, "keep.jpg.xmp", name, data=SAID)] if name == "a/1.jpg" else []
        done, _ = trash.remove([removal(fast_folder, md5, name, "keep.jpg", ())], notes)
        if name == "b/back.jpg":
            trash.restore(done)
    removed = {"a/0.jpg", "a/1.jpg", "a/2.jpg", "keep.jpg.xmp"}
    whole, draw = fast_folder.with_name(f"{fast_folder.name}-whole"), random.Random(7)
    fast_folder.rename(whole)
    journal, begin = (whole / TRASH_FOLDER / "journal.jsonl").read_bytes(), 0
    try:
        for line in journal.splitlines(keepends=True):
            places = {draw.randrange(len(line)) for _ in range(5)} | {len(line) - 1}
            for place in places:
                damaged = bytearray(journal)
                damaged[begin + place] ^= 1 << draw.randrange(8)
                shutil.copytree(whole, fast_folder)
                (fast_folder / TRASH_FOLDER / "journal.jsonl").write_bytes(damaged)
                trash = Trash(fast_folder)
                contents, at_home = trash.contents(), present(fast_folder)
                listed = [*contents.listing, *contents.unsigned]
                homes = {moved.home for operation in listed for moved in operation.files}
                # The end of the last line looks like a line that was cut short: that removal is taken back.
                back = {name for name in removed if at_home.get(name) == md5[name]}
                assert removed <= homes | back, (begin, place)
                assert not back or begin + place == len(journal) - 1
                with suppress(TrashError):  # where the line says so that what had come back came back
                    trash.restore(contents.listing)
                trash.restore(trash.contents().unsigned, confirmed=True)
                # Without its lines nobody knows that photodup wrote a sidecar: the former one comes back beside it.
                assert set(md5.values()) <= set(present(fast_folder).values()), (begin, place)
                shutil.rmtree(fast_folder)
            begin += len(line)
    finally:
        shutil.rmtree(whole)


def test_what_lies_in_the_trash_without_a_journal_is_listed_and_restored(fast_folder):
    md5 = make_library(fast_folder, FILES)
    remove(Trash(fast_folder), md5)
    items = fast_folder / TRASH_FOLDER / "items"
    (items / "odd").mkdir()
    for name in ("odd/x.jpg", "stray.jpg"):
        (items / name).write_bytes(b"whose?")
    (fast_folder / TRASH_FOLDER / "journal.jsonl").unlink()
    (fast_folder / "a/copy.jpg").write_bytes(b"new")
    trash = Trash(fast_folder)
    assert trash.contents().listing == []
    unknown = trash.contents().unsigned
    assert {operation.state for operation in unknown} == {"unknown"} and len(unknown) == 5
    with pytest.raises(TrashError, match="confirm that it is to be used"):
        trash.restore(unknown)
    trash.restore(unknown, confirmed=True)
    back = present(fast_folder)
    assert (fast_folder / "a/copy.jpg").read_bytes() == b"new"
    assert back["a/copy (restored).jpg"] == md5["a/copy.jpg"] and back["a/copy.MOV"] == md5["a/copy.MOV"]
    assert {"Restored from the trash/odd/x.jpg", "Restored from the trash/stray.jpg"} <= back.keys()
    assert not trash.contents().unsigned and not list(items.rglob("*.*"))


def test_what_lies_in_the_trash_without_a_journal_is_deleted_when_asked(fast_folder):
    md5 = make_library(fast_folder, FILES)
    remove(Trash(fast_folder), md5)
    (fast_folder / TRASH_FOLDER / "journal.jsonl").unlink()
    trash = Trash(fast_folder)
    assert trash.purge(trash.contents().listing) == 0
    assert trash.purge(trash.contents().unsigned, confirmed=True) == 104
    assert not trash.contents().unsigned


def test_a_journal_larger_than_any_is_one_sentence(fast_folder):
    (fast_folder / TRASH_FOLDER).mkdir(parents=True)
    path = fast_folder / TRASH_FOLDER / "journal.jsonl"
    with open(path, "wb") as file:
        file.truncate(journal_module.MOST_BYTES + 1)
    with pytest.raises(JournalError, match="more than 256 MB, so no photodup wrote it: move it away"):
        Trash(fast_folder)


# ---- copying --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file_system", FILE_SYSTEMS[:3])
@pytest.mark.parametrize("race", RACES)
def test_a_file_that_changes_while_it_is_copied_is_not_said_to_be_copied(
    fast_folder, monkeypatch, race, file_system
):
    limit(monkeypatch, file_system)
    old, target, turn = fast_folder / "old", fast_folder / "target", 0
    while True:
        turn += 1
        shutil.rmtree(fast_folder, ignore_errors=True)
        md5 = make_library(old, {"x.jpg": 50})["x.jpg"]
        status, steps = (old / "x.jpg").stat(), list[str]()

        def on_step(name: str, status=status, steps=steps, turn=turn) -> None:
            steps.append(name)
            if len(steps) == turn:
                race(old / "x.jpg", b"n" * 50, status)

        photo = OldPhoto(Path("x.jpg"), md5, 50, Location.ONLY_HERE, None, "")
        contained = Contained(old, fast_folder / "library", (photo,), (), (), ())
        n_copied, n_there, refused = copy_new(contained, (photo,), target, on_step)
        if turn > len(steps):
            break
        copied = target / "x.jpg"
        assert not copied.exists() or md5_of(copied) == md5
        is_last = turn > 6  # after "rename" only the journal's line is left to write
        assert (n_copied, n_there, len(refused)) == ((1, 0, 0) if is_last else (0, 0, 1)), steps
        assert not list(target.glob(".*.photodup-part"))
    assert steps.index("rename") == 5 and turn > 7
    race(old / "x.jpg", b"n" * 50, status)
    assert copy_new(contained, (photo,), target)[:2] == (0, 0), "what is there is not what is here now"


@pytest.mark.parametrize("file_system", FILE_SYSTEMS)
def test_a_name_that_is_taken_at_the_last_moment_is_not_replaced(tmp_path, monkeypatch, file_system):
    limit(monkeypatch, file_system)
    (tmp_path / "mine").write_bytes(b"mine")
    (tmp_path / "theirs").write_bytes(b"theirs")
    with safe_open.opened(tmp_path, "mine") as source, safe_open.opened(tmp_path, "theirs") as target:
        for is_ours in (False, True):
            with pytest.raises(FileExistsError):
                safe_open.move_without_replacing(source, target, is_ours=is_ours)
        safe_open.move_without_replacing(source, target._replace(name="free"))
    names = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert names == {"free": b"mine", "theirs": b"theirs"}
