"""Embeddings for a catalogue, from any backend, a batch at a time; an interruption costs one batch."""

import os
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from PIL import Image

from photodup.core.errors import PhotodupError
from photodup.core.progress import bar
from photodup.embedding import imaging
from photodup.embedding.vectors import BROKEN, BrokenEmbedding, broken_rows
from photodup.photos.library.catalogue import Catalogue
from photodup.photos.library.hashing import Look, md5
from photodup.photos.library.walking import ListedFile, UnreadFile, read_bytes

if TYPE_CHECKING:
    from photodup.embedding.client.embedder import Embedder


# Batches at once: while one is computed the next is read and decoded.
_AT_ONCE = 2


@dataclass
class EmbedReport:
    """What `embed_library` did. `problems` are photographs that changed, vanished or were refused."""

    model_digest: str
    is_random: bool | None = None
    n_embedded: int = 0
    n_before: int = 0
    seconds: float = 0.0
    problems: list[UnreadFile] = field(default_factory=list)

    def __str__(self) -> str:
        rate = self.n_embedded / self.seconds if self.seconds else 0.0
        return (
            f"{self.n_embedded} photographs embedded ({rate:.1f} per second), {self.n_before} had an "
            f"embedding of this model, {len(self.problems)} could not be embedded"
            + ("; RANDOM WEIGHTS: fit for timings, never for decisions" if self.is_random else "")
        )


def embed_library(
    catalogue: Catalogue,
    embedder: "Embedder",
    batch: int = 32,
    *,
    progress: bool = True,
    leave_out: Collection[str] = (),
) -> EmbedReport:
    """Embed every content that has no vector of this model yet; each batch is written when it is done.

    A file that changed since the scan is left out: its vector would be stored under the wrong content.

    Args:
        catalogue: a scanned library.
        embedder: any backend.
        batch: photographs per call.
        progress: show a bar with rate and time left.
        leave_out: contents (MD5) that were refused just before.

    Raises:
        PhotodupError: the backend does not say which model it serves, or stops answering; the batches before
            that are kept.
    """
    started = time.perf_counter()
    digest = require_fit(embedder)
    n_before = sum(m.n_embeddings for m in catalogue.models() if m.digest == digest)
    report = EmbedReport(digest, embedder.is_random, n_before=n_before)
    todo = [content for content in catalogue.missing_embeddings(digest) if content[0] not in leave_out]
    with (
        bar(total=len(todo), desc="embed", unit="photo", disable=not progress) as progress_bar,
        RunningBatches(catalogue, embedder, report, progress_bar) as running,
    ):
        for start in range(0, len(todo), batch):
            chosen = todo[start : start + batch]
            running.add(len(chosen), embed_files, embedder, catalogue.root, chosen)
    report.seconds = time.perf_counter() - started
    return report


class RunningBatches:
    """Batches that are embedded, one read and decoded while another is computed; each is written when it is done.

    A context manager, which waits for all batches; whatever ends it early, what was done by then is written, and an error of
    ours says how much.

    Args:
        catalogue: where vectors go; written from the thread that calls.
        embedder: who embeds.
        report: counts what is written.
        progress_bar: shows the photographs written, if there is one.
    """

    def __init__(
        self, catalogue: Catalogue, embedder: "Embedder", report: EmbedReport, progress_bar: Any = None
    ) -> None:
        self._catalogue, self.report, self._progress_bar = catalogue, report, progress_bar
        self._name = embedder.model_name or embedder.backend
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="embed")
        self._waiting: deque[tuple[int, Future[Embedded]]] = deque()

    def add(self, n: int, work: Callable[..., "Embedded"], *arguments: object) -> None:
        """Begin a batch of n photographs; where enough are under way, wait for the oldest first and write it."""
        oldest = None
        if len(self._waiting) >= _AT_ONCE:
            n_oldest, future = self._waiting.popleft()
            oldest = n_oldest, future.result()
        self._waiting.append((n, self._pool.submit(work, *arguments)))
        if oldest:
            self._write(*oldest)

    def finish(self) -> None:
        """Wait for all and write them."""
        while self._waiting:
            n, future = self._waiting.popleft()
            self._write(n, future.result())

    def _write(self, n: int, embedded: "Embedded") -> None:
        """Write vectors under their model, all or none, and count them."""
        report = self.report
        report.problems += embedded.problems
        broken_ones = sum(problem.reason == BROKEN for problem in embedded.problems)
        if broken_ones > 1 and not embedded.md5s:
            raise PhotodupError(
                f"{self._name} gave no sound embedding for any of {broken_ones} photographs ({BROKEN}), so nothing of "
                "them was stored: use FP32, or export the model again."
            )
        if embedded.md5s:
            digest, vectors = report.model_digest, np.stack(embedded.vectors)
            dim = vectors.shape[1]
            self._catalogue.register_model(digest, name=self._name, dim=dim, is_random=report.is_random)
            self._catalogue.store_embeddings(digest, embedded.md5s, vectors)
            report.n_embedded += len(embedded.md5s)
        if self._progress_bar is not None:
            self._progress_bar.update(n)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        try:
            if error is None:
                self.finish()
        except BaseException as failure:
            error = failure
            raise
        finally:
            self._end(error)

    def _end(self, error: BaseException | None) -> None:
        """Write what was embedded before an error, and say how much that is."""
        try:
            for n, future in self._waiting:
                # Their own failures are the same news.
                if not future.cancel() and future.exception() is None:
                    with suppress(PhotodupError):
                        self._write(n, future.result())
        finally:
            self._pool.shutdown(cancel_futures=True)
        if isinstance(error, PhotodupError) and self.report.n_embedded:
            note = f"{self.report.n_embedded} photographs were embedded before and are kept"
            error.args = (f"{error} {note}: the same command goes on from there.",)


def require_fit(embedder: "Embedder") -> str:
    """Return the digest of the model; refuse a backend whose vectors no decision may rest on.

    Raises:
        PhotodupError: they could not be told from another model's, or they are not of FP32.
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
class Embedded:
    """What became of some files: vectors float32[n, dim] of the contents `md5s`, and the others' problems."""

    md5s: list[str] = field(default_factory=list)
    vectors: list[np.ndarray] = field(default_factory=list)
    problems: list[UnreadFile] = field(default_factory=list)


def embed_files(embedder: "Embedder", root: Path, chosen: Sequence[tuple[str, Path]]) -> Embedded:
    """Read files of a library, leave out what changed since the scan, embed the rest; nothing is written.

    Args:
        embedder: any backend.
        root: the library.
        chosen: content (MD5) and path of each file.
    """
    batch, images = Embedded(), {}
    for digest, path in chosen:
        try:
            data, _ = read_bytes(root, ListedFile(os.fsencode(path), 0, 0))
        except (OSError, imaging.ImageError) as error:
            batch.problems.append(UnreadFile(path, getattr(error, "strerror", None) or str(error)))
            continue
        if md5(data) == digest:
            images[digest] = data
        else:
            batch.problems.append(UnreadFile(path, "changed since the scan: scan again"))
    return embed_images(embedder, images, dict(chosen), batch)


def embed_images(
    embedder: "Embedder",
    images: Mapping[str, Any],
    paths: Mapping[str, Path],
    batch: Embedded | None = None,
) -> Embedded:
    """Embed images by content (MD5); one that is refused costs none of the others.

    Args:
        embedder: any backend.
        images: encoded bytes, or pictures.
        paths: where each lies in the library, to name it by.
        batch: what to add to; default nothing yet.
    """
    batch = batch or Embedded()
    if not images:
        return batch
    vectors: np.ndarray | None = None
    try:
        vectors = embedder.embed(list(images.values()))
        rows, reason = broken_rows(vectors), BROKEN
    except BrokenEmbedding as error:
        rows, reason = error.rows, BROKEN
    except imaging.ImageError as error:  # One bad photograph must not cost the others of its batch.
        index = getattr(error, "index", None)
        if index is None and len(images) > 1:
            for digest, data in images.items():
                embed_images(embedder, {digest: data}, paths, batch)
            return batch
        rows, reason = [index or 0], error.reason
    batch.problems += [UnreadFile(paths[digest], reason) for row, digest in enumerate(images) if row in rows]
    accepted = {digest: data for row, (digest, data) in enumerate(images.items()) if row not in rows}
    if vectors is None:
        return embed_images(embedder, accepted, paths, batch)
    for digest, vector in zip(images, vectors, strict=True):
        if digest in accepted:
            batch.md5s.append(digest)
            batch.vectors.append(vector)
    return batch


class OnePass(RunningBatches):
    """What a scan hands photographs to (`photos.library.scan.PhotoSink`).

    A context manager: left without an error, everything that was handed over is embedded and written; otherwise, what
    was done by then.

    Args:
        catalogue: the one that is scanned into.
        embedder: any backend; one that decodes at a reduced scale has the scan do so.
        batch: photographs per call.
        progress: show a bar for what the scan did not read.

    Raises:
        PhotodupError: the backend does not say which model it serves, or they are not of FP32.
    """

    def __init__(
        self, catalogue: Catalogue, embedder: "Embedder", batch: int = 32, *, progress: bool = True
    ) -> None:
        digest = require_fit(embedder)
        super().__init__(catalogue, embedder, EmbedReport(digest, is_random=embedder.is_random))
        self._embedder, self._batch, self._progress = embedder, batch, progress
        self.look = Look(embedder.view, embedder.draft_size)
        self._known = set(catalogue.embedded(digest))
        self._pending: list[tuple[str, Path, np.ndarray]] = []
        self._started = time.perf_counter()

    def take(self, photographs: Sequence[tuple[str, Path, np.ndarray]]) -> None:
        """Take photographs whose facts are written; a content that has its vector is left out.

        Raises:
            PhotodupError: the backend stopped answering; what it answered before is written.
        """
        for photograph in photographs:
            if photograph[0] not in self._known:
                self._known.add(photograph[0])
                self._pending.append(photograph)
        while len(self._pending) >= self._batch:
            self._begin()

    def finish(self) -> None:
        """Embed and write what was handed over."""
        if self._pending:
            self._begin()
        super().finish()

    def embed_the_rest(self) -> EmbedReport:
        """Embed what earlier scans left, and return what became of all; call when the scan has ended."""
        report = embed_library(
            self._catalogue, self._embedder, self._batch, progress=self._progress, leave_out=self._known
        )
        report.n_before -= self.report.n_embedded
        report.n_embedded += self.report.n_embedded
        report.problems = self.report.problems + report.problems
        report.seconds = time.perf_counter() - self._started
        return report

    def _begin(self) -> None:
        chosen, self._pending = self._pending[: self._batch], self._pending[self._batch :]
        images = {md5: Image.fromarray(pixels.transpose(1, 2, 0)) for md5, _, pixels in chosen}
        paths = {md5: path for md5, path, _ in chosen}
        self.add(len(chosen), embed_images, self._embedder, images, paths)
