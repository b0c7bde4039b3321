"""What photodup makes for a library lies in one folder of its own; what is somebody else's stays as it is."""

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.hostile_library import tree
from support.review_library import MD5, make_library, photo, save, users_files

from photodup.core.names import printable
from photodup.photos.groups.tiers import find_tiers
from photodup.photos.library.catalogue import Catalogue, CatalogueError
from photodup.photos.library.scan import scan
from photodup.photos.library.settings import LibrarySettings
from photodup.photos.review.session import ReviewSession
from photodup.photos.search.candidates import PairStore, stored_pairs
from photodup.photos.search.neighbours import Bounds, similar_pairs
from photodup.photos.state.own_folder import MARKER, OwnFolder, OwnFolderError


def use(library: Path, folder: Path | None) -> ReviewSession:
    """Scan, group, open the review, decide, change settings."""
    scan(library, folder, progress=False)
    session = ReviewSession(library, folder)
    names = {printable(item.group.keeper.path): key for key, item in session.items.items()}
    key, other = names["2020/IMG_1.jpg"], names["2020/IMG_2.jpg"]
    session.set_apart(key, session.items[key].members[0].photo.id)
    session.skip(other)
    session.change(LibrarySettings(keep=("size", "resolution")))
    return ReviewSession(library, folder)


@pytest.mark.parametrize("where", ["elsewhere", "in the library"])
def test_nothing_beside_a_catalogue_is_claimed_dropped_or_deleted(library, tmp_path, where):
    shutil.rmtree(library / ".photodup")
    beside = library if where == "in the library" else tmp_path / "P"
    users_files(beside, tmp_path / "elsewhere")
    before, own = tree(tmp_path), beside / "of photodup"
    session = use(library, own)
    assert session.own.path == own and (own / "evidence.sqlite").is_file() and (own / MARKER).is_file()
    assert (own / "settings.json").is_file() and (own / "catalogue.sqlite").is_file()
    assert tree(tmp_path, own) == before
    report = scan(library, own, progress=False)
    n_beside = 3 if where == "in the library" else 0
    # `thumbnails` is named as not entered, whoever made it.
    assert (report.n_read, report.n_found) == (0, 7 - report.n_missing)
    assert [str(place.path) for place in report.not_entered] == ["thumbnails"][:n_beside]
    report = scan(library, own, everything=True, progress=False)
    assert (report.n_read, report.n_found) == (n_beside, 7 + n_beside - report.n_missing)


def test_the_folders_of_two_libraries_share_nothing(tmp_path):
    for name in ("a", "b"):
        make_library(tmp_path / name)
        scan(tmp_path / name, tmp_path / "P" / name, progress=False)
    first = use(tmp_path / "a", tmp_path / "P" / "a")
    before = tree(tmp_path / "P" / "a")
    second = ReviewSession(tmp_path / "b", tmp_path / "P" / "b")
    assert (len(first.items), len(second.items)) == (2, 3), "told apart in one of them"
    assert first.settings != second.settings == LibrarySettings()
    second.accept_all()
    second.change(LibrarySettings(keep=("folder",), folders=("2020",)))
    assert tree(tmp_path / "P" / "a") == before


@pytest.mark.parametrize("link", ["", "thumbnails", "evidence.sqlite", "feedback.jsonl", "review",
                                  "review/decisions.jsonl", "settings.json", "catalogue.sqlite"])  # fmt: skip
def test_no_link_is_followed(library, tmp_path, link):
    """A library that somebody gave me may hold links: photodup would write or delete where they lead."""
    ReviewSession(library)
    target, users = library / ".photodup" / link, tmp_path / "mine"
    users_files(users, tmp_path / "elsewhere")
    (users / "ab").mkdir()
    (users / "ab" / f"{MD5}-small.jpg").write_bytes(b"mine")
    (users / f"{MD5}-small.jpg").write_bytes(b"mine")
    is_folder = link in ("", "thumbnails", "review")
    if target.is_dir():
        shutil.copytree(target, users, dirs_exist_ok=True)
        shutil.rmtree(target)
    target.parent.mkdir(exist_ok=True)
    for old in target.parent.glob(target.name + "*"):
        shutil.move(old, users / f"of another library {old.name}")
    there = "of another library catalogue.sqlite" if link == "catalogue.sqlite" else "evidence.sqlite"
    target.symlink_to(users if is_folder else users / there)
    before = tree(users)
    with pytest.raises(OwnFolderError, match=r"link.*replace it"):
        ReviewSession(library)
    with pytest.raises(OwnFolderError, match=r"link.*replace it"):
        scan(library, progress=False)
    assert tree(users) == before


def test_a_folder_that_is_not_ours_is_refused_with_one_sentence(tmp_path):
    save(photo("coffee"), tmp_path / "library" / "a.jpg")
    for own, folder in ((tmp_path / "library" / ".photodup", None), (tmp_path / "P", tmp_path / "P")):
        own.mkdir(parents=True)
        (own / "letter.txt").write_text("not of photodup")
        before = tree(tmp_path)
        with pytest.raises(OwnFolderError, match=r"holds files and was not made by photodup: move it away"):
            scan(tmp_path / "library", folder, progress=False)
        assert tree(tmp_path) == before
        (own / "letter.txt").unlink()  # an empty one is taken
        assert scan(tmp_path / "library", folder, progress=False).n_read == 1
        (own / "letter.txt").write_text("put there later")
        assert ReviewSession(tmp_path / "library", folder).own.path == own
        assert (own / "letter.txt").read_text() == "put there later"


def test_only_names_of_the_shape_that_photodup_writes_are_deleted(tmp_path):
    own = OwnFolder(tmp_path / "own")
    own.prepare()
    ours = [f"{name}.sqlite{end}" for name in ("evidence", "neighbours") for end in ("", "-wal")]
    for name in ours:
        own.write(name, b"x")
    own.delete(*ours)
    assert os.listdir(own.path) == [MARKER]
    for name in ("settings.json", "feedback.jsonl", "review/decisions.jsonl", "catalogue.sqlite", MARKER, "../x",
                 "holiday.jpg", "EVIDENCE.sqlite", "evidence.sqlite.bak", "neighbours-../../x.sqlite"):  # fmt: skip
        with pytest.raises(ValueError, match="no file that can be made again"):
            own.delete(name)
    # Without the marker, nothing at all.
    own.write(ours[0], b"x")
    (own.path / MARKER).unlink()
    with pytest.raises(OwnFolderError, match="was not made by photodup"):
        own.delete(ours[0])
    assert (own.path / ours[0]).exists()


def test_a_servers_word_for_its_model_names_no_file_elsewhere(tmp_path):
    own = OwnFolder(tmp_path / "a" / "b" / "own")
    own.prepare()
    vectors = np.eye(4, dtype=np.float32)
    before = tree(tmp_path, own.path)
    with PairStore(own.neighbours) as store:
        bounds, md5s = Bounds(0.5, 0.5), [f"{i:032x}" for i in range(4)]
        search_new = partial(similar_pairs, vectors, bounds)
        stored_pairs(store, "x/../../../../out", str(bounds), md5s, search_new, bounds.counting)
    assert tree(tmp_path, own.path) == before
    assert own.neighbours.is_file()


# ---- what is no catalogue --------------------------------------------------------------------------------


def lightroom(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE content (id INTEGER, body TEXT)")
        db.execute("CREATE TABLE file (id INTEGER, name TEXT)")
        db.execute("INSERT INTO file VALUES (1, 'mine')")


def other_id(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA application_id = 42")
        db.execute("VACUUM")


def damaged(path: Path) -> None:
    lightroom(path)
    damage(path)
    path.with_name(f"{path.name}-wal").write_text("the user's own")


def damage(file: Path) -> None:
    for log in file.parent.glob(f"{file.name}-*"):
        log.unlink()
    with open(file, "r+b") as opened:
        opened.seek(100)
        opened.write(b"\xff" * 20_000)


def within(make: Callable[[Path], object]) -> Callable[[Path], None]:
    """Put something into a folder of photodup's own, at the place of its catalogue."""

    def put(folder: Path) -> None:
        OwnFolder(folder).prepare()
        make(OwnFolder(folder).catalogue)

    return put


NO_FOLDER = "must be a folder of photodup's own, not a link or a file"
FOREIGN = {
    "another program's database": (lightroom, NO_FOLDER),
    "a text": (lambda path: path.write_text("a letter"), NO_FOLDER),
    "another library's": (
        lambda path: scan(path.parent, path, progress=False),
        r"is the catalogue of .*P, not of",
    ),
    "another program's tables of our names": (within(lightroom), "another journal mode"),
    "another program's id": (within(other_id), "another journal mode"),
    "another program's database, damaged": (within(damaged), "another journal mode"),
    "a log without its database": (
        within(lambda path: path.with_name("catalogue.sqlite-wal").write_text("the user's own")),
        r"catalogue.sqlite-wal is not used \(it belongs to no database",
    ),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_what_is_no_catalogue_of_ours_is_refused_and_left_untouched(tmp_path, what):
    save(photo("coffee"), tmp_path / "library" / "a.jpg")
    (tmp_path / "P").mkdir()
    make, said = FOREIGN[what]
    make(folder := tmp_path / "P" / "folder")
    before = tree(tmp_path)
    for _ in range(2):
        with pytest.raises((CatalogueError, OwnFolderError), match=said):
            scan(tmp_path / "library", folder, progress=False)
        with pytest.raises(CatalogueError):
            Catalogue(tmp_path / "library", folder)
    assert tree(tmp_path) == before


def test_a_damaged_catalogue_of_ours_is_set_aside_in_its_own_folder(library, tmp_path):
    own = OwnFolder(tmp_path / "P")
    use(library, own.path)
    damage(own.catalogue)
    bad = own.catalogue.read_bytes()
    report = scan(library, own.path, progress=False)
    assert report.set_aside.parent == own.path and report.set_aside.read_bytes() == bad and report.n_read == 7
    assert len(ReviewSession(library, own.path).items) == 2, "the decisions are kept"


def test_a_scan_that_was_killed_at_its_beginning_goes_on(tmp_path):
    save(photo("coffee"), tmp_path / "library" / "a.jpg")
    OwnFolder(tmp_path / "P").prepare()
    assert scan(tmp_path / "library", tmp_path / "P", progress=False).n_read == 1
    with Catalogue(tmp_path / "library", tmp_path / "P") as opened:
        assert find_tiers(opened).n_photos == 1
