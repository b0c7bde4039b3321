"""Maps between pictures of one frame, made exact.

Most copies keep the frame: only tones, size or compression change. Features of a foggy or blurred picture give their map
to a few pixels; where the map that lays frame on frame is near it and fits as well, that is the one.
"""

import numpy as np

from photodup.photos.compare.alignment import correlation, laid_over

# Corners may be moved by this share of the longer side, and sides' ratios may differ by as much as rounding does.
_NEAR, _SAME_SHAPE = 0.06, 0.01
# Loss of correlation that is none.
_AS_WELL = 0.0005


def snapped(target: np.ndarray, source: np.ndarray, transform: np.ndarray) -> np.ndarray:
    """Return the map of frame on frame where that fits as well, else the map as it is.

    Args:
        target, source: uint8[h, w] at the size of comparison.
        transform: float64[2, 3], from the source's pixels to the target's.
    """
    exact = _frame_on_frame(target.shape, source.shape, transform)
    if exact is None:
        return transform
    corners = _corners(source.shape)
    moved = corners @ exact[:, :2].T + exact[:, 2] - corners @ transform[:, :2].T - transform[:, 2]
    if np.linalg.norm(moved, axis=1).max() > _NEAR * max(target.shape):
        return transform
    found = [_fit(target, source, one) for one in (exact, transform)]
    return exact if found[0] >= found[1] - _AS_WELL else transform


def _frame_on_frame(
    target: tuple[int, ...], source: tuple[int, ...], transform: np.ndarray
) -> np.ndarray | None:
    """Return the map of one frame on the other, in quarter turns and mirrored as the map is; None between two shapes."""
    turned = np.rint(transform[:, :2] / np.sqrt(abs(np.linalg.det(transform[:, :2]))))
    if abs(np.linalg.det(turned)) != 1 or np.abs(turned).sum() != 2:
        return None
    sides = np.abs(turned) @ np.array(source[1::-1], float)
    scales = np.array(target[1::-1], float) / sides
    if abs(scales[0] / scales[1] - 1) > _SAME_SHAPE:
        return None
    linear = turned * scales[:, None]
    centre = (np.array(source[1::-1], float) - 1) / 2
    return np.column_stack([linear, (np.array(target[1::-1], float) - 1) / 2 - linear @ centre])


def _corners(shape: tuple[int, ...]) -> np.ndarray:
    height, width = shape[:2]
    return np.array([(0, 0), (width - 1, 0), (0, height - 1), (width - 1, height - 1)], float)


def _fit(target: np.ndarray, source: np.ndarray, transform: np.ndarray) -> float:
    warped, covered = laid_over(target, source, transform)
    return correlation(target[covered].astype(np.float32), warped[covered].astype(np.float32))
