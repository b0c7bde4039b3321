"""The SQLite file of a catalogue: found, recognised as ours, opened. What is in it: `catalogue.py`."""

import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from photodup.errors import PhotodupError
from photodup.files import real_path
from photodup.names import printable
from photodup.photos.library import schema
from photodup.photos.own.catalogue_file import APPLICATION_ID, Kind, kind_of, left_behind
from photodup.photos.own.own_folder import OwnFolder, locate_catalogue

BUSY_S = 30  # how long one photodup waits for another that writes


class CatalogueError(PhotodupError):
    """The catalogue cannot be read or written."""


class CatalogueDamagedError(CatalogueError):
    """The catalogue file is not a sound SQLite database."""


def not_a_catalogue(file: Path) -> CatalogueError:
    """Return the error for a file that is neither a catalogue nor certainly another program's."""
    return CatalogueError(
        f"{printable(file)} is no catalogue, or its beginning is destroyed: give another file with "
        "--catalogue, or move it away."
    )


class CatalogueDatabase:
    """The SQLite file of a catalogue, open; a context manager.

    Attributes:
        root: the library's folder.
        path: the SQLite file.
        own: the folder for everything else that is kept for the library.

    Args:
        root: the library.
        path: where the catalogue lies; default `root/.photodup/catalogue.sqlite`.
        create: make it if it is not there.

    Raises:
        CatalogueError: not there, not writable, another program's, or written by another version of photodup.
        OwnFolderError: the own folder is a link, holds one, or is not photodup's.
        CatalogueDamagedError: not a sound SQLite database.
    """

    def __init__(self, root: Path | str, path: Path | str | None = None, *, create: bool = False) -> None:
        self.root = real_path(root)
        self.path = Path(path) if path else self.root / ".photodup" / "catalogue.sqlite"
        if not create and not os.path.isfile(self.path):
            raise CatalogueError(
                f"No catalogue at {printable(self.path)}: run `photodup scan {printable(self.root)}` first."
            )
        file, self.own, self._is_default = locate_catalogue(self.root, path)
        kind = self._refuse_what_is_not_ours(file)
        try:
            # Also where another catalogue is put beside the default one.
            if file.parent == self.root / ".photodup":
                OwnFolder(file.parent).prepare()
            self.own.prepare()
        except OSError as error:
            raise CatalogueError(
                f"Cannot create the folder {printable(self.own.path)} for the catalogue "
                f"({error.strerror}): give another place with --catalogue FILE."
            ) from None
        with self._explained():
            self.connection = sqlite3.connect(file, timeout=BUSY_S, isolation_level=None)
            try:
                self._bring_up_to_date(kind)
            except BaseException:
                self.connection.close()
                raise

    def _refuse_what_is_not_ours(self, file: Path) -> Kind:
        """Return what the file is; refuse what is not ours before anything is written."""
        name, elsewhere = printable(self.path), "give another file with --catalogue."
        kind = kind_of(file)
        if kind is Kind.FOREIGN:
            raise CatalogueError(f"{name} is the database of another program: {elsewhere}")
        if self._is_default:
            return kind
        if kind is Kind.UNKNOWN:
            raise not_a_catalogue(self.path)
        if file.name == "catalogue.sqlite" and file.parent.name == ".photodup":
            other = printable(file.parent.parent)
            raise CatalogueError(
                f"{name} is the catalogue of {other}, not of {printable(self.root)}: {elsewhere}"
            )
        if not self.own.is_marked:  # else it is what a killed scan left
            if kind is Kind.EMPTY:
                raise CatalogueError(f"{name} is there and is no catalogue: {elsewhere}")
            if kind is Kind.ABSENT and (beside := left_behind(file)):
                raise CatalogueError(
                    f"{printable(beside)} is there without its database, and SQLite would take it for a part of "
                    f"{name}: {elsewhere}"
                )
        return kind

    def _set(self, pragma: str) -> None:
        """Set a pragma, also while another photodup opens the same new file.

        Two that change a file's journal mode at once would wait for each other: SQLite refuses one of them without
        calling its busy handler (sqlite.org/c3ref/busy_handler.html), whatever the connection's timeout.
        """
        until = time.monotonic() + BUSY_S
        while True:
            try:
                self.connection.execute(f"PRAGMA {pragma}")
                return
            except sqlite3.OperationalError as error:
                is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
                if not is_busy or time.monotonic() > until:
                    raise
            time.sleep(0.05)

    def _bring_up_to_date(self, kind: Kind) -> None:
        self._refuse_foreign()
        pragmas = ["journal_mode = WAL", "synchronous = NORMAL", "foreign_keys = ON"]
        if kind in (Kind.ABSENT, Kind.EMPTY):
            # A new file's pages hold several embeddings each: of 2 kB, only one fits on SQLite's own 4 kB. Whose
            # it is comes before the log is begun: it must stand in the file itself.
            pragmas = ["page_size = 16384", f"application_id = {APPLICATION_ID}", *pragmas]
        for pragma in pragmas:
            self._set(pragma)
        with self.transaction():
            (version,) = self.connection.execute("PRAGMA user_version").fetchone()
            is_new = not self.query("SELECT name FROM sqlite_master WHERE type = 'table'")
            if not is_new and version != schema.VERSION:
                raise CatalogueError(
                    f"{printable(self.path)} was written by another version of photodup (catalogue version {version}, "
                    f"this one reads {schema.VERSION}): move it away, then run `photodup scan` again; your decisions "
                    "and settings stay."
                )
            if is_new:
                # Statement by statement: executescript() would commit the transaction we are in.
                for statement in schema.SCHEMA.split(";\n"):
                    self.connection.execute(statement)
                self.connection.execute(f"PRAGMA user_version = {schema.VERSION}")
            self._refuse_incomplete()
            self._check_root()

    def _refuse_foreign(self) -> None:
        """Refuse what came between the first look and now: many programs keep theirs in SQLite."""
        tables = {name for (name,) in self.query("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if tables and not {"content", "file"} <= tables:
            raise CatalogueError(
                f"{printable(self.path)} is the database of another program: give another file with --catalogue."
            )

    def _refuse_incomplete(self) -> None:
        """Refuse a catalogue that lacks a column: reading it would fail later, less clearly."""
        for table, columns in schema.columns().items():
            # A name of ours, not of the file: pragma_table_info takes it as a value.
            found = {name for (name,) in self.query("SELECT name FROM pragma_table_info(?)", (table,))}
            if missing := sorted(columns - found):
                raise CatalogueError(
                    f"{printable(self.path)} lacks {', '.join(f'{table}.{name}' for name in missing)}, so it is "
                    "no catalogue that photodup made: move it away, then run `photodup scan` again."
                )

    def _check_root(self) -> None:
        """Refuse the catalogue of another library: a scan would declare all of that one's files missing."""
        if self._is_default:
            return  # It moves with its library.
        root = os.fsencode(self.root)
        self.connection.execute("INSERT OR IGNORE INTO setting VALUES ('root', ?)", (root,))
        ((known,),) = self.connection.execute("SELECT value FROM setting WHERE key = 'root'").fetchall()
        if known != root:
            raise CatalogueError(
                f"{printable(self.path)} is the catalogue of {printable(known)}, not of {printable(root)}: "
                "give another file with --catalogue."
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database; safe to call twice."""
        self.connection.close()

    def check(self) -> None:
        """Read the whole file and compare what belongs together; a few seconds per gigabyte.

        Raises:
            CatalogueDamagedError: something does not.
        """
        ((found,),) = self.query("PRAGMA quick_check(1)")
        if found != "ok":
            raise self._in_one_sentence(sqlite3.DatabaseError(f"malformed: {found.splitlines()[-1]}"))

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Write all or nothing. SQLite's errors become one sentence."""
        with self._explained():
            try:
                self.connection.execute("BEGIN IMMEDIATE")
                yield self.connection
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn SQLite's errors into ours, each one sentence with a remedy."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise self._in_one_sentence(error) from error

    def _in_one_sentence(self, error: sqlite3.DatabaseError) -> CatalogueError:
        where, text = printable(self.path), str(error)
        if "is full" in text or "disk I/O" in text:
            return CatalogueError(
                f"The disk that holds {where} is full or failing ({text}): free some space and run the "
                "command again; everything written before is kept."
            )
        if "not a database" in text or "malformed" in text:
            return CatalogueDamagedError(
                f"{where} is damaged ({text}): run `photodup scan` again, which sets it aside and reads the "
                "photographs anew; they, your decisions and settings are not touched."
            )
        if "readonly" in text or "unable to open" in text:
            return CatalogueError(f"Cannot write {where} ({text}): give another place with --catalogue FILE.")
        if "locked" in text:
            return CatalogueError(f"{where} is in use by another photodup: wait for it to finish.")
        return CatalogueError(f"{where}: {text}.")

    def query(self, sql: str, parameters: Sequence = ()) -> list[tuple]:
        """Return the rows of a SELECT. SQLite's errors become one sentence."""
        with self._explained():
            return self.connection.execute(sql, parameters).fetchall()
