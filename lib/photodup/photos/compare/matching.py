"""Lay one picture over another by features: pairs of them, one affine map, and the pixels under it."""

from typing import Any

import numpy as np

from photodup.photos.compare.features import LENGTH


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


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Return the normalised correlation of two equally long arrays, -1..1; 0 where one is flat or empty."""
    if not len(a):
        return 0.0
    a, b = a - a.mean(), b - b.mean()
    norm = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / norm if norm > 1e-6 else 0.0
