"""Find what a member shows beyond our copy of the keeper (`reproduce`): other light, places, detail or grain."""

from dataclasses import dataclass

import numpy as np

from photodup.photos.compare import maps
from photodup.photos.compare.align import grey, inside_of, laid, slopes
from photodup.photos.compare.limits import LIMITS
from photodup.photos.compare.maps import Size
from photodup.photos.compare.pictures import BLOCK, DCT, Saving, coefficients
from photodup.photos.compare.reproduce import CELL, View, cells, cells_of, inner_cells, whole_cells

# Left, top, right and bottom of a place, as shares of an upright picture, 0..1.
Box = tuple[float, float, float, float]

_NOWHERE = np.zeros((0, 4), int)
_MARGIN = 16  # pixels around the member in which the keeper has to go on
_MOST_BOXES = 12
# Standard deviations, pixels: of the blur of a difference, and of the place around it in which compression is measured.
_BLUR, _AROUND = 1.2, 6
# Allowed everywhere: a difference of so many greys, and a shift of so many pixels.
_GREYS, _MISPLACED = 5, 0.3


@dataclass(frozen=True)
class Difference:
    """Something that the keeper lacks and a member has: the reason in words, and boxes in both frames."""

    reason: str
    boxes: tuple[tuple[Box, Box], ...] = ()

    @classmethod
    def located(
        cls, reason: str, boxes: np.ndarray, view: View, transform: np.ndarray, sizes: tuple[Size, Size]
    ) -> "Difference":
        """Return a difference with a view's boxes int[n, 4], at most a dozen; `sizes` are the keeper's and the member's."""
        corners = boxes[:_MOST_BOXES, [[0, 1], [2, 1], [2, 3], [0, 3]]]
        points = maps.moved(corners, maps.inverse(view.place))
        shares = maps.moved(points, maps.inverse(transform)) / sizes[0], points / sizes[1]
        reaches = (np.hstack([each.min(axis=1), each.max(axis=1)]).clip(0, 1).tolist() for each in shares)
        return cls(reason, tuple(zip(*(map(tuple, reach) for reach in reaches), strict=True)))


def unexplained(view: View) -> list[tuple[str, np.ndarray]]:
    """Return (reason, boxes) for what a view shows beyond our copy; boxes int[n, 4] in its pixels, none for the whole."""
    if is_other_light(view):
        return [("its light or its colours are others", _NOWHERE)]
    if len(boxes := differing_boxes(view)):
        n = "one place" if len(boxes) == 1 else f"{len(boxes)} places"
        return [(f"looks different in {n}", boxes)]
    return [(reason, _NOWHERE) for reason in detail_reasons(view)]


def is_other_light(view: View) -> bool:
    """Return whether a third of the picture, or its dark, middle or bright parts, have other light or colours."""
    covered = whole_cells(view.inside)
    if covered.sum() < 3:
        return False
    apart = (cells(view.member) - cells(view.copy))[covered]
    parts = np.array_split(np.argsort(cells(view.greys[2])[covered]), 3)
    tones = [np.abs(np.median(apart[part], axis=0)).max() for part in parts]
    share = float((np.abs(apart).max(axis=1) > LIMITS.light_greys).mean())
    return share > LIMITS.light_share or max(tones) > LIMITS.tone_greys or _is_other_saturation(view, covered)


def _is_other_saturation(view: View, covered: np.ndarray) -> bool:
    """Return whether one factor makes all colours stronger, paler or, where the saving is known, of another hue."""
    member, copy = (
        cells(rgb[..., 0] - greys)[covered] + 1j * cells(rgb[..., 2] - greys)[covered]
        for rgb, greys in zip((view.member, view.copy), view.greys[::2], strict=True)
    )
    power = float((abs(copy) ** 2).mean())
    factor = (member * copy.conj()).mean() / max(power, 1e-6)
    # Other formats shift the hue of all colours a little; only their strength counts.
    change, least = abs(abs(factor) - 1), LIMITS.saturation_other_formats
    if view.saving:
        change, least = abs(factor - 1), LIMITS.saturation
    return bool(change > least and change * power**0.5 > LIMITS.saturation_greys)


def times_explained(view: View) -> np.ndarray:
    """Return float32[h, w]: the difference of each pixel, as a multiple of what compression and alignment explain."""
    import cv2

    apart = cv2.subtract(view.member, view.copy, dtype=cv2.CV_32F)  # NumPy takes three times as long
    apart = _largest(np.abs(cv2.GaussianBlur(apart, (0, 0), _BLUR)))
    loss = np.sqrt(cv2.GaussianBlur(_largest(cv2.absdiff(view.copy, view.keeper)) ** 2, (0, 0), _AROUND))
    slope = cv2.dilate(cv2.magnitude(*slopes(view.greys[2])), _square(5))
    softening: float | np.ndarray = 0.0
    if view.softness:  # our blur is not quite the member's: allow more where it changed most
        softening = 0.45 * cv2.GaussianBlur(_largest(cv2.absdiff(view.keeper, view.sharp)), (0, 0), _AROUND)
    times = apart / (_GREYS + 1.5 * loss + softening + _MISPLACED * slope)
    if view.saving and view.softness < LIMITS.softened:
        unsaved = beyond_rounding(view.member, view.keeper, view.saving)
        unsaved = _shrunk(view.inside, CELL) * np.abs(cv2.GaussianBlur(unsaved, (0, 0), _BLUR))
        # An error of alignment affects all equally steep pixels alike: a place that differs more shows something else.
        steep = (unsaved / (slope + 1))[slope > 8]
        misplaced = _MISPLACED
        if len(steep):
            misplaced = min(misplaced, 2 * float(np.quantile(steep[:: 1 + len(steep) // 9999], 0.99)))
        times = np.maximum(times, unsaved / (_GREYS + softening + misplaced * slope))
    return times * _shrunk(view.inside, 5)


def _square(side: int) -> np.ndarray:
    return np.ones((side, side), np.uint8)


def _shrunk(mask: np.ndarray, side: int) -> np.ndarray:
    """Return a mask, uint8[h, w], without a margin of half a side; where the picture ends, there is no margin."""
    import cv2

    return cv2.erode(mask.astype(np.uint8), _square(side), borderValue=1)


def _largest(colours: np.ndarray) -> np.ndarray:
    """Return float32[h, w]: the largest of the colours [h, w, 3] of each pixel."""
    return np.maximum(np.maximum(colours[..., 0], colours[..., 1]), colours[..., 2], dtype=np.float32)


def beyond_rounding(member: np.ndarray, keeper: np.ndarray, saving: Saving) -> np.ndarray:
    """Return float32[h, w]: the greys by which a keeper would have to change for its saving to give the member.

    Saving a JPEG rounds each coefficient to a multiple of its step, so it explains a difference of up to half a step.
    """
    import cv2

    apart = grey(saving.as_saved(member)) - grey(saving.as_saved(keeper))
    if not saving.tables:
        return saving.upright(apart)
    height, width = apart.shape
    apart = cv2.copyMakeBorder(apart, 0, -height % BLOCK, 0, -width % BLOCK, cv2.BORDER_REPLICATE)
    multiples = coefficients(apart)
    half_steps = saving.steps / 2 + 1
    multiples -= multiples.clip(-half_steps, half_steps)
    pixels = (DCT.T @ multiples @ DCT).swapaxes(1, 2).reshape(apart.shape)
    return saving.upright(pixels[:height, :width])


def differing_boxes(view: View) -> np.ndarray:
    """Return int[n, 4]: left, top, right and bottom of connected places that show something else, the largest first."""
    import cv2

    times = times_explained(view)
    is_other = (times > LIMITS.place_times).astype(np.uint8)
    boxes = _boxes(cv2.morphologyEx(is_other, cv2.MORPH_CLOSE, _square(3)), LIMITS.place_pixels)
    usual = LIMITS.stands_out * float(np.quantile(times[::2, ::2], 0.999))
    is_small = times > np.clip(usual, LIMITS.place_times, LIMITS.small_times)
    return boxes if len(boxes) else _boxes(is_small, LIMITS.small_pixels)


def _boxes(mask: np.ndarray, least: int) -> np.ndarray:
    import cv2

    left, top, width, height, area = cv2.connectedComponentsWithStats(mask.astype(np.uint8))[2][1:].T
    chosen = np.argsort(-area, kind="stable")[: (area >= least).sum()]
    return np.stack([left, top, left + width, top + height], axis=1)[chosen]


def detail_reasons(view: View) -> list[str]:
    """Return in words how a member's detail differs from our copy's: another contrast, finer detail, other grain."""
    covered = inner_cells(view.inside)
    if covered.sum() < 9:
        return []
    order = np.argsort(sum(cells_of(band**2, 1, covered) for band in view.octaves[1][:2]))
    busy = order[len(order) * 2 // 3 :]
    contrast = []
    for octave, (member, keeper, copy) in enumerate(view.octaves):
        shared = (cells_of(band * keeper, octave, covered)[busy] + 1e-3 for band in (member, copy))
        contrast.append(float(np.median(np.divide(*shared))))
    member, keeper, copy = view.octaves[0]
    off, by_saving = (cells_of((a - b) ** 2, 0, covered) for a, b in ((member, copy), (copy, keeper)))
    missing = np.maximum(off - by_saving, 0) / (cells_of(member**2, 0, covered) + 0.5)
    reasons = []
    is_other = max(contrast[1:]) > 1 + LIMITS.contrast or min(contrast[1:]) < 1 - LIMITS.contrast
    if is_other or contrast[0] > 1 + LIMITS.contrast_finest:
        reasons.append("its small things have another contrast, as after sharpening or a filter")
    if np.sqrt(np.median(missing[busy])) > LIMITS.finer:
        reasons.append("has finer detail")
    if has_own_grain(view):
        reasons.append("its fine grain is not that of the file to keep: it may be another exposure")
    return reasons


def has_own_grain(view: View) -> bool:
    """Return whether the grain of a member's even places is not the keeper's.

    The grain of a smaller copy is the keeper's, averaged; that of another exposure is uncorrelated with it.
    """
    if view.explained >= LIMITS.explained:
        return False
    covered = inner_cells(view.inside, BLOCK)
    order = np.argsort(sum(cells_of(band**2, 1, covered, BLOCK) for band in view.octaves[1][:2]))
    even = order[: max(6, len(order) // 16)]
    for octave, details in enumerate(view.octaves[:2]):
        shared = [[cells_of(a * b, octave, covered, BLOCK)[even].mean() for a in details] for b in details]
        squares = np.diag(np.array(shared, float))
        of_member, of_keeper, _ = np.sqrt(squares) * (1 + octave)
        common, _, common_of_copy = (shared / np.sqrt(np.outer(squares, squares) + 1e-9))[1]
        if view.saving:
            least = LIMITS.grain_common * common_of_copy
            chance = LIMITS.grain_chance / (BLOCK >> octave) / np.sqrt(len(even))
            has_own = of_keeper > LIMITS.grain_greys and common + chance < least
        else:  # unknown compression: too little of the grain that it left is the keeper's
            has_grain = of_keeper > LIMITS.grain_greys_other_formats
            is_left = of_member > LIMITS.grain_left * of_keeper
            has_own = has_grain and is_left and common * of_keeper < LIMITS.grain_of_keeper * of_member
        if has_own:
            return True
    return False


def beyond(view: View) -> np.ndarray:
    """Return int[n, 4]: boxes of what a member shows beyond the keeper's frame, unless that is one even colour."""
    import cv2

    outside = _shrunk(~view.inside, 9) > 0
    if outside.sum() < CELL:
        return _NOWHERE
    ground = np.median(view.member[outside], axis=0)
    strange = outside & (np.abs(view.member - ground).max(axis=2) > 16)
    strange = cv2.morphologyEx(strange.astype(np.uint8), cv2.MORPH_OPEN, _square(2))
    return _boxes(cv2.dilate(strange, _square(CELL)), 1)


def has_edge(keeper: np.ndarray, transform: np.ndarray, size: Size) -> bool:
    """Return whether a keeper has an edge, or one colour beyond, where a member of this size ends: a frame, a collage, a
    border.

    A photograph goes on beyond its crop.
    """
    onto = np.column_stack([transform[:, :2], transform[:, 2] + _MARGIN])
    frame = size[0] + 2 * _MARGIN, size[1] + 2 * _MARGIN
    inside = inside_of(keeper.shape[1::-1], onto, frame)
    # Most members are not cropped: nothing lies beyond their ends, and the keeper need not be laid.
    rows_of = {turns: rows for turns in range(4) if len(rows := _rows_beyond(np.rot90(inside, turns)))}
    around = laid(keeper, onto, frame)[0] if rows_of else keeper
    return any(_is_edge(np.rot90(around, turns), rows) for turns, rows in rows_of.items())


_SIDE = slice(_MARGIN, -_MARGIN), slice(2, 3 * _MARGIN)  # around the frame's left side


def _rows_beyond(inside: np.ndarray) -> np.ndarray:
    """Return the rows in which a keeper goes on beyond a frame's left side; none if these are too few."""
    rows = np.flatnonzero(inside[_SIDE].all(axis=1))
    return rows if len(rows) >= max(8, 0.6 * (len(inside) - 2 * _MARGIN)) else rows[:0]


def _is_edge(picture: np.ndarray, rows: np.ndarray) -> bool:
    """Return whether a picture with `_MARGIN` pixels around a frame has an edge along the frame's left side."""
    strip = picture[_SIDE][rows].astype(np.float32)
    steps, at = np.abs(np.diff(strip, axis=1)).max(axis=2).mean(axis=0), _MARGIN - 3
    beside = np.concatenate([steps[: at - 3], steps[at + 4 :]])
    if steps[at - 1 : at + 2].max() > LIMITS.edge_times * (np.median(beside) + 1):
        return True

    def unevenness(part: np.ndarray) -> float:
        return float(np.abs(part - np.median(part, axis=(0, 1))).max(axis=2).mean())

    outer, inner = unevenness(strip[:, : at - 1]), unevenness(strip[:, _MARGIN : 2 * _MARGIN])
    return outer < 2 and inner > 3 * outer + 2
