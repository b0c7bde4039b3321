"""Rule out pairs of unlike photos by the thumbnails of the scan, before anything is decoded again."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, product

import numpy as np

from photodup.photos.compare.maps import Size
from photodup.photos.library.hashing import GREYS

_SCALES = np.geomspace(0.5, 1, 10)  # of the sides of a crop
_TRIMMED = 0.16  # of each side: a border is not in the other picture
_COARSE = 3.0  # standard deviation of the blur that leaves gradients, in which any two skies agree
_FAINT = 1.5  # standard deviation of detail, in greys, below which rounding hides it
# Least correlation. On 22 photographs of tools/photographs 1 of 591 upright edits (a screenshot of a desktop) has less, and
# 298 of 300 pairs of strangers with hashes within 24 bits; crops to a quarter of the area have 0.85.
_CORRELATION = 0.7


@dataclass(frozen=True, eq=False)
class Thumbnail:
    """The detail of a photo at a longer side of 32 pixels: greys float32[h, w] without gradients."""

    detail: np.ndarray

    @classmethod
    def of(cls, greys: bytes, size: Size) -> "Thumbnail":
        """Return the thumbnail of a photo of this size, from `PhotoFacts.greys`."""
        import cv2

        square = np.frombuffer(greys, np.uint8).reshape(GREYS, GREYS).astype(np.float32)
        upright = _resized(square, GREYS * np.array(size) / max(size))
        return cls(upright - cv2.GaussianBlur(upright, (0, 0), _COARSE))

    @cached_property
    def middles(self) -> list[np.ndarray]:
        """The picture without its margins, as it is and reduced."""
        middle = _middle(self.detail)
        return [_resized(middle, scale * np.array(middle.shape[::-1])) for scale in _SCALES]

    def turned(self) -> Iterator[np.ndarray]:
        """Yield `middles[-1]` mirrored and turned by quarters, seven ways."""
        for turns, step in list(product(range(4), (1, -1)))[1:]:
            yield _middle(np.ascontiguousarray(np.rot90(self.detail, turns)[:, ::step]))


def may_be_one(first: Thumbnail, second: Thumbnail) -> bool:
    """Return False if neither photo shows the middle of the other: not as a crop, not mirrored, not turned by quarters."""
    if min(first.detail.std(), second.detail.std()) < _FAINT:
        return True
    return any(_shows(second, middle) for middle in first.middles) or any(
        _shows(first, middle) for middle in chain(second.middles, second.turned())
    )


def _shows(thumbnail: Thumbnail, middle: np.ndarray) -> bool:
    import cv2

    if (np.array(middle.shape) > thumbnail.detail.shape).any():
        return False
    return cv2.minMaxLoc(cv2.matchTemplate(thumbnail.detail, middle, cv2.TM_CCOEFF_NORMED))[1] > _CORRELATION


def _middle(detail: np.ndarray) -> np.ndarray:
    top, left = (int(_TRIMMED * length) for length in detail.shape)
    return np.ascontiguousarray(detail[top : len(detail) - top, left : detail.shape[1] - left])


def _resized(picture: np.ndarray, size: np.ndarray) -> np.ndarray:
    import cv2

    pixels = np.maximum(4, np.rint(size)).astype(int).tolist()
    return cv2.resize(picture, pixels, interpolation=cv2.INTER_AREA)
