"""Affine maps float64[2, 3] between pictures. Whole coordinates are edges of pixels, so that a resize is a plain scale."""

import numpy as np

Size = tuple[int, int]  # width and height, pixels
_HALF = np.full(2, 0.5)  # of a pixel


def from_centres(transform: np.ndarray) -> np.ndarray:
    """Return a map between centres of pixels as one between edges."""
    return np.column_stack([transform[:, :2], transform[:, 2] + _HALF - transform[:, :2] @ _HALF])


def to_centres(transform: np.ndarray) -> np.ndarray:
    """Return a map between edges of pixels as one between centres, as OpenCV takes it."""
    return np.column_stack([transform[:, :2], transform[:, 2] - _HALF + transform[:, :2] @ _HALF])


def straight(scales: np.ndarray, offset: np.ndarray | tuple[float, float] = (0, 0)) -> np.ndarray:
    """Return the map that scales the two axes and then moves by an offset."""
    return np.column_stack([np.diag(scales), offset])


def rescaled(transform: np.ndarray, source: float | np.ndarray, target: float | np.ndarray) -> np.ndarray:
    """Return the map after resizing source and target by these factors (one for both sides, or one a side)."""
    s, t = np.broadcast_to(source, 2), np.broadcast_to(target, 2)
    return np.column_stack([t[:, None] * transform[:, :2] / s, t * transform[:, 2]])


def inverse(transform: np.ndarray) -> np.ndarray:
    """Return the map back."""
    return np.linalg.inv(np.vstack([transform, (0, 0, 1)]))[:2]


def moved(points: np.ndarray, transform: np.ndarray) -> np.ndarray:
    """Return points [n, 2] under a map."""
    return points @ transform[:, :2].T + transform[:, 2]


def corners(size: Size | np.ndarray) -> np.ndarray:
    """Return float64[4, 2]: the corners of a frame, from the left upper one clockwise."""
    width, height = size
    return np.array([(0, 0), (width, 0), (width, height), (0, height)], float)


def is_straight(transform: np.ndarray) -> bool:
    """Return whether a map only moves and scales."""
    return abs(transform[0, 1]) + abs(transform[1, 0]) < 1e-9 and min(transform[0, 0], transform[1, 1]) > 0
