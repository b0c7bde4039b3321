"""The SQLite catalogue beside a library: which files are there, what is in them, and their embeddings.

Facts and embeddings belong to the *content* (MD5), not to the path: they survive renames and moves, and
two equal files share them. An embedding also names its model, and vectors of two models never meet.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from photodup.files import real_path
from photodup.names import printable
from photodup.photos.library.database import (
    CatalogueDamagedError,
    CatalogueDatabase,
    CatalogueError,
    not_a_catalogue,
)
from photodup.photos.own.catalogue_file import Kind, kind_of, set_aside
from photodup.photos.own.own_folder import locate_catalogue


@dataclass(frozen=True, slots=True)
class Photo:
    """One readable file: `path` is relative to the library; width and height are upright pixels.

    `exposure` and `described` are JSON, as `photodup.photos.library.metadata` gives them; None if nothing is known.
    """

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
    exposure: str | None = None
    described: str | None = None


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


class Catalogue(CatalogueDatabase):
    """An open catalogue, a context manager; `CatalogueDatabase` says how it is opened and what it raises."""

    def photos(self) -> list[Photo]:
        """Return every readable file, ordered by path.

        Raises:
            CatalogueDamagedError: a value that no scan writes; whoever sent the catalogue may have put it there.
        """
        self.check("content", "file")
        rows = self.query(
            "SELECT file.id, file.path, file.md5, file.size_bytes, file.mtime_ns, format, width, height, "
            "phash, taken_at, camera, exif_fields, exposure, described FROM file JOIN content USING (md5) "
            "WHERE status = 'ok' ORDER BY file.path"
        )
        return [Photo(row[0], Path(os.fsdecode(row[1])), *row[2:]) for row in rows]

    def problems(self) -> list[tuple[Path, str]]:
        """Return (path, reason) of every file that is there but cannot be read, ordered by path."""
        rows = self.query(
            "SELECT path, reason FROM file WHERE status IN ('unreadable', 'inaccessible') ORDER BY path"
        )
        return [(Path(os.fsdecode(path)), reason) for path, reason in rows]

    def models(self) -> list[Model]:
        """Return the models that have embeddings here, the one with most embeddings first."""
        rows = self.query(
            "SELECT digest, name, dim, is_random, count(embedding.md5) FROM model "
            "LEFT JOIN embedding ON model = model.id GROUP BY model.id ORDER BY 5 DESC, digest"
        )
        return [
            Model(digest, name, dim, None if is_random is None else bool(is_random), n)
            for digest, name, dim, is_random, n in rows
        ]

    def missing_embeddings(self, model_digest: str) -> list[tuple[str, Path]]:
        """Return (md5, a path that holds it) for each readable content without a vector of this model."""
        rows = self.query(
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
        rows = self.query("SELECT id, dim FROM model WHERE digest = ?", (model_digest,))
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

    def load_embeddings(self, model_digest: str) -> tuple[list[str], np.ndarray]:
        """Return (md5s, float32[n, dim]) of one model for contents some readable file has, ordered by MD5."""
        md5s = self.embedded(model_digest)
        return md5s, self.embeddings_of(model_digest, md5s)


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
        file, own, is_default = locate_catalogue(real_path(root), path)
        # In our own folder it is ours, whatever is left of it; elsewhere that has to be seen.
        if not is_default and kind_of(file) is not Kind.OURS:
            raise not_a_catalogue(file) from None
        try:
            aside = set_aside(file, own.path)
        except OSError as error:
            raise CatalogueError(
                f"{printable(file)} is damaged and cannot be set aside ({error.strerror}): move it away."
            ) from damaged
        return Catalogue(root, path, create=True), aside
