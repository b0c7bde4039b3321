"""What a member shows beyond our own copy of the keeper, by more than our copy differs from the keeper."""

from dataclasses import dataclass

import numpy as np

from photodup.photos.compare.align import corners, grey, inverse, laid, moved
from photodup.photos.compare.limits import LIMITS
from photodup.photos.compare.pictures import DCT, Saving, coefficients
from photodup.photos.compare.reproduce import CELL, View, cells, octaves, whole_cells

# Left, top, right and bottom of a place, as shares of an upright picture, 0..1.
Box = tuple[float, float, float, float]

_MARGIN = 16  # pixels around the member in which the keeper has to go on
_MOST_BOXES = 12


@dataclass(frozen=True)
class Difference:
    """Something that a member has and the keeper lacks: a plain sentence, and where, in the keeper's and its own frame."""

    reason: str
    boxes: tuple[tuple[Box, Box], ...] = ()


def unexplained(view: View) -> list[tuple[str, np.ndarray | None]]:
    """Return what a view of the member shows beyond our copy, in words, and boxes int[n, 4] in its pixels."""
    if is_other_light(view):
        return [("its light or its colours are others", None)]
    if len(boxes := places(view)):
        return [(f"looks different in {_counted(len(boxes), 'place')}", boxes)]
    return [(reason, None) for reason in detail(view)]


def _counted(n: int, noun: str) -> str:
    return f"one {noun}" if n == 1 else f"{n} {noun}s"


def is_other_light(view: View) -> bool:
    """Return whether a third of the picture, or its dark, middle or bright parts, have other light or colours."""
    there = whole_cells(view.inside)
    if there.sum() < 3:
        return False
    apart = np.stack(
        [cells(view.member[..., k].astype(np.float32) - view.copy[..., k])[there] for k in range(3)], axis=1
    )
    parts = np.array_split(np.argsort(cells(grey(view.copy))[there]), 3)
    tones = [np.abs(np.median(apart[part], axis=0)).max() for part in parts]
    share = float((np.abs(apart).max(axis=1) > LIMITS.light_greys).mean())
    return share > LIMITS.light_share or max(tones) > LIMITS.tone_greys or _is_other_saturation(view, there)


def _is_other_saturation(view: View, there: np.ndarray) -> bool:
    """Return whether all colours are stronger, paler or turned by one factor, however little that is in greys."""
    member, copy = (
        cells(rgb[..., 0] - grey(rgb))[there] + 1j * cells(rgb[..., 2] - grey(rgb))[there]
        for rgb in (view.member, view.copy)
    )
    power = float((abs(copy) ** 2).mean())
    factor = (member * copy.conj()).mean() / max(power, 1e-6)
    # Other formats shift all colours a little, which looks like a turn.
    change, least = abs(abs(factor) - 1), LIMITS.saturation_other_formats
    if view.saving:
        change, least = abs(factor - 1), LIMITS.saturation
    return bool(change > least and change * power**0.5 > LIMITS.saturation_greys)


def times_explained(view: View) -> np.ndarray:
    """Return float32[h, w]: how many times more each pixel differs than saving and placing explain."""
    import cv2

    member, copy, keeper = (picture.astype(np.float32) for picture in (view.member, view.copy, view.keeper))
    apart = _largest(np.abs(cv2.GaussianBlur(member - copy, (0, 0), 1.2)))
    loss = np.sqrt(cv2.GaussianBlur(_largest((copy - keeper) ** 2), (0, 0), 6))
    greys = grey(view.copy)
    slopes = (cv2.Sobel(greys, cv2.CV_32F, *axes, ksize=3, scale=1 / 8) for axes in ((1, 0), (0, 1)))
    slope = cv2.dilate(cv2.magnitude(*slopes), np.ones((5, 5), np.uint8))
    softening: float | np.ndarray = 0.0
    if view.softness:  # a blur that is not quite the member's errs where it took most
        softening = 0.45 * cv2.GaussianBlur(_largest(np.abs(keeper - view.sharp)), (0, 0), 6)
    away = cv2.erode(view.inside.astype(np.uint8), np.ones((5, 5), np.uint8), borderValue=1)
    times = apart / (5 + 1.5 * loss + softening + 0.3 * slope)
    if view.saving and view.softness < LIMITS.softened:
        unsaved = beyond_rounding(view.member, view.keeper, view.saving)
        blocks = cv2.erode(view.inside.astype(np.uint8), np.ones((CELL, CELL), np.uint8), borderValue=1)
        unsaved = blocks * np.abs(cv2.GaussianBlur(unsaved, (0, 0), 1.2))
        # Misplaced by a part of a pixel, all that is as steep differs as much: one place that differs more shows something.
        steep = (unsaved / (slope + 1))[slope > 8]
        misplaced = (
            min(0.3, 2 * float(np.quantile(steep[:: 1 + len(steep) // 9999], 0.99))) if len(steep) else 0.3
        )
        times = np.maximum(times, unsaved / (5 + softening + misplaced * slope))
    return times * away


def _largest(colours: np.ndarray) -> np.ndarray:
    """Return float32[h, w]: the largest of the colours [h, w, 3] of each pixel."""
    import cv2

    return cv2.reduce(colours.reshape(-1, 3), 1, cv2.REDUCE_MAX).reshape(colours.shape[:2])


def beyond_rounding(member: np.ndarray, keeper: np.ndarray, saving: Saving) -> np.ndarray:
    """Return float32[h, w]: the greys by which a keeper would have to change so that its saving gave the member.

    A JPEG's coefficient says of its source that it lay within half a step. Where the keeper's does too there is nothing.
    """
    import cv2

    apart = grey(saving.as_saved(member)) - grey(saving.as_saved(keeper))
    if not saving.tables:
        return saving.upright(apart)
    height, width = apart.shape
    apart = cv2.copyMakeBorder(apart, 0, -height % 8, 0, -width % 8, cv2.BORDER_REPLICATE)
    multiples = coefficients(apart)
    most = np.array(saving.tables[0], np.float32).reshape(8, 8) / 2 + 1
    multiples -= multiples.clip(-most, most)
    pixels = (DCT.T @ multiples @ DCT).swapaxes(1, 2).reshape(apart.shape)
    return saving.upright(pixels[:height, :width])


def places(view: View) -> np.ndarray:
    """Return int[n, 4]: left, top, right and bottom of connected places that show something else, the largest first."""
    import cv2

    times = times_explained(view)
    is_other = (times > LIMITS.place_times).astype(np.uint8)
    joined = cv2.morphologyEx(is_other, cv2.MORPH_CLOSE, np.ones((3, 3), np.uint8))
    boxes = _boxes(joined, LIMITS.place_pixels)
    return boxes if len(boxes) else _boxes(times > LIMITS.small_times, LIMITS.small_pixels)


def _boxes(mask: np.ndarray, least: int) -> np.ndarray:
    import cv2

    left, top, width, height, area = cv2.connectedComponentsWithStats(mask.astype(np.uint8))[2][1:].T
    order = np.argsort(-area, kind="stable")
    chosen = order[area[order] >= least]
    return np.stack([left, top, left + width, top + height], axis=1)[chosen]


def detail(view: View) -> list[str]:
    """Return in words what a member's detail has that our copy's has not: contrast, finer detail, noise of its own."""
    there = whole_cells(view.inside)
    there[[0, -1]] = there[:, [0, -1]] = False
    if there.sum() < 9:
        return []
    bands = [octaves(grey(picture)) for picture in (view.member, view.keeper, view.copy)]

    def each(octave: int, first: int, second: int) -> np.ndarray:
        return _products(bands[first][octave], bands[second][octave], octave, there)

    member, keeper, copy = 0, 1, 2
    order = np.argsort(each(1, keeper, keeper) + each(1, member, member))
    # Without the member's own tables noise is looked for only where there is little else.
    is_own = bool(view.saving) or view.explained > LIMITS.explained
    busy, even = order[len(order) * 2 // 3 :], order[: max(6, len(order) // (4 if is_own else 16))]
    contrast, missing, has_own_noise = [], [], False
    for octave in range(3):
        of = {pair: each(octave, *pair) for pair in ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2))}
        with_member, with_copy = of[member, keeper], of[keeper, copy]
        contrast.append(float(np.median((with_member[busy] + 1e-3) / (with_copy[busy] + 1e-3))))
        off = of[member, member] - 2 * of[member, copy] + of[copy, copy]
        by_saving = of[copy, copy] - 2 * with_copy + of[keeper, keeper]
        beyond = np.maximum(off - by_saving, 0) / (of[member, member] + 0.5)
        missing.append(float(np.sqrt(np.median(beyond[busy]))))
        if octave < 2:
            noise = {pair: float(squares[even].mean()) for pair, squares in of.items()}
            of_member, of_keeper, common = noise[0, 0], noise[1, 1], noise[0, 1]
            if of_keeper < LIMITS.noise_greys**2 or of_member < LIMITS.noise_greys**2 / 2:
                continue
            if is_own:  # as much as in our copy, but other noise
                has_own_noise |= of_member > 0.7 * noise[2, 2] and common < LIMITS.noise_common * noise[1, 2]
            elif octave and of_member > of_keeper / 3:  # what a saving leaves of noise is the keeper's
                has_own_noise |= common < LIMITS.noise_left * of_member
    reasons = []
    is_other = max(contrast[1:]) > 1 + LIMITS.contrast or min(contrast[1:]) < 1 - LIMITS.contrast
    if is_other or contrast[0] > 1 + LIMITS.contrast_finest:
        reasons.append("its small things have another contrast, as after sharpening or a filter")
    if missing[0] > LIMITS.finer or missing[1] > LIMITS.finer_next:
        reasons.append("has finer detail")
    if has_own_noise:
        reasons.append("its fine grain is not that of the file to keep: it may be another exposure")
    return reasons


def own_detail(view: View) -> float:
    """Return the fine detail that a member has and the keeper has not, as a share of what it lost of the keeper's."""
    own = lost = 0.0
    there = whole_cells(view.inside)
    for octave, bands in enumerate(
        zip(*(octaves(grey(rgb), 2) for rgb in (view.member, view.keeper)), strict=True)
    ):
        member, common, keeper = (
            float(_products(first, second, octave, there).mean())
            for first, second in (bands[:1] * 2, bands, bands[1:] * 2)
        )
        own, lost = own + member - common, lost + keeper - common
    return own / max(lost, 1e-3)


def _products(first: np.ndarray, second: np.ndarray, octave: int, there: np.ndarray) -> np.ndarray:
    """Return float32[n]: the mean product of two octaves of detail in each of these cells."""
    return cells(first * second, CELL >> octave)[: there.shape[0], : there.shape[1]][there]


def beyond(view: View) -> np.ndarray:
    """Return int[n, 4]: boxes of what a member shows beyond the keeper's frame; one even colour there is nothing."""
    import cv2

    outside = cv2.erode((~view.inside).astype(np.uint8), np.ones((9, 9), np.uint8), borderValue=1) > 0
    if outside.sum() < CELL:
        return np.zeros((0, 4), int)
    ground = np.median(view.member[outside], axis=0)
    strange = outside & (np.abs(view.member - ground).max(axis=2) > 16)
    solid = cv2.morphologyEx(strange.astype(np.uint8), cv2.MORPH_OPEN, np.ones((2, 2), np.uint8))
    near = cv2.dilate(solid, np.ones((CELL, CELL), np.uint8))
    return _boxes(near, 1)[:_MOST_BOXES]


def has_edge(keeper: np.ndarray, transform: np.ndarray, size: tuple[int, int]) -> bool:
    """Return whether a keeper has an edge, or one colour beyond, where the member of this size ends.

    A photograph goes on beyond its crop; a frame, a collage or a border begins there.
    """
    onto = np.column_stack([transform[:, :2], transform[:, 2] + _MARGIN])
    around, inside = laid(keeper, onto, (size[0] + 2 * _MARGIN, size[1] + 2 * _MARGIN))
    return any(_is_edge(np.rot90(around, turns), np.rot90(inside, turns)) for turns in range(4))


def _is_edge(picture: np.ndarray, inside: np.ndarray) -> bool:
    """Return whether the left side of a frame is an edge of a picture that goes on for a margin around the frame."""
    sides = slice(_MARGIN, -_MARGIN), slice(2, 3 * _MARGIN)
    rows = np.asarray(inside[sides].all(axis=1))
    if rows.sum() < max(8, 0.6 * len(rows)):
        return False
    strip = picture[sides][rows].astype(np.float32)
    steps, at = np.abs(np.diff(strip, axis=1)).max(axis=2).mean(axis=0), _MARGIN - 3
    beside = np.concatenate([steps[: at - 3], steps[at + 4 :]])
    if steps[at - 1 : at + 2].max() > LIMITS.edge_times * (np.median(beside) + 1):
        return True

    def unevenness(part: np.ndarray) -> float:
        return float(np.abs(part - np.median(part, axis=(0, 1))).max(axis=2).mean())

    outer, inner = unevenness(strip[:, : at - 1]), unevenness(strip[:, _MARGIN : 2 * _MARGIN])
    return outer < 2 and inner > 3 * outer + 2


def in_both(boxes: np.ndarray, view: View, transform: np.ndarray, keeper: tuple, member: tuple) -> tuple:
    """Return boxes int[n, 4] of a view as shares of the keeper's and of the member's frame (sizes), at most a dozen."""

    def framed(box: np.ndarray, size: tuple) -> Box:
        reach = box / size
        (left, top), (right, bottom) = reach.min(axis=0).clip(0, 1), reach.max(axis=0).clip(0, 1)
        return float(left), float(top), float(right), float(bottom)

    found = []
    for left, top, right, bottom in boxes[:_MOST_BOXES]:
        own = moved(corners((right - left, bottom - top)) + np.array((left, top)), inverse(view.place))
        found.append((framed(moved(own, inverse(transform)), keeper), framed(own, member)))
    return tuple(found)
