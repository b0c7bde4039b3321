"""Removal never loses a photo: moves, undo, refusals, and a thousand kills."""

import errno
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from support.command import run_command, run_program
from support.trash_kills import WORK, assert_one_place_each, make_library, present, removal

from photodup.cli.trash import list_trash
from photodup.core.safe_open import opened
from photodup.photos.library.feedback import Feedback
from photodup.photos.library.sidecars import files_moving_with
from photodup.photos.state import own_key
from photodup.photos.state.journal import Journal, JournalError
from photodup.photos.trash import files as trash_files
from photodup.photos.trash.entries import Removal, TrashError
from photodup.photos.trash.files import TRASH_FOLDER, md5_of
from photodup.photos.trash.quarantine import Trash


@pytest.fixture
def folder(tmp_path):
    sizes = {"keep.jpg": 900, "a/copy.jpg": 500, "a/copy.jpg.xmp": 40, "other.jpg": 300}
    make_library(tmp_path / "library", sizes)
    return tmp_path / "library"


@pytest.fixture
def md5(folder):
    """Of each file before anything happens to it."""
    return present(folder)


def test_remove_and_restore_bring_back_names_content_times_and_mode(folder, md5):
    os.chmod(folder / "a/copy.jpg", 0o640)
    before = (folder / "a/copy.jpg").stat()
    trash = Trash(folder)
    done, refused = trash.remove([removal(folder, md5)])
    assert refused == []
    assert set(present(folder)) == {"keep.jpg", "other.jpg"}, "the sidecar leaves with its photo"
    assert [operation.reason for operation in Trash(folder).contents().listing] == ["smaller"]
    assert done[0].bytes == 540
    assert trash.restore(done) == [folder / "a/copy.jpg", folder / "a/copy.jpg.xmp"]
    after = (folder / "a/copy.jpg").stat()
    assert present(folder) == md5
    kept = ("st_mtime_ns", "st_mode")
    assert [getattr(after, name) for name in kept] == [getattr(before, name) for name in kept]
    assert Trash(folder).contents().listing == []
    assert list((folder / TRASH_FOLDER).rglob("items/*")) == [], "no empty folders are left behind"


@pytest.mark.parametrize("fault", [
    "changed", "vanished", "no keeper", "keeper changed", "keeper leaves too", "keeper is a link",
    "same file by another name", "outside", "symlink", "in the trash",
])  # fmt: skip
def test_refusals_leave_everything_where_it_was(folder, md5, fault, tmp_path):
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


def test_a_hard_link_to_the_keeper_may_leave(folder, md5):
    """Two names, one content: removing one name loses nothing."""
    os.link(folder / "keep.jpg", folder / "second name.jpg")
    wanted = Removal(folder / "second name.jpg", md5["keep.jpg"], [(folder / "keep.jpg", md5["keep.jpg"])])
    done, refused = Trash(folder).remove([wanted])
    assert len(done) == 1 and refused == []
    assert (folder / "keep.jpg").exists()


def test_a_full_disk_takes_everything_back(folder, md5, monkeypatch):
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
    assert [operation.state for operation in Trash(folder).contents().operations] == ["taken back"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user, whom permissions bind")
def test_a_read_only_folder_is_one_sentence(fast_folder):
    said = run_program("trash_kills", "read-only", fast_folder)
    assert "read-only or locked" in said
    # Beside another folder its photos may be kept; and where no trash can be made nothing begins.
    assert "('a',)" in said and "a is read-only: its photos may be kept, and none is suggested." in said
    assert f"photodup may not write into {fast_folder / 'b'}, the folder above all of them" in said


def test_two_at_once_is_one_sentence(folder, md5):
    first, second = Trash(folder), Trash(folder)
    with first._locked(), pytest.raises(TrashError, match="wait until it is done"):
        second.remove([removal(folder, md5)])
    assert len(second.remove([removal(folder, md5)])[0]) == 1


def test_a_damaged_journal_is_believed_nowhere(folder, md5):
    Trash(folder).remove([removal(folder, md5)])
    journal = folder / TRASH_FOLDER / "journal.jsonl"
    good = journal.read_bytes()
    journal.write_bytes(good + b'{"op": "cut sho')
    assert len(Trash(folder).contents().listing) == 1, "a last line that was cut short never happened"
    journal.write_bytes(b"garbage\n" + good)
    trash = Trash(folder)
    assert len(trash.contents().listing) == 1, "the other lines are used"
    (sentence,) = trash.contents().problems
    assert sentence.startswith("Line 1 of ") and "journal.jsonl is damaged" in sentence
    trash.restore(trash.contents().listing)
    assert present(folder) == md5 and journal.read_bytes().startswith(b"garbage\n" + good)
    journal.write_bytes(good.replace(b'"home": "a/copy.jpg"', b'"home": "../copy.jpg"'))
    assert Trash(folder).contents().operations == [] and "Line 1" in Trash(folder).contents().problems[0]
    assert Journal(folder / "none.jsonl").read() == []


def two_in_the_trash(folder, md5):
    done, left = Trash(folder).remove([removal(folder, md5), removal(folder, md5, "other.jpg", sidecars=())])
    assert (len(done), left) == (2, [])
    return done


@pytest.mark.parametrize("stem", ["copy", 251 * "x", 125 * "é", 83 * "写"])
def test_a_name_that_is_taken_is_not_overwritten_and_the_longest_there_is_comes_back(tmp_path, stem):
    """A name of 255 bytes leaves no room for `.name.part` or ` (restored)`: both must still have one."""
    name = f"{stem}.jpg"
    md5 = make_library(tmp_path, {"keep.jpg": 90, name: 50})
    trash = Trash(tmp_path)
    assert trash.restore(trash.remove([removal(tmp_path, md5, name, sidecars=())])[0]) == [tmp_path / name]
    trash.remove([removal(tmp_path, md5, name, sidecars=())])
    (tmp_path / name).write_bytes(b"new picture")
    (back,) = trash.restore(trash.contents().listing)
    assert back.name.endswith(" (restored).jpg") and md5_of(back) == md5[name]
    assert (tmp_path / name).read_bytes() == b"new picture"
    names = trash_files.free_names(back.name)
    second = next(name for name in names if not os.path.lexists(tmp_path / name))
    assert not os.path.lexists(tmp_path / second) and len(os.fsencode(second)) <= 255


def test_what_cannot_be_restored_stops_nothing_else(folder, md5):
    """A file has the name of the folder: that photo stays in the trash, listed, and comes back later."""
    done = two_in_the_trash(folder, md5)
    (folder / "a").rmdir()
    (folder / "a").write_text("in the way")
    with pytest.raises(
        TrashError, match=r"a/copy.jpg was left alone: Not a directory. 1 other files are back"
    ):
        Trash(folder).restore(done)
    assert md5_of(folder / "other.jpg") == md5["other.jpg"]
    assert [operation.id for operation in Trash(folder).contents().listing] == [done[0].id]
    (folder / "a").unlink()
    assert len(Trash(folder).restore(done)) == 2
    assert present(folder) == md5


def test_a_recovery_that_cannot_be_finished_stops_nothing_else(folder, md5, capsys):
    """Killed in a restore whose folder cannot be written today: the rest of the trash still works."""
    done = two_in_the_trash(folder, md5)
    (folder / "a").rmdir()
    (folder / "a").write_text("in the way")
    Trash(folder)._write(done[0], "restoring")
    trash = Trash(folder)
    assert [operation.id for operation in trash.contents().listing] == [done[1].id]
    list_trash(folder)
    assert "restoring a/copy.jpg is not finished" in capsys.readouterr().out
    assert trash.restore(done) == [folder / "other.jpg"]
    (folder / "a").unlink()
    Trash(folder)  # goes on with it
    assert present(folder) == md5


def test_a_trash_that_cannot_be_written_can_be_read(folder, md5):
    """A disk that is read-only now, with an operation that was interrupted: listing needs no lock."""
    done = two_in_the_trash(folder, md5)
    Trash(folder)._write(done[0], "restoring")
    (folder / TRASH_FOLDER / "lock").unlink()
    (folder / TRASH_FOLDER / "lock").mkdir()
    assert [operation.id for operation in Trash(folder).contents().listing] == [done[1].id]
    with pytest.raises(TrashError, match="was left alone"):
        Trash(folder).restore(done)


def test_what_was_deleted_in_the_trash_by_hand_stops_nothing_else(folder, md5):
    done = two_in_the_trash(folder, md5)
    for name in ("copy.jpg.xmp", "other.jpg"):
        next((folder / TRASH_FOLDER / "items").rglob(name)).unlink()
    with pytest.raises(TrashError, match=r"copy.jpg.xmp was deleted .* by hand. \(and 1 more\) 1 other"):
        Trash(folder).restore(done)
    assert md5_of(folder / "a/copy.jpg") == md5["a/copy.jpg"]
    assert [operation.id for operation in Trash(folder).contents().listing] == [done[1].id]
    assert Trash(folder).purge(done[1:]) == 300, "nothing is left of it, and it is listed no more"
    assert Trash(folder).contents().listing == []


def test_a_full_disk_can_be_freed(folder, md5, monkeypatch):
    """Not a byte fits into the journal before the deletion: it is written down after."""
    trash, real_write = Trash(folder), os.write
    done, _ = trash.remove([removal(folder, md5)])

    def write(descriptor, data):
        if list((folder / TRASH_FOLDER).rglob("*.jpg")):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real_write(descriptor, data)

    monkeypatch.setattr(os, "write", write)
    assert trash.purge(done) == 540
    assert list((folder / TRASH_FOLDER).rglob("*.jpg")) == []
    assert trash.restore(done) == [], "what was purged cannot come back"
    assert [operation.state for operation in Trash(folder).contents().operations] == ["purged"]


@pytest.mark.parametrize("other", ["A/copy.jpg", "a/COPY.jpg"])
def test_a_keeper_that_is_another_spelling_is_none(folder, md5, monkeypatch, other):
    """As on exFAT, where both spellings open one file and its number may differ: here they are two links to it."""
    (folder / other).parent.mkdir(exist_ok=True)
    os.link(folder / "a/copy.jpg", folder / other)
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: sorted(set(listdir(path)) - {"A", "COPY.jpg"}))
    before = present(folder)
    wanted = Removal(folder / "a/copy.jpg", md5["a/copy.jpg"], [(folder / other, md5["a/copy.jpg"])])
    _, refused = Trash(folder).remove([wanted])
    assert "one must remain" in refused[0][1] and present(folder) == before


def test_the_trash_folder_is_durable_and_private(folder, md5, monkeypatch):
    """A power cut must not forget the folder that everything was moved into; nobody else may look in."""
    synced, sync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.fstat(fd).st_ino), sync(fd)))
    Trash(folder).remove([removal(folder, md5)])
    assert synced[0] == folder.stat().st_ino, "before anything is moved into it"
    assert (folder / TRASH_FOLDER).stat().st_mode & 0o777 == 0o700


def test_a_keeper_that_leaves_as_a_sidecar_is_no_keeper(folder, md5):
    both = [removal(folder, md5, sidecars=("other.jpg",)), removal(folder, md5, "keep.jpg", "other.jpg", ())]
    done, refused = Trash(folder).remove(both)
    assert (len(done), len(refused)) == (0, 2), "each was to be kept by the other"
    assert present(folder) == md5


def test_a_journal_that_cannot_be_read_is_one_sentence(folder):
    (folder / TRASH_FOLDER / "journal.jsonl").mkdir(parents=True)
    with pytest.raises(JournalError, match=r"cannot be read .*: allow reading it"):
        Trash(folder)


@pytest.mark.parametrize("line", ["null", "{}", '{"op": "a", "time": "?", "reason": "", "state": "removed"}'])
def test_a_journal_of_something_else_is_one_sentence(folder, line):
    (folder / TRASH_FOLDER).mkdir()
    (folder / TRASH_FOLDER / "journal.jsonl").write_text(line + "\n")
    trash = Trash(folder)
    assert trash.contents().operations == [] and "Line 1 of" in trash.contents().problems[0]


def test_a_sentence_about_a_name_that_is_not_utf8_can_be_shown(folder, md5):
    name = os.fsdecode(b"caf\xe9.jpg")
    _, refused = Trash(folder).remove([Removal(folder / name, md5["other.jpg"], [])])
    assert "caf\ufffd.jpg is no longer there" in refused[0][1]


# ---- sidecars --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("names", "leaves", "along"), [
    ("IMG_1.HEIC IMG_1.MOV IMG_O1.AAE IMG_1.AAE IMG_1.xmp IMG_1.HEIC.xmp IMG_10.MOV", "IMG_1.HEIC",
     "IMG_1.AAE IMG_1.HEIC.xmp IMG_1.MOV IMG_1.xmp IMG_O1.AAE"),
    ("P1.CR2 p1.JPG P1.xmp", "p1.JPG", "P1.CR2 P1.xmp"),
    ("P1.CR2 p1.JPG P1.xmp", "P1.CR2", ""),  # no photo leaves that nobody looked at
    ("a.cr2 a.dng a.xmp", "a.cr2", ""),  # a RAW file takes no other along
    ("A.jpg A.png A.jpg.pp3 A.JPG.on1 A.jpg.json A.json A.jpg.mov A.png.pp3", "A.jpg",
     "A.JPG.on1 A.jpg.json A.jpg.mov A.jpg.pp3"),
    # The longest name has the file, and what follows it is no letter or digit.
    ("IMG_1.jpg IMG_10.jpg IMG_10.txt IMG_1_notes.txt IMG_1.jpg~ IMG_1a.txt readme.txt IMG_2.mov IMG", "IMG_1.jpg",
     "IMG_1.jpg~ IMG_1_notes.txt"),
    ("IMG_1.jpg IMG_1_2.jpg IMG_1_HEVC.MOV IMG_1_2.MOV", "IMG_1.jpg", "IMG_1_HEVC.MOV"),
    # Further edits of darktable name the suffix of their photo.
    ("a.jpg a.png a.CR2 a_01.jpg.xmp a_01.png.xmp a.png.acr", "a.jpg", "a_01.jpg.xmp"),
    ("IMG_E1.JPG IMG_1.AAE IMG_O1.AAE", "IMG_E1.JPG", "IMG_1.AAE IMG_O1.AAE"),
    ("cafe\u0301.jpg caf\u00e9.WAV CAF\u00c9.JPG.vrd", "cafe\u0301.jpg", "CAF\u00c9.JPG.vrd caf\u00e9.WAV"),
    # Names that differ in case alone have their own sidecars.
    ("a.jpg A.JPG a.jpg.xmp A.JPG.xmp a.xmp", "a.jpg", "a.jpg.xmp"),
    ("a.jpg A.JPG a.jpg.xmp A.JPG.xmp a.xmp", "A.JPG", "A.JPG.xmp"),
])  # fmt: skip
def test_sidecars_move_together(tmp_path, names, leaves, along):
    make_library(tmp_path, dict.fromkeys(names.split(), 10))
    if len(list(tmp_path.iterdir())) < len(names.split()):
        pytest.skip("this file system does not tell a from A")
    together = files_moving_with([tmp_path / leaves])[tmp_path / leaves]
    assert [path.name for path in together] == along.split()


def test_what_belongs_to_several_photos_stays(tmp_path):
    make_library(tmp_path, dict.fromkeys(["A.jpg", "A.png", "A.xmp", "A.png.xmp", "A.CR2"], 10))
    leaving = [tmp_path / "A.png", tmp_path / "A.jpg"]
    assert files_moving_with(leaving) == {leaving[0]: [tmp_path / "A.png.xmp"], leaving[1]: []}
    assert files_moving_with(leaving, never=[tmp_path / "A.png.xmp"])[leaving[0]] == []


def test_a_link_is_no_sidecar(tmp_path):
    """It would refuse the removal of its photo, and one to the keeper would pin what belongs to a copy."""
    md5 = make_library(tmp_path, {"keep.jpg": 10, "a/A.jpg": 20, "a/A.xmp": 5})
    (tmp_path / "a/A.png").symlink_to(tmp_path / "keep.jpg")
    (tmp_path / "a/A.aae").symlink_to(tmp_path / "keep.jpg")
    together = files_moving_with([tmp_path / "a/A.jpg"])[tmp_path / "a/A.jpg"]
    assert together == [tmp_path / "a/A.xmp"]
    done, refused = Trash(tmp_path).remove([removal(tmp_path, md5, "a/A.jpg", sidecars=together)])
    assert (len(done), refused) == (1, [])


@pytest.mark.parametrize("jumps", [(-5e9, 0.0), (2e9, 1e9), (1e15, -1.0)])
def test_a_clock_that_jumps_loses_nothing(tmp_path, monkeypatch, jumps):
    md5 = make_library(tmp_path, WORK)
    for jump, name in zip(jumps, ("A/copy.jpg", "B/er/copy2.jpg"), strict=True):
        monkeypatch.setattr(time, "time", lambda jump=jump: jump)
        Trash(tmp_path).remove([removal(tmp_path, md5, name, "A/keep.jpg", sidecars=())])
        assert_one_place_each(tmp_path, md5)
    listing = Trash(tmp_path).contents().listing
    assert [o.files[0].home for o in listing] == ["B/er/copy2.jpg", "A/copy.jpg"], "the last one first"
    assert run_command("trash", "list", tmp_path).count(".jpg") >= 2
    Trash(tmp_path).restore(listing)
    assert present(tmp_path) == md5
    feedback = Feedback(tmp_path)
    feedback.undo(feedback.add("keep_both", ["a" * 32, "b" * 32]))
    assert not Feedback(tmp_path).dismissed_pairs() and not feedback.problems


# ---- killed (see trash_kills.py) -------------------------------------------------------------------------


MAY_MOUNT = ("unshare", "--mount", "--map-root-user")


@pytest.mark.parametrize("what", ["remove", "restore", "purge"])
def test_killed_at_every_step(fast_folder, what):
    assert int(run_program("trash_kills", "every-step", fast_folder, what)) > 10


def test_the_law_sees_a_plain_move(tmp_path):
    """The planted fault: a removal that moves first and writes its journal after does fail the law."""
    md5 = make_library(tmp_path, WORK)
    target = tmp_path / TRASH_FOLDER / "items" / "x" / "copy.jpg"
    target.parent.mkdir(parents=True)
    (tmp_path / "A/copy.jpg").rename(target)
    with pytest.raises(AssertionError):
        assert_one_place_each(tmp_path, md5)


def test_a_signature_of_one_kind_is_none_of_another():
    """Else a signed address of the settings could be handed in as a line of the trash's journal."""
    made = own_key.signature(b"k" * 32, "journal", ["a", "b"])
    assert own_key.is_signed(b"k" * 32, "journal", ["a", "b"], made)
    assert not own_key.is_signed(b"k" * 32, "settings", ["a", "b"], made)


# ---- across volumes ------------------------------------------------------------------------------------


@pytest.fixture
def other_volume(tmp_path):
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK) or shared.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs a second volume: /dev/shm is missing, read-only or the same volume")
    folder = shared / f"photodup-volume-{os.getpid()}"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


def copy(tmp_path, other_volume, on_step):
    """Copy a file between two volumes whose folders are opened here."""
    source, target = tmp_path / "a.jpg", other_volume / "b.jpg"
    source.write_bytes(os.urandom(3_000_000))
    os.utime(source, ns=(10**18, 10**18 + 5))
    with opened(source.parent, source.name) as here, opened(target.parent, target.name) as there:
        trash_files.copy_file(here, there, md5_of(source), on_step)
    return source, target


def test_a_copy_on_another_volume_is_compared_before_it_has_its_name(tmp_path, other_volume):
    steps = []
    source, target = copy(
        tmp_path, other_volume, lambda name: steps.append((name, len(os.listdir(other_volume))))
    )
    assert steps == [("copy", 0), ("compare", 1), ("rename", 1)]
    assert md5_of(target) == md5_of(source) and os.listdir(other_volume) == ["b.jpg"]
    assert target.stat().st_mtime_ns == 10**18 + 5


@pytest.mark.parametrize(
    ("what", "error"), [("the copy", "differs from the original"), ("the name", "exists")]
)
def test_across_volumes_a_bad_copy_is_refused_and_a_name_that_is_taken_meanwhile_not_replaced(
    tmp_path, other_volume, what, error
):
    def write(name):
        if name == "compare":
            (part,) = other_volume.iterdir()
            changed = part if what == "the copy" else other_volume / "b.jpg"
            changed.write_bytes(b"of a dying disk, or another program")

    with pytest.raises(OSError, match=error):
        copy(tmp_path, other_volume, write)
    left = [path.read_bytes() for path in other_volume.iterdir()]
    assert left == ([] if what == "the copy" else [b"of a dying disk, or another program"])


def test_killed_at_every_step_across_volumes(tmp_path, other_volume):
    """The trash folder's items lie on another volume (a mount point inside the library)."""
    if subprocess.run([*MAY_MOUNT, "true"], capture_output=True).returncode:
        pytest.skip("needs a mount point: unshare --mount is not allowed here")
    folders = tmp_path / "library", other_volume / "items"
    assert int(run_program("trash_kills", "across-volumes", *folders, within=MAY_MOUNT)) > 30
