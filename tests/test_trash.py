"""Removal never loses a photo: moves, undo, refusals, and a thousand kills."""

import errno
import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from photodup.photos import moving
from photodup.photos.journal import Journal, JournalError
from photodup.photos.moving import md5_of
from photodup.photos.sidecars import moving_together
from photodup.photos.trash import TRASH_FOLDER, Removal, Trash, TrashError

KILLS = 1000


def make_library(folder: Path, sizes: dict[str, int]) -> dict[str, str]:
    """Write random files; return name -> md5."""
    content = random.Random(0)
    for name, size in sizes.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.randbytes(size))
        os.utime(path, ns=(10**18 + 1, 10**18 + 12345))
    return {name: md5_of(folder / name) for name in sizes}


@pytest.fixture
def library(tmp_path):
    folder = tmp_path / "library"
    md5 = make_library(folder, {"keep.jpg": 900, "a/copy.jpg": 500, "a/copy.jpg.xmp": 40, "other.jpg": 300})
    return folder, md5


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


def test_remove_and_restore_bring_back_names_content_times_and_mode(library):
    folder, md5 = library
    os.chmod(folder / "a/copy.jpg", 0o640)
    before = (folder / "a/copy.jpg").stat()
    trash = Trash(folder)
    done, refused = trash.remove([removal(folder, md5)])
    assert refused == []
    assert set(present(folder)) == {"keep.jpg", "other.jpg"}, "the sidecar leaves with its photo"
    assert [operation.reason for operation in Trash(folder).listing()] == ["smaller"]
    assert done[0].bytes == 540
    assert trash.restore(done) == [folder / "a/copy.jpg", folder / "a/copy.jpg.xmp"]
    after = (folder / "a/copy.jpg").stat()
    assert present(folder) == md5
    assert (after.st_mtime_ns, after.st_atime_ns, after.st_mode) == (
        before.st_mtime_ns,
        before.st_atime_ns,
        before.st_mode,
    )
    assert Trash(folder).listing() == []
    assert list((folder / TRASH_FOLDER).rglob("items/*")) == [], "no empty folders are left behind"


def test_purge_is_the_only_unlink(library):
    folder, md5 = library
    trash = Trash(folder)
    done, _ = trash.remove([removal(folder, md5)])
    assert trash.purge(done) == 540
    assert trash.restore(done) == [], "what was purged cannot come back"
    assert [operation.state for operation in trash.operations()] == ["purged"]
    assert list((folder / TRASH_FOLDER).rglob("*.jpg")) == []


def test_a_taken_name_is_not_overwritten(library):
    folder, md5 = library
    trash = Trash(folder)
    done, _ = trash.remove([removal(folder, md5)])
    (folder / "a").mkdir(exist_ok=True)
    (folder / "a/copy.jpg").write_bytes(b"new picture")
    assert trash.restore(done)[0] == folder / "a/copy (restored).jpg"
    assert (folder / "a/copy.jpg").read_bytes() == b"new picture"
    assert md5_of(folder / "a/copy (restored).jpg") == md5["a/copy.jpg"]


@pytest.mark.parametrize(
    "fault",
    [
        "changed",
        "vanished",
        "no keeper",
        "keeper changed",
        "keeper leaves too",
        "keeper is a link",
        "same file by another name",
        "outside",
        "symlink",
        "in the trash",
    ],
)
def test_refusals_leave_everything_where_it_was(library, fault, tmp_path):
    folder, md5 = library
    wanted = [removal(folder, md5)]
    copy, keeper = folder / "a/copy.jpg", folder / "keep.jpg"
    if fault == "changed":
        copy.write_bytes(b"edited since")
    elif fault == "vanished":
        copy.rename(tmp_path / "elsewhere.jpg")
    elif fault == "no keeper":
        wanted = [Removal(copy, md5["a/copy.jpg"], [])]
    elif fault == "keeper changed":
        keeper.write_bytes(b"no longer a copy")
    elif fault == "keeper leaves too":
        wanted = [removal(folder, md5), removal(folder, md5, "keep.jpg", "a/copy.jpg", ())]
    elif fault == "keeper is a link":
        keeper.unlink()
        keeper.symlink_to(copy)
        wanted = [Removal(copy, md5["a/copy.jpg"], [(keeper, md5["a/copy.jpg"])])]
    elif fault == "same file by another name":
        wanted = [Removal(copy, md5["a/copy.jpg"], [(folder / "a/../a/copy.jpg", md5["a/copy.jpg"])])]
    elif fault == "outside":
        outside = tmp_path / "outside.jpg"
        shutil.copy(copy, outside)
        wanted = [Removal(outside, md5["a/copy.jpg"], [(keeper, md5["keep.jpg"])])]
    elif fault == "symlink":
        (folder / "link.jpg").symlink_to(copy)
        wanted = [Removal(folder / "link.jpg", md5["a/copy.jpg"], [(keeper, md5["keep.jpg"])])]
    elif fault == "in the trash":
        inside = folder / TRASH_FOLDER / "x.jpg"
        inside.parent.mkdir()
        shutil.copy(copy, inside)
        wanted = [Removal(inside, md5["a/copy.jpg"], [(keeper, md5["keep.jpg"])])]
    before = present(folder)
    done, refused = Trash(folder).remove(wanted)
    assert (len(done), len(refused)) == (0, len(wanted))
    assert all(sentence.endswith((".", "remain.")) and "\n" not in sentence for _, sentence in refused)
    assert present(folder) == before


def test_a_hard_link_to_the_keeper_may_leave(library):
    """Two names, one content: removing one name loses nothing."""
    folder, md5 = library
    os.link(folder / "keep.jpg", folder / "second name.jpg")
    wanted = Removal(folder / "second name.jpg", md5["keep.jpg"], [(folder / "keep.jpg", md5["keep.jpg"])])
    done, refused = Trash(folder).remove([wanted])
    assert len(done) == 1 and refused == []
    assert (folder / "keep.jpg").exists()


def test_a_full_disk_takes_everything_back(library, monkeypatch):
    folder, md5 = library
    trash, real_write, calls = Trash(folder), os.write, []

    def write(descriptor, data):
        calls.append(data)
        if len(calls) > 2:  # the first journal line fits, the second does not
            raise OSError(errno.ENOSPC, "No space left on device")
        return real_write(descriptor, data)

    monkeypatch.setattr(os, "write", write)
    done, refused = trash.remove([removal(folder, md5)])
    assert done == [] and "disk is full" in refused[0][1]
    assert present(folder) == md5
    monkeypatch.undo()
    assert [operation.state for operation in Trash(folder).operations()] == ["taken back"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user, whom permissions bind")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_read_only_folder_is_one_sentence(fast_folder):
    folder = fast_folder
    md5 = make_library(folder, {"keep.jpg": 900, "a/copy.jpg": 500})
    os.chmod(folder / "a", 0o555)
    os.chmod(folder, 0o777)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setresuid(65534, 65534, 65534)
            _, refused = Trash(folder).remove([removal(folder, md5, sidecars=())])
            os.write(writing, refused[0][1].encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with open(reading) as answer:
        assert "read-only or locked" in answer.read()
    assert present(folder) == md5


def test_two_at_once_is_one_sentence(library):
    folder, md5 = library
    first, second = Trash(folder), Trash(folder)
    with first._locked(), pytest.raises(TrashError, match="wait until it is done"):
        second.remove([removal(folder, md5)])
    assert len(second.remove([removal(folder, md5)])[0]) == 1


def test_a_damaged_journal_is_believed_nowhere(library):
    folder, md5 = library
    Trash(folder).remove([removal(folder, md5)])
    journal = folder / TRASH_FOLDER / "journal.jsonl"
    good = journal.read_bytes()
    journal.write_bytes(good + b'{"op": "cut sho')
    assert len(Trash(folder).listing()) == 1, "a last line that was cut short never happened"
    journal.write_bytes(b"garbage\n" + good)
    with pytest.raises(JournalError, match="Line 1 of"):
        Trash(folder)
    journal.write_bytes(good.replace(b'"home": "a/copy.jpg"', b'"home": "../copy.jpg"'))
    with pytest.raises(JournalError, match="outside the library"):
        Trash(folder)
    assert Journal(folder / "none.jsonl").read() == []


# ---- sidecars --------------------------------------------------------------------------------------------


def test_sidecars_move_together(tmp_path):
    names = [
        "IMG_1.HEIC",
        "IMG_1.MOV",
        "IMG_O1.AAE",
        "IMG_1.AAE",
        "IMG_1.xmp",
        "IMG_1.HEIC.xmp",
        "IMG_10.MOV",
    ]
    make_library(tmp_path, dict.fromkeys(names, 10))
    found = moving_together([tmp_path / "IMG_1.HEIC"])[tmp_path / "IMG_1.HEIC"]
    assert [p.name for p in found] == ["IMG_1.AAE", "IMG_1.HEIC.xmp", "IMG_1.MOV", "IMG_1.xmp", "IMG_O1.AAE"]


def test_raw_and_jpeg_move_together(tmp_path):
    make_library(tmp_path, dict.fromkeys(["P1.CR2", "p1.JPG", "P1.xmp"], 10))
    for photo in ("p1.JPG", "P1.CR2"):
        together = moving_together([tmp_path / photo])[tmp_path / photo]
        assert {p.name for p in (tmp_path / photo, *together)} == {"P1.CR2", "p1.JPG", "P1.xmp"}


def test_what_a_staying_photo_needs_stays(tmp_path):
    make_library(tmp_path, dict.fromkeys(["A.jpg", "A.png", "A.xmp", "A.png.xmp", "A.CR2"], 10))
    leave, stay = tmp_path / "A.png", tmp_path / "A.jpg"
    assert moving_together([leave], staying=[stay])[leave] == [tmp_path / "A.png.xmp"]
    assert moving_together([leave])[leave] == [tmp_path / "A.png.xmp"], "A.jpg stays, told or not"
    both = moving_together([leave, stay])
    assert {p.name for p in both[leave] + both[stay]} == {"A.xmp", "A.png.xmp", "A.CR2"}


# ---- killed --------------------------------------------------------------------------------------------

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
        trash.restore(trash.listing())
    elif what == "purge":
        trash.purge(trash.listing())


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
    home, operations = present(folder), trash.operations()
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


@pytest.fixture
def fast_folder(tmp_path):
    """A folder in memory where there is one: a thousand kills sync some ten thousand times."""
    shared = Path("/dev/shm")
    folder = shared / f"photodup-{os.getpid()}" if os.access(shared, os.W_OK) else tmp_path / "memory"
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("what", ["remove", "restore", "purge"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_killed_at_every_step(fast_folder, what):
    step = 0
    while True:
        step += 1
        md5 = fresh(fast_folder, what)
        if not killed_at(step, fast_folder, md5, what):
            break
        assert_one_place_each(fast_folder, md5, may_be_purged=what == "purge")
    assert step > 10


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_thousand_random_kills(fast_folder):
    """Kills fall anywhere: in removals, restores, purges, and in the recovery from an earlier kill."""
    choose, kills = random.Random(7), 0
    while kills < KILLS:
        md5 = fresh(fast_folder, "remove")
        for _ in range(8):
            what = choose.choice(["remove", "restore", "remove", "restore", "recover", "purge"])
            kills += killed_at(choose.randint(1, 24), fast_folder, md5, what)
            purged = {
                moved.home
                for operation in Trash(fast_folder).operations()
                if operation.state == "purged"
                for moved in operation.files
            }
            assert_one_place_each(fast_folder, md5, may_be_purged=True)
            if purged:
                break


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_killed_from_outside_at_a_random_moment(tmp_path):
    """No injection: the parent kills whenever it likes, on a real disk."""
    choose = random.Random(3)
    folder = tmp_path / "library"
    sizes = {"keep.jpg": 50} | {f"{n:03}.jpg": 40_000 for n in range(40)}
    landed = 0
    for _ in range(25):
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
    assert landed > 10, "most kills must fall inside the work for this to test anything"


def test_the_law_sees_a_plain_move(tmp_path):
    """The planted fault: a removal that moves first and writes its journal after does fail the law."""
    md5 = make_library(tmp_path, WORK)
    target = tmp_path / TRASH_FOLDER / "items" / "x" / "copy.jpg"
    target.parent.mkdir(parents=True)
    (tmp_path / "copy.jpg").rename(target)
    with pytest.raises(AssertionError):
        assert_one_place_each(tmp_path, md5)


# ---- across volumes ------------------------------------------------------------------------------------


@pytest.fixture
def other_volume(tmp_path):
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK) or shared.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip(
            "needs a second volume: /dev/shm is missing, read-only or the same as the temporary folder"
        )
    folder = shared / f"photodup-volume-{os.getpid()}"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


def cross(tmp_path, other_volume):
    source, target = tmp_path / "a.jpg", other_volume / "b.jpg"
    source.write_bytes(os.urandom(3_000_000))
    os.utime(source, ns=(10**18, 10**18 + 5))
    return source, target, md5_of(source)


def test_across_volumes_copies_verifies_then_unlinks(tmp_path, other_volume):
    source, target, md5 = cross(tmp_path, other_volume)
    steps = []
    moving.move_file(source, target, md5=md5, times_ns=(10**18, 10**18 + 5), on_step=steps.append)
    assert steps == ["link", "copy", "compare", "rename", "unlink", "times"]
    assert md5_of(target) == md5 and not source.exists()
    assert target.stat().st_mtime_ns == 10**18 + 5


def test_across_volumes_a_bad_copy_is_refused(tmp_path, other_volume):
    source, target, md5 = cross(tmp_path, other_volume)

    def spoil(name):
        if name == "compare":
            moving.part_of(target).write_bytes(b"what a dying disk wrote")

    with pytest.raises(OSError, match="differs from the original"):
        moving.move_file(source, target, md5=md5, times_ns=(0, 0), on_step=spoil)
    assert md5_of(source) == md5 and list(other_volume.iterdir()) == []


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_killed_at_every_step_across_volumes(tmp_path, other_volume):
    """The trash folder's items lie on another volume (a mount point inside the library)."""
    folder, steps = tmp_path / "library", 0
    for what in ("remove", "restore"):
        for step in range(1, 60):
            shutil.rmtree(folder, ignore_errors=True)
            shutil.rmtree(other_volume / "items", ignore_errors=True)
            md5 = make_library(folder, WORK)
            (folder / TRASH_FOLDER).mkdir()
            (other_volume / "items").mkdir()
            (folder / TRASH_FOLDER / "items").symlink_to(other_volume / "items")
            if what == "restore":
                act(folder, md5, "remove", lambda name: None)
            if not killed_at(step, folder, md5, what):
                break
            trash = Trash(folder)
            where = [
                (n in present(folder), any(p.name == Path(n).name for p in other_volume.rglob("*")))
                for n in md5
            ]
            assert all(sum(places) == 1 for places in where), (what, step, where)
            assert all(md5_of(p) in md5.values() for p in other_volume.rglob("*") if p.is_file())
            assert not [o for o in trash.operations() if o.state.endswith("ing")]
            steps += 1
    assert steps > 30
