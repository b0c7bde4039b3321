"""The only code that opens SQLite files, which may come from somebody else.

SQLite trusts the files beside a database: it rolls a `-journal` back, deletes the file that the journal names as its
super-journal, and writes through links. So photodup never leaves a `-journal`: a new database is made in memory, written
whole, and in WAL mode from the start. Any `-journal` is foreign and is refused. `-wal` and `-shm` must be regular files
beside a database of ours; they name no other file, and the contents of the log are checked with the database.

A database is used only if its tables and indexes are exactly photodup's, so no foreign trigger, view, virtual table,
default or check ever runs.
"""

import os
import sqlite3
import sys
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import quote

from photodup.core.errors import PhotodupError
from photodup.core.files import write_atomically
from photodup.core.names import printable
from photodup.core.safe_open import UnsafeNameError, refuse_what_is_no_file

APPLICATION_ID = int.from_bytes(b"phdp", "big")  # in the header of each database
BESIDE = ("-journal", "-wal", "-shm")

MAGIC = b"SQLite format 3\0"
# Longest time in which another photodup, making a database, may leave it two names.
_NAMED_S = 2.0
_WAL_MODE = b"\2\2"  # in bytes 18 and 19
_SCHEMA = "SELECT type, name, tbl_name, sql FROM sqlite_master"


class DatabaseRefusedError(PhotodupError):
    """The file, or one beside it, is not photodup's; nothing was changed."""


@dataclass(frozen=True)
class Form:
    """The schema of a kind of database.

    Args:
        version: raised with every change, stored as `user_version`.
        statements: the `CREATE` statements of its tables and indexes.
        pragmas: to set before the first table, such as `page_size = 16384`.
    """

    version: int
    statements: tuple[str, ...]
    pragmas: tuple[str, ...] = ()

    @cached_property
    def empty(self) -> bytes:
        """The bytes of an empty database."""
        with closing(self.in_memory()) as database:
            image = database.serialize()
        return image[:18] + _WAL_MODE + image[20:]  # a database in memory has no log and cannot set this

    @cached_property
    def schema(self) -> frozenset[tuple]:
        """Type, name, table and SQL of its tables and indexes."""
        with closing(self.in_memory()) as database:
            return frozenset(database.execute(_SCHEMA))

    def in_memory(self) -> sqlite3.Connection:
        """Return a database of this form in memory."""
        database = sqlite3.connect(":memory:", isolation_level=None)
        for pragma in (*self.pragmas, f"application_id = {APPLICATION_ID}", f"user_version = {self.version}"):
            database.execute(f"PRAGMA {pragma}")
        for statement in self.statements:
            database.execute(statement)
        return database


def open_database(file: Path, form: Form, *, busy_s: float = 5.0) -> sqlite3.Connection:
    """Open a database, and make it if there is none; the caller begins transactions.

    Args:
        file: in an existing folder, which the caller knows to be no link.
        form: its schema.
        busy_s: longest wait for another writing process.

    Raises:
        DatabaseRefusedError: the file, or one beside it, is not photodup's; names the remedy.
        sqlite3.DatabaseError: it is damaged; as an `OperationalError`, it cannot be read or written now.
        OSError: it cannot be made.
    """
    _refuse_planted(file)
    if _status(file) is None:
        with suppress(FileExistsError):  # another photodup was faster
            write_atomically(file, form.empty, is_new=True, fsync=True)
    _refuse_other_mode(file)
    name = quote(os.fsencode(os.path.abspath(file)))
    connection = sqlite3.connect(f"file://{name}?mode=rw", uri=True, timeout=busy_s, isolation_level=None)
    try:
        _defend(connection)
        _refuse_other_form(connection, file, form)
    except BaseException:
        connection.close()
        raise
    return connection


def _refuse_planted(file: Path) -> None:
    """Refuse a database that is a link or no regular file, and foreign files beside it.

    Raises:
        DatabaseRefusedError: one of them is there.
    """
    # Look at these before the database: another photodup makes them after it.
    beside = {name: _status(file.with_name(file.name + name)) for name in BESIDE}
    status = _status_with_one_name(file)
    for name, entry_status in {"": status, **beside}.items():
        reason = ""
        try:
            refuse_what_is_no_file(entry_status)
        except UnsafeNameError as error:
            reason = str(error.strerror)
        if entry_status and name == "-journal":
            reason = "photodup never leaves such a journal, and SQLite would delete a file that it names"
        elif entry_status and name and not status:
            reason = "it belongs to no database, and SQLite would take it for a part of a new one"
        if reason:
            raise DatabaseRefusedError(
                f"{printable(file)}{name} is not used ({reason}): delete it or move it away."
            )


def _status(file: Path) -> os.stat_result | None:
    try:
        return os.lstat(file)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _status_with_one_name(file: Path) -> os.stat_result | None:
    """Return a file's status once it has one name: a database in the making has two for a moment."""
    deadline = time.monotonic() + _NAMED_S
    while (status := _status(file)) and status.st_nlink > 1 and time.monotonic() < deadline:
        time.sleep(0.02)
    return status


def _refuse_other_mode(file: Path) -> None:
    """Refuse a database in another mode than WAL: its journal could not be told from a foreign one."""
    with open(file, "rb") as opened:
        header = opened.read(20)
    if header[:16] != MAGIC:
        raise sqlite3.DatabaseError("file is not a database")
    if header[18:20] != _WAL_MODE:
        raise _not_ours(file, "another journal mode than photodup sets")


def _defend(connection: sqlite3.Connection) -> None:
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    if sys.version_info >= (3, 12):  # before, Python offers no way to set these
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_ENABLE_TRIGGER, False)
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_ENABLE_VIEW, False)
    for pragma in ("trusted_schema = OFF", "cell_size_check = ON"):
        connection.execute(f"PRAGMA {pragma}")


def _refuse_other_form(connection: sqlite3.Connection, file: Path, form: Form) -> None:
    # One more than allowed is enough: a foreign schema may have millions of entries.
    schema = connection.execute(_SCHEMA).fetchmany(len(form.schema) + 1)
    ((version,),) = connection.execute("PRAGMA user_version").fetchall()
    if version > form.version:
        raise DatabaseRefusedError(
            f"{printable(file)} was written by a newer photodup (version {version}, this one knows {form.version}): "
            "upgrade photodup."
        )
    ((written_by,),) = connection.execute("PRAGMA application_id").fetchall()
    if written_by != APPLICATION_ID:
        raise _not_ours(file, "another program wrote it")
    if version != form.version:
        raise _not_ours(file, f"version {version} instead of {form.version}")
    if other := form.schema.symmetric_difference(schema):
        # A table of another shape is in both sets: name the one that was found.
        kind, name, *_ = min(other, key=lambda entry: (entry in form.schema, str(entry)))
        raise _not_ours(file, f"its {printable(str(kind))} {printable(str(name)[:60])}")


def _not_ours(file: Path, difference: str) -> DatabaseRefusedError:
    return DatabaseRefusedError(
        f"{printable(file)} is not as this photodup makes it ({difference}): move it away, then run `photodup scan` "
        "again."
    )
