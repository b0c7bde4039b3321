"""Does one picture hold what another holds? Asked of two files that show one picture, place by place.

`verify` asks whether two files are one picture, and a share of agreeing patches answers that. A share cannot see a small
thing: a name on a contract, a bird in the sky. Here the second picture is predicted from the first by what editing and
saving do to a whole picture: one colour map, one blur within bounds, a shift of parts of a pixel, the noise of these two
files. A connected place that the prediction misses holds something of its own. It counts as content, unless it is shown
to be a caption: lines of small strokes of one colour over a picture that is no page of text.
"""

from dataclasses import dataclass
from functools import reduce

import numpy as np

from photodup.photos.compare.alignment import LEAST_SHARED, Alignment, align, is_cut, slopes
from photodup.photos.compare.canvas import grown

# Standard deviations, pixels, of the blurs that may have turned one picture into the other, above what both are given.
# By so many steps parts of a picture may be softer than the whole.
_BLURS, _BASE, _SOFTER = (0.0, 0.8, 1.6, 3.2, 6.4, 12.8), 0.8, 1
# Greys by which a place may differ at least, and multiples of what the rest of the pair differs by where it is as busy.
_FLOOR, _NOISE, _USUAL = 16.0, 4.0, 0.75
# The least where nine tenths of the edges, of this level, are the same to a grey: what a brush took out may leave no more.
_FAINT, _SAME, _EDGES = 6.0, 1.0, 4
# Sum over the pixels of a place of its difference, in units of what is allowed.
LEAST_PLACE = 10.0
# A channel at its limit was cut off there; colours next to that may be off by so much more.
_WHITE, _BLACK, _NEAR_LIMIT, _SMEARED = 250, 4, 40, 24
# Of blue things Cb says less than Cr of red ones: a figure of dark green on dark blue is as far from it as this allows for.
_BLUE = 2.0
# Least weight of a term of the colour map.
_RIDGE = 3e-4
# The map is found once no grey moves by more than this.
_SETTLED = 0.05
# A line of writing: letters, their height (pixels) and stroke and gap as shares of it, their likeness in height and colour.
_LETTERS, _LEAST_HEIGHT, _STROKE, _GAP, _LOW, _ONE_COLOUR, _ONE_INK = 5, 6, 0.3, 1.5, 0.35, 40, 36
_MOST_LINES, _EXPLAINED, _DARK = 3, 0.97, 60
# A pixel of a thin stroke is mostly ink from this share on.
_INK = 0.8
# So many times as steep as below it is the outline of writing.
_OUTLINED = 1.2
# A page: so much of it lies on few even colours, and so much of the rest is thin.
_EVEN_COLOURS, _PAGE_GROUND, _PAGE_THIN, _PAGE_STROKE = 3, 0.5, 0.75, 11


@dataclass(frozen=True)
class Difference:
    """Where two pictures hold different things.

    Attributes:
        box: left, top, right, bottom as shares of the compared frame, 0..1.
        weight: how much is there, in sums of allowed differences; `LEAST_PLACE` or more.
    """

    box: tuple[float, float, float, float]
    weight: float


@dataclass(frozen=True)
class Contents:
    """What the second picture holds that the first does not explain.

    Attributes:
        places: where, the strongest first; empty where the first explains all of the second.
        is_caption: all of it is lines of writing that only the second has, over a picture.
    """

    places: tuple[Difference, ...] = ()
    is_caption: bool = False


def compare_contents(
    first: np.ndarray, second: np.ndarray, shared: np.ndarray, fit: Alignment | None = None
) -> Contents:
    """Return where the second picture holds what the first does not explain.

    Args:
        first, second: uint8[h, w, 3], laid over each other.
        shared: bool[h, w], where both show the picture.
        fit: how the second lies on the first; default: it is found.
    """
    if shared.sum() < LEAST_SHARED:
        return Contents()
    fit = fit or align(first, second, shared)
    second, found = fit.moved(second), []
    # Colours at one softness, then as they are: the one is right beside a blurred picture, the other where much is cut off.
    for soft in (max(11, max(shared.shape) // 60) | 1, 3):
        predicted = _in_colours_of(first, second, shared, soft)
        places, hot = _places(_excess(predicted, second, shared, fit.slip))
        if not places:
            return Contents()
        found.append((sum(place.weight for place in places), places, hot, predicted))
    _, places, hot, predicted = min(found, key=lambda one: one[0])
    is_caption = _is_caption(first, second, predicted, hot, shared)
    return Contents(tuple(places), is_caption)


def _in_colours_of(first: np.ndarray, second: np.ndarray, shared: np.ndarray, soft: int) -> np.ndarray:
    """Return float32[h, w, 3]: the first picture in the second's colours, by one quadratic map of red, green and blue.

    The map is fitted where both are blurred over `soft` pixels: beside a blurred picture a sharp one has more contrast.
    """
    import cv2

    step = max(1, round(np.sqrt(shared.size / 40_000)))
    seen = shared[::step, ::step]
    a, b = (cv2.blur(rgb, (soft, soft))[::step, ::step][seen] for rgb in (first, second))
    near = np.ones((soft + 4, soft + 4), np.uint8)
    limits = (cv2.dilate(second, near) >= _WHITE) | (cv2.erode(second, near) <= _BLACK)
    limits = limits[::step, ::step][seen]
    # One, each channel, their squares and products: float32[10, n].
    alone = a.T.astype(np.float32) / 255
    terms = np.concatenate([np.ones_like(alone[:1]), alone, alone * alone, alone * alone[[1, 2, 0]]])
    by_channel = []
    for channel in range(3):
        wanted, cut = b[:, channel].astype(np.float32), limits[:, channel]
        known = np.where(cut & ((~cut).sum() >= 400), 0.02, 1.0).astype(np.float32)
        # First the channel alone, lighter or darker; then what the others add, as far as this picture can tell.
        plain = np.zeros(len(terms), np.float32)
        own = [0, 1 + channel]
        plain[own] = _fitted(terms[own], wanted, known, np.array([0, 255], np.float32), 1e-6)
        by_channel.append(_fitted(terms, wanted, known, plain, _RIDGE))
    found, values = np.array(by_channel), first.astype(np.float32) / 255
    mapped = cv2.transform(values, found[:, [1, 2, 3, 0]])
    following = cv2.transform(values, np.eye(3)[[1, 2, 0]])
    mapped = cv2.add(mapped, cv2.transform(values * following, found[:, 7:]))
    return np.clip(cv2.add(mapped, cv2.transform(values * values, found[:, 4:7])), 0, 255)


def _fitted(
    terms: np.ndarray, wanted: np.ndarray, known: np.ndarray, start: np.ndarray, ridge: float
) -> np.ndarray:
    """Return the weights of terms float32[k, n] that give the wanted greys [n] in most places, drawn to `start`."""
    target, weights, found, first = wanted, known, start, start @ terms
    weighted = np.empty_like(terms)  # once: to ask for that much memory takes longer than to fill it
    for _ in range(8):
        np.multiply(terms, weights, out=weighted)
        little = ridge * weights.sum() * np.eye(len(terms))
        before = found
        found = start + np.linalg.solve(weighted @ terms.T + little, weighted @ (target - first))
        mapped = found.astype(np.float32) @ terms
        # A channel that was cut off at white or black may have had any value beyond, so the map may lead there.
        target = np.where(wanted >= _WHITE - 4, np.maximum(wanted, mapped), wanted)
        target = np.where(wanted <= _BLACK + 4, np.minimum(target, mapped), target)
        off = np.abs(mapped - target)
        weights = known / (1 + (off / max(2 * float(np.median(off)), 4.0)) ** 2)
        weights[(known < 1) & (target != wanted)] = 0
        if np.abs(found - before).sum() < _SETTLED:  # a term is 1 at most, so no grey moved by more
            break
    return found


def _excess(predicted: np.ndarray, second: np.ndarray, shared: np.ndarray, slip: float) -> np.ndarray:
    """Return float32[h, w]: the difference that is not explained, in units of what is allowed there."""
    import cv2

    height, width = shared.shape
    converted = [cv2.cvtColor(rgb, cv2.COLOR_RGB2YCrCb) for rgb in (predicted, second.astype(np.float32))]
    # Each channel by itself: OpenCV copies a part of a picture whenever it looks at it.
    colours = [[cv2.extractChannel(rgb, n) for n in range(3)] for rgb in converted]
    blurred, seen = _under_blurs(colours[0][0], colours[1][0], shared)
    lowest, highest = reduce(cv2.min, blurred), reduce(cv2.max, blurred)
    difference = np.maximum(cv2.max(lowest - seen, seen - highest), 0)
    difference[(seen >= _WHITE) & (highest >= 255 - _NEAR_LIMIT)] = 0
    difference[(seen <= _BLACK) & (lowest <= _NEAR_LIMIT)] = 0
    # Files hold colour at half the size, and next to what was cut off at its limit it is another colour.
    cut = grown(is_cut(predicted, _WHITE, _BLACK) | is_cut(second, _WHITE, _BLACK), 4)
    small = width // 2, height // 2
    half = [cv2.resize(cv2.merge(one[1:]), small, interpolation=cv2.INTER_AREA) for one in colours]
    soft = [cv2.GaussianBlur(half[0], (0, 0), float(np.hypot(blur / 2, _BASE))) for blur in _BLURS]
    its = cv2.GaussianBlur(half[1], (0, 0), _BASE)
    red, blue = cv2.split(cv2.max(reduce(cv2.min, soft) - its, its - reduce(cv2.max, soft)))
    by_colour = cv2.max(red, _BLUE * blue).clip(0)
    by_colour = cv2.resize(by_colour, (width, height))
    by_colour[cut] -= _SMEARED
    difference = cv2.max(difference, by_colour)
    # Where both have an edge nearby, it may lie beside itself; where one of them is even, nothing may.
    near = np.ones((3, 3), np.uint8)
    steep = cv2.min(*(cv2.dilate(slopes(one), near) for one in (blurred[0], seen)))
    busy = np.clip(2 * np.log2(1 + steep), 0, 11).astype(np.uint8)
    levels, values = busy[shared], difference[shared]
    edges = values[levels >= _EDGES]
    is_same = len(edges) > 200 and np.quantile(edges, 0.9) <= _SAME
    # On a page edges are few and hard, and what saving adds to them says nothing of the rest.
    floor = _FAINT if is_same and not is_page(second, shared) else _FLOOR
    allowed, usual = np.zeros(12, np.float32), 0.0
    for level in range(12):
        there = values[levels == level]
        usual = float(np.quantile(there, _USUAL)) if len(there) > 200 else usual
        allowed[level] = max(floor, _NOISE * usual)
    found = np.maximum(difference - slip * steep, 0) / np.take(allowed, busy)
    found[~shared] = 0
    return found


def _under_blurs(
    predicted: np.ndarray, seen: np.ndarray, shared: np.ndarray
) -> tuple[list[np.ndarray], np.ndarray]:
    """Return one picture's light float32[h, w] under the blurs that may have made the other of it, and the other's.

    The other is as soft as one of them. A compression softens places by some more, and a stronger blur than that wipes a
    small thing out.
    """
    import cv2

    inside = shared.astype(np.uint8)
    seen = cv2.GaussianBlur(seen, (0, 0), _BASE)
    wanted = cv2.norm(slopes(seen), cv2.NORM_L2SQR, inside)
    found: list[np.ndarray] = []
    softer = 0
    for blur in _BLURS:
        found.append(cv2.GaussianBlur(predicted, (0, 0), float(np.hypot(blur, _BASE))))
        softer += bool(softer) or cv2.norm(slopes(found[-1]), cv2.NORM_L2SQR, inside) <= wanted
        if softer > _SOFTER:
            break
    return found, seen


def _places(excess: np.ndarray) -> tuple[list[Difference], np.ndarray]:
    """Return the places that count, the strongest first, and bool[h, w]: their pixels."""
    import cv2

    hot = excess > 1
    if not hot.any():
        return [], hot
    near = cv2.morphologyEx(hot.astype(np.uint8), cv2.MORPH_CLOSE, np.ones((5, 5), np.uint8))
    count, labels, stats, _ = cv2.connectedComponentsWithStats(near, connectivity=8)
    weights = np.bincount(labels.ravel(), weights=(excess * hot).ravel(), minlength=count)
    weights[0] = 0
    height, width = excess.shape
    found = []
    for label in np.flatnonzero(weights >= LEAST_PLACE):
        x, y, w, h = (int(value) for value in stats[label, :4])
        found.append(
            Difference((x / width, y / height, (x + w) / width, (y + h) / height), float(weights[label]))
        )
    counted = (weights >= LEAST_PLACE)[labels] & hot
    return sorted(found, key=lambda place: -place.weight), counted


def _is_caption(
    first: np.ndarray, second: np.ndarray, predicted: np.ndarray, hot: np.ndarray, shared: np.ndarray
) -> bool:
    """Return whether all that differs is lines of writing of one colour that the second has over a picture."""
    import cv2

    if is_page(first, shared & ~hot):
        return False
    added = second.astype(np.float32) - predicted
    strength = reduce(np.maximum, np.moveaxis(np.abs(added), 2, 0))
    inner = hot & (strength >= max(40.0, float(np.quantile(strength[hot], 0.7))))
    if inner.sum() < 40:
        return False
    # Each pixel of a stroke lies between what was there and one ink: its edges are mixed of both.
    ink = np.median(second[inner].reshape(-1, 3), axis=0)
    towards = ink.astype(np.float32) - predicted
    share = cv2.transform(added * towards, np.ones((1, 3))) / np.maximum(
        cv2.transform(towards**2, np.ones((1, 3))), 100.0
    )
    beside = reduce(np.maximum, np.moveaxis(np.abs(added - share[:, :, None] * towards), 2, 0))
    around = cv2.dilate(hot.astype(np.uint8), np.ones((9, 9), np.uint8)) > 0
    strokes = (share > 0.45) & (beside <= _ONE_COLOUR) & around & (strength > _FLOOR)
    core = cv2.erode(strokes.astype(np.uint8), np.ones((3, 3), np.uint8)) > 0
    if core.sum() < 30:  # of thin strokes what is nearest to ink
        core = strokes & (share > _INK)
    if core.sum() < 30:
        return False
    # Ink is one colour, and what lay under it is not: taken away from a rough ground, a figure leaves strokes, too.
    if float(np.quantile(spread(second[core]), 0.85)) > _ONE_INK:
        return False
    # And it has outlines of its own: what writing was put over has none where the writing's are.
    outline = grown(strokes, 1) & ~grown(strokes, -1)
    its, under = (
        slopes(cv2.cvtColor(one.astype(np.float32), cv2.COLOR_RGB2GRAY))[outline].mean()
        for one in (second, predicted)
    )
    if its < _OUTLINED * under:
        return False
    lines = _lines(strokes)
    if not lines or len(lines) > _MOST_LINES:
        return False
    letters = np.zeros(hot.shape, bool)
    for top, bottom, left, right in lines:
        margin = (bottom - top) // 3 + 2
        letters[max(top - margin, 0) : bottom + margin, max(left - margin, 0) : right + margin] = True
    if (hot & letters).sum() < _EXPLAINED * hot.sum():
        return False
    halo = cv2.dilate(strokes.astype(np.uint8), np.ones((7, 7), np.uint8)) > 0
    if (hot & halo).sum() < _EXPLAINED * hot.sum():
        return False
    # Dark writing on light and even ground may be writing on paper or a board, which is content.
    ground = letters & shared & ~cv2.dilate(hot.astype(np.uint8), np.ones((5, 5), np.uint8)).astype(bool)
    if not ground.any():
        return False
    grey = cv2.cvtColor(first, cv2.COLOR_RGB2GRAY)[ground]
    is_dark = float(np.median(grey)) - float(ink @ (0.299, 0.587, 0.114)) > _DARK
    return not (is_dark and grey.std() < 12 and np.median(grey) > 130)


def spread(colours: np.ndarray) -> np.ndarray:
    """Return by how much each colour of uint8[n, 3] is off the median one, greys of the channel that is most so."""
    return np.abs(colours.astype(np.float32) - np.median(colours, axis=0)).max(axis=1)


def _lines(strokes: np.ndarray) -> list[tuple[int, int, int, int]]:
    """Return top, bottom, left, right of each line of letters; none where some strokes are no part of a line."""
    import cv2

    count, _, stats, _ = cv2.connectedComponentsWithStats(strokes.astype(np.uint8), connectivity=8)
    letters = [tuple(int(v) for v in stats[label]) for label in range(1, count) if stats[label, 4] >= 6]
    tall = [one for one in letters if one[3] >= _LEAST_HEIGHT]
    if len(tall) < _LETTERS:
        return []
    thick = cv2.distanceTransform(strokes.astype(np.uint8), cv2.DIST_L2, 3)
    left = sorted(tall, key=lambda one: one[0])
    lines = []
    while left:
        # The tallest letter left gives the line its height; who overlaps its rows and follows closely belongs to it.
        seed = max(left, key=lambda one: one[3])
        height, row = seed[3], seed[1] + seed[3] / 2
        inside = [one for one in left if abs(one[1] + one[3] / 2 - row) <= 0.6 * height]
        inside.sort(key=lambda one: one[0])
        runs = [[inside[0]]]
        for one in inside[1:]:
            end = max(x + w for x, _, w, *_ in runs[-1])
            if one[0] - end <= _GAP * height:
                runs[-1].append(one)
            else:
                runs.append([one])
        run = next(found for found in runs if seed in found)
        left = [one for one in left if one not in run]
        alike = [one for one in run if one[3] >= _LOW * height]
        x0, x1 = min(one[0] for one in run), max(one[0] + one[2] for one in run)
        y0, y1 = min(one[1] for one in run), max(one[1] + one[3] for one in run)
        area = sum(one[4] for one in run)
        is_line = len(alike) >= _LETTERS and x1 - x0 >= 4 * height and y1 - y0 <= 1.8 * height
        if is_line and float(thick[y0:y1, x0:x1].max()) <= max(_STROKE * height / 2, 2.5):
            lines.append((y0, y1, x0, x1))
            continue
        if area > 0.03 * strokes.sum():
            return []
    return lines


def is_page(picture: np.ndarray, shared: np.ndarray) -> bool:
    """Return whether a picture uint8[h, w, 3] is a page, a slide or a table: thin strokes on a few even colours."""
    import cv2

    if not shared.any():
        return False
    red, green, blue = (channel.astype(np.int16) >> 4 for channel in cv2.split(picture))
    codes = red << 8 | green << 4 | blue
    is_common = np.zeros(4096, bool)
    is_common[np.argsort(np.bincount(codes[shared], minlength=4096))[-_EVEN_COLOURS:]] = True
    even = is_common[codes]
    if (even & shared).sum() < _PAGE_GROUND * shared.sum():
        return False
    rest = (shared & ~even).astype(np.uint8)
    solid = cv2.morphologyEx(rest, cv2.MORPH_OPEN, np.ones((_PAGE_STROKE,) * 2, np.uint8))
    return bool(solid.sum() <= (1 - _PAGE_THIN) * max(rest.sum(), 1))


def where(places: tuple[Difference, ...]) -> str:
    """Return in words where the places lie, the strongest first."""
    left, top, right, bottom = places[0].box
    if (right - left) * (bottom - top) > 0.5:
        return "over most of the picture"
    row = _third((top + bottom) / 2, "top", "bottom")
    column = _third((left + right) / 2, "left", "right")
    said = f"at the {' '.join(filter(None, (row, column)))}" if row or column else "in the middle"
    others = len(places) - 1
    return said + (f" and in {others} other place{'s' if others > 1 else ''}" if others else "")


def _third(at: float, first: str, last: str) -> str:
    return first if at < 1 / 3 else last if at > 2 / 3 else ""
