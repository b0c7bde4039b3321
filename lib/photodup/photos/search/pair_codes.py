"""One number for a pair of rows, so that many pairs are one array."""

from typing import TypeVar

import numpy as np

Codes = TypeVar("Codes", int, np.ndarray)


def pair_code(i: int, j: int) -> int:
    """Return one number for a pair of rows, in either order."""
    return min(i, j) << 32 | max(i, j)


def pair_codes(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the `pair_code` of each pair of rows, int64[n]."""
    low, high = np.minimum(first, second).astype(np.int64), np.maximum(first, second).astype(np.int64)
    return low << 32 | high


def pair_rows(codes: Codes) -> tuple[Codes, Codes]:
    """Return the rows of one pair or of an array of them, the smaller first."""
    return codes >> 32, codes & 0xFFFFFFFF
