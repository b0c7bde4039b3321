"""The SQLite catalogue of a library: its files, their facts and embeddings.

Facts and embeddings belong to the *content* (MD5), so they survive renames and moves, and equal files share them. Each
embedding belongs to a model; vectors of different models are never compared.
"""

import os
import secrets
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from photodup.core.errors import PhotodupError
from photodup.core.files import real_path
from photodup.core.names import printable
from photodup.photos.library.hashing import PhotoFacts
from photodup.photos.state.own_folder import own_folder_of
from photodup.photos.state.sqlite_file import BESIDE, DatabaseRefusedError, Form, open_database

BUSY_S = 30  # how long one photodup waits for another that writes
VERSION = 8  # of the form; raise it with every change of catalogue.sql


@cache
def catalogue_form() -> Form:
    """Return the schema of a catalogue, from catalogue.sql."""
    sql = Path(__file__).with_name("catalogue.sql").read_text(encoding="utf-8")
    # Of embeddings of 2 kB only one would fit on SQLite's default page of 4 kB.
    return Form(VERSION, tuple(sql.removesuffix(";\n").split(";\n")), ("page_size = 16384",))


class CatalogueError(PhotodupError):
    """The catalogue cannot be read or written."""


class CatalogueDamagedError(CatalogueError):
    """The catalogue file is not a sound SQLite database."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Photo(PhotoFacts):
    """One readable file: the facts from its bytes, and its `path` relative to the library.

    After the scan `id` identifies the file: groups, decisions and the page use it. `md5` identifies the content: vectors and
    the owner's labels belong to it. Journals may outlive the catalogue, so they name a file by MD5 and path.
    """

    id: int
    path: Path
    mtime_ns: int

    def lies_in(self, folders: Iterable[str | Path]) -> str | Path | None:
        """Return the first of some folders, relative to the library, that contains it; else None."""
        return next((folder for folder in folders if self.path.is_relative_to(folder)), None)


@dataclass(frozen=True, slots=True)
class Model:
    """A model with embeddings in the catalogue.

    `is_random` is None if the server did not state it; `n_embeddings` counts contents, not files.
    """

    digest: str
    name: str
    dim: int
    is_random: bool | None
    n_embeddings: int


class Catalogue(AbstractContextManager["Catalogue"]):
    """An open catalogue; a context manager.

    Attributes:
        root: the library's folder.
        own: photodup's own folder for the library.
        path: the SQLite file in it.

    Args:
        root: the library.
        folder: the own folder; default `root/.photodup`.
        create: make it if it is not there.

    Raises:
        CatalogueError: missing, not writable, another program's or library's, of another version, or with foreign tables
            or files beside it.
        OwnFolderError: the own folder is a link, holds one, or is not photodup's.
        CatalogueDamagedError: not a sound SQLite database.
    """

    def __init__(self, root: Path | str, folder: Path | str | None = None, *, create: bool = False) -> None:
        self.root = real_path(root)
        self.own = own_folder_of(self.root, folder)
        self.path = self.own.catalogue
        if not create and not os.path.isfile(self.path):
            raise CatalogueError(
                f"No catalogue at {printable(self.path)}: run `photodup scan {printable(self.root)}` first."
            )
        if self.own.path.name == ".photodup" and not self._is_default:
            raise self._of_another_library(self.own.path.parent)
        try:
            self.own.prepare()
        except OSError as error:
            raise CatalogueError(
                f"Cannot create the folder {printable(self.own.path)} for the catalogue "
                f"({error.strerror}): name another folder with --catalogue."
            ) from None
        with self._explained():
            self.connection = open_database(self.path, catalogue_form(), busy_s=BUSY_S)
        try:
            for pragma in ("synchronous = NORMAL", "foreign_keys = ON"):
                self.connection.execute(f"PRAGMA {pragma}")
            self._check_root()
        except BaseException:
            self.connection.close()
            raise

    @property
    def _is_default(self) -> bool:
        """Whether the catalogue lies inside the library, and so moves with it."""
        return self.own.path == self.root / ".photodup"

    def _of_another_library(self, library: Path | bytes) -> CatalogueError:
        return CatalogueError(
            f"{printable(self.path)} is the catalogue of {printable(library)}, not of {printable(self.root)}: "
            "name another folder with --catalogue."
        )

    def _check_root(self) -> None:
        """Refuse the catalogue of another library: a scan would mark all its files missing."""
        if self._is_default:
            return
        root = os.fsencode(self.root)
        with self.transaction() as connection:
            connection.execute("INSERT OR IGNORE INTO setting VALUES ('root', ?)", (root,))
        ((stored_root,),) = self.query("SELECT value FROM setting WHERE key = 'root'")
        if stored_root != root:
            raise self._of_another_library(stored_root)

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database; safe to call twice."""
        self.connection.close()

    def check(self, *tables: str) -> None:
        """Check the integrity of these tables or of the whole file; a few seconds per gigabyte.

        Raises:
            CatalogueDamagedError: it is damaged, or a value has another form than its column.
        """
        for part in tables or ("1",):
            ((verdict,), *_) = self.query(f"PRAGMA quick_check({part})")
            if verdict != "ok":
                raise self._in_one_sentence(sqlite3.DatabaseError(f"malformed: {verdict.splitlines()[-1]}"))

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Write all or nothing; SQLite's errors become one sentence."""
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
        """Turn SQLite's errors into sentences with a remedy."""
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
            return CatalogueError(f"Cannot write {where} ({text}): name another folder with --catalogue.")
        if "locked" in text:
            return CatalogueError(f"{where} is in use by another photodup: wait for it to finish.")
        return CatalogueError(f"{where}: {text}.")

    def query(self, sql: str, parameters: Sequence = ()) -> list[tuple]:
        """Return the rows of a SELECT; SQLite's errors become one sentence."""
        with self._explained():
            return self.connection.execute(sql, parameters).fetchall()

    def photos(self, status: str = "ok") -> list[Photo]:
        """Return all files of a status, ordered by path: `ok`, or `unreadable` by any decoder.

        Raises:
            CatalogueDamagedError: a value that no scan writes, perhaps in a foreign catalogue.
        """
        self.check("content", "file")
        rows = self.query(
            "SELECT file.id, file.path, file.mtime_ns, file.md5, file.size_bytes, format, width, height, phash, greys, "
            "taken_at, camera, exif_fields, exposure, inventory FROM file JOIN content USING (md5) "
            "WHERE status = ? ORDER BY file.path",
            (status,),
        )
        return [
            Photo(*facts, id=number, path=Path(os.fsdecode(path)), mtime_ns=mtime_ns)
            for number, path, mtime_ns, *facts in rows
        ]

    def problems(self) -> list[tuple[Path, str]]:
        """Return (path, reason) of all files that cannot be read, ordered by path."""
        rows = self.query(
            "SELECT path, reason FROM file WHERE status IN ('unreadable', 'inaccessible') ORDER BY path"
        )
        return [(Path(os.fsdecode(path)), reason) for path, reason in rows]

    def folders_without_photos(self, folders: Iterable[str]) -> list[str]:
        """Return those of some folders, relative to the library, from which the catalogue has no file."""
        sql = "SELECT 1 FROM file WHERE path >= ? AND path < ? LIMIT 1"
        return [
            name for name in folders if not self.query(sql, [os.fsencode(name + end) for end in ("/", "0")])
        ]

    def models(self) -> list[Model]:
        """Return the models, the one with most embeddings first."""
        rows = self.query(
            "SELECT digest, name, dim, is_random, count(embedding.md5) FROM model "
            "LEFT JOIN embedding ON model = model.id GROUP BY model.id ORDER BY 5 DESC, digest"
        )
        return [
            Model(digest, name, dim, None if is_random is None else bool(is_random), n)
            for digest, name, dim, is_random, n in rows
        ]

    def missing_embeddings(self, model_digest: str) -> list[tuple[str, Path]]:
        """Return (MD5, a path) of each readable content without a vector of this model."""
        rows = self.query(
            "SELECT md5, min(path) FROM file WHERE status = 'ok' AND md5 NOT IN (SELECT md5 FROM embedding "
            "WHERE model = (SELECT id FROM model WHERE digest = ?)) GROUP BY md5 ORDER BY 2",
            (model_digest,),
        )
        return [(md5, Path(os.fsdecode(path))) for md5, path in rows]

    def store_embeddings(
        self, model_digest: str, vectors: Mapping[str, np.ndarray], *, name: str, is_random: bool | None
    ) -> None:
        """Write unit vectors of a model, float32[dim] by content (MD5), all or none.

        Args:
            model_digest: of the model; recorded with its first vectors.
            vectors: at least one.
            name: of the model.
            is_random: whether its weights are untrained; None if the server does not state it.

        Raises:
            CatalogueError: another dimension than before, random instead of trained weights or the reverse, or vectors that
                are not finite and of length 1.
        """
        rows = np.stack(list(vectors.values())).astype("<f4")
        # NaN fails this comparison too.
        if not (abs(np.linalg.norm(rows, axis=1) - 1) < 1e-2).all():
            raise CatalogueError("The backend returned vectors that are not of length 1: check its model.")
        with self.transaction() as connection:
            ((model_id, dim, was_random),) = connection.execute(
                "INSERT INTO model (digest, name, dim, is_random) VALUES (?, ?, ?, ?) ON CONFLICT (digest) DO UPDATE "
                "SET is_random = coalesce(is_random, excluded.is_random) RETURNING id, dim, is_random",
                (model_digest, name, rows.shape[1], is_random),
            ).fetchall()
            if dim != rows.shape[1] or (is_random is not None and was_random != is_random):
                raise CatalogueError(
                    f"Model {model_digest[:12]} is in the catalogue with {dim} dimensions and random weights "
                    f"{bool(was_random)}, and now reports {rows.shape[1]} and {is_random}: one of two servers is wrong."
                )
            connection.executemany(
                "INSERT OR REPLACE INTO embedding (model, md5, vector) VALUES (?, ?, ?)",
                [(model_id, md5, row.tobytes()) for md5, row in zip(vectors, rows, strict=True)],
            )

    def contents_with_vectors(self, model_digest: str) -> list[str]:
        """Return the MD5s with a vector of this model and a readable file, in order."""
        rows = self.query(
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
        ((dim,),) = self.query("SELECT max(dim) FROM model WHERE digest = ?", (model_digest,))
        vectors, n = np.empty((len(md5s), dim or 0), dtype=np.float32), 0
        with self._explained():
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


def by_content(photos: Iterable[Photo]) -> dict[str, list[Photo]]:
    """Return the files of each content (MD5)."""
    by_md5: dict[str, list[Photo]] = {}
    for photo in photos:
        by_md5.setdefault(photo.md5, []).append(photo)
    return by_md5


def is_scanned(root: Path, folder: Path | str | None = None, only: Sequence[str] = ()) -> bool:
    """Return whether a library has its catalogue, with a file from each of these folders."""
    if not os.path.isfile(own_folder_of(real_path(root), folder).catalogue):
        return False
    if not only:
        return True
    with Catalogue(root, folder) as opened:
        return not opened.folders_without_photos(only)


def open_sound(root: Path, folder: Path | str | None = None) -> tuple[Catalogue, Path | None]:
    """Open a catalogue for a scan, made if needed; a damaged one is set aside and begun anew.

    The owner's decisions are elsewhere (`feedback.jsonl`, `review/`, `settings.json`, the trash's journal), so only facts
    and embeddings have to be made again.

    Returns:
        The catalogue, and the new path of a damaged file, or None.
    """
    try:
        with ExitStack() as closing:
            opened = closing.enter_context(Catalogue(root, folder, create=True))
            opened.check()
            closing.pop_all()  # a sound one stays open
        return opened, None
    except CatalogueDamagedError as damaged:
        file = own_folder_of(real_path(root), folder).catalogue
        aside = file.with_name(f"{file.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}")
        try:
            for end in ("", *BESIDE):  # a log left behind would be applied to the next catalogue
                with suppress(FileNotFoundError):
                    os.rename(f"{file}{end}", f"{aside}{end}")
        except OSError as error:
            raise CatalogueError(
                f"{printable(file)} is damaged and cannot be set aside ({error.strerror}): move it away."
            ) from damaged
        return Catalogue(root, folder, create=True), aside
