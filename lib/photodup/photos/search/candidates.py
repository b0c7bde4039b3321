"""Which pairs of a library are worth a look at the pixels, and which are alike by embedding.

Candidates are the nearest neighbours by embedding and by perceptual hash (of the picture and of its mirror
image). Neither needs to be right, only to be asked often enough, and their number stays in proportion to
the photos: a few for each, however many there are.
"""

import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from photodup.photos.compare.evidence import pair_codes, pair_rows
from photodup.photos.library.catalogue import Catalogue, Model, Photo
from photodup.photos.library.metadata import read_exposure
from photodup.photos.search.kept_pairs import stored_hash_pairs, stored_order, stored_pairs
from photodup.photos.search.neighbours import Pairs

# Chance pairs a photo that the hash may bring, alone and where an embedding is asked too. Then the hash is
# there for edits of tone, which leave it nearly as it was: of 670 edits of 67 photographs the embedding missed
# 15, and 12 of those had not moved one bit.
PER_PHOTO_ALONE, PER_PHOTO_BESIDE = 5.0, 1.0


@dataclass(frozen=True)
class Neighbours:
    """Pairs of photos by row, each as one number (`photodup.photos.compare.evidence.pair_codes`).

    Attributes:
        alike: pairs near by embedding, rising, and their `cosine`.
        by_hash: pairs near by perceptual hash.
        search: how they were found, in words.
        recall: measured share of the pairs above the threshold that were found.
        vectors: the embeddings; photo `i` has row `at[i]`, or none where that is -1.
    """

    alike: np.ndarray
    cosine: np.ndarray
    by_hash: np.ndarray
    search: str
    recall: float
    vectors: np.ndarray
    at: np.ndarray

    def similarity(self, i: int, j: int) -> float | None:
        """Return the cosine of two photos; None unless both are embedded."""
        a, b = self.at[i], self.at[j]
        return None if min(a, b) < 0 else float(self.vectors[a] @ self.vectors[b])


def find_neighbours(
    catalogue: Catalogue, photos: Sequence[Photo], model: Model | None, threshold: float, nearest_from: float
) -> Neighbours:
    """Find them, comparing only what is new since the last time.

    Args:
        catalogue: of these photos.
        photos: one for each content, all different.
        model: whose embeddings to ask; None for the hash alone.
        threshold: cosine from which on all pairs count.
        nearest_from: below the threshold and down to this cosine the nearest few of each photo count.
    """
    folder, row = catalogue.own.path, {photo.md5: i for i, photo in enumerate(photos)}
    vectors, at = np.zeros((0, 1), np.float32), np.full(len(photos), -1)
    alike, cosine, search, recall = np.zeros(0, np.int64), np.zeros(0, np.float32), "", 1.0
    if model is not None:
        there = [md5 for md5 in catalogue.embedded(model.digest) if md5 in row]
        names = stored_order(folder, model.digest, there)
        vectors = catalogue.embeddings_of(model.digest, names)
        of = np.array([row[md5] for md5 in names], np.int64)
        at[of] = np.arange(len(names))
        if len(names) > 1:
            pairs = stored_pairs(folder, model.digest, names, vectors, threshold, nearest_from=nearest_from)
            alike, cosine, recall = *_by_code(pairs, of), pairs.recall
            search = f"embedding ({pairs.method}) and hash"
    by_hash, radius = _hash_pairs(folder, photos, PER_PHOTO_BESIDE if search else PER_PHOTO_ALONE)
    search = f"{search or 'by hash only'} (within {radius} bits)"
    return Neighbours(alike, cosine, by_hash, search, recall, vectors, at)


def _by_code(pairs: Pairs, of: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    codes = pair_codes(of[pairs.first], of[pairs.second])
    order = np.argsort(codes)
    return codes[order], pairs.similarity[order]


def _hash_pairs(folder: Path, photos: Sequence[Photo], per_photo: float) -> tuple[np.ndarray, int]:
    of = np.array([i for i, photo in enumerate(photos) if photo.phash is not None], np.int64)
    md5s, hashes = [photos[i].md5 for i in of], [photos[i].phash for i in of]
    pairs = stored_hash_pairs(folder, md5s, hashes, per_photo)
    return np.sort(pair_codes(of[pairs.first], of[pairs.second])), pairs.radius


# Two exposures differ in one of these by more than rounding: share of the larger value, and in its unit.
_ROUNDING = {"time": (0.02, 0.0), "aperture": (0.02, 0.0), "sensitivity": (0.02, 0.0), "bias": (0.0, 0.05)}
_ROUNDING |= {"sequence": (0.0, 0.0)}
# The last number of a name, if it is long enough to be a camera's counter.
_COUNTER = re.compile(r"(.*?)(\d{3,})(\D*)", re.DOTALL)


class Shots:
    """When and how photos were taken, and by which camera, for many pairs at once."""

    def __init__(self, photos: Iterable[Photo]) -> None:
        photos = list(photos)
        self._camera = _numbered([photo.camera for photo in photos])
        times = np.array([_times(photo) for photo in photos], float).reshape(-1, 4)
        self._seconds, self._fraction, self._precision, self._utc = times.T
        exposures = [read_exposure(photo.exposure) for photo in photos]
        self._exposure = {
            name: np.array([one.get(name, np.nan) for one in exposures], float) for name in _ROUNDING
        }
        counted = [_COUNTER.fullmatch(photo.path.stem) for photo in photos]
        self._series = _numbered([found and (found[1], found[3]) for found in counted])
        self._count = np.array([float(found[2][:15]) if found else np.nan for found in counted], float)

    def are_two(self, codes: np.ndarray) -> np.ndarray:
        """Return for each pair whether one camera says that these are two exposures.

        Another time (to the fraction that both have), exposure or number in a sequence; without fractions, another number
        in the names of one second. Editors keep these fields, so copies agree on them. What one side lacks says nothing.
        """
        i, j = pair_rows(codes)
        apart = np.abs(self._seconds[i] - self._seconds[j])  # NaN, and so False, without a date
        two = (apart > 0) & ~(self._utc[i] == self._utc[j])  # one moment in two time zones
        precision = np.minimum(self._precision[i], self._precision[j])
        fractions = np.abs(self._fraction[i] - self._fraction[j])
        two |= (precision > 0) & (fractions > 0.99 * 10.0**-precision) & (apart == 0)
        for name, (share, unit) in _ROUNDING.items():
            a, b = self._exposure[name][i], self._exposure[name][j]
            two |= np.abs(a - b) > share * np.maximum(np.abs(a), np.abs(b)) + unit
        one_series = (
            (self._series[i] == self._series[j]) & (self._series[i] > 0) & (self._count[i] != self._count[j])
        )
        two |= one_series & (apart == 0) & (precision == 0) & (self._camera[i] > 0)
        return (self._camera[i] == self._camera[j]) & two

    def are_within(self, codes: np.ndarray, seconds: float) -> np.ndarray:
        """Return for each pair whether both are dated and so close in time."""
        i, j = pair_rows(codes)
        return np.abs(self._seconds[i] - self._seconds[j]) <= seconds


def _numbered(values: Sequence[Hashable]) -> np.ndarray:
    """Return int[n]: equal numbers for equal values, 0 for None."""
    numbers: dict[Hashable, int] = {None: 0}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], np.int64)


def _times(photo: Photo) -> tuple[float, float, float, float]:
    """Return the local time on the camera's clock, its fraction, that one's digits, and UTC, seconds; NaN if unknown."""
    try:
        taken = datetime.fromisoformat(photo.taken_at) if photo.taken_at else None
    except ValueError:
        taken = None
    if taken is None or photo.taken_at is None:
        return np.nan, np.nan, 0.0, np.nan
    local = taken.replace(tzinfo=None, microsecond=0) - datetime(1970, 1, 1)
    digits = re.match(r"\.(\d+)", photo.taken_at[19:])
    utc = taken.replace(microsecond=0).timestamp() if taken.tzinfo else np.nan
    return local.total_seconds(), taken.microsecond / 1e6, float(len(digits[1]) if digits else 0), utc
