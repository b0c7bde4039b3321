"""What photodup makes for a library lies in one folder of its own; what is somebody else's stays as it is."""

import os
import shutil
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.hostile_library import tree
from support.review_library import MD5, make_library, photo, save, users_files

from photodup.core.names import printable
from photodup.photos.groups.tiers import find_tiers
from photodup.photos.library.catalogue import Catalogue, CatalogueError, application_of
from photodup.photos.library.scan import scan
from photodup.photos.library.settings import LibrarySettings
from photodup.photos.review.session import ReviewSession
from photodup.photos.search.candidates import PairStore, stored_pairs
from photodup.photos.search.neighbours import Bounds, similar_pairs
from photodup.photos.state.own_folder import MARKER, OwnFolder, OwnFolderError
from photodup.photos.state.sqlite_file import APPLICATION_ID


def use(library: Path, catalogue: Path | None) -> ReviewSession:
    """Scan, group, open the review, decide, change settings."""
    scan(library, catalogue, progress=False)
    session = ReviewSession(library, catalogue)
    names = {printable(item.group.keeper.path): key for key, item in session.items.items()}
    key, other = names["2020/IMG_1.jpg"], names["2020/IMG_2.jpg"]
    session.set_apart(key, session.items[key].members[0].photo.id)
    session.skip(other)
    session.change(LibrarySettings(keep=("size", "resolution")))
    return ReviewSession(library, catalogue)


@pytest.mark.parametrize("where", ["elsewhere", "in the library"])
def test_nothing_beside_a_catalogue_is_claimed_dropped_or_deleted(library, tmp_path, where):
    shutil.rmtree(library / ".photodup")
    beside = library if where == "in the library" else tmp_path / "P"
    users_files(beside, tmp_path / "elsewhere")
    before, catalogue = tree(tmp_path), beside / "catalogue.sqlite"
    session = use(library, catalogue)
    own = beside / "catalogue.sqlite.d"
    assert session.own.path == own and (own / "evidence.sqlite").is_file() and (own / MARKER).is_file()
    assert (own / "settings.json").is_file()
    new = {path for path in tree(tmp_path, own) if path not in before}
    assert {Path(p).name for p in new} <= {"catalogue.sqlite", "catalogue.sqlite-wal", "catalogue.sqlite-shm"}
    assert {path: now for path, now in tree(tmp_path, own).items() if path in before} == before
    report = scan(library, catalogue, progress=False)
    n_beside = 3 if where == "in the library" else 0
    # `thumbnails` is named as not entered, whoever made it.
    assert (report.n_read, report.n_found) == (0, 7 - report.n_missing)
    assert [str(place.path) for place in report.not_entered] == ["thumbnails"][:n_beside]
    report = scan(library, catalogue, everything=True, progress=False)
    assert (report.n_read, report.n_found) == (n_beside, 7 + n_beside - report.n_missing)


def test_two_catalogues_in_one_folder_share_nothing(tmp_path):
    for name in ("a", "b"):
        make_library(tmp_path / name)
        scan(tmp_path / name, tmp_path / "P" / f"{name}.sqlite", progress=False)
    first = use(tmp_path / "a", tmp_path / "P" / "a.sqlite")
    before = tree(tmp_path / "P" / "a.sqlite.d")
    second = ReviewSession(tmp_path / "b", tmp_path / "P" / "b.sqlite")
    assert (len(first.items), len(second.items)) == (2, 3), "told apart in one of them"
    assert first.settings != second.settings == LibrarySettings()
    second.accept_all()
    second.change(LibrarySettings(keep=("folder",), folders=("2020",)))
    assert tree(tmp_path / "P" / "a.sqlite.d") == before


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
    for own, catalogue in (
        (tmp_path / "library" / ".photodup", None),
        (tmp_path / "P" / "c.sqlite.d", tmp_path / "P" / "c.sqlite"),
    ):
        own.mkdir(parents=True)
        (own / "letter.txt").write_text("not of photodup")
        before = tree(tmp_path)
        with pytest.raises(OwnFolderError, match=r"holds files and was not made by photodup: move it away"):
            scan(tmp_path / "library", catalogue, progress=False)
        assert tree(tmp_path) == before
        (own / "letter.txt").unlink()  # an empty one is taken
        assert scan(tmp_path / "library", catalogue, progress=False).n_read == 1
        (own / "letter.txt").write_text("put there later")
        assert ReviewSession(tmp_path / "library", catalogue).own.path == own
        assert (own / "letter.txt").read_text() == "put there later"


def test_only_names_of_the_shape_that_photodup_writes_are_deleted(tmp_path):
    own = OwnFolder(tmp_path / "own")
    own.prepare()
    ours = [f"{name}.sqlite{end}" for name in ("evidence", "neighbours") for end in ("", "-wal")]
    for name in ours:
        own.write(name, b"x")
    own.delete(*ours, "features.sqlite")
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


def in_use(path: Path) -> sqlite3.Connection:
    """Its tables may be in the log alone; opening it the usual way would write beside it."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("CREATE TABLE mine (a)")
    return db


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


FOREIGN = {
    "another program's tables of our names": (lightroom, "--catalogue"),
    "another program's id": (other_id, "--catalogue"),
    "a text": (lambda path: path.write_text("a letter"), "--catalogue"),
    "another library's": (
        lambda path: scan(path.parent, path, progress=False),
        r"is the catalogue of .*P, not of",
    ),
    "an empty file": (lambda path: path.touch(), "--catalogue"),
    "a picture": (lambda path: save(photo("coffee"), path), "--catalogue"),
    "a folder": (lambda path: path.mkdir(), "--catalogue"),
    "another program's database in use": (in_use, "database of another program"),
    "another program's database, damaged": (damaged, "is the database of another program"),
    "a log without its database": (
        lambda path: path.with_name("file.sqlite-wal").write_text("the user's own"),
        r"file.sqlite-wal is not used \(it belongs to no database",
    ),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_what_is_no_catalogue_of_ours_is_refused_and_left_untouched(tmp_path, what):
    save(photo("coffee"), tmp_path / "library" / "a.jpg")
    (tmp_path / "P").mkdir()
    file = tmp_path / "P" / "file.sqlite"
    make, said = FOREIGN[what]
    made = make(file)
    before = tree(tmp_path)
    for _ in range(2):
        with pytest.raises(CatalogueError, match=said):
            scan(tmp_path / "library", file, progress=False)
        with pytest.raises(CatalogueError):
            Catalogue(tmp_path / "library", file)
    assert tree(tmp_path) == before
    if isinstance(made, sqlite3.Connection):
        made.close()


def test_a_damaged_catalogue_of_ours_is_set_aside_in_its_own_folder(library, tmp_path):
    catalogue = tmp_path / "P" / "c.sqlite"
    use(library, catalogue)
    damage(catalogue)
    bad, others = catalogue.read_bytes(), tmp_path / "P" / "c.sqlite.damaged-mine"
    others.write_text("the user's own")
    report = scan(library, catalogue, progress=False)
    assert report.set_aside.parent == tmp_path / "P" / "c.sqlite.d" and report.set_aside.read_bytes() == bad
    assert others.read_text() == "the user's own" and report.n_read == 7
    assert len(ReviewSession(library, catalogue).items) == 2, "the decisions are kept"


def test_a_scan_that_was_killed_at_its_beginning_goes_on(tmp_path):
    save(photo("coffee"), tmp_path / "library" / "a.jpg")
    file = tmp_path / "P" / "c.sqlite"
    OwnFolder(tmp_path / "P" / "c.sqlite.d").prepare()
    assert application_of(file) is None
    assert scan(tmp_path / "library", file, progress=False).n_read == 1
    assert application_of(file) == APPLICATION_ID
    with Catalogue(tmp_path / "library", file) as opened:
        assert find_tiers(opened).n_photos == 1
