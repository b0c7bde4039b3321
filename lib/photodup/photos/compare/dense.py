"""Align two pictures without local features: fog, gradients, drawings, a plain wall.

Such pictures have few corners and many soft edges. The middle of one is searched for, turned and scaled, in a thumbnail of
the other; the best places are refined to an affine map on the grey values (ECC, Evangelidis and Psarakis 2008).
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import product

import numpy as np

from photodup.photos.compare import maps

# Longer side, pixels: where the window is searched for, and where the map is refined.
SEARCHED = 64
REFINED = 240
# Scale of the source in the frame of the target: a crop to half the area is 0.71.
SCALES = (0.71, 0.76, 0.8, 0.84, 0.89, 0.94, 1.0, 1.06, 1.13, 1.19, 1.25, 1.32, 1.4)
ANGLES = tuple(quarter + small for quarter in (0, 90, 180, 270) for small in (-5, 0, 5))
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
    """Return similarity maps source -> target under which the middle of the source is found, best first."""
    import cv2

    places = []
    for transform, window in _windows(source.tobytes(), source.shape[1]):
        if window.shape[1] >= target.shape[1] or window.shape[0] >= target.shape[0]:
            continue
        score = np.nan_to_num(cv2.matchTemplate(target, window, cv2.TM_CCOEFF_NORMED), posinf=0, neginf=0)
        _, best, _, place = cv2.minMaxLoc(score)
        if MIN_MATCH <= best <= 1.001:  # a flat target gives anything
            places.append((best, transform + np.array([[0, 0, place[0]], [0, 0, place[1]]])))
    return [transform for _, transform in sorted(places, key=lambda entry: -entry[0])]


@lru_cache(maxsize=128)  # 0.2 MB each; a picture is compared with several others
def _windows(pixels: bytes, width: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return (map, window uint8[h, w]) for each rotation and scale of the middle of a picture of uint8 greys."""
    import cv2

    source = np.frombuffer(pixels, np.uint8).reshape(-1, width)
    height, windows = len(source), []
    for scale, angle in product(SCALES, ANGLES):
        transform = cv2.getRotationMatrix2D((0, 0), angle, scale)
        across, down = (height, width) if round(angle / 90) % 2 else (width, height)
        size = int(0.6 * across * scale), int(0.6 * down * scale)
        if min(size) < 8:
            continue
        centre = transform[:, :2] @ ((width - 1) / 2, (height - 1) / 2)
        transform[:, 2] = np.array([(size[0] - 1) / 2, (size[1] - 1) / 2]) - centre
        window = cv2.warpAffine(source, transform, size)
        if window.std() >= 2:
            windows.append((transform, window))
    return windows


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
