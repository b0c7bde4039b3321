"""Lay one picture over another: feature pairs, one affine map from them, and the pixels under it."""

from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np

from photodup.photos.compare.canvas import grown
from photodup.photos.compare.features import LENGTH

# In `placed_in`: pixels by which a place, or a size, may be off what features say; sizes nearer than this are one; the
# pixels of a side that are compared, at most and at least; and the correlation from which on a picture is found.
_SLACK, _SAME_SIZE, _COMPARED, _LEAST, _FOUND = 3, 0.01, 512, 64, 0.9
# Slopes of two pictures as soft as each other, as a ratio of squares, in places of so many pixels; and by how much the
# sharper one is blurred otherwise (standard deviations, pixels), until it is.
_AS_SOFT, _PLACE, _BLURS = 0.9, 16, tuple((1.5 * 2 ** (np.arange(7) / 2)).tolist())
# Pixels that two pictures share: of fewer nothing is said.
LEAST_SHARED = 2000
# Pixels by which edges may lie beside each other, beyond what the alignment's own scatter is.
_LEAST_SLIP, _MOST_SLIP = 0.35, 1.5
# So many places say how a picture lies on another, which is off by fewer pixels than that, and whether some are displaced.
_LEAST_PLACES, _MOST_BESIDE, _PLACES = 6, 8, 8
# Response of a phase from which on it counts, at first and where little is left.
_SURE = 0.25, 0.35


def matches(first: np.ndarray, second: np.ndarray, ratio: float = 0.85) -> np.ndarray:
    """Return index pairs [n, 2] of features that are each other's nearest and clearly so (Lowe's ratio)."""
    if len(first) < 3 or len(second) < 3:
        return np.zeros((0, 2), int)
    # Descriptors have one length, so the nearest is the one with the largest product.
    products = first.astype(np.float32) @ second.astype(np.float32).T
    rows, nearest = np.arange(len(first)), products.argmax(axis=1)
    mutual = products.argmax(axis=0)[nearest] == rows
    best = products[rows, nearest]
    products[rows, nearest] = -np.inf
    square = LENGTH**2
    clear = square - best < ratio**2 * (square - products.max(axis=1))
    keep = clear & mutual
    return np.stack([rows[keep], nearest[keep]], axis=1)


def affine_map(target: np.ndarray, source: np.ndarray) -> tuple[np.ndarray | None, int]:
    """Return the affine map source -> target [2, 3] and its inliers; None if it is no plausible edit."""
    import cv2

    cv2.setRNGSeed(0)  # the same pair gets the same verdict every time
    transform, mask = cv2.estimateAffine2D(
        source, target, method=cv2.RANSAC, ransacReprojThreshold=3.0, maxIters=3000, confidence=0.999
    )
    if transform is None or not np.isfinite(transform).all():
        return None, 0
    scales = np.linalg.svd(transform[:, :2], compute_uv=False)
    # An edit scales both axes about alike (within 2) and does not turn the picture inside out.
    if scales[1] < 0.1 or scales[0] > 10 or scales[0] / scales[1] > 2 or np.linalg.det(transform[:, :2]) <= 0:
        return None, 0
    return transform, int(mask.sum())


def laid_over(target: np.ndarray, source: np.ndarray, transform: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the source in the frame of the target, and where it is (bool)."""
    import cv2

    size = target.shape[::-1]
    # Beyond its edge the last pixel is repeated: black there would be blurred into the patches inside.
    warped = cv2.warpAffine(source, transform, size, flags=cv2.INTER_AREA, borderMode=cv2.BORDER_REPLICATE)
    return warped, cv2.warpAffine(np.full_like(source, 255), transform, size) == 255


def shifts(
    a: np.ndarray, b: np.ndarray, shared: np.ndarray, side: int, *, texture: float, sure: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return how the second of two pictures lies displaced in square places, which a phase tells.

    Args:
        a, b: float32[h, w], laid over each other.
        shared: bool[h, w], where both show the picture.
        side: of a place, pixels.
        texture: standard deviation that a place needs in both, greys.
        sure: response of the phase from which on it counts, 0..1.

    Returns:
        The centres of the places and the shifts, float32[n, 2] in x and y.
    """
    import cv2

    window = cv2.createHanningWindow((side, side), cv2.CV_32F)
    centres, found = [], []
    for top in range(0, a.shape[0] - side + 1, side):
        for left in range(0, a.shape[1] - side + 1, side):
            box = slice(top, top + side), slice(left, left + side)
            if not shared[box].all() or min(a[box].std(), b[box].std()) < texture:
                continue
            shift, response = cv2.phaseCorrelate(a[box] - a[box].mean(), b[box] - b[box].mean(), window)
            if response > sure:
                centres.append((left + side / 2, top + side / 2))
                found.append(shift)
    return np.array(centres, np.float32).reshape(-1, 2), np.array(found, np.float32).reshape(-1, 2)


def slopes(grey: np.ndarray) -> np.ndarray:
    """Return float32[h, w]: greys a pixel."""
    import cv2

    return cv2.magnitude(
        *(cv2.Sobel(grey, cv2.CV_32F, *axes, ksize=3, scale=1 / 8) for axes in ((1, 0), (0, 1)))
    )


def as_soft(first: np.ndarray, second: np.ndarray, shared: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return two pictures, the sharper one blurred until it is about as soft as the other.

    The steeper half of small places decides which one is sharper: writing that only one of them has fills few of these.

    Args:
        first, second: float32[h, w] or [h, w, 3], laid over each other.
        shared: bool[h, w], where both show the picture.
    """
    import cv2

    size = max(1, shared.shape[1] // _PLACE), max(1, shared.shape[0] // _PLACE)
    inside = cv2.resize(shared.astype(np.float32), size, interpolation=cv2.INTER_AREA) == 1
    if not inside.any():
        return first, second

    def steepness(picture: np.ndarray) -> np.ndarray:
        """Return it for each place, of one contrast: what is lighter has steeper slopes, and is no sharper."""
        grey = picture if picture.ndim == 2 else cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY)
        squares, greys = (
            cv2.resize(one, size, interpolation=cv2.INTER_AREA) for one in (slopes(grey) ** 2, grey)
        )
        return (squares[inside] + 1e-6) / (greys[inside].var() + 1e-3)

    found, steep = [first, second], [steepness(first), steepness(second)]
    steeper = (least := np.minimum(*steep)) >= np.median(least)
    ratio = float(np.median((steep[1] / steep[0])[steeper]))
    sharper = int(ratio > 1)
    if min(ratio, 1 / ratio) < _AS_SOFT:
        for blur in _BLURS:
            softened = cv2.GaussianBlur((first, second)[sharper], (0, 0), blur)
            if np.median((steepness(softened) / steep[1 - sharper])[steeper]) < 1:
                break
            found[sharper] = softened
    return found[0], found[1]


@dataclass(frozen=True)
class Alignment:
    """How a picture lies on another that it was laid over, to a part of a pixel.

    Attributes:
        transform: float64[2, 3], which moves the second onto the first; None where it lies there as well as it can.
        slip: pixels by which edges still lie beside each other.
        displaced: share of textured places that lie beside where one map puts them: near and far things, seen from two
            places.
    """

    transform: np.ndarray | None = None
    slip: float = 2 * _LEAST_SLIP
    displaced: float = 0.0

    def moved(self, second: np.ndarray) -> np.ndarray:
        """Return the second picture where it lies on the first."""
        import cv2

        if self.transform is None:
            return second
        size, how = second.shape[1::-1], cv2.INTER_CUBIC
        return cv2.warpAffine(second, self.transform, size, flags=how, borderMode=cv2.BORDER_REPLICATE)

    def reversed(self) -> "Alignment":
        """Return how the first lies on the second."""
        import cv2

        if self.transform is None:
            return self
        return replace(self, transform=cv2.invertAffineTransform(self.transform))


def align(first: np.ndarray, second: np.ndarray, shared: np.ndarray) -> Alignment:
    """Return how a picture uint8[h, w, 3] lies on another that it was laid over, by what bool[h, w] `shared` shows."""
    import cv2

    if shared.sum() < LEAST_SHARED:
        return Alignment()
    greys = (cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY).astype(np.float32) for rgb in (first, second))
    a, b = (cv2.GaussianBlur(grey, (0, 0), 1.5) for grey in greys)
    # Between a sharp and a blurred picture a phase finds shifts that are not there.
    a, b = as_soft(a, b, shared)
    side = int(np.clip(max(a.shape) // 10, 48, 128))
    centres, beside = _beside(a, b, shared, side, _SURE[0])
    if len(centres) < _LEAST_PLACES:
        return Alignment()
    moved = np.linalg.norm(beside, axis=1)
    if np.quantile(moved, 0.9) < 0.1:
        return Alignment(slip=_LEAST_SLIP)
    as_it_is = Alignment(slip=_slip(np.median(moved)))
    roughly = _fitted(centres, beside)
    if roughly is None:
        return replace(as_it_is, displaced=displaced_share(beside - np.median(beside, axis=0), _LEAST_PLACES))
    # Once more from there, in places half as large: a phase is the surer the less is left.
    centres, beside = _beside(a, Alignment(roughly).moved(b), shared, max(48, side // 2), _SURE[1])
    rest = _fitted(centres, beside)
    if rest is None:
        rest = np.eye(2, 3)
    left_over = (centres + beside) @ rest[:, :2].T + rest[:, 2] - centres
    better = Alignment(
        np.vstack([rest, (0, 0, 1)])[:2] @ np.vstack([roughly, (0, 0, 1)]),
        _slip(np.quantile(np.linalg.norm(left_over, axis=1), 0.8)) if len(left_over) else _MOST_SLIP,
        displaced_share(left_over),
    )
    seen = grown(shared, -8)
    is_better = correlation(a[seen], better.moved(b)[seen]) > correlation(a[seen], b[seen])
    return better if is_better else replace(as_it_is, displaced=better.displaced)


def _beside(
    a: np.ndarray, b: np.ndarray, shared: np.ndarray, side: int, sure: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return `shifts` of pictures that lie on each other but for some pixels: what is off by more is no shift."""
    centres, beside = shifts(a, b, shared, side, texture=4, sure=sure)
    is_near = np.abs(beside).max(axis=1) < _MOST_BESIDE
    return centres[is_near], beside[is_near]


def _fitted(centres: np.ndarray, beside: np.ndarray) -> np.ndarray | None:
    """Return the map float64[2, 3] that most shifts agree on; None where too few do."""
    import cv2

    if len(centres) < _LEAST_PLACES:
        return None
    found, inside = cv2.estimateAffine2D(
        centres + beside, centres, method=cv2.RANSAC, ransacReprojThreshold=0.7
    )
    return found if found is not None and inside.sum() >= _LEAST_PLACES else None


def _slip(pixels: float) -> float:
    return float(np.clip(pixels + _LEAST_SLIP, 0, _MOST_SLIP))


def displaced_share(left_over: np.ndarray, least: int = _PLACES) -> float:
    """Return the share of shifts float32[n, 2] that are more than a pixel, 0..1; 0 of fewer than the least."""
    return float((np.linalg.norm(left_over, axis=1) > 1).mean()) if len(left_over) >= least else 0.0


def placed_in(whole: np.ndarray, part: np.ndarray, near: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Return where a picture lies in another, to the pixel: (left, top) and (width, height); None if it is not found.

    Args:
        whole, part: uint8[h, w]; either may show more than the other.
        near: float64[2, 2], about where the part's left upper and right lower corners lie, edges of pixels.
    """
    import cv2

    size, (wide, _) = np.array(part.shape[::-1]), (near[1] - near[0]).round().astype(int)
    is_same_size = abs(wide / size[0] - 1) < _SAME_SIZE
    best, found = _FOUND, None
    for width in [size[0]] if is_same_size else range(wide - _SLACK, wide + _SLACK + 1):
        placed = np.array([width, round(width * size[1] / size[0])])
        at = (near.mean(axis=0) - placed / 2).round().astype(int)
        low = np.maximum(at, 0) + _SLACK
        high = np.minimum(at + placed, whole.shape[::-1]) - _SLACK
        low = np.maximum(low, (low + high - _COMPARED) // 2)
        high = np.minimum(high, low + _COMPARED)
        if (high - low).min() < _LEAST:
            return None
        way = cv2.INTER_AREA if width < size[0] else cv2.INTER_CUBIC
        scaled = part if is_same_size else cv2.resize(part, placed.tolist(), interpolation=way)
        (left, top), (right, below) = low - at - _SLACK, high - at + _SLACK
        seen = whole[low[1] : high[1], low[0] : high[0]]
        fits = cv2.matchTemplate(scaled[top:below, left:right], seen, cv2.TM_CCOEFF_NORMED)
        _, fit, _, shift = cv2.minMaxLoc(fits)
        if fit > best:
            best, found = fit, (at + _SLACK - shift, placed)
    return found


def residual(a: np.ndarray, b: np.ndarray, inside: Any = ...) -> np.ndarray:
    """Return by how much each grey of a picture is off the other's, after the brightness and contrast that fit `inside`."""
    deviation = b - b[inside].mean()
    within = deviation[inside]
    gain = float((within * a[inside]).sum() / max(float((within**2).sum()), 1e-6))
    return np.abs(a - a[inside].mean() - gain * deviation)


def in_blocks(values: np.ndarray, side: int) -> np.ndarray:
    """Return [rows, columns, side, side]: the whole squares of a picture [h, w]."""
    rows, columns = (length // side for length in values.shape)
    whole = values[: rows * side, : columns * side]
    return whole.reshape(rows, side, columns, side).swapaxes(1, 2)


def is_cut(rgb: np.ndarray, white: int, black: int) -> np.ndarray:
    """Return bool[h, w]: where a channel of a picture [h, w, 3] reaches one of two greys."""
    channels = np.moveaxis(rgb, 2, 0)
    return (reduce(np.maximum, channels) >= white) | (reduce(np.minimum, channels) <= black)


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Return the normalised correlation of two equally long arrays, -1..1; 0 where one is flat or empty."""
    if not len(a):
        return 0.0
    a, b = a - a.mean(), b - b.mean()
    norm = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / norm if norm > 1e-6 else 0.0
