"""Two members on the canvas: who has writing over the picture, and where they show two things."""

from dataclasses import dataclass

import numpy as np

from photodup.photos.compare.canvas import JITTER, Laid, grown

# Greys by which two members differ at a place, whatever was done to brightness and contrast.
_DIFFERS = 26.0
# Share of the shared picture.
LEAST_WRITING, LEAST_PART = 0.0008, 0.0012
# The edges of what was laid over a picture are so much harder than those of the picture there.
_HARDER = 1.35
# Strokes of writing are thinner than this on the canvas, pixels, and come in some number.
_STROKE = np.ones((11, 11), np.uint8)
_LETTERS = 4
# Of writing no more than this share is wider than a stroke. A place has a colour beyond this chroma, greys.
_SOLID, _COLOUR = 0.3, 20


@dataclass(frozen=True)
class Overlay:
    """What differs between two members, as shares of the picture that both show.

    Attributes:
        first, second: writing or a mark that only that one has.
        parts: places that show two things, of which none is writing over the other.
    """

    first: float = 0.0
    second: float = 0.0
    parts: float = 0.0


def compare_parts(first: Laid, second: Laid) -> Overlay:
    """Compare what both show, apart from brightness, contrast and tone."""
    import cv2

    shared = grown(first.picture & second.picture, -2 * JITTER)
    n = int(shared.sum())
    if n < 2000:
        return Overlay()
    # At the softer one's sharpness, or every edge would differ.
    different = _different(first.rgb, second.rgb, shared, 2.5)
    if not different.any():
        return Overlay()
    fine = _different(first.rgb, second.rgb, shared, 1.0) & grown(different, 2)
    a, b = (
        cv2.GaussianBlur(cv2.cvtColor(one.rgb, cv2.COLOR_RGB2GRAY), (0, 0), 1.0) for one in (first, second)
    )
    as_b = _tones(_joint(a, b, shared))[a]
    laid_over = {0: 0, 1: 0}
    strokes, thin = {0: 0, 1: 0}, {0: 0, 1: 0}
    parts = 0
    letters = cv2.connectedComponents(fine.astype(np.uint8), connectivity=8)[1]
    count, labels, stats, _ = cv2.connectedComponentsWithStats(
        cv2.dilate(different.astype(np.uint8), np.ones((7, 7), np.uint8)), connectivity=8
    )
    for label in range(1, count):
        x, y, width, height = stats[label, :4]
        box = slice(max(y - 4, 0), y + height + 4), slice(max(x - 4, 0), x + width + 4)
        here = labels[box] == label
        size, region = int((here & different[box]).sum()), here & fine[box]
        if size < 12 or region.sum() < 6:
            continue
        who = _overlaid(as_b[box], b[box].astype(np.float32), region)
        if who is not None:
            laid_over[who] += size
        solid = cv2.morphologyEx(region.astype(np.uint8), cv2.MORPH_OPEN, _STROKE)
        if who is None or solid.sum() > _SOLID * region.sum():
            parts += size
        else:
            strokes[who] += len(np.unique(letters[box][region]))
            thin[who] += size
    # A few letters at least: a bird in one of two pictures is thin, too, and no writing.
    parts += sum(thin[who] for who in thin if strokes[who] < _LETTERS)
    return Overlay(laid_over[0] / n, laid_over[1] / n, parts / n)


def coloured_in_strokes(one: Laid) -> bool:
    """Return whether nearly all that has a colour is as thin as the strokes of writing."""
    import cv2

    chroma = cv2.cvtColor(one.rgb, cv2.COLOR_RGB2YCrCb)[:, :, 1:].astype(np.int16) - 128
    coloured = ((np.abs(chroma).max(axis=2) > _COLOUR) & one.picture).astype(np.uint8)
    solid = cv2.morphologyEx(coloured, cv2.MORPH_OPEN, _STROKE)
    return bool(solid.sum() <= _SOLID * coloured.sum())


def displaced(first: Laid, second: Laid, patch: int = 40) -> float:
    """Return the share of the textured places that lie displaced against the rest: near things in two exposures."""
    import cv2

    a, b = first.grey, second.grey
    shared = grown(first.picture & second.picture, -2 * JITTER)
    shifts = []
    height, width = a.shape
    window = cv2.createHanningWindow((patch, patch), cv2.CV_32F)
    for top in range(0, height - patch, patch):
        for left in range(0, width - patch, patch):
            box = slice(top, top + patch), slice(left, left + patch)
            if not shared[box].all() or min(a[box].std(), b[box].std()) < 8:
                continue
            shift, response = cv2.phaseCorrelate(a[box] - a[box].mean(), b[box] - b[box].mean(), window)
            if response > 0.3:
                shifts.append(shift)
    if len(shifts) < 8:
        return 0.0
    found = np.array(shifts)
    return float((np.linalg.norm(found - np.median(found, axis=0), axis=1) > 1.0).mean())


def _different(first: np.ndarray, second: np.ndarray, shared: np.ndarray, sigma: float) -> np.ndarray:
    """Return bool[h, w]: where two pictures uint8[h, w, 3] differ beyond any change of tone."""
    import cv2

    a, b = (cv2.GaussianBlur(rgb, (0, 0), sigma) for rgb in (first, second))
    by_colour, at_limit = [], np.zeros(shared.shape, bool)
    for channel in range(3):
        x, y = a[:, :, channel], b[:, :, channel]
        joint = _joint(x, y, shared)
        # For each grey of one, what the other has there in the median is expected. The smaller of both ways counts:
        # a tone that one of them has lost says nothing.
        from_x, from_y = _tones(joint)[x], _tones(joint.T)[y]
        spread = max(min(float(x[shared].std()), float(y[shared].std())), 12.0)
        by_colour.append(np.minimum(np.abs(y - from_x), np.abs(x - from_y)) / min(1.0, spread / 40))
        for own, expected in ((y, from_x), (x, from_y)):
            at_limit |= ((own >= 248) & (expected >= 235)) ^ ((x >= 248) & (y >= 248))
    # The middle one of the three: where a colour is at its limit, only that one differs.
    red, green, blue = by_colour
    middle = np.maximum(np.minimum(red, green), np.minimum(np.maximum(red, green), blue))
    return (middle > _DIFFERS) & shared & ~grown(at_limit, 4)


def _joint(a: np.ndarray, b: np.ndarray, where: np.ndarray) -> np.ndarray:
    """Return int[64, 64]: how often levels of two uint8 pictures meet."""
    codes = a[where].astype(np.int64) // 4 * 64 + b[where] // 4
    return np.bincount(codes, minlength=4096).reshape(64, 64)


def _tones(joint: np.ndarray) -> np.ndarray:
    """Return float32[256]: what to expect for each grey of the first, from how often levels meet."""
    known = np.flatnonzero(joint.sum(axis=1) >= 20)
    if not len(known):
        return np.arange(256, dtype=np.float32)
    share = np.cumsum(joint[known], axis=1) / joint[known].sum(axis=1, keepdims=True)
    median = (share >= 0.5).argmax(axis=1)
    return np.interp(np.arange(256) / 4 - 0.5, known, 4.0 * median + 1.5).astype(np.float32)


def _overlaid(a: np.ndarray, b: np.ndarray, region: np.ndarray) -> int | None:
    """Return which of two greys in the same tones (0 or 1) has something laid over it in a region; None if unclear."""
    import cv2

    outline = grown(region, 1) & ~grown(region, -1)
    edges, uneven = [], []
    for grey in (a, b):
        slopes = [cv2.Sobel(grey, cv2.CV_32F, *axes, ksize=3) for axes in ((1, 0), (0, 1))]
        edges.append(float(np.hypot(*slopes)[outline].mean()) + 8.0)
        uneven.append(float(np.abs(grey[region] - np.median(grey[region])).mean()) + 3.0)
    said = np.log(edges[1] / edges[0]) + 0.5 * np.log(uneven[0] / uneven[1])
    if abs(said) < np.log(_HARDER):
        return None
    return 1 if said > 0 else 0
