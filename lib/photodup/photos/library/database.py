"""The SQLite file of a catalogue: found, recognised as ours, opened. What is in it: `catalogue.py`."""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from photodup.errors import PhotodupError
from photodup.files import real_path
from photodup.names import printable
from photodup.photos.library.schema import CATALOGUE
from photodup.photos.own.catalogue_file import Kind, kind_of
from photodup.photos.own.own_folder import OwnFolder, locate_catalogue
from photodup.photos.own.sqlite_file import DatabaseRefusedError, open_database, refuse_planted

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
        CatalogueError: not there, not writable, another program's, of another version, or with something in it or
            beside it that photodup does not make.
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
        self._refuse_what_is_not_ours(file)
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
            self.connection = open_database(file, CATALOGUE, busy_s=BUSY_S)
        try:
            for pragma in ("synchronous = NORMAL", "foreign_keys = ON"):
                self.connection.execute(f"PRAGMA {pragma}")
            self._check_root()
        except BaseException:
            self.connection.close()
            raise

    def _refuse_what_is_not_ours(self, file: Path) -> None:
        """Refuse what is certainly not ours before anything is written."""
        name, elsewhere = printable(self.path), "give another file with --catalogue."
        kind = kind_of(file)
        if kind is Kind.FOREIGN:
            raise CatalogueError(f"{name} is the database of another program: {elsewhere}")
        if self._is_default:
            return
        if kind is Kind.UNKNOWN:
            raise not_a_catalogue(self.path)
        if file.name == "catalogue.sqlite" and file.parent.name == ".photodup":
            other = printable(file.parent.parent)
            raise CatalogueError(
                f"{name} is the catalogue of {other}, not of {printable(self.root)}: {elsewhere}"
            )
        with self._explained():
            refuse_planted(file)

    def _check_root(self) -> None:
        """Refuse the catalogue of another library: a scan would declare all of that one's files missing."""
        if self._is_default:
            return  # It moves with its library.
        root = os.fsencode(self.root)
        with self.transaction() as connection:
            connection.execute("INSERT OR IGNORE INTO setting VALUES ('root', ?)", (root,))
        ((known,),) = self.query("SELECT value FROM setting WHERE key = 'root'")
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

    def check(self, *tables: str) -> None:
        """Read these tables, or the whole file, and compare what belongs together; a few seconds per gigabyte.

        Raises:
            CatalogueDamagedError: something does not, or a value is not of its column's form.
        """
        for part in tables or ("1",):
            ((found,), *_) = self.query(f"PRAGMA quick_check({part})")
            if found == "ok":
                continue
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
        except DatabaseRefusedError as error:
            raise CatalogueError(str(error)) from None

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
