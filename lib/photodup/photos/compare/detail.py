"""True resolution: how fine the detail is that a file really holds, at a scale common to its family.

An enlargement has more pixels than its source and no finer detail; a blur has as many and coarser. At the same
places of the picture the power spectra of all members are compared, in cycles a pixel of the canvas. What lies far
below the detail just coarser than it, or far below another member's, is not there.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from photodup.photos.compare.canvas import Laid, grown
from photodup.photos.compare.features import SIZE
from photodup.photos.compare.traces import FileTraces

# Side of a place, pixels of the canvas, and how many are looked at.
_TILE, _MOST_TILES = 40, 36
# Bands of half an octave, cycles a pixel of the canvas; the first begins where every comparison still sees detail.
_FIRST, _STEP, _BANDS = 0.09, 2**0.5, 16
EDGES = _FIRST * _STEP ** np.arange(_BANDS + 1)
# Detail is there if its power is at least this share of that an octave coarser: an enlargement falls below.
_FALL = 0.07
# And if it is at least this share of another member's (half the contrast).
_KEPT = 0.25
# Blocks harder than another's by this factor come from a stronger compression.
BLOCKIER = 1.4
# Their edges look like detail, so more is asked of a file that has them.
_FALL_OF_BLOCKS = 0.15
# Scales that differ by less are one.
_ONE_SCALE = 0.05
# Two places are shifted by what a phase tells so surely, and two files by what so many tell; maps that are exact but for so
# much are exact.
_SURE, _LEAST_SHIFTS, _EXACT = 0.3, 8, 0.002
# Power below this is rounding, greys².
_NOTHING = 0.02


def places(laid: Mapping[int, Laid]) -> np.ndarray:
    """Return int[n, 2] (x, y): the centres of textured places that as many members as possible show."""
    masks = {row: grown(one.picture, -_TILE // 2 + 1) for row, one in laid.items()}
    shown = np.sum([mask.astype(int) for mask in masks.values()], axis=0)
    texture = next(iter(laid.values())).grey
    found = []
    for y in range(_TILE // 2, texture.shape[0], _TILE // 2):
        for x in range(_TILE // 2, texture.shape[1], _TILE // 2):
            if shown[y, x] >= 2:
                row = next(row for row, mask in masks.items() if mask[y, x])
                half = _TILE // 2
                box = laid[row].grey[max(y - half, 0) : y + half, max(x - half, 0) : x + half]
                found.append((shown[y, x], float(box.std()), x, y))
    found.sort(reverse=True)
    return np.array([(x, y) for _, _, x, y in found[:_MOST_TILES]], int).reshape(-1, 2)


def spectra(image: np.ndarray, one: Laid, spots: np.ndarray, traces: FileTraces) -> np.ndarray:
    """Return float[n, bands]: the power of each place in each band, greys²; NaN where the member has no picture.

    Args:
        image: uint8[h, w], the upright file at full size.
        one: the member on the canvas.
        spots: as `places` gives.
        traces: of the file; what its compression added is taken off.
    """
    found = np.full((len(spots), _BANDS), np.nan)
    masks = grown(one.picture, -_TILE // 2 + 1)
    back = np.linalg.inv(np.vstack([one.to_canvas, [0, 0, 1]]))[:2]
    enlarged = max(image.shape) / SIZE
    side = max(8, round(_TILE * one.scale))
    window = np.outer(np.hanning(side), np.hanning(side))
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(side), np.fft.fftfreq(side))) * one.scale
    band = np.searchsorted(EDGES, frequency.ravel(), side="right") - 1
    inside = (band >= 0) & (band < _BANDS) & (frequency.ravel() <= 0.5 * one.scale)
    noise = np.array(
        [traces.noise(EDGES[b] / one.scale, min(EDGES[b + 1] / one.scale, 0.5)) for b in range(_BANDS)]
    )
    for i, (x, y) in enumerate(spots):
        if not masks[y, x]:
            continue
        centre = (back[:, :2] @ (x, y) + back[:, 2] + 0.5) * enlarged
        left, top = (round(float(c) - side / 2) for c in centre)
        left = min(max(left, 0), image.shape[1] - side)
        top = min(max(top, 0), image.shape[0] - side)
        if left < 0 or top < 0:
            continue
        tile = image[top : top + side, left : left + side].astype(np.float64)
        power = np.abs(np.fft.fft2((tile - tile.mean()) * window)) ** 2 / ((window**2).sum() * side**2)
        values = np.bincount(band[inside], power.ravel()[inside], minlength=_BANDS)
        found[i] = np.maximum(values - noise, 0)
    return found


def finest(
    powers: Mapping[int, np.ndarray],
    laid: Mapping[int, Laid],
    gains: Mapping[int, float],
    blocks: Mapping[int, float],
    limits: Mapping[int, float] = MappingProxyType({}),
) -> dict[int, float]:
    """Return the finest detail of each member, cycles a pixel of the canvas.

    Args:
        powers: what `spectra` gives, by row.
        laid: the members.
        gains: contrast of each against one of them: what was made harder is not made finer.
        blocks: blockiness of each file. The edges of blocks are no detail.
        limits: of enlargements, the last pixel of the source.
    """
    usual = sorted(blocks.values())[(len(blocks) - 1) // 2]
    falls = {row: _FALL_OF_BLOCKS if blocks[row] > BLOCKIER * usual else _FALL for row in powers}
    even = {row: power / max(gains[row], 1e-3) ** 2 for row, power in powers.items()}
    found = {}
    for row, power in even.items():
        seen = np.isfinite(power[:, 0])
        there = _there(power[seen].mean(axis=0) if seen.any() else np.zeros(_BANDS), falls[row])
        for other_row, other in even.items():
            both = seen & np.isfinite(other[:, 0])
            if both.any():
                # Weaker in most places: writing over a few of them is no detail of the picture.
                weaker = (power[both] < _KEPT * other[both]).mean(axis=0) > 0.5
                there &= ~(_there(np.median(other[both], axis=0), falls[other_row]) & weaker)
        last = int(np.argmin(there)) if not there.all() else _BANDS
        found[row] = float(min(EDGES[last], 0.5 * laid[row].scale))
    for row, limit in limits.items():
        found[row] = min(found[row], limit)
    # Two files of one scale, of which neither is weaker anywhere, hold the same: a threshold lies between them.
    return {
        row: max(
            found[other]
            for other in found
            if other == row
            or (
                abs(laid[other].scale / laid[row].scale - 1) < _ONE_SCALE
                and _are_even(even[row], even[other])
            )
        )
        for row in found
    }


def share_held(
    pictures: Sequence[np.ndarray],
    laid: Sequence[Laid],
    spots: np.ndarray,
    low: float,
    high: float,
) -> float:
    """Return which share of the second picture's detail between two frequencies the first one has, too, 0..1.

    What a strong compression added looks like detail in each copy made of it; but it is in the compressed file, too.

    Args:
        pictures: uint8[h, w] each, the upright files at full size.
        laid: the two members.
        spots: as `places` gives.
        low, high: cycles a pixel of the canvas; 0 is returned where the first has too few pixels for them.
    """
    import cv2

    one, other = laid
    if high > 0.5 * one.scale * (1 + _ONE_SCALE) or other.scale > one.scale * (1 + _ONE_SCALE):
        return 0.0
    side, slip = max(8, round(_TILE * one.scale)), max(1, round(one.scale))
    window = np.outer(np.hanning(side), np.hanning(side)).astype(np.float32)
    cycles = np.hypot(*np.meshgrid(np.fft.fftfreq(side), np.fft.fftfreq(side))) * one.scale
    band, beside = (cycles >= low) & (cycles < high), np.arange(-slip, slip + 1)
    to_one = np.linalg.inv(one.file_to_canvas)
    maps, wanted, found = [to_one @ other.file_to_canvas], [], []
    inside = grown(one.picture & other.picture, -_TILE // 2 + 1)
    corners = [
        (to_one @ (x, y, 1))[:2].round() - side // 2 for x, y in spots[inside[spots[:, 1], spots[:, 0]]]
    ]

    def tiles(left: float, top: float) -> list[np.ndarray]:
        move = np.array([[1, 0, -left], [0, 1, -top], [0, 0, 1]])
        how: dict[str, Any] = {"flags": cv2.INTER_CUBIC, "borderMode": cv2.BORDER_REPLICATE}
        pieces = [
            cv2.warpAffine(grey, (move @ to)[:2], (side, side), **how).astype(np.float32)
            for grey, to in zip(pictures, (np.eye(3), maps[-1]), strict=True)
        ]
        return [piece - piece.mean() for piece in pieces]

    def in_common() -> float:
        own = common = its = 0.0
        for corner in corners:
            first, second = (np.fft.fft2(tile * window) * band for tile in tiles(*corner))
            crossed = np.fft.ifft2(first * second.conj()).real * side**2
            own, its = own + np.square(np.abs(first)).sum(), its + np.square(np.abs(second)).sum()
            common += crossed[np.ix_(beside, beside)].max()
        return float(common**2 / (own * its)) if own * its else 0.0

    # A family's maps miss by parts of a pixel, and fine detail with them.
    for corner in corners:
        first, second = tiles(*corner)
        shift, response = cv2.phaseCorrelate(first, second, window)
        if response > _SURE:
            wanted.append(corner + side / 2)
            found.append(corner + side / 2 + shift)
    share = in_common()
    if len(found) >= _LEAST_SHIFTS:
        points = np.array(found, np.float32), np.array(wanted, np.float32)
        better, _ = cv2.estimateAffine2D(*points, ransacReprojThreshold=0.5)
        if better is not None:
            onto = np.vstack([better, [0, 0, 1]]) @ maps[0]
            is_cut_out = np.abs(onto - onto.round())[:2, :2].max() < _EXACT  # pixel by pixel
            maps.append(onto.round() if is_cut_out else onto)
            share = max(share, in_common())
    return share


def lost_by_shrinking(grey: np.ndarray, factor: float) -> float:
    """Return the detail (greys²) that a picture uint8[h, w] loses when it is made smaller and as large again.

    A photograph loses about as much of each octave; of an enlargement there is next to nothing to lose.
    """
    import cv2

    height, width = grey.shape
    size = max(8, round(width / factor)), max(8, round(height / factor))
    full = grey.astype(np.float32)
    back = cv2.resize(
        cv2.resize(full, size, interpolation=cv2.INTER_AREA), (width, height), interpolation=cv2.INTER_CUBIC
    )
    return float(np.square(full - back)[8:-8, 8:-8].mean()) if min(full.shape) > 24 else 0.0


def _are_even(first: np.ndarray, second: np.ndarray) -> bool:
    """Return whether the first is nowhere much weaker than the second."""
    both = np.isfinite(first[:, 0]) & np.isfinite(second[:, 0])
    if not both.any():
        return False
    weaker = (first[both] < _KEPT * second[both]) & (second[both] > 10 * _NOTHING)
    return not bool((weaker.mean(axis=0) > 0.5).any())


def _there(power: np.ndarray, fall: float) -> np.ndarray:
    """Return bool[bands]: which bands hold detail."""
    coarser = np.concatenate([power[:2], power[:-2]])
    return (power >= fall * coarser) & (power > _NOTHING)
