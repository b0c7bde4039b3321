"""A SQLite file of what can be made again: deleting it costs time and nothing else, and so does damage to it."""

import sqlite3
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Self

from photodup.photos.state.own_folder import OwnFolder, OwnFolderError
from photodup.photos.state.sqlite_file import BESIDE, DatabaseRefusedError, Form, open_database

# Errors from reading a file that is damaged inside, or that somebody else filled.
DAMAGE = (sqlite3.DatabaseError, ValueError, TypeError, AttributeError, zlib.error)


class CacheFile:
    """The file, a context manager. If it cannot be written, the cache is in memory and `problem` says so in a sentence.

    A subclass sets `FORM`, whose version is raised when the stored results would differ, and `AGAIN`, the cost of a file
    that cannot be written. A file of another form, or with a foreign file beside it, is made again.
    """

    FORM: ClassVar[Form]
    AGAIN: str

    def __init__(self, path: Path) -> None:
        self.problem: str | None = None
        self._path = path
        try:
            self._db = self._opened()
        except (sqlite3.OperationalError, OSError) as error:  # read-only, or locked
            self._forget(error)
        except (sqlite3.DatabaseError, DatabaseRefusedError):
            self._begin_anew()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._db.close()

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """Read in a block, which ends at the first damage; the file is then made again."""
        try:
            yield self._db
        except DAMAGE:
            self._db.close()
            self._begin_anew()

    def _write(self, sql: str, rows: Iterable[tuple]) -> None:
        """Run a statement with each row, all or none; after an error the cache is in memory."""
        try:
            self._db.execute("BEGIN")
            self._db.executemany(sql, rows)
            self._db.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            self._db.close()
            self._forget(error)

    def _begin_anew(self) -> None:
        """Delete a damaged file and make it again."""
        try:
            OwnFolder(self._path.parent).delete(*(f"{self._path.name}{end}" for end in (*BESIDE, "")))
            self._db = self._opened()
        except (OSError, OwnFolderError, DatabaseRefusedError, sqlite3.DatabaseError) as error:
            self._forget(error)

    def _forget(self, error: Exception) -> None:
        self.problem = f"{self._path} cannot be written ({error}): {self.AGAIN}."
        self._db = self.FORM.in_memory()

    def _opened(self) -> sqlite3.Connection:
        db = open_database(self._path, self.FORM)
        db.execute("PRAGMA synchronous = OFF")
        return db
