"""When and how photographs were taken, from their metadata: two exposures are two photographs."""

import re
from collections.abc import Hashable, Sequence
from datetime import datetime

import numpy as np

from photodup.photos.library.catalogue import Photo
from photodup.photos.library.metadata import read_exposure
from photodup.photos.search.pair_codes import pair_rows

# Largest difference by rounding: a share of the larger value, and an amount in its unit. Two exposures differ by more.
_ROUNDING = {"time": (0.02, 0.0), "aperture": (0.02, 0.0), "sensitivity": (0.02, 0.0), "bias": (0.0, 0.05)}
_ROUNDING |= {"sequence": (0.0, 0.0), "drive": (0.0, 0.0)}
# The last number of a name, if it is long enough to be a camera's counter.
_COUNTER = re.compile(r"(.*?)(\d{3,})(\D*)", re.DOTALL)


class Shots:
    """When and how photos were taken, and by which camera, for many pairs at once."""

    def __init__(self, photos: Sequence[Photo]) -> None:
        self._camera = _numbered([photo.camera for photo in photos])
        times = np.array([_times(photo) for photo in photos], float).reshape(-1, 4)
        self._seconds, self._fraction, self._precision, self._utc = times.T
        exposures = [read_exposure(photo.exposure) for photo in photos]
        self._exposure = {
            name: np.array([exposure.get(name, np.nan) for exposure in exposures], float)
            for name in _ROUNDING
        }
        counted = [_COUNTER.fullmatch(photo.path.stem) for photo in photos]
        self._series = _numbered([match and (match[1], match[3]) for match in counted])
        self._count = np.array([float(match[2][:15]) if match else np.nan for match in counted], float)

    def are_two(self, codes: np.ndarray) -> np.ndarray:
        """Return for each pair whether it is two exposures of one camera, or of unnamed ones.

        They differ in time (to the fraction that both have), exposure, drive mode or number in a sequence; within one second
        without fractions, in the number in their names. Editors keep these fields, so copies agree on them. Missing fields
        do not count.
        """
        i, j = pair_rows(codes)
        apart = np.abs(self._seconds[i] - self._seconds[j])  # NaN, and so False, without a date
        differ = (apart > 0) & ~(self._utc[i] == self._utc[j])  # one moment in two time zones
        precision = np.minimum(self._precision[i], self._precision[j])
        fractions = np.abs(self._fraction[i] - self._fraction[j])
        differ |= (precision > 0) & (fractions > 0.99 * 10.0**-precision) & (apart == 0)
        for name, (share, unit) in _ROUNDING.items():
            a, b = self._exposure[name][i], self._exposure[name][j]
            differ |= np.abs(a - b) > share * np.maximum(np.abs(a), np.abs(b)) + unit
        is_counted = (self._series[i] == self._series[j]) & (self._series[i] > 0) & (self._camera[i] > 0)
        differ |= is_counted & (self._count[i] != self._count[j]) & (apart == 0) & (precision == 0)
        return (self._camera[i] == self._camera[j]) & differ

    def are_within(self, codes: np.ndarray, seconds: float) -> np.ndarray:
        """Return for each pair whether both are dated, and at most so many seconds apart."""
        i, j = pair_rows(codes)
        return np.abs(self._seconds[i] - self._seconds[j]) <= seconds


def _numbered(values: Sequence[Hashable]) -> np.ndarray:
    """Return int[n]: equal numbers for equal values, 0 for None."""
    numbers: dict[Hashable, int] = {None: 0}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], np.int64)


def _times(photo: Photo) -> tuple[float, float, float, float]:
    """Return local time, its fraction (both in s), the fraction's number of digits, and UTC (s); NaN if unknown."""
    taken_at = photo.taken_at or ""
    try:
        moment = datetime.fromisoformat(taken_at)
    except ValueError:
        return np.nan, np.nan, 0.0, np.nan
    local = moment.replace(tzinfo=None, microsecond=0) - datetime(1970, 1, 1)
    digits = re.match(r"\.(\d+)", taken_at[19:])
    utc = moment.replace(microsecond=0).timestamp() if moment.tzinfo else np.nan
    return local.total_seconds(), moment.microsecond / 1e6, float(len(digits[1]) if digits else 0), utc
