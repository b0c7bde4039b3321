"""Checks of embeddings (finite, not zero), and digests that name their model."""

import hashlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import numpy as np

from photodup.core.errors import PhotodupError
from photodup.embedding.imaging import DRAFT_SIZE, ImageError

BROKEN = "the model's answer holds NaN or infinities, or is zero"
# Engines return length 1; anything this short is a zero vector, normalised.
_LEAST_LENGTH = 1e-3


class BrokenEmbedding(PhotodupError):
    """A model answered NaN, infinities or zeros.

    Attributes:
        rows: positions of these images in the request.
    """

    def __init__(self, sentence: str, rows: list[int]) -> None:
        super().__init__(sentence)
        self.rows = rows


@contextmanager
def counted_from(first: int) -> Iterator[None]:
    """Add `first` to the image positions in errors, for a batch that begins at `first`."""
    try:
        yield
    except ImageError as error:
        if error.index is not None:
            error.index += first
        raise
    except BrokenEmbedding as error:
        error.rows = [row + first for row in error.rows]
        raise


def broken_rows(vectors: np.ndarray) -> list[int]:
    """Return the rows of float [n, dim] that hold a NaN or an infinity, or are zero."""
    with np.errstate(all="ignore"):
        lengths = np.linalg.norm(np.asarray(vectors, np.float64), axis=-1)
    return np.flatnonzero(~(np.isfinite(lengths) & (lengths >= _LEAST_LENGTH))).tolist()


def digest_drafted(digest: str) -> str:
    """Return the digest of a model's embeddings of JPEGs decoded at a reduced scale."""
    return hashlib.sha256(f"{digest}-draft{DRAFT_SIZE}".encode()).hexdigest()


def is_among(digest: str | None, digests: Collection[str]) -> bool:
    """Tell whether a model is among these digests, with JPEGs decoded whole or at a reduced scale."""
    return digest is not None and (digest in digests or digest_drafted(digest) in digests)
