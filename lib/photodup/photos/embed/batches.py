"""Embeddings for a catalogue, from any backend, a batch at a time; an interruption costs at most two batches."""

import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from PIL import Image

from photodup.core.errors import PhotodupError
from photodup.core.names import count
from photodup.core.progress import bar
from photodup.embedding import imaging
from photodup.embedding.vectors import BROKEN, BrokenEmbedding, broken_rows
from photodup.photos.library.catalogue import Catalogue
from photodup.photos.library.hashing import Look, md5
from photodup.photos.library.walking import UnreadFile, read_bytes

if TYPE_CHECKING:
    from photodup.embedding.client.embedder import Embedder


# Batches at once: while one is computed the next is read and decoded.
_AT_ONCE = 2


@dataclass
class EmbedReport:
    """The result of an `EmbeddingPass`. `problems` are photographs that changed, vanished or were refused."""

    model_digest: str
    is_random: bool | None = None
    n_embedded: int = 0
    n_before: int = 0
    seconds: float = 0.0
    problems: list[UnreadFile] = field(default_factory=list)

    def __str__(self) -> str:
        rate = self.n_embedded / self.seconds if self.seconds else 0.0
        return (
            f"{count(self.n_embedded, 'photograph')} embedded ({rate:.1f} per second), {self.n_before} had an "
            f"embedding of this model, {len(self.problems)} could not be embedded"
            + ("; RANDOM WEIGHTS: fit for timings, never for decisions" if self.is_random else "")
        )


def embed_library(
    catalogue: Catalogue, embedder: "Embedder", batch: int = 32, *, progress: bool = True
) -> EmbedReport:
    """Embed every content that has no vector of this model yet; arguments and errors as of `EmbeddingPass`."""
    with EmbeddingPass(catalogue, embedder, batch, progress=progress) as embedding_pass:
        pass
    return embedding_pass.report


class EmbeddingPass:
    """Embeds a library in batches, one read and decoded while another is computed; each is written when it is done.

    A context manager, in which a scan may hand photographs over (`photos.library.scan.PhotoSink`). When it ends, all others
    without a vector of this model are read and embedded; a file that changed since the scan is left out, since its vector
    would be stored under the wrong content. After an error, finished batches are written, and a `PhotodupError` says how
    many photographs they hold.

    Args:
        catalogue: where vectors go; written from the thread that calls.
        embedder: any backend; one that decodes at a reduced scale has the scan do so.
        batch: photographs per call.
        progress: show a bar for the photographs that are read on exit.

    Attributes:
        report: counts what is written.

    Raises:
        PhotodupError: the backend does not say which model it serves, its vectors are not of FP32, or it stops answering.
    """

    def __init__(
        self, catalogue: Catalogue, embedder: "Embedder", batch: int = 32, *, progress: bool = True
    ) -> None:
        self._started = time.perf_counter()
        digest = require_fit(embedder)
        self._catalogue, self._embedder, self._batch, self._progress = catalogue, embedder, batch, progress
        self._embedded = set(catalogue.contents_with_vectors(digest))
        n_before = sum(model.n_embeddings for model in catalogue.models() if model.digest == digest)
        self.report = EmbedReport(digest, embedder.is_random, n_before=n_before)
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="embed")
        self._running: deque[Future[EmbeddedBatch]] = deque()
        self._pending: list[tuple[str, Path, np.ndarray]] = []
        self._bar: Any = None

    @property
    def look(self) -> Look:
        """How the scan decodes what it hands over."""
        return Look(self._embedder.draft_size)

    def take(self, photographs: Sequence[tuple[str, Path, np.ndarray]]) -> None:
        """Queue content (MD5), path and uint8[3, size, size] of scanned photographs; skip contents with a vector.

        Raises:
            PhotodupError: the backend stopped answering; what it answered before is written.
        """
        for photograph in photographs:
            if photograph[0] not in self._embedded:
                self._embedded.add(photograph[0])
                self._pending.append(photograph)
        while len(self._pending) >= self._batch:
            self._begin_pending()

    def _begin_pending(self) -> None:
        chosen, self._pending = self._pending[: self._batch], self._pending[self._batch :]
        images = {md5: Image.fromarray(pixels.transpose(1, 2, 0)) for md5, _, pixels in chosen}
        self._begin(embed_images, images, {md5: path for md5, path, _ in chosen})

    def _begin(self, work: Callable[..., "EmbeddedBatch"], *arguments: object) -> None:
        """Begin a batch; where enough are under way, wait for the oldest and write it first."""
        if len(self._running) >= _AT_ONCE:
            self._write_oldest()
        self._running.append(self._pool.submit(work, self._embedder, *arguments))

    def _finish(self) -> None:
        """Embed and write what was handed over, then what else has no vector."""
        if self._pending:
            self._begin_pending()
        todo = self._catalogue.missing_embeddings(self.report.model_digest)
        todo = [content for content in todo if content[0] not in self._embedded]
        self._write_all()
        with bar(total=len(todo), desc="embed", unit="photo", disable=not self._progress) as self._bar:
            for start in range(0, len(todo), self._batch):
                self._begin(embed_files, self._catalogue.root, todo[start : start + self._batch])
            self._write_all()
        self.report.seconds = time.perf_counter() - self._started

    def _write_all(self) -> None:
        while self._running:
            self._write_oldest()

    def _write_oldest(self) -> None:
        """Wait for the oldest batch, write its vectors under their model, all or none, and count them."""
        embedded, report = self._running.popleft().result(), self.report
        report.problems += embedded.problems
        n_broken = sum(problem.reason == BROKEN for problem in embedded.problems)
        name = self._embedder.model_name or self._embedder.backend
        if n_broken > 1 and not embedded.vectors:
            raise PhotodupError(
                f"{name} gave no sound embedding for any of {n_broken} photographs ({BROKEN}), so nothing of "
                "them was stored: use FP32, or export the model again."
            )
        if embedded.vectors:
            self._catalogue.store_embeddings(
                report.model_digest, embedded.vectors, name=name, is_random=report.is_random
            )
            report.n_embedded += len(embedded.vectors)
        if self._bar is not None:
            self._bar.update(len(embedded.vectors) + len(embedded.problems))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        failure = error
        try:
            if not error:
                self._finish()
        except BaseException as first:
            failure = first
            raise
        finally:
            while self._running:
                with suppress(Exception):  # later batches fail for the same reason
                    self._write_oldest()
            self._pool.shutdown()
            if isinstance(failure, PhotodupError) and self.report.n_embedded:
                note = f"{self.report.n_embedded} photographs were embedded before and are kept"
                failure.args = (f"{failure} {note}: the same command goes on from there.",)


def require_fit(embedder: "Embedder") -> str:
    """Return the digest of the model; refuse a backend whose vectors cannot be used for grouping.

    Raises:
        PhotodupError: it does not name its model, or does not compute in FP32.
    """
    if not embedder.model_digest:
        raise PhotodupError(
            f"The backend {embedder.backend} does not say which model it serves, so its embeddings could not "
            "be told from those of another: use a server started by photodup."
        )
    if embedder.precision != "fp32":
        raise PhotodupError(
            f"{embedder.backend} computes in {embedder.precision}, and photographs are grouped by FP32: use a server in "
            "fp32, or leave it out."
        )
    return embedder.model_digest


@dataclass
class EmbeddedBatch:
    """Vectors, float32[dim], by content (MD5), and the problems of the other files."""

    vectors: dict[str, np.ndarray] = field(default_factory=dict)
    problems: list[UnreadFile] = field(default_factory=list)


def embed_files(embedder: "Embedder", root: Path, chosen: Sequence[tuple[str, Path]]) -> EmbeddedBatch:
    """Read one batch of files of a library, leave out what changed since the scan, embed the rest; nothing is written.

    Args:
        embedder: any backend.
        root: the library.
        chosen: content (MD5) and path of each file.
    """
    batch, images = EmbeddedBatch(), {}
    for digest, path in chosen:
        try:
            data, _ = read_bytes(root, os.fsencode(path))
            if md5(data) != digest:
                raise OSError("changed since the scan: scan again")
            images[digest] = data
        except (OSError, imaging.ImageError) as error:
            batch.problems.append(UnreadFile(path, getattr(error, "strerror", None) or str(error)))
    return embed_images(embedder, images, dict(chosen), batch)


def embed_images(
    embedder: "Embedder",
    images: Mapping[str, bytes | Image.Image],
    paths: Mapping[str, Path],
    batch: EmbeddedBatch | None = None,
) -> EmbeddedBatch:
    """Embed images by content (MD5); a refused image does not affect the others.

    Args:
        embedder: any backend.
        images: encoded bytes, or pictures.
        paths: where each lies in the library, to name it by.
        batch: the result to add to; default a new one.
    """
    batch = batch or EmbeddedBatch()
    if not images:
        return batch
    digests, vectors, reason = list(images), None, BROKEN
    try:
        vectors = embedder.embed(list(images.values()))
        rows = broken_rows(vectors)
    except BrokenEmbedding as error:
        rows = error.rows
    except imaging.ImageError as error:
        index = getattr(error, "index", None)
        if index is None and len(images) > 1:  # which one is not known
            for digest, image in images.items():
                embed_images(embedder, {digest: image}, paths, batch)
            return batch
        rows, reason = [index or 0], error.reason
    batch.problems += [UnreadFile(paths[digests[row]], reason) for row in sorted(rows)]
    sound = [row for row in range(len(images)) if row not in rows]
    if vectors is None:
        return embed_images(embedder, {digests[row]: images[digests[row]] for row in sound}, paths, batch)
    batch.vectors |= {digests[row]: vectors[row] for row in sound}
    return batch
