"""Align two pictures without local features: fog, gradients, drawings, a plain wall.

Such pictures have few corners and many soft edges. The middle of one is laid on the middle of the other and refined to an
affine map on the grey values (ECC, Evangelidis and Psarakis 2008), which also turns a little.
"""

from collections.abc import Iterator
from contextlib import suppress

import numpy as np

from photodup.photos.compare import maps

_SIDE = 240  # longer side at which a map is refined, pixels
# Source to target: as it is, or where one is cropped to half its area.
_SCALES = 1, np.sqrt(2), np.sqrt(1 / 2)


def grey_maps(target: np.ndarray, source: np.ndarray) -> Iterator[np.ndarray]:
    """Yield up to three affine maps float64[2, 3] from source to target (pixels of these uint8 greys)."""
    import cv2

    a, b = (_reduced(greys) for greys in (target, source))
    ends = cv2.TERM_CRITERIA_COUNT | cv2.TERM_CRITERIA_EPS, 100, 1e-4
    middles = [np.array(greys.shape[::-1]) / 2 for greys in (a, b)]
    for scale in _SCALES:
        start = maps.to_centres(maps.straight(np.full(2, scale), middles[0] - scale * middles[1]))
        with suppress(cv2.error):  # it did not converge, or left the picture
            _, refined = cv2.findTransformECC(b, a, start.astype(np.float32), cv2.MOTION_AFFINE, ends)
            enlarged = (max(greys.shape) / _SIDE for greys in (source, target))
            yield maps.to_centres(maps.rescaled(maps.from_centres(refined.astype(float)), *enlarged))


def _reduced(greys: np.ndarray) -> np.ndarray:
    import cv2

    size = [max(8, round(length * _SIDE / max(greys.shape))) for length in greys.shape[::-1]]
    return cv2.resize(greys, size, interpolation=cv2.INTER_AREA)
