"""Whether a file is a catalogue of ours, found out without changing a byte of it or of its folder."""

import os
import shutil
import sqlite3
import stat
import tempfile
import time
from contextlib import closing
from enum import Enum
from pathlib import Path
from urllib.parse import quote

APPLICATION_ID = int.from_bytes(b"phdp", "big")  # in the header of each catalogue

_MAGIC = b"SQLite format 3\0"
_BESIDE = ("-wal", "-shm", "-journal")


class Kind(Enum):
    """What lies at a path."""

    ABSENT = "nothing"
    EMPTY = "an empty file or a database without tables"
    OURS = "a catalogue"
    FOREIGN = "the database of another program"
    UNKNOWN = "no database, or one whose beginning is destroyed"


def kind_of(file: Path) -> Kind:
    """Return what lies there; links are followed. Nothing is opened for writing, no lock is taken."""
    try:
        status = os.stat(file)
    except OSError:
        return Kind.ABSENT if not os.path.lexists(file) else Kind.UNKNOWN
    if not stat.S_ISREG(status.st_mode):
        return Kind.UNKNOWN
    if status.st_size == 0:
        return Kind.EMPTY
    try:
        with open(file, "rb") as opened:
            header = opened.read(100)
    except OSError:
        return Kind.UNKNOWN
    if header[:16] != _MAGIC:
        return Kind.UNKNOWN
    if written_by := int.from_bytes(header[68:72], "big"):
        return Kind.OURS if written_by == APPLICATION_ID else Kind.FOREIGN
    tables = _tables(file)
    if tables is None:
        return Kind.UNKNOWN
    return Kind.FOREIGN if tables else Kind.EMPTY


def left_behind(file: Path) -> Path | None:
    """Return a file that SQLite would take for part of a new database of this name, if there is one."""
    beside = (file.with_name(file.name + suffix) for suffix in _BESIDE)
    return next((path for path in beside if os.path.lexists(path)), None)


def set_aside(file: Path, folder: Path) -> Path:
    """Move a damaged catalogue, with what SQLite keeps beside it, into a folder; return its new place.

    Call it only for a file that is ours. Left behind, the `-wal` file would be applied to the next catalogue.

    Raises:
        OSError: it cannot be moved.
    """
    name, number = f"{file.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}", 1
    aside = folder / name
    while os.path.lexists(aside):
        number += 1
        aside = folder / f"{name}-{number}"
    os.rename(file, aside)
    for suffix in _BESIDE:
        beside = file.with_name(file.name + suffix)
        if os.path.lexists(beside):
            os.rename(beside, aside.with_name(aside.name + suffix))
    return aside


def _tables(file: Path) -> set[str] | None:
    """Return the names of the tables; None if they cannot be read."""
    tables = _read_tables(file)
    log = file.with_name(file.name + "-wal")
    if tables or not (os.path.isfile(log) and os.path.getsize(log)):
        return tables
    # A first scan that was killed has its tables in the log alone. Looked at in a copy: reading the log in
    # place would write beside it.
    try:
        with tempfile.TemporaryDirectory(prefix="photodup-") as scratch:
            copy = Path(scratch) / "copy.sqlite"
            shutil.copyfile(file, copy)
            shutil.copyfile(log, copy.with_name(copy.name + "-wal"))
            return _read_tables(copy, "mode=rw")
    except OSError:
        return tables


def _read_tables(file: Path, how: str = "mode=ro&immutable=1") -> set[str] | None:
    try:
        with closing(sqlite3.connect(f"file:{quote(os.fsencode(file))}?{how}", uri=True)) as connection:
            found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    except sqlite3.Error:
        return None
    return {name for (name,) in found}
