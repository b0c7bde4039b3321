"""Compare two aligned pictures patch by patch: which agree, which differ, and which differ only by writing."""

import numpy as np

from photodup.photos.compare.maps import Size

# Side of a patch, pixels. It agrees at this correlation, and has texture at this standard deviation (greys); less is texture
# where gradients are removed.
PATCH = 24
PATCH_AGREES = 0.6
TEXTURED, FAINTLY_TEXTURED = 6.0, 2.0
# Strokes of a caption are thinner than this (pixels, at a longer side of 480).
MAX_STROKE = 9


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Return the normalised correlation of two equally long arrays, -1..1; 0 where one is flat or empty."""
    if not len(a):
        return 0.0
    a, b = a - a.mean(), b - b.mean()
    norm = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / norm if norm > 1e-6 else 0.0


def laid_over(greys: np.ndarray, transform: np.ndarray, size: Size) -> tuple[np.ndarray, np.ndarray]:
    """Return greys mapped to a frame of this size by a map between centres, and bool[h, w] where they lie."""
    import cv2

    # Repeat edge pixels outside: black would be blurred into the patches inside.
    warped = cv2.warpAffine(greys, transform, size, borderMode=cv2.BORDER_REPLICATE)
    return warped, cv2.warpAffine(np.full(greys.shape, 255, np.uint8), transform, size) == 255


def structure(grey: np.ndarray, covered: np.ndarray) -> np.ndarray:
    """Return the structure of 2 to 12 pixels, float32, zero where not covered (bool).

    Gradients are removed: any two evening skies agree in them.
    """
    import cv2

    weight = covered.astype(np.float32)
    # Normalised by what is covered, or the edge of the overlap would look like structure of its own.
    fine, coarse = (
        cv2.GaussianBlur(grey * weight, (0, 0), sigma) / (cv2.GaussianBlur(weight, (0, 0), sigma) + 1e-3)
        for sigma in (2, 12)
    )
    return (fine - coarse) * weight


def overlay(
    target: np.ndarray, source: np.ndarray, transform: np.ndarray, *, of_structure: bool = False
) -> tuple[float, float, float, float, int]:
    """Map the source onto the target, and compare their greys or, without gradients, their structure.

    Returns:
        Overlap, correlation, spot, agreement and patches, as in `CopyEvidence`.
    """
    import cv2

    warped, covered = laid_over(source, transform, target.shape[::-1])
    area = np.count_nonzero(covered)
    scale = abs(np.linalg.det(transform[:, :2]))
    overlap = float(area / min(target.size, max(source.size * scale, 1.0)))
    if area < 1000:
        return overlap, 0.0, 0.0, 0.0, 0
    inside, texture = covered, TEXTURED
    if of_structure:
        a, b = structure(target, covered), structure(warped, covered)
        # Leave out the edge: a one-sided blur makes structure of a plain gradient.
        margin = np.ones((2 * PATCH + 1, 2 * PATCH + 1), np.uint8)
        inside, texture = cv2.erode(covered.astype(np.uint8), margin, borderValue=0) > 0, FAINTLY_TEXTURED
    else:
        # A slight blur forgives JPEG noise and half a pixel of misalignment.
        a, b = (cv2.GaussianBlur(greys.astype(np.float32), (0, 0), 1.5) for greys in (target, warped))
    whole = correlation(a[inside], b[inside])
    patches = patch_correlations(a, b, inside, texture)
    n = int(np.isfinite(patches).sum())
    if n < 8:
        return overlap, whole, 0.0, max(whole, 0.0), n
    return overlap, whole, *differences(patches, target, warped, covered), n


def differences(
    patches: np.ndarray, target: np.ndarray, warped: np.ndarray, covered: np.ndarray
) -> tuple[float, float]:
    """Return spot and agreement of a grid of patch correlations, NaN where there was nothing to compare."""
    textured = np.isfinite(patches)
    differing = textured & (np.nan_to_num(patches) < PATCH_AGREES)
    if not differing.any():
        return 0.0, 1.0
    caption = differing & _caption(differing, textured, target, warped, covered)
    n = textured.sum()
    return float(caption.sum() / n), 1 - float((differing & ~caption).sum() / n)


def _caption(
    differing: np.ndarray, textured: np.ndarray, target: np.ndarray, warped: np.ndarray, covered: np.ndarray
) -> np.ndarray:
    """Return which patches differ by writing alone: thin strokes of one grey in one of the two pictures.

    Someone who moved in front of a fixed camera is neither thin nor of one grey.
    """
    import cv2

    def pixels(patch: np.ndarray) -> np.ndarray:
        return np.kron(patch, np.ones((PATCH, PATCH), bool)) & covered[:height, :width]

    height, width = (PATCH * side for side in differing.shape)
    a, b = (grey[:height, :width].astype(np.float32) for grey in (target, warped))
    same, other = pixels(textured & ~differing), pixels(differing)
    if np.count_nonzero(same) < PATCH**2:
        return np.zeros_like(differing)
    # Fit brightness and contrast to the patches that agree; the residual is writing, or something that moved.
    deviation, agreeing = b - b[same].mean(), a[same]
    gain = float((deviation[same] * agreeing).sum() / max(float((deviation[same] ** 2).sum()), 1e-6))
    left = np.abs(a - agreeing.mean() - gain * deviation)
    written = other & (left > 30)
    if not written.any():
        return np.zeros_like(differing)
    solid = cv2.morphologyEx(
        written.astype(np.uint8), cv2.MORPH_OPEN, np.ones((MAX_STROKE, MAX_STROKE), np.uint8)
    )
    strong = written & (left >= np.median(left[written]))  # without the soft edges of strokes
    total, thin = _sums(strong), _sums(solid.astype(bool)) <= 0.1 * _sums(written)
    captions = [
        thin & (_sums(strong & (np.abs(grey - np.median(grey[strong])) <= 35)) >= 0.75 * total)
        for grey in (a, b)
    ]
    return max(captions, key=np.count_nonzero)


def patch_correlations(a: np.ndarray, b: np.ndarray, covered: np.ndarray, texture: float) -> np.ndarray:
    """Return the correlation of each patch of two aligned pictures; NaN where there is nothing to compare."""
    a, b = a * covered, b * covered
    n = _sums(covered)
    mean_a, mean_b = _sums(a) / np.maximum(n, 1), _sums(b) / np.maximum(n, 1)
    var_a = np.maximum(_sums(a * a) / np.maximum(n, 1) - mean_a**2, 0)
    var_b = np.maximum(_sums(b * b) / np.maximum(n, 1) - mean_b**2, 0)
    covariance = _sums(a * b) / np.maximum(n, 1) - mean_a * mean_b
    correlations = covariance / np.maximum(np.sqrt(var_a * var_b), 1e-6)
    textured = np.maximum(var_a, var_b) >= texture**2  # sky agrees with any sky
    return np.where((n >= 0.9 * PATCH**2) & textured, correlations, np.nan)


def _sums(values: np.ndarray) -> np.ndarray:
    """Return float64[rows, columns]: the sum of each whole patch of a picture [h, w]."""
    rows, columns = (length // PATCH for length in values.shape)
    whole = values[: rows * PATCH, : columns * PATCH]
    return whole.reshape(rows, PATCH, columns, PATCH).swapaxes(1, 2).sum(axis=(2, 3), dtype=np.float64)
