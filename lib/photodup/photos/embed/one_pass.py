"""Embedding photographs while they are scanned: each is read and decoded once, for its hash and for its vector.

The scan hands over what the encoder looks at (uint8 [3, size, size]), so nothing larger waits. What is left when it
ends, photographs that an earlier scan knows and no run has embedded, `embed_library` does by the same embedder.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
from PIL import Image

from photodup.photos.embed.embed import EmbedReport, UnderWay, embed_images, embed_library, require_fit
from photodup.photos.library.catalogue import Catalogue
from photodup.photos.library.hashing import Look

if TYPE_CHECKING:
    from photodup.embedding.client.client import Embedder


class OnePass:
    """What a scan hands photographs to (`photos.library.scan.PhotoSink`).

    A context manager: left without an error, everything that was handed over is embedded and written; otherwise, what
    was done by then.

    Args:
        catalogue: the one that is scanned into.
        embedder: any backend; one that decodes at a reduced scale has the scan do so.
        batch: photographs per call.
        progress: show a bar for what the scan did not read.

    Raises:
        PhotodupError: the backend does not say which model it serves, or its precision has not passed the gate.
    """

    def __init__(
        self, catalogue: Catalogue, embedder: "Embedder", batch: int = 32, *, progress: bool = True
    ) -> None:
        digest = require_fit(embedder)
        self._catalogue, self._embedder, self._batch, self._progress = catalogue, embedder, batch, progress
        self.look = Look(embedder.view, embedder.draft_size)
        self.report = EmbedReport(digest, is_random=embedder.is_random)
        self._known = set(catalogue.embedded(digest))
        self._pending: list[tuple[str, Path, np.ndarray]] = []
        self._under_way = UnderWay(catalogue, embedder, self.report)
        self._started = time.perf_counter()

    def take(self, seen: Sequence[tuple[str, Path, np.ndarray]]) -> None:
        """Take photographs whose facts are written; a content that has its vector is left out.

        Raises:
            PhotodupError: the backend stopped answering; what it answered before is written.
        """
        for one in seen:
            if one[0] not in self._known:
                self._known.add(one[0])
                self._pending.append(one)
        while len(self._pending) >= self._batch:
            self._begin()

    def embed_the_rest(self) -> EmbedReport:
        """Embed what earlier scans left, and return what became of all; call when the scan has ended."""
        rest = embed_library(
            self._catalogue, self._embedder, self._batch, progress=self._progress, leave_out=self._known
        )
        rest.n_before -= self.report.n_embedded
        rest.n_embedded += self.report.n_embedded
        rest.problems = self.report.problems + rest.problems
        rest.seconds = time.perf_counter() - self._started
        return rest

    def _begin(self) -> None:
        chosen, self._pending = self._pending[: self._batch], self._pending[self._batch :]
        images = {md5: Image.fromarray(pixels.transpose(1, 2, 0)) for md5, _, pixels in chosen}
        paths = {md5: path for md5, path, _ in chosen}
        self._under_way.add(len(chosen), embed_images, self._embedder, images, paths)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            self._under_way.__exit__(kind, error, traceback)
            return
        with self._under_way as under_way:
            if self._pending:
                self._begin()
            under_way.finish()
