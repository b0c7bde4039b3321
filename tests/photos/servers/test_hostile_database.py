"""A library that somebody gave me brings its databases: what lies in them and beside them reaches nothing of mine."""

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from support.command import photodup
from support.hostile_library import tree
from support.planted_journal import journal_naming
from support.plants import PLANTS
from support.review_library import make_library

from photodup.photos.groups.tiers import find_tiers
from photodup.photos.library.catalogue import Catalogue, CatalogueError, catalogue_form
from photodup.photos.library.scan import scan
from photodup.photos.review.session import ReviewSession
from photodup.photos.state.own_folder import OwnFolder, OwnFolderError
from photodup.photos.state.sqlite_file import open_database

CACHES = ("evidence.sqlite", "neighbours.sqlite")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A library with all its databases."""
    library = make_library(tmp_path_factory.mktemp("made") / "library")
    with Catalogue(library) as catalogue:
        assert len(find_tiers(catalogue).copies) == 3
    return library


@pytest.fixture
def given(made, tmp_path) -> Path:
    """A library as it was handed over, a catalogue of it in another folder of photodup's too."""
    given = tmp_path / "given"
    shutil.copytree(made, given / "library")
    OwnFolder(given / "P").prepare()
    shutil.copyfile(made / ".photodup" / "catalogue.sqlite", given / "P" / "catalogue.sqlite")
    return given


def where(given: Path, layout: str) -> tuple[Path, list[object]]:
    """The catalogue's file, and how a command is told of it."""
    folder = given / ("P" if layout else "library/.photodup")
    return folder / "catalogue.sqlite", ["--catalogue", folder] if layout else []


@pytest.mark.parametrize("layout", ["", "--catalogue"])
@pytest.mark.parametrize("command", ["scan", "group", "review", "embed"])
def test_a_journal_beside_a_catalogue_deletes_no_file(given, mine, command, layout):
    """SQLite deletes the file that a rolled-back journal names, wherever it lies."""
    file, options = where(given, layout)
    file.with_name(f"{file.name}-journal").write_bytes(journal_naming(mine / "letter", file))
    before = tree(given)
    done = photodup(command, given / "library", *options, *(["--port", 0] if command == "review" else []))
    assert (mine / "letter").read_text() == "mine" and tree(given) == before
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert f"{file.name}-journal is not used (photodup never leaves such a journal" in done.stderr


@pytest.mark.parametrize("name", CACHES)
@pytest.mark.parametrize("command", ["scan", "group", "review"])
def test_a_journal_beside_a_cache_deletes_no_file(given, mine, command, name):
    library = given / "library"
    file = library / ".photodup" / name
    journal = file.with_name(f"{name}-journal")
    journal.write_bytes(journal_naming(mine / "letter", file))
    if command == "scan":
        assert photodup("scan", library).returncode == 0
    elif command == "group":
        assert "3 groups" in photodup("group", library).stdout
    else:
        assert len(ReviewSession(library).items) == 3
    assert (mine / "letter").read_text() == "mine"
    assert command == "scan" or not journal.exists(), "the cache was made again"


@pytest.mark.parametrize("planted", PLANTS)
@pytest.mark.parametrize("end", ["", "-journal", "-wal", "-shm"])
@pytest.mark.parametrize("layout", ["", "--catalogue"])
def test_nothing_is_written_through_what_lies_beside_a_catalogue(given, mine, layout, end, planted):
    file, _ = where(given, layout)
    shutil.copyfile(file, mine / "letter")  # as good as a catalogue can be
    target = file.with_name(file.name + end)
    target.unlink(missing_ok=True)
    PLANTS[planted](target, mine / "letter")
    before = tree(mine)
    with pytest.raises((CatalogueError, OwnFolderError), match=r"(not used|is a link).*: .*(delete|move)"):
        scan(given / "library", file.parent if layout else None, progress=False)
    assert tree(mine) == before


@pytest.mark.parametrize("planted", PLANTS)
@pytest.mark.parametrize("end", ["", "-journal", "-wal", "-shm"])
@pytest.mark.parametrize("name", CACHES)
def test_nothing_is_written_through_what_lies_beside_a_cache(given, mine, name, end, planted):
    file = given / "library" / ".photodup" / name
    shutil.copyfile(file, mine / "letter")
    target = file.with_name(name + end)
    with Catalogue(given / "library") as catalogue:
        # Put there after the folder was looked at, when every link in it was refused.
        target.unlink(missing_ok=True)
        PLANTS[planted](target, mine / "letter")
        before = tree(mine)
        try:
            assert len(find_tiers(catalogue).copies) == 3
        except OwnFolderError as error:
            assert "is a link" in str(error)
    after = tree(mine)
    assert {at: what[:2] for at, what in after.items()} == {at: what[:2] for at, what in before.items()}


SCHEMAS = {
    "a trigger without an end": "CREATE TRIGGER t AFTER UPDATE ON file BEGIN SELECT count(*) FROM "
    "(WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n); END",
    "a view in a table's place": "ALTER TABLE file RENAME TO other; CREATE VIEW file AS WITH RECURSIVE n(x) AS "
    "(SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS id, x AS path, 1 AS size_bytes, 1 AS mtime_ns, "
    "'ok' AS status, '' AS reason, 'a' AS md5 FROM n",
    "a virtual table": "CREATE VIRTUAL TABLE words USING fts5 (word)",
    "a table more": "CREATE TABLE more (a)",
    "a column of another name": "ALTER TABLE setting RENAME COLUMN value TO other",
    "an index more": "CREATE INDEX more ON file (upper(path))",
    "a table without STRICT": "CREATE TABLE s AS SELECT * FROM setting; DROP TABLE setting; "
    "ALTER TABLE s RENAME TO setting",
}


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("layout", ["", "--catalogue"])
def test_a_catalogue_with_anything_of_anothers_in_it_is_one_sentence(given, schema, layout):
    file, options = where(given, layout)
    with closing(sqlite3.connect(file)) as db:
        db.executescript(SCHEMAS[schema])
    before = file.read_bytes()
    done = photodup("scan", given / "library", *options)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert f"{file.name} is not as this photodup makes it (its " in done.stderr
    assert "move it away" in done.stderr
    assert file.read_bytes() == before


@pytest.mark.parametrize("name", CACHES)
def test_a_cache_with_anything_of_anothers_in_it_is_made_again(given, name):
    file = given / "library" / ".photodup" / name
    with closing(sqlite3.connect(file)) as db:
        db.executescript(SCHEMAS["a table more"])
    with Catalogue(given / "library") as catalogue:
        tiers = find_tiers(catalogue)
    assert len(tiers.copies) == 3 and not tiers.problems
    with closing(sqlite3.connect(file)) as db:
        assert not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'more'").fetchall()


def test_what_a_log_brings_into_a_catalogue_is_looked_at_too(given):
    """Of somebody who was killed, so that the log still has what the file has not."""
    file, _ = where(given, "")
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute("PRAGMA wal_autocheckpoint = 0")
        db.execute(SCHEMAS["a table more"])
        for end in ("", "-wal"):
            shutil.copyfile(file.with_name(file.name + end), file.with_name(f"kept{end}"))
    for end in ("", "-wal"):
        file.with_name(f"kept{end}").rename(file.with_name(file.name + end))
    with pytest.raises(CatalogueError, match="its table more"):
        Catalogue(given / "library")


def test_a_catalogue_that_would_keep_a_journal_is_refused(given):
    file, _ = where(given, "")
    with closing(sqlite3.connect(file)) as db:
        db.execute("PRAGMA journal_mode = DELETE")
    with pytest.raises(CatalogueError, match="another journal mode than photodup sets"):
        Catalogue(given / "library")


WRITE_AND_DIE = """
import os, signal, sys
from pathlib import Path
from photodup.photos.library.catalogue import catalogue_form
from photodup.photos.state.sqlite_file import open_database
db = open_database(Path(sys.argv[1]), catalogue_form())
for key in ("committed", "cut short"):
    db.execute("BEGIN IMMEDIATE")
    db.execute("INSERT INTO setting VALUES (?, zeroblob(9000000))", (key,))
    if key == "committed":
        db.execute("COMMIT")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_in_the_midst_of_a_write_loses_nothing_that_was_committed(tmp_path):
    file = tmp_path / "own.sqlite"
    assert subprocess.run([sys.executable, "-c", WRITE_AND_DIE, str(file)], check=False).returncode == -9
    assert sorted(p.name for p in tmp_path.iterdir()) == ["own.sqlite", "own.sqlite-shm", "own.sqlite-wal"]
    with closing(open_database(file, catalogue_form())) as db:
        assert db.execute("SELECT key FROM setting").fetchall() == [("committed",)]
        assert db.execute("PRAGMA quick_check").fetchall() == [("ok",)]
        assert db.execute("PRAGMA journal_mode").fetchall() == [("wal",)]
        for forbidden in ("ATTACH ':memory:' AS other",):
            with pytest.raises(sqlite3.OperationalError):
                db.execute(forbidden)
    assert [path.name for path in tmp_path.iterdir()] == ["own.sqlite"]


def test_every_database_is_opened_in_one_place(root):
    """What opens one past it is not defended."""
    found = [path for path in (root / "lib").rglob("*.py") if "sqlite3.connect(" in path.read_text()]
    assert [path.name for path in found] == ["sqlite_file.py"]
