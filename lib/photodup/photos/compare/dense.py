"""Align two pictures without local features: fog, gradients, drawings, a plain wall.

Such pictures have few corners and many soft edges. The middle of one is searched for, scaled, in a thumbnail of the other;
the best places are refined to an affine map on the grey values (ECC, Evangelidis and Psarakis 2008), which also turns a
little.
"""

from collections.abc import Iterator

import numpy as np

from photodup.photos.compare import maps

# Longer side, pixels: where the window is searched for, and where the map is refined.
SEARCHED = 64
REFINED = 240
# Scale of the source in the frame of the target: a crop to half the area is 0.71.
SCALES = np.geomspace(0.71, 1.41, 13)
# Below this correlation of the window a place is not worth refining; edits of one picture reach 0.9.
MIN_MATCH = 0.85


def grey_maps(target: np.ndarray, source: np.ndarray) -> Iterator[np.ndarray]:
    """Yield up to two affine maps float64[2, 3] from source to target (pixels of these uint8 greys)."""
    import cv2

    starts = _starts(_resized(target, SEARCHED), _resized(source, SEARCHED))[:2]
    fine_target, fine_source = _resized(target, REFINED), _resized(source, REFINED)
    height, width = fine_source.shape
    top, left = int(0.15 * height), int(0.15 * width)  # the middle: a border is not in the other picture
    middle = np.ascontiguousarray(fine_source[top : height - top, left : width - left])
    ends = cv2.TERM_CRITERIA_COUNT | cv2.TERM_CRITERIA_EPS, 30, 1e-4
    for start in starts:
        begin = maps.rescaled_centres(start, REFINED / SEARCHED, REFINED / SEARCHED)
        begin[:, 2] += begin[:, :2] @ (left, top)
        try:
            _, refined = cv2.findTransformECC(
                middle, fine_target, begin.astype(np.float32), cv2.MOTION_AFFINE, ends
            )
        except cv2.error:  # it did not converge, or left the picture
            continue
        transform = refined.astype(float)
        transform[:, 2] -= transform[:, :2] @ (left, top)
        if np.isfinite(transform).all() and abs(np.linalg.det(transform[:, :2])) > 1e-3:
            yield maps.rescaled_centres(transform, max(source.shape) / REFINED, max(target.shape) / REFINED)


def _starts(target: np.ndarray, source: np.ndarray) -> list[np.ndarray]:
    """Return maps source -> target, without rotation, under which the middle of the source is found, best first."""
    import cv2

    top, left = (length // 5 for length in source.shape)
    middle = np.ascontiguousarray(source[top : len(source) - top, left : source.shape[1] - left])
    places = []
    for scale in SCALES:
        window = cv2.resize(middle, None, fx=scale, fy=scale)
        if (np.array(window.shape) >= target.shape).any() or min(window.shape) < 8 or window.std() < 2:
            continue
        _, best, _, place = cv2.minMaxLoc(cv2.matchTemplate(target, window, cv2.TM_CCOEFF_NORMED))
        if MIN_MATCH <= best <= 1.001:  # a flat target gives anything
            scales = np.divide(window.shape, middle.shape)[::-1]
            places.append((best, maps.to_centres(maps.straight(scales, place - scales * (left, top)))))
    return [transform for _, transform in sorted(places, key=lambda entry: -entry[0])]


def _resized(grey: np.ndarray, side: int) -> np.ndarray:
    import cv2

    scale = side / max(grey.shape)
    size = [max(8, round(length * scale)) for length in grey.shape[::-1]]
    return cv2.resize(grey, size, interpolation=cv2.INTER_AREA)


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
