"""Where and how strongly two files of one picture differ, drawn for a person to look at."""

import numpy as np
from PIL import Image

from photodup.photos.compare import maps
from photodup.photos.compare.align import align, laid
from photodup.photos.compare.pictures import Picture, Saving

# Grey levels of difference: below the first nothing is drawn (any compression does that), above the second it gets no
# brighter.
LEAST, _MOST_GREYS = 8, 72
_SOFT = 0.8  # blur before comparing, pixels
# Brightness of the picture behind, as a share; width (pixels) and grey levels of the stripes where only one file shows it.
_DARK, _STRIPE, _STRIPED = 0.35, 8, 60


def drawn_difference(first: Image.Image, second: Image.Image) -> tuple[Image.Image, float, int] | None:
    """Draw the first picture in dark grey, red where the second differs and yellow where it differs most.

    The second is laid over the first. Areas that only one of them shows are striped, also beyond the first's frame.

    Returns:
        The picture; the share (0..1) of the common area that is drawn as different; and the largest difference of a pixel
        at this size, in grey levels (0..255), drawn or not. None if the two cannot be laid over each other.
    """
    import cv2

    pictures = [Picture(image, Saving("")) for image in (first, second)]
    placement = align(pictures[1], pictures[0])
    if placement is None:
        return None
    if placement.is_mirrored or placement.is_turned:
        pictures[1] = Picture(_turned(second, placement.transform[:, :2]), Saving(""))
        placement = align(pictures[1], pictures[0]) or placement
    onto, second = placement.transform, pictures[1].image
    reach = np.concatenate([maps.corners(first.size), maps.moved(maps.corners(second.size), onto)])
    low, high = np.floor(reach.min(axis=0) + 0.01), np.ceil(reach.max(axis=0) - 0.01)
    size = tuple((high - low).astype(int).tolist())
    shift, shifted = (np.column_stack([map[:, :2], map[:, 2] - low]) for map in (np.eye(2, 3), onto))
    (a, in_first), (b, in_second) = (
        laid(picture.rgb, transform, size)
        for picture, transform in zip(pictures, (shift, shifted), strict=True)
    )
    is_shared, is_covered = in_first & in_second, in_first | in_second
    soft = (cv2.GaussianBlur(layer, (0, 0), _SOFT) for layer in (a, b))
    apart = cv2.absdiff(*soft).max(axis=2).astype(np.float32)
    heat = is_shared * ((apart - LEAST) / (_MOST_GREYS - LEAST)).clip(0, 1)
    grey = _DARK * cv2.cvtColor(np.where(in_first[:, :, None], a, b), cv2.COLOR_RGB2GRAY)
    stripes = np.add.outer(np.arange(size[1]), np.arange(size[0])) // _STRIPE % 2 == 0
    grey = is_covered * (grey + _STRIPED * (stripes & ~is_shared))
    glow = 255 * np.stack([(2 * heat).clip(0, 1), (2 * heat - 1).clip(0, 1), np.zeros_like(heat)], axis=2)
    drawn = (1 - heat)[:, :, None] * grey[:, :, None] + glow
    n, largest = max(int(is_shared.sum()), 1), cv2.absdiff(a, b)[is_shared].max(initial=0)
    picture = Image.fromarray(drawn.clip(0, 255).astype(np.uint8))
    return picture, float((heat > 0).sum() / n), int(largest)


def _turned(image: Image.Image, linear: np.ndarray) -> Image.Image:
    """Return a picture turned by quarters and mirrored, as near as possible to the linear part of a map, float[2, 2]."""
    ways = [(turns, is_mirrored) for turns in range(4) for is_mirrored in (False, True)]

    def likeness(way: tuple[int, bool]) -> float:
        quarter = np.linalg.matrix_power(np.array([[0, 1], [-1, 0]]), way[0])
        return float((linear * (quarter @ np.diag((-1 if way[1] else 1, 1)))).sum())

    turns, is_mirrored = max(ways, key=likeness)
    rgb = np.asarray(image)
    return Image.fromarray(np.rot90(rgb[:, ::-1] if is_mirrored else rgb, turns))
