"""All members of a family laid over one of them: its frame, grown to hold them all, is the canvas."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from PIL import Image

from photodup.photos.compare.features import SIZE

# The canvas is no longer than this many times the frame it began with.
_MAX_GROWTH = 3.0
# A fill that is flat to this many greys, of at least this share of the picture, may be a border or a corner.
_FLAT, _LEAST_FLAT = 10, 0.0008
# Just outside another member's frame so much must be fill.
_ALL_AROUND = 0.9
# Of so many members most show what the source was: where it ends on plain ground, its scale, that it is no collage.
MANY = 5
# What a program filled is one colour: so much of it to so many greys, for there are rings beside the picture. Of 36 fills
# beside turned and padded copies the least even has 0.86; a wall in a photograph has 0.35 to 0.65.
_DRAWN, _ONE_GREY = 0.75, 2
# Longer side, pixels, at which two members are compared for what they hold.
_FINE = 1280
# Pixels of the canvas by which two outlines of one picture may miss each other.
JITTER = 3


@dataclass
class Laid:
    """One member on the canvas.

    Attributes:
        rgb: uint8[h, w, 3].
        grey: float32[h, w], slightly blurred.
        frame: bool[h, w], where the member lies.
        picture: bool[h, w], where it shows the picture: its frame without borders and empty corners.
        to_canvas: float64[2, 3], from pixels of the member at `SIZE` to the canvas.
        scale: pixels of the file for one of the canvas.
        size: (width, height) of the upright file.
        added: what it has around the picture, in words.
        plain_around: members around whose picture it has one colour, which may be a border or the ground of the scene.
    """

    rgb: np.ndarray
    grey: np.ndarray
    frame: np.ndarray
    picture: np.ndarray
    to_canvas: np.ndarray
    scale: float
    size: tuple[int, int]
    added: tuple[str, ...] = ()
    plain_around: frozenset[int] = frozenset()

    @property
    def file_to_canvas(self) -> np.ndarray:
        """The map float64[3, 3] from pixels of the upright file to the canvas."""
        return np.vstack([self.to_canvas, [0, 0, 1]]) @ _scaled(SIZE / max(self.size))

    @property
    def is_mirrored(self) -> bool:
        """Whether it lies on the canvas turned over."""
        return bool(np.linalg.det(self.to_canvas[:, :2]) < 0)


def small(image: Image.Image) -> np.ndarray:
    """Return uint8[h, w, 3]: the picture at the size at which it is compared."""
    scale = SIZE / max(image.size)
    size = [max(1, round(side * scale)) for side in image.size]
    return np.array(image.convert("RGB").resize(size, Image.Resampling.LANCZOS))


def lay(
    pictures: Mapping[int, np.ndarray], maps: Mapping[int, np.ndarray], sizes: Mapping[int, tuple[int, int]]
) -> dict[int, Laid]:
    """Lay pictures over each other.

    Args:
        pictures: uint8[h, w, 3] of each row, as `small` gives.
        maps: float64[2, 3] of each row, from its pixels to those of one of them.
        sizes: (width, height) of each upright file.
    """
    import cv2

    corners = []
    for row, rgb in pictures.items():
        height, width = rgb.shape[:2]
        outline = np.array([(0, 0), (width, 0), (0, height), (width, height)], float) - 0.5
        corners.append(outline @ maps[row][:, :2].T + maps[row][:, 2])
    low, high = np.concatenate(corners).min(axis=0), np.concatenate(corners).max(axis=0)
    shrink = min(1.0, _MAX_GROWTH * SIZE / float((high - low).max()))
    width, height = np.ceil((high - low) * shrink).astype(int).clip(8)
    laid = {}
    for row, rgb in pictures.items():
        transform = maps[row] * shrink
        transform[:, 2] -= low * shrink
        warped = cv2.warpAffine(
            rgb, transform, (int(width), int(height)), flags=cv2.INTER_AREA, borderMode=cv2.BORDER_REPLICATE
        )
        frame = cv2.warpAffine(np.full(rgb.shape[:2], 255, np.uint8), transform, (int(width), int(height)))
        per_pixel = float(np.sqrt(abs(np.linalg.det(transform[:, :2])))) * SIZE / max(sizes[row])
        grey = cv2.GaussianBlur(cv2.cvtColor(warped, cv2.COLOR_RGB2GRAY).astype(np.float32), (0, 0), 1.5)
        laid[row] = Laid(warped, grey, frame == 255, frame == 255, transform, 1 / per_pixel, sizes[row])
    return laid


def common_fineness(first: Laid, second: Laid) -> float:
    """Return how many pixels a side for one of the canvas show two members at the smaller one's resolution."""
    return max(0.5, min(first.scale, second.scale, _FINE / max(first.frame.shape)))


def on_fine_canvas(image: Image.Image, one: Laid, fineness: float) -> np.ndarray:
    """Return uint8[h, w, 3]: a member on a canvas of so many times the pixels a side, out of its file's picture."""
    import cv2

    height, width = one.frame.shape
    to_fine = _scaled(fineness) @ one.file_to_canvas
    shrink = min(1.0, float(np.sqrt(abs(np.linalg.det(to_fine[:2, :2])))))
    # First to about its size there: a map alone would leave pixels out.
    small = [max(1, round(side * shrink)) for side in image.size]
    rgb = np.asarray(image.convert("RGB").resize(small, Image.Resampling.LANCZOS, reducing_gap=3.0))
    ratios = [after / before for after, before in zip(small, image.size, strict=True)]
    to_fine = to_fine @ np.linalg.inv(_scaled(*ratios))
    size = round(width * fineness), round(height * fineness)
    return cv2.warpAffine(rgb, to_fine[:2], size, flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)


def _scaled(x: float, y: float | None = None) -> np.ndarray:
    """Return the map float64[3, 3] of pixels, whose centres lie at halves, to a picture enlarged so many times."""
    y = x if y is None else y
    return np.array([[x, 0, x / 2 - 0.5], [0, y, y / 2 - 0.5], [0, 0, 1]])


def on_size(mask: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return a mask bool[h, w] at another (width, height)."""
    import cv2

    return cv2.resize(mask.astype(np.uint8), size, interpolation=cv2.INTER_NEAREST) > 0


def shares_of(box: tuple[float, float, float, float], one: Laid) -> tuple[float, float, float, float]:
    """Return a box of the canvas as a box of a member's upright picture; both left, top, right, bottom as shares."""
    height, width = one.frame.shape
    left, top, right, bottom = box
    corners = np.array([(x * width, y * height) for x in (left, right) for y in (top, bottom)]) - 0.5
    back = np.linalg.inv(np.vstack([one.to_canvas, [0, 0, 1]]))
    found = (corners @ back[:2, :2].T + back[:2, 2] + 0.5) / (np.array(one.size) * SIZE / max(one.size))
    low, high = found.min(axis=0).clip(0, 1), found.max(axis=0).clip(0, 1)
    return tuple(round(float(value), 4) for value in (*low, *high))  # type: ignore[return-value]


def without_margins(pictures: Mapping[int, np.ndarray], laid: Mapping[int, Laid]) -> None:
    """Take borders and empty corners out of `picture`, and name them in `added`.

    A fill of one colour at the edge is no part of the picture if all around another member's frame there is nothing else,
    and the light changes there: the picture ends there. A wall has shades, and is part of the picture.
    """
    import cv2

    # By row: its fill on the canvas, and the members that end at it with whether its light changes there.
    fills: dict[int, np.ndarray] = {}
    ending: dict[int, dict[int, bool]] = {}
    for row, rgb in pictures.items():
        fill, member = _flat_at_edges(rgb), laid[row]
        size = member.frame.shape[::-1]
        if frame := _even_frame(rgb):
            inner = np.zeros(fill.shape, np.uint8)
            left, top, right, bottom = frame
            inner[top : fill.shape[0] - bottom, left : fill.shape[1] - right] = 255
            member.picture &= cv2.warpAffine(inner, member.to_canvas, size) == 255
            member.added = ("a border",)
            continue
        if fill.mean() < _LEAST_FLAT:
            continue
        there = cv2.warpAffine(fill.astype(np.uint8) * 255, member.to_canvas, size) >= 128
        fills[row], ending[row] = there, {}
        for other_row in [o for o in laid if o != row]:
            shape = laid[other_row].frame
            outer = grown(shape, JITTER)
            around = grown(shape, JITTER + 4) & ~outer & grown(member.frame, -2)
            if (
                around.sum() >= _LEAST_FLAT * member.frame.sum()
                and there[around].mean() > _ALL_AROUND
                and _is_drawn(member, there & ~outer)
            ):
                inside = shape & ~grown(shape, -JITTER - 4) & grown(outer & member.frame, -2)
                step = member.grey[around].mean() - member.grey[inside].mean() if inside.any() else 0.0
                ending[row][other_row] = bool(abs(step) > _FLAT)
    for row, others in ending.items():
        # A picture on white with more white around it, or a crop of what stands before white: of few nobody can say.
        are_many = len(laid) >= MANY
        ends = [laid[o] for o, changes in others.items() if changes or are_many]
        laid[row].plain_around = frozenset(o for o, changes in others.items() if not changes)
        # What most members show is no border: then the picture stands on a plain ground, and some are crops.
        if ends and 2 * len(ends) >= len(laid) - 1:
            member, other = laid[row], ends[0]
            member.picture &= ~grown(~grown(other.frame, -1) & grown(fills[row], JITTER), 1)
            member.added = ("empty corners",) if abs(angle(member, other)) > 0.5 else ("a border",)


def _is_drawn(one: Laid, fill: np.ndarray) -> bool:
    """Return whether a fill bool[h, w] outside another's picture is of one colour, as a program draws it."""
    values = one.rgb[fill].astype(np.int16)
    return bool(np.mean(np.abs(values - np.median(values, axis=0)).max(axis=1) <= _ONE_GREY) >= _DRAWN)


def angle(first: Laid, second: Laid) -> float:
    """Return by how much the second is turned against the first, degrees from the nearest quarter turn."""
    return (_degrees(second) - _degrees(first) + 45) % 90 - 45


def is_turned(first: Laid, second: Laid) -> bool:
    """Return whether one is the other turned by a quarter or a half, to the nearest quarter; mirrored ones are not told."""
    return (
        round((_degrees(second) - _degrees(first)) / 90) % 4 != 0 and first.is_mirrored == second.is_mirrored
    )


def stretch(first: Laid, second: Laid) -> float:
    """Return the larger of the two scales of the map between two files over the smaller: 1 where none is stretched."""
    scales = np.linalg.svd(
        (np.linalg.inv(first.file_to_canvas) @ second.file_to_canvas)[:2, :2], compute_uv=False
    )
    return float(scales[0] / scales[1])


def _degrees(one: Laid) -> float:
    return float(np.degrees(np.arctan2(one.to_canvas[1, 0], one.to_canvas[0, 0])))


def grown(mask: np.ndarray, pixels: int) -> np.ndarray:
    """Return the mask grown by so many pixels, or shrunk where they are negative."""
    import cv2

    if not pixels:
        return mask
    kernel = np.ones((2 * abs(pixels) + 1,) * 2, np.uint8)
    change = cv2.dilate if pixels > 0 else cv2.erode
    return change(mask.astype(np.uint8), kernel, borderValue=0) > 0


def _flat_at_edges(rgb: np.ndarray) -> np.ndarray:
    """Return bool[h, w]: fills of one colour that touch the edge."""
    import cv2

    height, width = rgb.shape[:2]
    found = np.zeros((height, width), bool)
    # One pixel inside: JPEG and resampling soften the very edge.
    xs, ys = (1, width // 2, width - 2), (1, height // 2, height - 2)
    seeds = {(x, y) for x in xs for y in ys if not (x == xs[1] and y == ys[1])}
    for x, y in seeds:
        if not (0 <= x < width and 0 <= y < height) or found[y, x]:
            continue
        mask = np.zeros((height + 2, width + 2), np.uint8)
        flags = 4 | cv2.FLOODFILL_MASK_ONLY | cv2.FLOODFILL_FIXED_RANGE | (255 << 8)
        cv2.floodFill(np.ascontiguousarray(rgb), mask, (x, y), 0, (_FLAT,) * 3, (_FLAT,) * 3, flags)
        region = mask[1:-1, 1:-1] > 0
        if region.mean() >= _LEAST_FLAT / 4 and rgb[region].std(axis=0).max() < 4:
            found |= region
    return found


def _even_frame(rgb: np.ndarray) -> tuple[int, int, int, int] | None:
    """Return the widths (left, top, right, bottom) of a border of one colour on all four sides; None without."""
    corner = np.median(rgb[:3, :3].reshape(-1, 3), axis=0)
    apart = np.abs(rgb.astype(np.int16) - corner).max(axis=2)
    # A picture on a light ground inside a white border: the narrow limit tells the one from the other.
    frames = (_frame_of(apart <= limit) for limit in (_FLAT + 4, _FLAT // 2))
    return next(filter(None, frames), None)


def _frame_of(near: np.ndarray) -> tuple[int, int, int, int] | None:
    """Return the widths of a frame along which bool[h, w] holds; None where it does not end along a line."""
    rows, columns = near.mean(axis=1) > 0.995, near.mean(axis=0) > 0.995
    widths = [
        int(np.argmin(line)) if not line.all() else len(line)
        for line in (columns, rows, columns[::-1], rows[::-1])
    ]
    if min(widths) < 3 or widths[0] + widths[2] >= near.shape[1] or widths[1] + widths[3] >= near.shape[0]:
        return None
    left, top, right, bottom = (width + 1 for width in widths)
    inner = near[top : near.shape[0] - bottom, left : near.shape[1] - right]
    # A frame ends along a line, or the next, for resampling rings beside an edge. A moon before a black sky does not.
    if min(inner.shape) < 8 or any(
        min(side[0].mean(), side[1].mean()) > 0.6 for side in (inner, inner[::-1], inner.T, inner.T[::-1])
    ):
        return None
    return left, top, right, bottom
