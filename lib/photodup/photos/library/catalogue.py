"""The SQLite catalogue beside a library: which files are there, what is in them, and their embeddings.

Facts and embeddings belong to the *content* (MD5), not to the path: they survive renames and moves, and
two equal files share them. An embedding also names its model, and vectors of two models never meet.
"""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from photodup.errors import PhotodupError
from photodup.files import real_path
from photodup.names import printable
from photodup.photos.own.catalogue_file import APPLICATION_ID, Kind, kind_of, left_behind, set_aside
from photodup.photos.own.first_edition import copy_decisions, is_own_folder_of_first_edition
from photodup.photos.own.own_folder import OwnFolder, place

# Entry i brings a catalogue from version i to i + 1 (PRAGMA user_version). Append; never edit an entry.
MIGRATIONS = [
    """
    CREATE TABLE content (
        md5 TEXT PRIMARY KEY,
        size_bytes INTEGER NOT NULL,
        format TEXT NOT NULL,
        width INTEGER NOT NULL,
        height INTEGER NOT NULL,
        phash TEXT,             -- NULL: a blank picture
        taken_at TEXT,          -- ISO 8601, local time
        camera TEXT,
        exif_fields INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE file (
        id INTEGER PRIMARY KEY,
        path BLOB NOT NULL UNIQUE,  -- bytes, relative to the library: a name need not be UTF-8
        size_bytes INTEGER NOT NULL,
        mtime_ns INTEGER NOT NULL,
        status TEXT NOT NULL CHECK (status IN ('ok', 'unreadable', 'inaccessible', 'missing')),
        reason TEXT,                -- why it is not ok
        md5 TEXT REFERENCES content (md5),
        CHECK (status <> 'ok' OR md5 IS NOT NULL)
    ) STRICT;
    CREATE INDEX file_md5 ON file (md5);
    CREATE TABLE model (
        id INTEGER PRIMARY KEY,
        digest TEXT NOT NULL UNIQUE,
        name TEXT NOT NULL,
        dim INTEGER NOT NULL,
        is_random INTEGER           -- 1: untrained weights, for study only; NULL: the server does not say
    ) STRICT;
    CREATE TABLE embedding (
        model INTEGER NOT NULL REFERENCES model (id),
        md5 TEXT NOT NULL REFERENCES content (md5),
        vector BLOB NOT NULL,       -- float32, little endian, unit length
        PRIMARY KEY (model, md5)
    ) STRICT;
    CREATE TABLE apple_photo (
        file INTEGER PRIMARY KEY REFERENCES file (id) ON DELETE CASCADE,
        uuid TEXT NOT NULL,
        original_filename TEXT
    ) STRICT;
    """,
    """
    CREATE TABLE setting (key TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT;
    """,
    # exif_fields used to count what lays out the pixels of a TIFF too: the next scan reads those again.
    """
    INSERT INTO setting SELECT 'read_again', CAST('TIFF' AS BLOB) WHERE EXISTS (SELECT 1 FROM content WHERE format = 'TIFF');
    """,
]


@cache
def _columns(version: int) -> dict[str, frozenset[str]]:
    """Return the columns by table that a catalogue of this version has."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as empty:
        for script in MIGRATIONS[:version]:
            empty.executescript(script)
        tables = empty.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        return {
            table: frozenset(
                name for (name,) in empty.execute("SELECT name FROM pragma_table_info(?)", (table,))
            )
            for (table,) in tables
        }


class CatalogueError(PhotodupError):
    """The catalogue cannot be read or written."""


class CatalogueDamagedError(CatalogueError):
    """The catalogue file is not a sound SQLite database."""


@dataclass(frozen=True, slots=True)
class Photo:
    """One readable file: `path` is relative to the library; width and height are upright pixels."""

    id: int
    path: Path
    md5: str
    size_bytes: int
    mtime_ns: int
    format: str
    width: int
    height: int
    phash: str | None
    taken_at: str | None
    camera: str | None
    exif_fields: int


@dataclass(frozen=True, slots=True)
class Model:
    """A model that embeddings in the catalogue came from.

    `is_random` is None where the server did not say; `n_embeddings` counts contents, not files.
    """

    digest: str
    name: str
    dim: int
    is_random: bool | None
    n_embeddings: int


def open_sound(root: Path, path: Path | str | None = None) -> tuple["Catalogue", Path | None]:
    """Open a catalogue for a scan, made if needed; a damaged one is set aside and begun anew.

    What a person decided is not in it (`feedback.jsonl`, `review/`, `settings.json`, the trash's journal), so
    only facts and embeddings have to be made again.

    Returns:
        The catalogue, and where the damaged file lies now, in the library's own folder; None if there was none.
    """
    try:
        opened = Catalogue(root, path, create=True)
        try:
            opened.check()
        except BaseException:
            opened.close()
            raise
        return opened, None
    except CatalogueDamagedError as damaged:
        file, own, is_default = place(real_path(root), path)
        # In our own folder it is ours, whatever is left of it; elsewhere that has to be seen.
        if not is_default and not kind_of(file).is_ours:
            raise _no_catalogue(file) from None
        try:
            aside = set_aside(file, own.path)
        except OSError as error:
            raise CatalogueError(
                f"{printable(file)} is damaged and cannot be set aside ({error.strerror}): move it away."
            ) from damaged
        return Catalogue(root, path, create=True), aside


def _no_catalogue(file: Path) -> CatalogueError:
    return CatalogueError(
        f"{printable(file)} is no catalogue, or its beginning is destroyed: give another file with "
        "--catalogue, or move it away."
    )


class Catalogue:
    """An open catalogue; a context manager.

    Attributes:
        root: the library's folder.
        path: the SQLite file.
        own: the folder for everything else that is kept for the library.
        note: one sentence for the owner about what opening it did; None if there is nothing to say.

    Args:
        root: the library.
        path: where the catalogue lies; default `root/.photodup/catalogue.sqlite`.
        create: make it if it is not there.

    Raises:
        CatalogueError: not there, not writable, another program's, or written by a newer photodup.
        OwnFolderError: the own folder is a link, holds one, or is not photodup's.
        CatalogueDamagedError: not a sound SQLite database.
    """

    def __init__(self, root: Path | str, path: Path | str | None = None, *, create: bool = False) -> None:
        self.root = real_path(root)
        self.path = Path(path) if path else self.root / ".photodup" / "catalogue.sqlite"
        self.note: str | None = None
        if not create and not os.path.isfile(self.path):
            raise CatalogueError(
                f"No catalogue at {printable(self.path)}: run `photodup scan {printable(self.root)}` first."
            )
        file, self.own, self._is_default = place(self.root, path)
        kind = self._recognised(file)
        try:
            if (
                file.parent == self.root / ".photodup"
            ):  # also where another catalogue is put beside the default
                OwnFolder(file.parent).prepare(is_own_folder_of_first_edition)
            self.own.prepare(is_own_folder_of_first_edition if self._is_default else None)
            if kind is Kind.FIRST_EDITION and not self._is_default:
                self.note = copy_decisions(file, self.own)
        except OSError as error:
            raise CatalogueError(
                f"Cannot create the folder {printable(self.own.path)} for the catalogue "
                f"({error.strerror}): give another place with --catalogue FILE."
            ) from None
        with self._kind():
            self.connection = sqlite3.connect(file, timeout=30, isolation_level=None)
            try:
                self._prepare(kind)
            except BaseException:
                self.connection.close()
                raise

    def _recognised(self, file: Path) -> Kind:
        """Return what the file is; refuse what is not ours before anything is written."""
        name, elsewhere = printable(self.path), "give another file with --catalogue."
        kind = kind_of(file)
        if kind is Kind.FOREIGN:
            raise CatalogueError(f"{name} is the database of another program: {elsewhere}")
        if self._is_default:
            return kind
        if kind is Kind.UNKNOWN:
            raise _no_catalogue(self.path)
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

    def _prepare(self, kind: Kind) -> None:
        self._refuse_foreign()
        pragmas = ("journal_mode = WAL", "synchronous = NORMAL", "foreign_keys = ON")
        if kind in (Kind.ABSENT, Kind.EMPTY):
            # A new file's pages hold several embeddings each: of 2 kB, only one fits on SQLite's own 4 kB. Whose
            # it is comes before the log is begun: it must stand in the file itself.
            pragmas = ("page_size = 16384", f"application_id = {APPLICATION_ID}", *pragmas)
        for pragma in pragmas:
            self.connection.execute(f"PRAGMA {pragma}")
        with self.transaction():
            (version,) = self.connection.execute("PRAGMA user_version").fetchone()
            if version > len(MIGRATIONS):
                raise CatalogueError(
                    f"{printable(self.path)} was written by a newer photodup (catalogue version {version}, "
                    f"this one knows {len(MIGRATIONS)}): upgrade photodup."
                )
            self._refuse_incomplete(version)
            for number, script in enumerate(MIGRATIONS[version:], start=version + 1):
                # Statement by statement: executescript() would commit the transaction we are in.
                for statement in script.split(";\n"):
                    self.connection.execute(statement)
                self.connection.execute(f"PRAGMA user_version = {number}")
            self._check_root()
            if kind is Kind.FIRST_EDITION:
                self.connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")

    def _refuse_foreign(self) -> None:
        """Refuse what came between the first look and now: many programs keep theirs in SQLite."""
        tables = {name for (name,) in self._query("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if tables and not {"content", "file"} <= tables:
            raise CatalogueError(
                f"{printable(self.path)} is the database of another program: give another file with --catalogue."
            )

    def _refuse_incomplete(self, version: int) -> None:
        """Refuse a catalogue that lacks what its version has: reading it would fail later, less clearly."""
        for table, columns in _columns(version).items():
            # A name of ours, not of the file: pragma_table_info takes it as a value.
            found = {name for (name,) in self._query("SELECT name FROM pragma_table_info(?)", (table,))}
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

    def __enter__(self) -> "Catalogue":
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
        ((found,),) = self._query("PRAGMA quick_check(1)")
        if found != "ok":
            raise self._explain(sqlite3.DatabaseError(f"malformed: {found.splitlines()[-1]}"))

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Write all or nothing. SQLite's errors become one sentence."""
        with self._kind():
            try:
                self.connection.execute("BEGIN IMMEDIATE")
                yield self.connection
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _kind(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise self._explain(error) from error

    def _explain(self, error: sqlite3.DatabaseError) -> CatalogueError:
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

    def _query(self, sql: str, parameters: Sequence = ()) -> list[tuple]:
        with self._kind():
            return self.connection.execute(sql, parameters).fetchall()

    def photos(self) -> list[Photo]:
        """Return every readable file, ordered by path."""
        rows = self._query(
            "SELECT file.id, file.path, file.md5, file.size_bytes, file.mtime_ns, format, width, height, "
            "phash, taken_at, camera, exif_fields FROM file JOIN content USING (md5) "
            "WHERE status = 'ok' ORDER BY file.path"
        )
        return [Photo(row[0], Path(os.fsdecode(row[1])), *row[2:]) for row in rows]

    def problems(self) -> list[tuple[Path, str]]:
        """Return (path, reason) of every file that is there but cannot be read, ordered by path."""
        rows = self._query(
            "SELECT path, reason FROM file WHERE status IN ('unreadable', 'inaccessible') ORDER BY path"
        )
        return [(Path(os.fsdecode(path)), reason) for path, reason in rows]

    def models(self) -> list[Model]:
        """Return the models that have embeddings here, the one with most embeddings first."""
        rows = self._query(
            "SELECT digest, name, dim, is_random, count(embedding.md5) FROM model "
            "LEFT JOIN embedding ON model = model.id GROUP BY model.id ORDER BY 5 DESC, digest"
        )
        return [
            Model(digest, name, dim, None if is_random is None else bool(is_random), n)
            for digest, name, dim, is_random, n in rows
        ]

    def missing_embeddings(self, model_digest: str) -> list[tuple[str, Path]]:
        """Return (md5, a path that holds it) for each readable content without a vector of this model."""
        rows = self._query(
            "SELECT md5, min(path) FROM file WHERE status = 'ok' AND md5 NOT IN (SELECT md5 FROM embedding "
            "WHERE model = (SELECT id FROM model WHERE digest = ?)) GROUP BY md5 ORDER BY 2",
            (model_digest,),
        )
        return [(md5, Path(os.fsdecode(path))) for md5, path in rows]

    def register_model(self, digest: str, *, name: str, dim: int, is_random: bool | None) -> None:
        """Record where embeddings come from. What is known of the same digest must agree.

        Raises:
            CatalogueError: another dimension, or random where it was trained, or the reverse.
        """
        with self.transaction() as connection:
            connection.execute(
                "INSERT INTO model (digest, name, dim, is_random) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (digest) DO UPDATE SET is_random = coalesce(is_random, excluded.is_random)",
                (digest, name, dim, is_random),
            )
            known_dim, known_random = connection.execute(
                "SELECT dim, is_random FROM model WHERE digest = ?", (digest,)
            ).fetchone()
        if known_dim != dim or (is_random is not None and known_random != is_random):
            raise CatalogueError(
                f"Model {digest[:12]} is in the catalogue with {known_dim} dimensions and random weights "
                f"{bool(known_random)}, and now reports {dim} and {is_random}: one of two servers is wrong."
            )

    def store_embeddings(self, model_digest: str, md5s: Sequence[str], vectors: np.ndarray) -> None:
        """Write float32[n, dim] unit vectors of a registered model, all or none.

        Raises:
            CatalogueError: unknown model, wrong shape, or vectors that are not finite and of length 1.
        """
        vectors = np.ascontiguousarray(vectors, dtype="<f4")
        rows = self._query("SELECT id, dim FROM model WHERE digest = ?", (model_digest,))
        if not rows:
            raise CatalogueError(f"Model {model_digest[:12]} is not registered in the catalogue.")
        model_id, dim = rows[0]
        if vectors.shape != (len(md5s), dim):
            raise CatalogueError(f"Expected {len(md5s)} × {dim} values, got {vectors.shape}.")
        # NaN fails this comparison too.
        if len(md5s) and not (abs(np.linalg.norm(vectors, axis=1) - 1) < 1e-2).all():
            raise CatalogueError("The backend returned vectors that are not of length 1: check its model.")
        with self.transaction() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO embedding (model, md5, vector) VALUES (?, ?, ?)",
                [(model_id, md5, row.tobytes()) for md5, row in zip(md5s, vectors, strict=True)],
            )

    def embedded(self, model_digest: str) -> list[str]:
        """Return the MD5s with a vector of this model, in order, of contents that some readable file has."""
        rows = self._query(
            "SELECT e.md5 FROM embedding AS e JOIN model ON model.id = e.model WHERE digest = ? "
            "AND EXISTS (SELECT 1 FROM file WHERE file.md5 = e.md5 AND status = 'ok') ORDER BY e.md5",
            (model_digest,),
        )
        return [md5 for (md5,) in rows]

    def embeddings_of(self, model_digest: str, md5s: Sequence[str]) -> np.ndarray:
        """Return float32[n, dim]: the vectors of these contents, in this order.

        Raises:
            CatalogueError: one of them has none.
        """
        place = {md5: i for i, md5 in enumerate(md5s)}
        ((dim,),) = self._query("SELECT max(dim) FROM model WHERE digest = ?", (model_digest,))
        vectors, n = np.empty((len(md5s), dim or 0), dtype=np.float32), 0
        with self._kind():
            rows = self.connection.execute(
                "SELECT md5, vector FROM embedding JOIN model ON model.id = model WHERE digest = ?",
                (model_digest,),
            )
            for md5, blob in rows:
                if (i := place.get(md5)) is not None:
                    vectors[i] = np.frombuffer(blob, dtype="<f4")
                    n += 1
        if n != len(place):
            raise CatalogueError(
                f"{printable(self.path)} lacks {len(place) - n} of these embeddings: run `photodup embed` again."
            )
        return vectors

    def load_embeddings(self, model_digest: str) -> tuple[list[str], np.ndarray]:
        """Return (md5s, float32[n, dim]) of one model for contents some readable file has, ordered by MD5."""
        md5s = self.embedded(model_digest)
        return md5s, self.embeddings_of(model_digest, md5s)
