"""Lay one picture over another: feature pairs, one affine map from them, and the pixels under it."""

from functools import reduce
from typing import Any

import numpy as np

from photodup.photos.compare.features import LENGTH

# In `placed_in`: pixels by which a place, or a size, may be off what features say; sizes nearer than this are one; the
# pixels of a side that are compared, at most and at least; and the correlation from which on a picture is found.
_SLACK, _SAME_SIZE, _COMPARED, _LEAST, _FOUND = 3, 0.01, 512, 64, 0.9


def matches(first: np.ndarray, second: np.ndarray, ratio: float = 0.85) -> np.ndarray:
    """Return index pairs [n, 2] of features that are each other's nearest and clearly so (Lowe's ratio)."""
    if len(first) < 3 or len(second) < 3:
        return np.zeros((0, 2), int)
    # Descriptors have one length, so the nearest is the one with the largest product.
    products = first.astype(np.float32) @ second.astype(np.float32).T
    rows, nearest = np.arange(len(first)), products.argmax(axis=1)
    mutual = products.argmax(axis=0)[nearest] == rows
    best = products[rows, nearest]
    products[rows, nearest] = -np.inf
    square = LENGTH**2
    clear = square - best < ratio**2 * (square - products.max(axis=1))
    keep = clear & mutual
    return np.stack([rows[keep], nearest[keep]], axis=1)


def affine_map(target: np.ndarray, source: np.ndarray) -> tuple[np.ndarray | None, int]:
    """Return the affine map source -> target [2, 3] and its inliers; None if it is no plausible edit."""
    import cv2

    cv2.setRNGSeed(0)  # the same pair gets the same verdict every time
    transform, mask = cv2.estimateAffine2D(
        source, target, method=cv2.RANSAC, ransacReprojThreshold=3.0, maxIters=3000, confidence=0.999
    )
    if transform is None or not np.isfinite(transform).all():
        return None, 0
    scales = np.linalg.svd(transform[:, :2], compute_uv=False)
    # An edit scales both axes about alike (within 2) and does not turn the picture inside out.
    if scales[1] < 0.1 or scales[0] > 10 or scales[0] / scales[1] > 2 or np.linalg.det(transform[:, :2]) <= 0:
        return None, 0
    return transform, int(mask.sum())


def laid_over(target: np.ndarray, source: np.ndarray, transform: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the source in the frame of the target, and where it is (bool)."""
    import cv2

    size = target.shape[::-1]
    # Beyond its edge the last pixel is repeated: black there would be blurred into the patches inside.
    warped = cv2.warpAffine(source, transform, size, flags=cv2.INTER_AREA, borderMode=cv2.BORDER_REPLICATE)
    return warped, cv2.warpAffine(np.full_like(source, 255), transform, size) == 255


def shifts(
    a: np.ndarray, b: np.ndarray, shared: np.ndarray, side: int, *, texture: float, sure: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return how the second of two pictures lies displaced in square places, which a phase tells.

    Args:
        a, b: float32[h, w], laid over each other.
        shared: bool[h, w], where both show the picture.
        side: of a place, pixels.
        texture: standard deviation that a place needs in both, greys.
        sure: response of the phase from which on it counts, 0..1.

    Returns:
        The centres of the places and the shifts, float32[n, 2] in x and y.
    """
    import cv2

    window = cv2.createHanningWindow((side, side), cv2.CV_32F)
    centres, found = [], []
    for top in range(0, a.shape[0] - side + 1, side):
        for left in range(0, a.shape[1] - side + 1, side):
            box = slice(top, top + side), slice(left, left + side)
            if not shared[box].all() or min(a[box].std(), b[box].std()) < texture:
                continue
            shift, response = cv2.phaseCorrelate(a[box] - a[box].mean(), b[box] - b[box].mean(), window)
            if response > sure:
                centres.append((left + side / 2, top + side / 2))
                found.append(shift)
    return np.array(centres, np.float32).reshape(-1, 2), np.array(found, np.float32).reshape(-1, 2)


def placed_in(whole: np.ndarray, part: np.ndarray, near: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Return where a picture lies in another, to the pixel: (left, top) and (width, height); None if it is not found.

    Args:
        whole, part: uint8[h, w]; either may show more than the other.
        near: float64[2, 2], about where the part's left upper and right lower corners lie, edges of pixels.
    """
    import cv2

    size, (wide, _) = np.array(part.shape[::-1]), (near[1] - near[0]).round().astype(int)
    is_same_size = abs(wide / size[0] - 1) < _SAME_SIZE
    best, found = _FOUND, None
    for width in [size[0]] if is_same_size else range(wide - _SLACK, wide + _SLACK + 1):
        placed = np.array([width, round(width * size[1] / size[0])])
        at = (near.mean(axis=0) - placed / 2).round().astype(int)
        low = np.maximum(at, 0) + _SLACK
        high = np.minimum(at + placed, whole.shape[::-1]) - _SLACK
        low = np.maximum(low, (low + high - _COMPARED) // 2)
        high = np.minimum(high, low + _COMPARED)
        if (high - low).min() < _LEAST:
            return None
        way = cv2.INTER_AREA if width < size[0] else cv2.INTER_CUBIC
        scaled = part if is_same_size else cv2.resize(part, placed.tolist(), interpolation=way)
        (left, top), (right, below) = low - at - _SLACK, high - at + _SLACK
        seen = whole[low[1] : high[1], low[0] : high[0]]
        fits = cv2.matchTemplate(scaled[top:below, left:right], seen, cv2.TM_CCOEFF_NORMED)
        _, fit, _, shift = cv2.minMaxLoc(fits)
        if fit > best:
            best, found = fit, (at + _SLACK - shift, placed)
    return found


def residual(a: np.ndarray, b: np.ndarray, inside: Any = ...) -> np.ndarray:
    """Return by how much each grey of a picture is off the other's, after the brightness and contrast that fit `inside`."""
    deviation = b - b[inside].mean()
    within = deviation[inside]
    gain = float((within * a[inside]).sum() / max(float((within**2).sum()), 1e-6))
    return np.abs(a - a[inside].mean() - gain * deviation)


def in_blocks(values: np.ndarray, side: int) -> np.ndarray:
    """Return [rows, columns, side, side]: the whole squares of a picture [h, w]."""
    rows, columns = (length // side for length in values.shape)
    whole = values[: rows * side, : columns * side]
    return whole.reshape(rows, side, columns, side).swapaxes(1, 2)


def is_cut(rgb: np.ndarray, white: int, black: int) -> np.ndarray:
    """Return bool[h, w]: where a channel of a picture [h, w, 3] reaches one of two greys."""
    channels = np.moveaxis(rgb, 2, 0)
    return (reduce(np.maximum, channels) >= white) | (reduce(np.minimum, channels) <= black)


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Return the normalised correlation of two equally long arrays, -1..1; 0 where one is flat or empty."""
    if not len(a):
        return 0.0
    a, b = a - a.mean(), b - b.mean()
    norm = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / norm if norm > 1e-6 else 0.0
