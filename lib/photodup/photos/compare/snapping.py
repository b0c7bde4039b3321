"""Maps between the pictures of a family, made exact where they have one frame.

Most copies keep the frame: only tones, size or compression change. Features of a foggy or blurred picture give their map
to a few pixels; where the map that lays frame on frame is near it and fits as well, that is the one.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

import numpy as np

from photodup.photos.compare.alignment import correlation, laid_over
from photodup.photos.compare.features import Features
from photodup.photos.compare.verify import verify_with_map

# Corners may be moved by this share of the longer side, and sides' ratios may differ by as much as rounding does.
_NEAR, _SAME_SHAPE = 0.06, 0.01
# Loss of correlation that is none.
_AS_WELL = 0.0005
_SOFT = 1.5  # pixels


def maps_to(
    hub: int,
    pictures: Mapping[int, Features],
    sizes: Mapping[int, tuple[int, int]],
    proven: Collection[tuple[int, int]],
) -> dict[int, np.ndarray]:
    """Return the map float64[2, 3] of each picture to the hub's pixels, along proven pairs.

    Files of one size mostly lie on each other pixel by pixel, and only then can their compression be compared. Maps along
    different pairs miss that by a quarter of a pixel, so such files share the map that fits the hub best.

    Args:
        hub: one of the rows.
        pictures: of each row.
        sizes: (width, height) of each upright file.
        proven: pairs of rows; what they do not connect with the hub has no map.
    """
    near = partners(pair for pair in proven if set(pair) <= pictures.keys())
    maps = {hub: np.eye(3)}
    waiting = [hub]
    while waiting:
        here = waiting.pop(0)
        for row in sorted(near.get(here, ())):
            if row in maps:
                continue
            found, transform = verify_with_map(pictures[here], pictures[row])
            if transform is None or not found.is_copy():
                found, back = verify_with_map(pictures[row], pictures[here])
                if back is None or not found.is_copy():
                    continue
                transform = np.linalg.inv(_square(back))[:2]
            own = (maps[here] @ _square(transform))[:2]
            maps[row] = _square(snapped(pictures[hub].grey, pictures[row].grey, own))
            waiting.append(row)
    left = list(maps)
    while left:
        first = left[0]
        onto = {first: np.eye(3)}  # from pixels of each to those of the first of its size
        for row in left[1:]:
            between = (np.linalg.inv(maps[first]) @ maps[row])[:2]
            exact = snapped(pictures[first].grey, pictures[row].grey, between)
            if sizes[row] == sizes[first] and exact is not between:
                onto[row] = _square(exact)
        left = [row for row in left if row not in onto]
        tried = (
            [maps[row] @ np.linalg.inv(there) for row, there in onto.items()]
            if len(onto) > 1
            else [maps[first]]
        )
        best = max(tried, key=lambda one: _fit(pictures[hub].grey, pictures[first].grey, one[:2]))
        maps |= {row: best @ there for row, there in onto.items()}
    return {row: one[:2] for row, one in maps.items()}


def partners(pairs: Iterable[tuple[int, int]]) -> dict[int, set[int]]:
    """Return by row the rows that it has a pair with."""
    found: dict[int, set[int]] = defaultdict(set)
    for i, j in pairs:
        found[i].add(j)
        found[j].add(i)
    return found


def _square(transform: np.ndarray) -> np.ndarray:
    return np.vstack([transform, [0, 0, 1]])


def snapped(target: np.ndarray, source: np.ndarray, transform: np.ndarray) -> np.ndarray:
    """Return the map of frame on frame where that fits as well, else the map as it is.

    Args:
        target, source: uint8[h, w] at the size of comparison.
        transform: float64[2, 3], from the source's pixels to the target's.
    """
    exact = _frame_on_frame(target.shape, source.shape, transform)
    if exact is None:
        return transform
    corners = _corners(source.shape)
    moved = corners @ exact[:, :2].T + exact[:, 2] - corners @ transform[:, :2].T - transform[:, 2]
    if np.linalg.norm(moved, axis=1).max() > _NEAR * max(target.shape):
        return transform
    found = [_fit(target, source, one) for one in (exact, transform)]
    return exact if found[0] >= found[1] - _AS_WELL else transform


def _frame_on_frame(
    target: tuple[int, ...], source: tuple[int, ...], transform: np.ndarray
) -> np.ndarray | None:
    """Return the map of one frame on the other, in quarter turns and mirrored as the map is; None between two shapes."""
    turned = np.rint(transform[:, :2] / np.sqrt(abs(np.linalg.det(transform[:, :2]))))
    if abs(np.linalg.det(turned)) != 1 or np.abs(turned).sum() != 2:
        return None
    sides = np.abs(turned) @ np.array(source[1::-1], float)
    scales = np.array(target[1::-1], float) / sides
    if abs(scales[0] / scales[1] - 1) > _SAME_SHAPE:
        return None
    linear = turned * scales[:, None]
    centre = (np.array(source[1::-1], float) - 1) / 2
    return np.column_stack([linear, (np.array(target[1::-1], float) - 1) / 2 - linear @ centre])


def _corners(shape: tuple[int, ...]) -> np.ndarray:
    height, width = shape[:2]
    return np.array([(0, 0), (width - 1, 0), (0, height - 1), (width - 1, height - 1)], float)


def _fit(target: np.ndarray, source: np.ndarray, transform: np.ndarray) -> float:
    """Return the correlation of two pictures at one softness: between pixels a map blurs, which alone fits a blur better."""
    import cv2

    warped, covered = laid_over(target, source, transform)
    values = (cv2.GaussianBlur(grey.astype(np.float32), (0, 0), _SOFT)[covered] for grey in (target, warped))
    return correlation(*values)
