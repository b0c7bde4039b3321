"""Signs of two exposures: near and far things lie displaced, or each picture has fine noise of its own.

Every exposure gets noise of its own, and an edit keeps it or takes it away. So two files with noise that has nothing in
common are two exposures, however little else differs. Where one of them has lost its noise nothing follows.

A lighter or darker picture may be another exposure unless it is shown to be an edit: that holds even what the other
file's compression put there, made stronger or weaker with everything else, and adds its own compression alone.
"""

from dataclasses import dataclass, replace

import numpy as np

from photodup.photos.compare.alignment import as_soft, displaced_share, in_blocks, is_cut, shifts
from photodup.photos.compare.canvas import JITTER, Laid, grown
from photodup.photos.compare.traces import NOISE_SHARE, FileTraces

# Side of a place, pixels, and the band of noise: finer than gradients, coarser than what compression removes first.
_SIDE, _LOW, _HIGH = 32, 0.09, 0.30
# So many places are looked at, the evenest: fewer tell nothing, nor do those with more structure, greys.
_MOST_PLACES, _LEAST_PLACES, _EVEN = 12, 8, 2.5
# Pixels by which the noise of one picture may lie beside itself.
_BESIDE = 2
# Noise, greys, that is too little to compare; and the ratio from which one of the two has lost its noise.
_LEAST_NOISE, _AS_MUCH = 0.4, 1.6
# Variance, greys², that a format without a JPEG table puts into that band; rounding takes twice what it adds.
_OTHER_FORMATS, _TAKEN = 2.0, 2.0
# A filter that takes noise away takes so much, as a ratio of variances, and what it leaves is in the other, too.
_FILTERED, _LEFT = 1.6, 0.8
# Of the noise that copies have in common at least, as far as rounding leaves it, two exposures have less than this share.
_IN_COMMON = 0.7
# Places of some structure, greys, that are cut off at white or black in so few of their pixels, and how many of them are
# looked at, for whether a picture is an edit of a file. Edits reach 0.2 to 0.7 of what those places may hold beside the
# file, and two exposures 0.8 to 2, though taken without any noise of a sensor.
_STRUCTURED, _CUT, _LEAST_STRUCTURED, _MOST_STRUCTURED, _OF_AN_EDIT = (3.0, 16.0), 0.05, 4, 24, 0.75
# Variance, greys², that rounding to whole greys puts into that band.
_WHOLE_GREYS = 0.02


@dataclass(frozen=True)
class FineNoise:
    """Fine noise of two pictures in their even places, variances in greys².

    Attributes:
        first, second: of each; 0 where there are no even places.
        common: what both share.
        weaker: at each frequency that of the picture with less, added up.
        structured: of places with some structure that of the first and of the second, and what both share.
    """

    first: float = 0.0
    second: float = 0.0
    common: float = 0.0
    weaker: float = 0.0
    structured: tuple[tuple[float, float, float], ...] = ()

    def reversed(self) -> "FineNoise":
        """Return the noise of the second picture and the first."""
        structured = tuple((second, first, both) for first, second, both in self.structured)
        return replace(self, first=self.second, second=self.first, structured=structured)

    def is_of_two_exposures(self, rounding: float) -> bool:
        """Return whether it has too little in common to be of one exposure.

        Args:
            rounding: what compression may have put into both (`rounding_noise`), greys².
        """
        low, high = sorted((self.first, self.second))
        if low < _LEAST_NOISE**2 or high > _AS_MUCH**2 * low:
            return False
        return self.common < _IN_COMMON * self.weaker * low / (low + rounding)

    def seen_in_an_edit(self, first: float, second: float) -> float:
        """Return how plainly the second is the first file, lighter or darker: that one's compression over its own, 0 if not.

        A new exposure holds nothing of the first file's compression, even from a tripod and with a clean sensor. Near 1 both
        are of one exposure, and either may be made of the other.

        Args:
            first, second: what the compression of each file puts into the band at most (`own_rounding`), greys².
        """
        if len(self.structured) < _LEAST_STRUCTURED:
            return 0.0
        its, other, both = np.array(self.structured).T
        # By how much, as a ratio of variances, the second is the first made stronger, and what it holds beside that.
        gains = (both / np.maximum(its, 1e-9)) ** 2
        beside = other - both**2 / np.maximum(its, 1e-9)
        # Where the first file's compression is too fine to be seen beside the second's, nothing is shown.
        seen = float(np.median(gains) * first / second)
        return seen if seen >= 1 and np.median(beside / (second + gains * first / 2)) < _OF_AN_EDIT else 0.0

    def may_be_filtered(self, rounding: float) -> bool:
        """Return whether the first may be the second with noise taken away by a filter; `rounding` as above."""
        return (
            self.second >= _LEAST_NOISE**2
            and self.second > _FILTERED * self.first
            and self.second - self.first > rounding
            and self.common >= _LEFT * self.first
        )


def fine_noise(first: np.ndarray, second: np.ndarray, shared: np.ndarray) -> FineNoise:
    """Measure the noise of two pictures uint8[h, w, 3], laid over each other, where bool[h, w] `shared`."""
    import cv2

    y, x = np.mgrid[:_SIDE, :_SIDE].reshape(2, -1) / _SIDE - 0.5
    gradients = np.linalg.qr(np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], axis=1))[0]

    def in_places(grey: np.ndarray) -> np.ndarray:
        return in_blocks(grey, _SIDE).reshape(-1, _SIDE, _SIDE)

    def flattened(greys: np.ndarray) -> np.ndarray:
        values = greys.reshape(-1, _SIDE**2)
        return (values - values @ gradients @ gradients.T).reshape(greys.shape)

    greys = [cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY).astype(np.float32) for rgb in (first, second)]
    soft = [cv2.GaussianBlur(grey, (0, 0), 2) for grey in greys]
    # Noise is cut off at white and black.
    inside = shared & (cv2.max(*greys) < 250) & (cv2.min(*greys) > 5)
    usable = in_places(inside).all(axis=(1, 2))
    values = [in_places(grey)[usable] for grey in greys]
    uneven = np.maximum(*(flattened(in_places(grey)[usable]).std(axis=(1, 2)) for grey in soft))
    even = np.argsort(uneven, kind="stable")[: min(_MOST_PLACES, int((uneven < _EVEN).sum()))]
    cut = is_cut(first, 250, 5) | is_cut(second, 250, 5)
    is_whole = in_places(cut)[usable].mean(axis=(1, 2)) < _CUT
    structured = np.flatnonzero(is_whole & (uneven >= _STRUCTURED[0]) & (uneven < _STRUCTURED[1]))
    structured = structured[np.argsort(uneven[structured], kind="stable")][-_MOST_STRUCTURED:]
    window = np.outer(np.hanning(_SIDE), np.hanning(_SIDE))
    cycles = np.hypot(*np.meshgrid(np.fft.fftfreq(_SIDE), np.fft.fftfreq(_SIDE)))
    band = (cycles >= _LOW) & (cycles <= _HIGH)

    def spectra(places: np.ndarray) -> np.ndarray:
        found = np.array([np.fft.fft2(flattened(one[places]) * window) for one in values])
        return found * band / np.sqrt(np.square(window).sum() * _SIDE**2)

    first_of, second_of = spectra(structured)
    both = (first_of * second_of.conj()).real.sum(axis=(1, 2))
    its, other = (np.square(np.abs(one)).sum(axis=(1, 2)) for one in (first_of, second_of))
    measured = tuple(zip(its.tolist(), other.tolist(), both.tolist(), strict=True))
    if len(even) < _LEAST_PLACES:
        return FineNoise(structured=measured)
    evenly = spectra(even)
    own = np.square(np.abs(evenly)).mean(axis=1)
    crossed = np.fft.ifft2((evenly[0] * evenly[1].conj()).mean(axis=0)).real * _SIDE**2
    beside = np.arange(-_BESIDE, _BESIDE + 1)
    first_own, second_own = own.sum(axis=(1, 2))
    common, weaker = crossed[np.ix_(beside, beside)].max(), own.min(axis=0).sum()
    return FineNoise(float(first_own), float(second_own), float(common), float(weaker), measured)


def own_rounding(traces: FileTraces, scale: float) -> float:
    """Return what a file's own compression puts into the band of `fine_noise` at most, greys²; arguments as below."""
    return traces.noise(_LOW / scale, _HIGH / scale) / NOISE_SHARE + _WHOLE_GREYS


def rounding_noise(traces: FileTraces, step: float, scale: float) -> float:
    """Return what compression may have put into the band of `fine_noise`, greys².

    Args:
        traces: of the file.
        step: of the coarsest compression that it went through (`coarsest_step`).
        scale: pixels of the file for one of the compared picture.
    """
    traces = traces.after(step)
    if traces.table or traces.is_lossless:
        return _TAKEN * traces.noise(_LOW / scale, _HIGH / scale)
    return _OTHER_FORMATS / max(scale, 1.0) ** 2


def displaced(first: Laid, second: Laid, patch: int = 40) -> float:
    """Return the share of the textured places that lie displaced against the rest: near things in two exposures."""
    shared = grown(first.picture & second.picture, -2 * JITTER)
    _, found = shifts(*as_soft(first.grey, second.grey, shared), shared, patch, texture=4, sure=0.3)
    return displaced_share(found - np.median(found, axis=0)) if len(found) else 0.0
