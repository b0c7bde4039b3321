"""Align two files to a fraction of a pixel: one affine map from the keeper's pixels to the member's."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image

from photodup.photos.compare import maps
from photodup.photos.compare.maps import Size
from photodup.photos.compare.patches import correlation, laid_over
from photodup.photos.compare.pictures import Picture
from photodup.photos.compare.verify import verify_with_map

_SIDE = 640  # longer side at which a map is refined, pixels
_SOFT = 1.2  # blur before it, pixels
# A map of whole frames is taken if it is this near (share of the longer side), at this loss of correlation at most.
_NEAR, _AS_WELL = 0.03, 0.0005
_SETTLED = 0.3  # largest error of a refined map, pixels at a longer side of 640


@dataclass(frozen=True)
class Placement:
    """The alignment of a keeper with a member.

    Attributes:
        transform: the map from the keeper's positions to the member's.
        is_mirrored, is_turned: whether the keeper is mirrored, or turned by more than 45°; the map is then not refined.
    """

    transform: np.ndarray
    is_mirrored: bool
    is_turned: bool

    @property
    def scale(self) -> float:
        """Return pixels of the member for one of the keeper."""
        return float(np.sqrt(abs(np.linalg.det(self.transform[:, :2]))))

    @property
    def slant(self) -> float:
        """Return the sine of the angle between keeper and member, 0..1."""
        return abs(float(self.transform[1, 0])) / self.scale

    @property
    def stretch(self) -> float:
        """Return the larger scale over the smaller, 1 or more."""
        larger, smaller = np.linalg.svd(self.transform[:, :2], compute_uv=False)
        return float(larger / smaller)

    def share_shown(self, keeper: Size, member: Size) -> float:
        """Return the share of the keeper's picture that the member shows, for pictures of these sizes."""
        reach = maps.moved(maps.corners(member), maps.inverse(self.transform)).clip(0, keeper)
        return float(np.prod((reach.max(axis=0) - reach.min(axis=0)) / keeper))


def align(keeper: Picture, member: Picture) -> Placement | None:
    """Return how the keeper lies on the member; None where the two are not seen to be one picture."""
    evidence, between_greys = verify_with_map(member.features, keeper.features)
    if between_greys is None or not evidence.passes():
        return None
    greys = [picture.features.grey.shape[::-1] for picture in (keeper, member)]
    up, down = np.array(member.image.size) / greys[1], np.array(greys[0]) / keeper.image.size
    transform = maps.rescaled(maps.from_centres(between_greys), 1 / down, up)
    is_mirrored, is_turned = np.linalg.det(transform[:, :2]) < 0, transform[0, 0] <= abs(transform[0, 1])
    if not is_mirrored and not is_turned:
        transform = _settle(keeper, member, transform)
    return Placement(transform, bool(is_mirrored), bool(is_turned))


def grey(rgb: np.ndarray) -> np.ndarray:
    """Return the greys of a picture, or greys, as float32[h, w], 0..255."""
    import cv2

    return (cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY) if rgb.ndim > 2 else rgb).astype(np.float32, copy=False)


def laid(
    rgb: np.ndarray,
    transform: np.ndarray,
    size: Size,
    resampling: Image.Resampling | None = Image.Resampling.LANCZOS,
) -> tuple[np.ndarray, np.ndarray]:
    """Return a picture uint8[h, w, 3] mapped onto a frame of this size, and bool[h, w] where it lies; edge pixels are
    repeated.

    Shrinking averages pixels, as programs that resize do: by `resampling` (None: OpenCV's, by area) for maps without
    rotation.
    """
    inside = inside_of(rgb.shape[1::-1], transform, size)
    if maps.is_straight(transform):
        return _laid_straight(rgb, transform, size, resampling), inside
    return _laid_aslant(rgb, transform, size), inside


def inside_of(source: Size, transform: np.ndarray, size: Size) -> np.ndarray:
    """Return bool[h, w]: which whole pixels of a frame a picture of the source's size covers."""
    if not maps.is_straight(transform):
        x, y = np.meshgrid(np.arange(size[0]) + 0.5, np.arange(size[1]) + 0.5)
        u, v = (row[0] * x + row[1] * y + row[2] for row in maps.inverse(transform))
        return (np.minimum(u, v) > 0.5) & (u < source[0] - 0.5) & (v < source[1] - 0.5)
    inside = np.zeros(size[::-1], bool)
    (left, top), (right, bottom) = _whole_pixels(source, transform, size)
    inside[top:bottom, left:right] = True
    return inside


def _whole_pixels(source: Size, transform: np.ndarray, size: Size) -> np.ndarray:
    """Return int[2, 2]: the left upper and right lower corner of what a picture covers, under a map without rotation."""
    corners = transform[:, 2] + [(0, 0), np.array(source) * np.diag(transform)]
    return np.clip([np.ceil(corners[0] - 0.02), np.floor(corners[1] + 0.02)], 0, size).astype(int)


def _laid_straight(
    rgb: np.ndarray, transform: np.ndarray, size: Size, resampling: Image.Resampling | None
) -> np.ndarray:
    import cv2

    scales, offset, bounds = np.diag(transform), transform[:, 2], rgb.shape[1::-1]
    low, high = _whole_pixels(bounds, transform, size)
    if (low >= high).any():
        return np.zeros((*size[::-1], 3), np.uint8)
    box = np.clip((np.array([low, high]) - offset) / scales, 0, bounds).ravel()
    left, top, right, bottom = np.rint(box).astype(int)
    if np.abs(box - np.rint(box)).max() < 1e-6 and (right - left, bottom - top) == tuple(high - low):
        part = rgb[top:bottom, left:right]
    elif resampling is None:
        part = cv2.resize(rgb[top:bottom, left:right], (high - low).tolist(), interpolation=cv2.INTER_AREA)
    else:
        shape = tuple((high - low).tolist())
        part = np.asarray(Image.fromarray(rgb).resize(shape, resampling, tuple(box.tolist()), 3.0))
    if (high - low == size).all():
        return part
    top, below, left, right = (int(n) for n in (low[1], size[1] - high[1], low[0], size[0] - high[0]))
    return cv2.copyMakeBorder(part, top, below, left, right, cv2.BORDER_REPLICATE)


def _laid_aslant(rgb: np.ndarray, transform: np.ndarray, size: Size) -> np.ndarray:
    import cv2

    scale = float(np.linalg.svd(transform[:, :2], compute_uv=False)[1])
    if scale < 0.75:
        small = tuple(max(1, round(side * max(scale, 1 / 64) * 1.5)) for side in rgb.shape[1::-1])
        transform = maps.rescaled(transform, np.array(small) / rgb.shape[1::-1], 1)
        rgb = cv2.GaussianBlur(cv2.resize(rgb, small, interpolation=cv2.INTER_AREA), (0, 0), 0.5)
    centred, edge = maps.to_centres(transform), cv2.BORDER_REPLICATE
    return cv2.warpAffine(rgb, centred, size, flags=cv2.INTER_CUBIC, borderMode=edge)


def _settle(keeper: Picture, member: Picture, transform: np.ndarray) -> np.ndarray:
    """Return the map refined on the greys, and snapped to whole frames or pixels if that is as near."""
    factor = min(1.0, _SIDE / max(member.image.size))
    target, exact = _reduced(member.rgb, factor)
    scale = float(np.linalg.svd(transform[:, :2], compute_uv=False)[1]) * factor
    source, by = _reduced(keeper.rgb, min(scale, 1.0))
    fit = _fitting(target, source)
    whole = maps.straight(np.array(member.image.size) / keeper.image.size)
    edges = maps.corners(keeper.image.size)
    beside = np.abs(maps.moved(edges, whole) - maps.moved(edges, transform)).max()
    roughly = fit(maps.rescaled(transform, by, exact))
    if beside < _NEAR * max(member.image.size) and fit(maps.rescaled(whole, by, exact)) >= roughly - _AS_WELL:
        return whole
    settled = maps.rescaled(transform, by, exact)
    for level in (1 / 4, 1 / 2, 1):
        (a, to_a), (b, to_b) = _reduced(target, level), _reduced(source, level)
        if min(a.shape) >= 48:
            settled = maps.rescaled(_settled(a, b, maps.rescaled(settled, to_b, to_a)), 1 / to_b, 1 / to_a)
    if fit(settled) > roughly:
        transform = maps.rescaled(settled, 1 / by, 1 / exact)
    return _snapped(transform, keeper.image.size, member.image.size, factor)


def _reduced(picture: np.ndarray, factor: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the greys of a picture reduced by a factor, 0..1, and the exact factors of both sides."""
    import cv2

    size = tuple(max(8, round(side * factor)) for side in picture.shape[1::-1])
    greys = grey(cv2.resize(picture, size, interpolation=cv2.INTER_AREA) if factor < 1 else picture)
    return greys, np.array(greys.shape[::-1]) / picture.shape[1::-1]


def _fitting(target: np.ndarray, source: np.ndarray) -> Callable[[np.ndarray], float]:
    """Return a function from a map to the correlation of both greys; both are blurred, as interpolation blurs too."""
    import cv2

    soft = [cv2.GaussianBlur(picture, (0, 0), 1.5) for picture in (target, source)]

    def fit(transform: np.ndarray) -> float:
        warped, inside = laid_over(soft[1], maps.to_centres(transform), target.shape[::-1])
        return correlation(soft[0][inside], warped[inside])

    return fit


def slopes(greys: np.ndarray) -> list[np.ndarray]:
    """Return by how much greys float32[h, w] rise a pixel, across and down."""
    import cv2

    return [cv2.Sobel(greys, cv2.CV_32F, *axes, scale=1 / 8) for axes in ((1, 0), (0, 1))]


def _settled(target: np.ndarray, source: np.ndarray, transform: np.ndarray) -> np.ndarray:
    """Refine a map between greys float32[h, w] of source and target.

    Gauss-Newton with gain and offset (Lucas and Kanade 1981); pixels that differ much get little weight.
    """
    import cv2

    height, width = target.shape
    a, soft = (cv2.GaussianBlur(picture, (0, 0), _SOFT) for picture in (target, source))
    across, down = map(np.ravel, slopes(a))
    half = max(width, height) / 2
    y, x = np.mgrid[:height, :width].reshape(2, -1).astype(np.float32)
    x, y = (x - width / 2) / half, (y - height / 2) / half
    basis = np.stack([across * x, across * y, across, down * x, down * y, down, a.ravel(), np.ones_like(x)])
    edges = maps.corners((width, height))
    for _ in range(8):
        b, covered = laid_over(soft, maps.to_centres(transform), (width, height))
        inside, apart = covered.ravel(), (b - a).ravel()
        if not inside.any():
            break
        some = apart[inside][::7]
        spread = 1.5 * float(np.median(np.abs(some - np.median(some)))) + 0.5
        weighted = basis * (inside / (1 + (apart / (2 * spread)) ** 2) ** 2).astype(np.float32)
        products = (weighted @ basis.T).astype(float) + 1e-3 * np.eye(8)
        step = np.linalg.solve(products, (weighted @ apart).astype(float))
        # The mapped source shows at p what the target shows at shift(p): move it there.
        linear = step[[0, 1, 3, 4]].reshape(2, 2) / half
        shift = np.column_stack([np.eye(2) + linear, step[[2, 5]] - linear @ (width / 2, height / 2)])
        transform = (np.vstack([shift, (0, 0, 1)]) @ np.vstack([transform, (0, 0, 1)]))[:2]
        if np.abs(maps.moved(edges, shift) - edges).max() < 0.01:
            break
    return transform


def _snapped(transform: np.ndarray, source: Size, target: Size, factor: float) -> np.ndarray:
    """Return the first plainer map (frame to frame, whole pixels, no rotation) that is near enough, else the map."""
    near = max(_SETTLED / factor, 0.4)
    edges = maps.corners(source)
    places = maps.moved(edges, transform)
    visible = np.clip(places, 0, target)
    back, scales = maps.moved(visible, maps.inverse(transform)), np.diag(transform)
    framed = np.rint(places)
    candidates = (
        (edges, places, maps.straight(np.array(target) / source)),
        (edges, places, maps.straight((framed[2] - framed[0]) / source, framed[0])),
        (back, visible, maps.straight(np.ones(2), np.rint((visible - back).mean(axis=0)))),
        (back, visible, maps.straight(scales, visible.mean(axis=0) - scales * back.mean(axis=0))),
    )
    for points, targets, candidate in candidates:
        if np.abs(maps.moved(points, candidate) - targets).max() < near:
            return candidate
    return transform
