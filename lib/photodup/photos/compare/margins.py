"""What members show of the picture, without what may as well be a border: it tells nothing about which one is whole."""

from collections.abc import Mapping

import numpy as np

from photodup.photos.compare.canvas import Laid

# A part outside most other members, whose greys lie this near its median, may be border or sky alike.
_EVEN, _MOSTLY = 10, 0.98
# In what most members hold for a border, a member has something of its own if this share of it differs by so much.
_DIFFERS, _OF_ITS_OWN, _SOFT = 40, 0.3, 9


def told_apart_from_margins(laid: Mapping[int, Laid]) -> dict[int, np.ndarray]:
    """Return bool[h, w] by row: what each member shows of the picture, as far as that can be told from a margin."""
    import cv2

    frames = np.sum([one.frame.astype(int) for one in laid.values()], axis=0)
    margins = {row: one.frame & ~one.picture for row, one in laid.items()}
    voted = 2 * sum(margin.astype(int) for margin in margins.values()) >= np.maximum(frames, 1)
    found = {}
    for row, one in laid.items():
        found[row] = one.picture & ~_undecided(one, frames, len(laid))
        for other, margin in margins.items():
            there = found[row] & voted & margin
            if other != row and there.any():
                # At the softer one's sharpness: the edge of a blurred border lies elsewhere, and is nothing of its own.
                own, its = (
                    cv2.blur(rgb, (_SOFT, _SOFT)).astype(np.int16) for rgb in (one.rgb, laid[other].rgb)
                )
                apart = np.abs(own - its).max(axis=2)[there]
                if (apart > _DIFFERS).mean() < _OF_ITS_OWN:
                    found[row] &= ~there
    return found


def _undecided(one: Laid, frames: np.ndarray, n: int) -> np.ndarray:
    """Return bool[h, w]: what a member shows outside most others, where it is flat."""
    outside = one.picture & (3 * frames <= n)
    if not outside.any():
        return outside
    values = one.rgb[outside].astype(np.int16)
    even = np.abs(values - np.median(values, axis=0)).max(axis=1) <= _EVEN
    return outside if even.mean() >= _MOSTLY else np.zeros_like(outside)
