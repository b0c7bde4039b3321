"""Tones and colours of members that lie on each other: how far apart they are, and what one of them lost."""

import math
from collections.abc import Iterable

import numpy as np

from photodup.photos.compare.alignment import as_soft
from photodup.photos.compare.canvas import Laid, grown

# Tones: where one is at its limit, the other still has this spread, greys, on at least this share.
_TONES, CLIPPED = 8.0, 0.01
# A grey between these two is cut off neither at black nor at white: there one picture's light is compared with the other's.
_DARK, _LIGHT = 30, 245
# Parts of equal size into which the pixels of a picture fall, by their light.
_LIGHTS = 24
# Blur, pixels of the canvas, at which tones are compared.
_SOFT = 3.0


def gain(first: Laid, second: Laid) -> float:
    """Return the contrast of the second over that of the first, at coarse structure that both show."""
    import cv2

    shared = grown(first.picture & second.picture, -6)
    if shared.sum() < 500:
        return 1.0
    values = [cv2.GaussianBlur(one.grey, (0, 0), 5)[shared] for one in (first, second)]
    return float((values[1].std() + 1e-3) / (values[0].std() + 1e-3))


def tone_distance(first: Laid, second: Laid, parts: int = 12) -> tuple[float, list[float]]:
    """Return how far the light and the colours of two members lie apart, greys, and the latter without 1, 2... parts.

    The pixels of the first fall into as many equal parts, by light or by a colour; of each the median difference counts,
    which neither noise nor another sharpness moves. Other light moves all parts, so it is their mean without the largest,
    which a caption may fill. More colour moves only those that have some, so it is the largest part, or where a caption
    fills that the next one.

    Args:
        first: one member.
        second: the other.
        parts: how many.
    """
    import cv2

    shared = grown(first.picture & second.picture, -6)
    if shared.sum() < 2000:
        return 0.0, [0.0] * parts
    # No finer than the smaller file holds colour, which is at half its size.
    soft = max(_SOFT, 2 / min(first.scale, second.scale))
    a, b = (cv2.GaussianBlur(laid.rgb.astype(np.float32), (0, 0), soft) for laid in (first, second))
    # A blur takes light from what is light and small, which is no other tone.
    one, other = (cv2.cvtColor(rgb, cv2.COLOR_RGB2YCrCb)[shared] for rgb in as_soft(a, b, shared))
    apart = other - one
    light, *colours = (
        sorted(abs(float(np.median(apart[part, channel]))) for part in _parts(one[:, channel], parts))
        for channel in range(3)
    )
    return float(np.mean(light[:-1])), [max(pair) for pair in zip(*colours, strict=True)][::-1]


def _parts(values: np.ndarray, n: int) -> list[np.ndarray]:
    """Return the places of some values in so many parts of equal size, from the lowest."""
    return np.array_split(np.argsort(values), n)


def hues(one: Laid) -> float:
    """Return how much the colour varies among pixels of one light, greys; small coloured things count not.

    In sepia and other one-coloured copies the light alone says what colour a pixel has, whatever their tone curve, and in
    a photograph it does not, however few its hues are.
    """
    light, *colours = _blurred(one, one.picture)
    if len(light) < _LIGHTS:
        return 0.0
    for part in _parts(light, _LIGHTS):
        for colour in colours:
            colour[part] -= np.median(colour[part])
    left = np.stack(colours, axis=1)
    low, high = np.percentile(left, (5, 95), axis=0)
    usual = left[((left >= low) & (left <= high)).all(axis=1)]
    return float(np.sqrt(max(np.linalg.eigvalsh(np.cov(usual.T))[-1], 0.0))) if len(usual) > 2 else 0.0


def chroma(one: Laid, inside: np.ndarray) -> tuple[float, float]:
    """Return how much colour varies inside bool[h, w], greys: with small coloured things, and without them."""
    found = _blurred(one, inside)[1:].T
    if not len(found):
        return 0.0, 0.0
    low, high = np.percentile(found, (10, 90), axis=0)
    return float(np.hypot(*found.std(axis=0))), float(np.hypot(*((high - low) / 2.56)))


def _blurred(one: Laid, inside: np.ndarray) -> np.ndarray:
    """Return float32[3, n]: light and colours, each on its own, of which a median takes a part of the time."""
    import cv2

    blurred = cv2.GaussianBlur(one.rgb, (0, 0), 2)
    found = cv2.cvtColor(blurred, cv2.COLOR_RGB2YCrCb)[inside]
    return np.ascontiguousarray(found.T, np.float32)


def lost_tones(one: Laid, other: Laid, without: Iterable[tuple[float, float, float, float]] = ()) -> float:
    """Return the share of the shared picture where `one` is at its lightest or darkest and the other is not.

    Args:
        one: the member that may have lost tones.
        other: one that may have kept them.
        without: left, top, right and bottom of places that are ignored, as shares of the canvas.
    """
    shared = grown(one.picture & other.picture, -3)
    sides = np.array(shared.shape[::-1] * 2)
    for box in without:
        left, top, right, bottom = np.round(box * sides).astype(int)
        shared[top : bottom + 1, left : right + 1] = False
    n = int(shared.sum())
    if n < 500:
        return 0.0
    lost = 0.0
    soft = max(
        2, math.ceil(1 / other.scale)
    )  # the edges of what is at its limit are as soft as a small copy's pixels
    for channel in range(3):
        mine = one.rgb[:, :, channel]
        for limit in (mine >= 252, mine <= 3):
            limit = grown(limit & shared, -soft)
            if limit.sum() > 0.5 * CLIPPED * n:
                its = other.rgb[:, :, channel]
                if _range(its[limit]) > _TONES and _range(_evened(mine, its, shared)[limit]) > _TONES:
                    lost = max(lost, float(limit.sum() / n))
    return lost


def _range(values: np.ndarray) -> float:
    low, high = np.percentile(values, (25, 75))
    return float(high - low)


def _evened(mine: np.ndarray, its: np.ndarray, shared: np.ndarray) -> np.ndarray:
    """Return float32[h, w]: a channel without what darkening one picture towards its edges (a vignette) makes of white.

    That is seen where the other picture is not white, as a ratio of both that changes with the place alone.
    """
    y, x = np.mgrid[-1 : 1 : mine.shape[0] * 1j, -1 : 1 : mine.shape[1] * 1j].astype(np.float32)
    terms = np.stack([np.ones_like(x), x, y, np.hypot(x, y), x * x + y * y], axis=-1)
    known = shared & (mine > _DARK) & (mine < _LIGHT)
    if known.sum() < 500:
        return its.astype(np.float32)
    ratios = its[known].astype(np.float32) / mine[known]
    shade = terms @ np.linalg.lstsq(terms[known], ratios, rcond=None)[0]
    return its - shade * mine
