"""What a file tells of its own history: how many pictures it holds, and how coarsely it was compressed."""

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from PIL import Image

from photodup.photos.compare.alignment import in_blocks, is_cut

# MPO is a camera's JPEG with a depth map or a preview behind the first picture: one photograph.
_ONE_PICTURE = frozenset({"JPEG", "MPO", "BMP", "PPM"})
# From each place of a JPEG's 8 × 8 table, as Pillow gives it (in rows), to its frequency in cycles a pixel.
_FREQUENCY = np.hypot(*np.mgrid[0:8, 0:8]).ravel() / 16
_LOW = (_FREQUENCY > 0) & (_FREQUENCY < 0.25)
# A coefficient that was rounded to zero carries less noise than a step would allow: measured, about this share.
NOISE_SHARE = 0.15

# Frequencies (down, across) of a block of 8 × 8 in which an earlier compression is looked for: low, but not the mean.
_LOOKED_AT = ((0, 1), (1, 0), (1, 1), (0, 2), (2, 0), (1, 2), (2, 1), (0, 3), (3, 0), (2, 2))
# Steps that are tried, and amounts that are told apart, greys.
_STEPS, _BIN, _MOST = np.arange(2.0, 64.0, 0.5), 0.25, 400.0
# So many blocks are needed, of which so many lie beyond half a step; amounts lie so well at multiples of the step.
_LEAST_BLOCKS, _MOST_BLOCKS, _LEAST_BEYOND, _AT_MULTIPLES = 100, 8000, 60, 0.5
_LEAST_FREQUENCIES = 4
# In `is_saved_from` amounts other than 0 count where the step is that many greys at least (below, the rounding of pixels is
# as large). Of 600 pairs of one made of the other, saved at quality 30 to 88, at most 0.006 of the amounts lie beyond
# (0.015 of enlargements), with a spread of 0.3 steps or more and a kurtosis of 2.3 or less where one was resized. Of 3,600
# the other way round, filtered, resized, denoised, none comes so near in all of it.
_SEEN_STEP, _LEAST_AMOUNTS = 10, 300
_BEYOND_HALF, _MOST_BEYOND, _LEAST_SPREAD, _MOST_PEAKED = 0.6, 0.008, 0.29, 2.3
# In `holds_rounding_of` the mean cosine of amounts at the file's steps is more in nearly all of 225 files converted to HEIC
# or enlarged to twice the size, sharpened or with noise (not to WebP). Of 60 pictures, clean, noisy or soft, that a smaller
# copy was made of it is -0.13 at most: amounts up to half a step count, too, and of those the copy has nothing.
_FINE_STEP, _NEAR_STEPS, _MOST_GAIN, _HALFWAY = 6, 0.1, 3, 0.25
# In `is_enlarged_from`: of 45 files enlarged to twice the size or more, two in three have a mean cosine of more. Of 270
# pictures that a smaller file, or its source, was made of, filtered or with noise, none has more than 0.06.
_COARSE_STEP, _FEW_STEPS, _ON_STEPS, _MANY_AMOUNTS = 2, 4, 0.15, 600
# In `toned_first`: amounts of steps from so many greys on count, of blocks without pixels near black or white, in a part
# of so many pixels a side. From this ratio of roundings on it is known how much of one would be seen in the other. Of 11
# photographs that set none of these, made lighter, darker, harder, softer, warmer or by a curve, at qualities 92 to 92,
# 85 to 95, 95 to 80, it names the first of 198 of 231 pairs, and the edit of one; of 66 bursts and brackets it names none.
_TONED_STEP, _CUT, _SIDE, _UNLIKE, _FEW, _MORE = 4, (252, 3), 2048, 1.35, 0.03, 0.004
# An earlier compression was coarser than the file's own from this ratio of their steps on.
_COARSER = 1.4


@dataclass(frozen=True)
class FileTraces:
    """Traces of one file.

    Attributes:
        pages: pictures in the file; more than one for animations, sequences and paged TIFFs.
        step: mean step of the JPEG's brightness table at low frequencies, greys; 0 for other formats.
        table: that table, 64 steps by row; empty for other formats.
        is_lossless: the pixels are as they were given to the format.
        is_phones: a HEIC with what phones put into it and no converter does: a gain map, a depth map.
    """

    pages: int
    step: float
    table: tuple[float, ...]
    is_lossless: bool = False
    is_phones: bool = False

    @property
    def usual_step(self) -> float:
        """Return the step that `coarsest_step` finds of the file's own compression; 0 for other formats."""
        return _usual_step(self.table) if self.table else 0.0

    def after(self, step: float) -> "FileTraces":
        """Return the traces as of a file of its coarsest compression (`coarsest_step`), where its own is finer."""
        if step < _COARSER * self.usual_step or not step:
            return self
        table = self.table or _standard_table(50)
        return replace(self, table=tuple(value * step / _usual_step(table) for value in table))

    def noise(self, low: float, high: float) -> float:
        """Return the variance (greys²) that rounding put between two frequencies (cycles a pixel of the file)."""
        if not self.table:
            return 0.0
        inside = (low <= _FREQUENCY) & (high > _FREQUENCY)
        return float(NOISE_SHARE * (np.square(np.array(self.table, float)[inside]) / 12).sum() / 64)


def file_traces(image: Image.Image) -> FileTraces:
    """Read the traces of an open, undecoded picture (its header)."""
    table = tuple(getattr(image, "quantization", {}).get(0, ()))[:64]
    step = float(np.array(table, float)[_LOW].mean()) if len(table) == 64 else 0.0
    return FileTraces(
        _pages(image),
        step,
        table if len(table) == 64 else (),
        image.format in ("PNG", "BMP", "PPM")
        or (image.format == "TIFF" and "jpeg" not in str(image.info.get("compression"))),
        image.format == "HEIF" and bool(image.info.get("aux") or image.info.get("depth_images")),
    )


def saved_with(table: Sequence[float], grey: np.ndarray) -> np.ndarray:
    """Return uint8[h, w]: a picture saved as a JPEG with this brightness table."""
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(grey)).save(buffer, "JPEG", qtables=[[int(step) for step in table]])
    return np.asarray(Image.open(buffer))


def is_saved_from(table: Sequence[float], grey: np.ndarray, given: np.ndarray) -> bool:
    """Return whether a JPEG is what saving another picture with its table gives, and that picture was not made of it.

    Rounding moves an amount by half a step at most, and by any part of it alike. What was made of the file lies near its
    steps instead, or some amounts lie beyond half a step: a filter changes a few by much.

    Args:
        table: the file's, 64 steps by row.
        grey: uint8[h, w], the file; its left and upper edges lie between blocks.
        given: uint8[h, w], the other picture at its size.
    """
    from scipy.stats import kurtosis

    before, rounded, counted = _amounts(table, grey, given)
    off = (before - rounded)[counted]
    if len(off) < _LEAST_AMOUNTS or np.mean(np.abs(off) > _BEYOND_HALF) > _MOST_BEYOND:
        return False
    return bool(off.std() > _LEAST_SPREAD and kurtosis(off, fisher=False) < _MOST_PEAKED)


def holds_rounding_of(
    table: Sequence[float], grey: np.ndarray, given: np.ndarray, beside: Sequence[float] = ()
) -> bool:
    """Return whether a picture was made of a JPEG: its amounts lie near the file's steps, however much sharpened.

    Args:
        table, grey, given: as of `is_saved_from`.
        beside: the picture's own table, if it is a JPEG whose blocks lie where the file's do: amounts that lie near the
            file's steps by steps of its own, as coarse, do not count.
    """
    before, rounded, counted = _amounts(table, grey, given, _FINE_STEP, _HALFWAY)
    if beside:
        counted &= np.reshape(table, (8, 8)) >= _COARSER * np.reshape(beside, (8, 8))
    if counted.sum() < _LEAST_AMOUNTS:
        return False
    # A filter changes all amounts of one frequency alike.
    gains = (before * rounded * counted).sum(axis=(0, 1)) / np.maximum(
        (rounded**2 * counted).sum(axis=(0, 1)), 1
    )
    off = (before / np.clip(gains, 1 / _MOST_GAIN, _MOST_GAIN) - rounded)[counted]
    return bool(np.cos(2 * np.pi * off).mean() > _NEAR_STEPS)


def toned_first(tables: Sequence[Sequence[float]], pictures: Sequence[np.ndarray]) -> int:
    """Say which of two JPEGs of other tones or colours is made of the other's pixels: 0 or 1 came first; -1, nobody knows.

    A change of tones gives each value of a channel one new value. What was made so is foretold to its last rounding; the
    other way round, amounts are off by the made one's rounding, in steps of the first. That is seen where the contrast or
    the steps let it be larger than half a step, and where it would be seen and is not, the other came first.

    Args:
        tables: of each, 64 steps by row.
        pictures: of each, uint8[h, w, 3], pixel on pixel.
    """
    height, width = (min(side // 8 * 8, _SIDE) for side in pictures[0].shape[:2])
    top, left = ((side - n) // 16 * 8 for side, n in zip(pictures[0].shape, (height, width), strict=False))
    first, second = (one[top : top + height, left : left + width] for one in pictures)
    cut = is_cut(first, *_CUT) | is_cut(second, *_CUT)
    whole = np.asarray(~in_blocks(cut, 8).any(axis=(2, 3)))
    greys = [_grey(one) for one in (first, second)]
    contrast = [np.sqrt(in_blocks(grey, 8)[whole].var(axis=(1, 2)).sum()) for grey in greys]
    missed, n = [], []
    for table, grey, given in (
        (tables[1], greys[1], (first, second)),
        (tables[0], greys[0], (second, first)),
    ):
        before, rounded, counted = _amounts(table, grey, _grey(_in_tones_of(*given)), _TONED_STEP)
        off = np.abs(before - rounded)[counted & whole[..., None, None]]
        n.append(len(off))
        missed.append(float((off > _BEYOND_HALF).mean()) if len(off) else 1.0)
    if min(n) < _LEAST_AMOUNTS or not all(contrast):
        return -1
    ratio = contrast[1] / contrast[0] * _usual_step(tables[0]) / _usual_step(tables[1])
    if 1 / _UNLIKE < ratio < _UNLIKE:
        known = [missed[i] < _FEW and missed[1 - i] > 2 * missed[i] + _MORE for i in (0, 1)]
        return known.index(True) if any(known) else -1
    # The one whose rounding would be seen in the other, were that made of it, and by how much.
    seen = 0 if ratio > 1 else 1
    expected = 1 - 2 * _BEYOND_HALF / max(ratio, 1 / ratio)
    if missed[seen] < min(_FEW, expected / 4):
        return seen
    is_other = missed[1 - seen] < _FEW and missed[seen] > expected / 2
    return 1 - seen if is_other else -1


def _grey(rgb: np.ndarray) -> np.ndarray:
    return np.asarray(Image.fromarray(rgb).convert("L"))


def _in_tones_of(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the first picture uint8[h, w, 3] with each value of a channel replaced by what the second mostly has there."""
    made = np.empty_like(first)
    for channel in range(3):
        pairs = first[..., channel].astype(np.intp).ravel() * 256 + second[..., channel].ravel()
        counts = np.bincount(pairs, minlength=1 << 16).reshape(256, 256).cumsum(axis=1)
        there = np.flatnonzero(counts[:, -1])
        medians = (2 * counts[there] >= counts[there, -1:]).argmax(axis=1)
        made[..., channel] = np.interp(np.arange(256), there, medians).round()[first[..., channel]]
    return made


def is_enlarged_from(table: Sequence[float], grey: np.ndarray, given: np.ndarray) -> bool:
    """Return whether a picture with more pixels was made of a JPEG, or of what has its steps, and holds nothing finer.

    At the file's size its small amounts of low frequencies lie at multiples of the file's steps. Those of what the file was
    made of lie anywhere between two multiples, whatever was done to it.

    Args: as of `is_saved_from`.
    """
    before, rounded, counted = _amounts(table, grey, given, _COARSE_STEP)
    # What the picture has nothing of lies at 0, a multiple of every step: a smooth source of a noisy file would pass.
    counted &= (before.round() != 0) & (np.abs(rounded) <= _FEW_STEPS)
    off = (before - rounded)[counted & (_FREQUENCY < 0.25).reshape(8, 8)]
    return len(off) >= _MANY_AMOUNTS and bool(np.cos(2 * np.pi * off).mean() > _ON_STEPS)


def _amounts(
    table: Sequence[float],
    grey: np.ndarray,
    given: np.ndarray,
    least: float = _SEEN_STEP,
    beyond: float = 1e9,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return another picture's amounts, in steps of a JPEG, the file's own, and which of them count.

    Args:
        least: step from which on an amount counts, greys.
        beyond: the other's amounts beyond this, in steps, count even where the file has nothing.
    """
    from scipy.fft import dctn

    steps = np.reshape(table, (8, 8)).astype(np.float32)
    saved, before = (
        dctn(in_blocks(one.astype(np.float32), 8), axes=(2, 3), norm="ortho") / steps for one in (grey, given)
    )
    rounded = saved.round()
    counted = ((rounded != 0) | (np.abs(before) > beyond)) & (steps >= least)
    counted[..., 0, 0] = False
    return before, rounded, counted


def _usual_step(table: Sequence[float]) -> float:
    return float(np.median([table[8 * down + across] for down, across in _LOOKED_AT]))


@cache
def standard_tables(step: float) -> tuple[tuple[int, ...], ...]:
    """Return the tables of the JPEG standard's qualities that `coarsest_step` would find to have about this step."""
    tables = dict.fromkeys(_standard_table(quality) for quality in range(1, 100))
    return tuple(table for table in tables if abs(_usual_step(table) - step) <= 0.5)


@cache
def _standard_table(quality: int) -> tuple[int, ...]:
    """Return the brightness table of the JPEG standard at a quality, by row; the standard's own is that of 50."""
    buffer = io.BytesIO()
    Image.new("L", (8, 8)).save(buffer, "JPEG", quality=quality)
    image: Any = Image.open(buffer)  # a JPEG, which has its tables
    return tuple(image.quantization[0])


def coarsest_step(grey: np.ndarray) -> float:
    """Return the step of the coarsest JPEG compression that a picture went through, greys; 0 if none can be seen.

    Rounding to multiples of a step leaves gaps between them, and a finer compression later does not fill them (Lukáš and
    Fridrich 2003). It is seen as long as the blocks lie where they lay: not after a crop, a turn or a change of size.

    Args:
        grey: uint8[h, w], the file at full size.

    Returns:
        The median over some low frequencies.
    """
    from scipy.fft import dctn

    blocks = in_blocks(grey, 8).reshape(-1, 64)
    blocks = blocks[:: len(blocks) // _MOST_BLOCKS + 1]
    # Where tones are at their limit, amounts are no multiples any more.
    blocks = blocks[(blocks.min(axis=1) > 2) & (blocks.max(axis=1) < 253)].reshape(-1, 8, 8)
    if len(blocks) < _LEAST_BLOCKS:
        return 0.0
    amounts = np.abs(dctn(blocks.astype(np.float32), axes=(1, 2), norm="ortho"))
    cosines, beyond = _combs()
    found = []
    for down, across in _LOOKED_AT:
        seen = np.bincount(np.minimum(amounts[:, down, across] / _BIN, len(cosines[0]) - 1).astype(int))
        seen = np.pad(seen, (0, len(cosines[0]) - len(seen)))
        n = beyond @ seen
        fits = (n >= _LEAST_BEYOND) & (cosines @ seen > _AT_MULTIPLES * n)
        if fits.any():
            found.append(_STEPS[np.flatnonzero(fits)[-1]])
    return float(np.median(found)) if len(found) >= _LEAST_FREQUENCIES else 0.0


@cache
def _combs() -> tuple[np.ndarray, np.ndarray]:
    """Return float[steps, amounts]: how near each amount lies to a multiple (1 to -1), and whether it counts."""
    amounts = (np.arange(int(_MOST / _BIN)) + 0.5) * _BIN
    beyond = (amounts > 0.5 * _STEPS[:, None]).astype(float)
    return np.cos(2 * np.pi * amounts / _STEPS[:, None]) * beyond, beyond


def blockiness(grey: np.ndarray) -> float:
    """Return how much harder the steps between blocks of 8 pixels are than those within them; 1 without blocks.

    Strong compression leaves them, and a better one afterwards keeps them.

    Args:
        grey: uint8[h, w], the file at full size.
    """
    found = []
    for values in (grey, grey.T):
        rows = values[:: max(1, len(values) // 400)].astype(np.int16)
        if rows.shape[1] < 64:
            return 1.0
        # The jump between two pixels beyond what the slopes beside it let expect.
        jump = np.abs(3 * (rows[:, 2:-1] - rows[:, 1:-2]) - (rows[:, 3:] - rows[:, :-3]))
        jump = np.minimum(jump, 60).mean(axis=0)
        jump = jump[: len(jump) // 8 * 8].reshape(-1, 8).mean(axis=0) + 0.5
        found.append(float(jump.max() / np.median(jump)))
    return max(1.0, float(np.mean(found)))


def _pages(image: Image.Image) -> int:
    if image.format in _ONE_PICTURE:
        return 1
    try:
        return max(1, int(getattr(image, "n_frames", 1)))
    except Exception:  # A damaged second page raises nearly anything, and there is more than one then.
        return 2
