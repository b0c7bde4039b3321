"""A SQLite file of what can be made again: deleting it costs time and nothing else, and so does damage to it."""

import sqlite3
from pathlib import Path
from typing import ClassVar, Self

from photodup.photos.own.own_folder import OwnFolder, OwnFolderError


class CacheFile:
    """The file, a context manager. Where it cannot be written, `problem` says so in a sentence.

    A kind of cache says its `VERSION` (raised when what it holds comes out otherwise), its `TABLES` by name (with the
    columns; dropped where the version is another, `FORMER` ones too) and, in `AGAIN`, what it costs if it cannot be written.
    """

    VERSION: int
    TABLES: ClassVar[dict[str, str]]
    FORMER: tuple[str, ...] = ()
    AGAIN: str

    def __init__(self, path: Path) -> None:
        self.problem: str | None = None
        self._path = path
        try:
            self._db = self._opened(path)
        except sqlite3.OperationalError as error:  # read-only, or locked
            self._forget(error)
        except sqlite3.DatabaseError:
            self._begin_anew()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._db.close()

    def _begin_anew(self) -> None:
        """Delete a damaged file and make it again."""
        try:
            names = (f"{self._path.name}{suffix}" for suffix in ("", "-wal", "-shm"))
            OwnFolder(self._path.parent).delete(*names)
            self._db = self._opened(self._path)
        except (OSError, OwnFolderError, sqlite3.DatabaseError) as error:
            self._forget(error)

    def _forget(self, error: Exception) -> None:
        self.problem = f"{self._path} cannot be written ({error}): {self.AGAIN}."
        self._db = self._opened(Path(":memory:"))

    def _opened(self, path: Path) -> sqlite3.Connection:
        db = sqlite3.connect(path, isolation_level=None)
        try:
            if db.execute("PRAGMA page_count").fetchone() == (0,):  # else it would be written to
                db.execute("PRAGMA auto_vacuum = INCREMENTAL")  # what is deleted then makes it smaller
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = OFF")
            if db.execute("PRAGMA user_version").fetchone() != (self.VERSION,):
                for table in (*self.TABLES, *self.FORMER):
                    db.execute(f"DROP TABLE IF EXISTS {table}")
                db.execute(f"PRAGMA user_version = {self.VERSION}")
            for table, columns in self.TABLES.items():
                db.execute(f"CREATE TABLE IF NOT EXISTS {table} {columns}")
        except BaseException:
            db.close()
            raise
        return db
