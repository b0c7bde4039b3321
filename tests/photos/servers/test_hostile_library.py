"""A folder that somebody gave me is safe to open: its trash changes nothing until I say so, and never outside."""

import json
import os
import shutil
from functools import partial
from pathlib import Path

import pytest
from support.command import photodup
from support.hostile_library import (
    ATTACKS,
    OP,
    VICTIM,
    entry,
    line,
    make_library,
    make_outside,
    payload,
    tree,
    write_journal,
)
from support.trash_kills import WORK, act, killed_at, present, removal
from support.trash_kills import make_library as random_library

from photodup.cli.trash import list_trash, purge_trash, restore_trash
from photodup.core.errors import PhotodupError
from photodup.photos.embed.batches import embed_files
from photodup.photos.library.walking import read_bytes, walk
from photodup.photos.trash.entries import TrashError
from photodup.photos.trash.files import TRASH_FOLDER, _aside_path, md5_of
from photodup.photos.trash.quarantine import Trash


@pytest.fixture
def outside(tmp_path):
    return make_outside(tmp_path / "outside")


@pytest.fixture
def library(tmp_path):
    return make_library(tmp_path / "given" / "library")


@pytest.fixture
def own_key_folder(tmp_path, monkeypatch):
    """A user of our own, who has no key yet."""
    monkeypatch.setenv("PHOTODUP_CONFIG", str(tmp_path / "config"))
    return tmp_path / "config"


@pytest.mark.parametrize("name", ATTACKS)
def test_listing_a_foreign_library_changes_nothing(library, outside, tmp_path, name, capsys):
    ATTACKS[name](library, outside)
    before = tree(tmp_path)
    try:
        list_trash(library)
    except PhotodupError as error:
        assert "journal.jsonl cannot be read" in str(error)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("command", [restore_trash, purge_trash])
def test_a_foreign_library_reaches_nothing_outside_even_when_confirmed(
    library, outside, name, command, own_key_folder
):
    ATTACKS[name](library, outside)
    before = tree(outside)
    for _ in range(2):  # and not when what was confirmed is resumed
        try:
            command(library, (), unsigned=True, yes=True)
        except PhotodupError as error:
            assert "\n" not in str(error) and str(error).endswith((".", ":"))
        try:
            list_trash(library)
        except PhotodupError as error:
            assert "journal.jsonl" in str(error)
        assert tree(outside) == before
    assert (library / "mine.jpg").read_bytes() == VICTIM


def given_removed(library):
    """A sound removal that somebody else's photodup wrote."""
    payload(library, f"items/{OP}/a/x.jpg", VICTIM)
    write_journal(library, line("removed", entry("a/x.jpg", f"items/{OP}/a/x.jpg")))


def test_what_others_removed_is_listed_apart_and_restored_when_confirmed(library):
    given_removed(library)
    before = tree(library)
    said = photodup("trash", "list", library).stdout
    assert "0 removals, 0.00 MB\nNot written by your photodup" in said and f"{OP}  " in said
    plain = photodup("trash", "restore", library).stdout
    assert "a/x.jpg" not in plain and "1 more removal not written by your photodup" in plain, (
        "all of one's own: none"
    )
    named = photodup("trash", "restore", library, OP)
    assert named.returncode == 2 and "add --unsigned" in named.stderr
    assert "0 removals deleted" in photodup("trash", "purge", library, "--yes").stdout
    asked = photodup("trash", "restore", library, "--unsigned")
    assert asked.returncode == 2 and "needs a yes" in asked.stderr
    trash = Trash(library)
    for change in (trash.restore, trash.purge):
        with pytest.raises(TrashError, match="was not written by your photodup"):
            change(trash.contents().unsigned)
    after = {name: what for name, what in tree(library).items() if not name.endswith("/lock")}
    assert after == before, "nothing has changed until here"
    done = photodup("trash", "restore", library, "--unsigned", "--yes")
    assert done.returncode == 0 and "a/x.jpg" in done.stdout
    assert (library / "a/x.jpg").read_bytes() == VICTIM
    assert "Not written" not in photodup("trash", "list", library).stdout


def test_what_others_removed_can_be_deleted_when_confirmed(library):
    given_removed(library)
    assert "1 removal deleted" in photodup("trash", "purge", library, "--unsigned", "--yes").stdout
    assert not (library / TRASH_FOLDER / "items" / OP).exists()
    assert Trash(library).contents().unsigned == []


def strip_signatures(library):
    """Make a journal that nobody signed."""
    path = library / TRASH_FOLDER / "journal.jsonl"
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    assert all(entry.pop("sig") for entry in lines)
    path.write_text("".join(json.dumps(entry) + "\n" for entry in lines))


@pytest.mark.parametrize("loss", ["no signatures", "lost key"])
@pytest.mark.parametrize("what", ["remove", "restore", "purge"])
def test_what_nobody_signed_and_was_half_finished_comes_home_when_confirmed(
    tmp_path, what, loss, own_key_folder
):
    """Killed at every fifth call, in turns; the journal is then nobody's. Nothing is lost that was not deleted already."""
    step, n_home = {"no signatures": -9, "lost key": -4}[loss], 0
    while True:
        step += 10
        folder = tmp_path / f"{what} {step}"
        md5 = random_library(folder, WORK)
        if what != "remove":
            act(folder, md5, "remove")
        if not killed_at(step, partial(partial, act, folder, md5, what)):
            break
        journal = folder / TRASH_FOLDER / "journal.jsonl"
        if not journal.exists():
            continue
        if loss == "lost key":
            shutil.rmtree(own_key_folder)
        elif journal.read_text().count("\n"):
            journal.write_text(journal.read_text().rpartition("\n")[0] + "\n")
            strip_signatures(folder)
        before = tree(folder)
        trash = Trash(folder)
        assert tree(folder) == before, "opening finishes nothing"
        assert trash.contents().listing == []
        # One that a deletion had set aside comes back too.
        names = {path: (path, _aside_path(path).removeprefix("/")) for path in md5}
        in_trash = {
            path for path in md5 if any(list(folder.rglob(f"items/*/{name}")) for name in names[path])
        }
        there = in_trash | (md5.keys() & present(folder).keys())
        trash.restore(trash.contents().unsigned, confirmed=True)
        back = present(folder)  # what nobody signed deletes no sidecar: the older one comes back beside it
        sidecars = {path for path in back.keys() | there if path.endswith((".xmp", "-part"))}
        assert {p: back[p] for p in back.keys() - sidecars} == {p: md5[p] for p in there - sidecars}
        assert what == "purge" or (there == set(md5) and md5["A/keep.jpg.xmp"] in back.values())
        left = trash.contents().unsigned
        trash.purge(left, confirmed=True)
        assert Trash(folder).contents().unsigned == [], "and nothing is listed for ever"
        assert all(operation.state == "purging" for operation in left)
        n_home += 1
    assert n_home > 4


def test_a_moved_library_is_still_my_own(tmp_path, own_key_folder):
    md5 = random_library(tmp_path / "old", WORK)
    act(tmp_path / "old", md5, "remove")
    killed_at(20, partial(partial, act, tmp_path / "old", md5, "restore"))
    (tmp_path / "disk").mkdir()
    (tmp_path / "old").rename(tmp_path / "disk" / "new name")
    trash = Trash(tmp_path / "disk" / "new name")
    assert not trash.contents().unsigned
    assert not any(operation.unfinished for operation in trash.contents().operations)
    trash.restore(trash.contents().listing)
    assert present(tmp_path / "disk" / "new name") == md5


def test_the_key_is_private_and_made_once(own_key_folder, tmp_path):
    md5 = random_library(tmp_path / "a", WORK)
    Trash(tmp_path / "a")
    assert not own_key_folder.exists(), "reading makes no key"
    act(tmp_path / "a", md5, "remove")
    assert [path.name for path in own_key_folder.iterdir()] == ["key"]
    key = own_key_folder / "key"
    assert key.stat().st_mode & 0o777 == 0o600 and own_key_folder.stat().st_mode & 0o777 == 0o700
    first = key.read_text()
    act(tmp_path / "a", md5, "restore")
    assert key.read_text() == first and len(bytes.fromhex(first)) == 32


def test_without_a_key_nothing_is_removed_and_everything_restored(tmp_path, own_key_folder, library):
    own_key_folder.write_text("in the way")
    md5 = random_library(tmp_path / "a", WORK)
    with pytest.raises(PhotodupError, match=r"key.* PHOTODUP_CONFIG"):
        Trash(tmp_path / "a").remove([removal(tmp_path / "a", md5, "A/copy.jpg", "A/keep.jpg", ())])
    assert present(tmp_path / "a") == md5
    given_removed(library)
    trash = Trash(library)
    assert trash.restore(trash.contents().unsigned, confirmed=True) == [library / "a/x.jpg"]


@pytest.mark.parametrize("change", ["home", "state", "another operation's", "a line of mine beside"])
def test_a_signed_line_that_was_changed_is_nobodys(tmp_path, own_key_folder, change):
    folder = tmp_path / "a"
    md5 = random_library(folder, WORK)
    Trash(folder).remove([removal(folder, md5, "A/copy.jpg", "A/keep.jpg", ())])
    journal = folder / TRASH_FOLDER / "journal.jsonl"
    first, second = map(json.loads, journal.read_text().splitlines())
    if change == "home":
        first["files"][0]["home"] = "A/keep.jpg.bak"
        lines = [first]
    elif change == "state":
        lines = [first, second | {"state": "purging"}]
    elif change == "another operation's":
        lines = [first | {"sig": second["sig"]}]
    else:  # those that an unsigned line names are not meant by what I signed
        unsigned = first | {"sig": "", "state": "purging"}
        unsigned["files"][0]["trash"] = unsigned["files"][0]["trash"].replace("copy.jpg", "other.jpg")
        payload(folder, unsigned["files"][0]["trash"], (folder / "A/keep.jpg").read_bytes())
        lines = [second, unsigned]
    journal.write_text("".join(json.dumps(entry) + "\n" for entry in lines))
    before = tree(folder)
    trash = Trash(folder)
    assert len(trash.contents().unsigned) == (change != "state")
    if change == "state":  # the line is left out, and all of the removal that it followed was done
        assert [operation.home for operation in trash.contents().listing] == ["A/copy.jpg"]
    else:
        assert tree(folder) == before
        assert bool(trash.contents().listing) == (change == "a line of mine beside")


@pytest.mark.parametrize("fault", ["other content", "a link", "a folder"])
def test_what_is_not_the_file_that_was_removed_is_not_deleted(tmp_path, own_key_folder, fault):
    folder = tmp_path / "a"
    md5 = random_library(folder, WORK)
    done, _ = Trash(folder).remove([removal(folder, md5, "A/copy.jpg", "A/keep.jpg", ())])
    done += Trash(folder).remove([removal(folder, md5, "B/er/copy2.jpg", "A/keep.jpg", ())])[0]
    lies = folder / TRASH_FOLDER / done[0].files[0].trash
    lies.unlink()
    if fault == "other content":
        lies.write_bytes(b"x" * done[0].files[0].size)
    elif fault == "a link":
        lies.symlink_to(folder / "A/keep.jpg")
    else:
        lies.mkdir()
        (lies / "inside").touch()
    before = tree(lies.parent)
    trash = Trash(folder)
    with pytest.raises(TrashError, match=r"is not the file that was removed .* 0.00 MB of others are freed"):
        trash.purge(done[:1])
    trash._write(done[0], "purging")  # killed in a deletion
    trash = Trash(folder)
    assert tree(lies.parent) == before and len(trash.contents().listing) == 2
    with pytest.raises(TrashError, match=r"A/copy.jpg came back as something changed it\. 2 other files"):
        trash.restore(done)
    assert tree(folder / "A")["copy.jpg"] == before["copy.jpg"] and trash.contents().listing == []
    assert md5_of(folder / "A/keep.jpg") == md5["A/keep.jpg"]


def test_a_folder_on_the_way_that_is_a_link_is_one_sentence(tmp_path, own_key_folder, outside):
    """Of one's own library too: a folder was exchanged for a link since the removal."""
    folder = tmp_path / "a"
    md5 = random_library(folder, WORK)
    done, _ = Trash(folder).remove([removal(folder, md5, "B/er/copy2.jpg", "A/keep.jpg", ())])
    shutil.rmtree(folder / "B")
    (folder / "B").symlink_to(outside)
    before = tree(outside)
    with pytest.raises(TrashError, match="a folder on the way is a symbolic link"):
        Trash(folder).restore(done)
    (folder / "linked.jpg").write_bytes(b"1")
    os.makedirs(outside / "er")
    shutil.copy(folder / "A/copy.jpg", outside / "er" / "z.jpg")
    before = tree(outside)
    going = removal(folder, md5 | {"B/er/z.jpg": md5["A/copy.jpg"]}, "B/er/z.jpg", "A/keep.jpg", ())
    _, ((_, sentence),) = Trash(folder).remove([going])
    assert "outside" in sentence and tree(outside) == before
    (folder / "B").unlink()
    assert Trash(folder).restore(done) == [folder / "B/er/copy2.jpg"]


@pytest.mark.parametrize("target", ["outside", "inside"])
def test_a_photo_behind_a_folder_that_became_a_link_is_not_read(tmp_path, target):
    """The walk enters no linked folder, so what a name finds behind one today is not what was listed."""
    library = tmp_path / "library"
    (library / "album").mkdir(parents=True)
    (library / "album" / "photo.jpg").write_bytes(b"what was listed")
    (entry,) = walk(library).entries
    assert read_bytes(library, entry.path)[0] == b"what was listed"
    elsewhere = tmp_path / "outside" if target == "outside" else library / "other"
    (library / "album").rename(elsewhere)
    (library / "album").symlink_to(elsewhere)
    with pytest.raises(OSError, match="symbolic link"):
        read_bytes(library, entry.path)
    found = embed_files(None, library, [("0" * 32, Path("album/photo.jpg"))])
    assert (found.vectors, len(found.problems)) == ({}, 1) and "symbolic link" in found.problems[0].reason


@pytest.mark.parametrize("path", ["../outside.jpg", "/etc/passwd", "album/../../outside.jpg"])
def test_a_catalogue_cannot_name_a_file_outside_its_library(tmp_path, path):
    (tmp_path / "outside.jpg").write_bytes(b"private")
    (tmp_path / "library" / "album").mkdir(parents=True)
    found = embed_files(None, tmp_path / "library", [("0" * 32, Path(path))])
    assert found.vectors == {} and "outside the library" in found.problems[0].reason
