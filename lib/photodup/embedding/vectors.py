"""What an embedding must be before anything may rest on it, finite and of a length that is not zero, and whose it is."""

import hashlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import numpy as np

from photodup.core.errors import PhotodupError
from photodup.embedding.imaging import ImageError, View

BROKEN = "the model's answer holds NaN or infinities, or is zero"
# Of length 1 as every engine gives them; a zero that was divided by a small number is none.
_LEAST_LENGTH = 1e-3


class BrokenEmbedding(PhotodupError):
    """Answers of a model that are no embeddings.

    Attributes:
        rows: positions of their images among those that were given.
    """

    def __init__(self, sentence: str, rows: list[int]) -> None:
        super().__init__(sentence)
        self.rows = rows


@contextmanager
def counted_from(first: int) -> Iterator[None]:
    """Let what is raised about some images name their positions among all that were given, `first` of them before these."""
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


def digest_drafted(digest: str, draft_size: int = View().draft_size) -> str:
    """Return the digest of the same model's embeddings of JPEGs that were decoded at a reduced scale.

    Args:
        draft_size: pixels that both sides keep at least.
    """
    return hashlib.sha256(f"{digest}-draft{draft_size}".encode()).hexdigest()


def is_among(digest: str | None, digests: Collection[str]) -> bool:
    """Tell whether embeddings of a model are there, of JPEGs decoded whole or at a reduced scale."""
    return digest is not None and (digest in digests or digest_drafted(digest) in digests)
