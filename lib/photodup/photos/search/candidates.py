"""Which pairs of a library are worth a look at the pixels, and which are alike by embedding.

Candidates are the nearest neighbours by embedding and by perceptual hash (of the picture and of its mirror
image). Neither needs to be right, only to be asked often enough, and their number stays in proportion to
the photos: a few for each, however many there are.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from photodup.photos.compare.evidence import pair_codes, pair_rows
from photodup.photos.library.catalogue import Catalogue, Model, Photo
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


class Shots:
    """When photos were taken and by which camera, for many pairs at once."""

    def __init__(self, photos: Iterable[Photo]) -> None:
        cameras: dict[str | None, int] = {}
        found = [(_seconds(photo), cameras.setdefault(photo.camera, len(cameras))) for photo in photos]
        self._seconds = np.array([seconds for seconds, _ in found], float)
        self._camera = np.array([camera for _, camera in found], np.int64)

    def are_two(self, codes: np.ndarray) -> np.ndarray:
        """Return for each pair whether the camera says these are two exposures: dated, at different times.

        Editors keep the time of capture, so copies agree on it.
        """
        i, j = pair_rows(codes)
        apart = np.abs(self._seconds[i] - self._seconds[j])  # NaN, and so False, without a date
        return (self._camera[i] == self._camera[j]) & (apart > 0)

    def are_within(self, codes: np.ndarray, seconds: float) -> np.ndarray:
        """Return for each pair whether both are dated and so close in time."""
        i, j = pair_rows(codes)
        return np.abs(self._seconds[i] - self._seconds[j]) <= seconds


def _seconds(photo: Photo) -> float:
    """Return the local time on the camera's clock, seconds; NaN where it did not say."""
    try:
        taken = datetime.fromisoformat(photo.taken_at) if photo.taken_at else None
    except ValueError:
        taken = None
    return (taken.replace(tzinfo=None) - datetime(1970, 1, 1)).total_seconds() if taken else np.nan
