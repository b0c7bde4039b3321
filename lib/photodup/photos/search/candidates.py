"""Which pairs of a library are worth a look at the pixels, and which are alike by embedding.

Candidates are the nearest neighbours by embedding and by perceptual hash (of the picture in its eight
orientations). Neither needs to be right, only to be asked often enough, and their number stays in proportion to
the photos: a few for each, however many there are.

Pairs are kept between runs in `neighbours.sqlite` in the library's own folder, so that adding photos compares the new ones
with all, not all with all. It is a cache: delete it, and the next run compares everything once.
"""

import hashlib
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from photodup.photos.compare.cache_file import DAMAGE, CacheFile
from photodup.photos.compare.evidence import pair_codes
from photodup.photos.library.catalogue import Catalogue, Model, Photo
from photodup.photos.search.hash_neighbours import HashPairs, near_hashes, nearest_hashes, search_radius
from photodup.photos.search.neighbours import EXACT_PRODUCTS, Bounds, Pairs, similar_pairs
from photodup.photos.state.sqlite_file import Form

# Chance pairs a photo that the hash may bring, alone and where an embedding is asked too. Then the hash is
# there for edits of tone, which leave it nearly as it was: of 670 edits of 67 photographs the embedding missed
# 15, and 12 of those had not moved one bit.
PER_PHOTO_ALONE, PER_PHOTO_BESIDE = 5.0, 1.0
# With more than this share of the contents gone, everything is compared again: the place of those that were among a
# photo's nearest was not taken by the next ones.
_MAX_GONE = 0.2


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
    row = {photo.md5: i for i, photo in enumerate(photos)}
    vectors, at = np.zeros((0, 1), np.float32), np.full(len(photos), -1)
    alike, cosine, search, recall = np.zeros(0, np.int64), np.zeros(0, np.float32), "", 1.0
    with PairStore(catalogue.own.neighbours) as store:
        md5s = [md5 for md5 in catalogue.embedded(model.digest) if md5 in row] if model else []
        if model and md5s:
            vectors = catalogue.embeddings_of(model.digest, md5s)
            embedded_rows = np.array([row[md5] for md5 in md5s], np.int64)
            at[embedded_rows] = np.arange(len(md5s))
            bounds = Bounds(threshold, nearest_from)
            pairs = stored_pairs(store, model.digest, md5s, vectors, bounds)
            codes = pair_codes(embedded_rows[pairs.first], embedded_rows[pairs.second])
            order = np.argsort(codes)
            alike, cosine, recall = codes[order], pairs.similarity[order], pairs.recall
            search = f"embedding ({pairs.method}) and hash"
        hashed_rows = np.array([i for i, photo in enumerate(photos) if photo.phash is not None], np.int64)
        hashed = {photos[i].md5: str(photos[i].phash) for i in hashed_rows}
        near = stored_hash_pairs(store, hashed, PER_PHOTO_BESIDE if search else PER_PHOTO_ALONE)
    by_hash = np.sort(pair_codes(hashed_rows[near.first], hashed_rows[near.second]))
    search = f"{search or 'by hash only'} (within {near.radius} bits)"
    return Neighbours(alike, cosine, by_hash, search, recall, vectors, at)


@dataclass(frozen=True)
class SavedPairs:
    """Pairs of an earlier run, by the rows of this one.

    Attributes:
        first, second: the smaller row and the larger.
        nearness: cosine or bits, float32.
        bounds: three numbers that they were searched with.
        method, recall: as of `Pairs`.
        new: the rows that the earlier run did not have.
    """

    first: np.ndarray
    second: np.ndarray
    nearness: np.ndarray
    bounds: tuple[float, float, float]
    method: str
    recall: float
    new: np.ndarray


class PairStore(CacheFile):
    """The file: for each kind of search (a model's digest, or `hash`) the contents compared and the pairs among them."""

    FORM: ClassVar = Form(
        version=1,  # raise when the searches find other pairs
        statements=(
            "CREATE TABLE search (kind TEXT PRIMARY KEY, threshold REAL NOT NULL, lowest REAL NOT NULL, "
            "nearest REAL NOT NULL, method TEXT NOT NULL, recall REAL NOT NULL, md5s BLOB NOT NULL, first BLOB NOT NULL, "
            "second BLOB NOT NULL, nearness BLOB NOT NULL, digest TEXT NOT NULL) STRICT",
        ),
    )
    AGAIN = "all photos will be compared again the next time"

    def read(self, kind: str, md5s: Sequence[str]) -> SavedPairs | None:
        """Return the pairs of a search among these contents, whose places are the rows.

        None where nothing is saved, too many of the photos are gone, or the rows are not as photodup writes them.
        """
        try:
            rows = self._db.execute("SELECT * FROM search WHERE kind = ?", (kind,)).fetchall()
            return _unpacked(rows[0], md5s) if rows else None
        except DAMAGE:
            self._db.close()
            self._begin_anew()
            return None

    def write(self, kind: str, md5s: Sequence[str], bounds: tuple[float, float, float], pairs: Pairs) -> None:
        """Remember a search; a full disk costs the next run time and nothing else."""
        columns = ((pairs.first, "<i4"), (pairs.second, "<i4"), (pairs.similarity, "<f4"))
        blobs = [np.asarray(numbers, form).tobytes() for numbers, form in columns]
        blobs = [bytes.fromhex("".join(md5s)), *blobs]
        row = (kind, *bounds, pairs.method, pairs.recall, *blobs, _digest(blobs))
        with suppress(sqlite3.DatabaseError):
            self._db.execute("INSERT OR REPLACE INTO search VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)


def _digest(blobs: Sequence[bytes]) -> str:
    """Return a check sum: SQLite does not notice a flipped bit."""
    return hashlib.md5(b"".join(blobs), usedforsecurity=False).hexdigest()


def _unpacked(columns: tuple, md5s: Sequence[str]) -> SavedPairs | None:
    _, threshold, lowest, nearest, method, recall, *blobs, digest = columns
    packed, (first, second, nearness) = blobs[0], map(np.frombuffer, blobs[1:], ("<i4", "<i4", "<f4"))
    names = [packed[i : i + 16] for i in range(0, len(packed), 16)]
    is_sound = (
        digest == _digest(blobs)
        and len(set(names)) == len(names)
        and len(first) == len(second) == len(nearness)
        and ((first >= 0) & (first < second) & (second < len(names)) & (nearness >= 0)).all()
        and 0 <= recall <= 1
        and method.isprintable()
    )
    row = {bytes.fromhex(md5): i for i, md5 in enumerate(md5s)}
    at = np.array([row.get(name, -1) for name in names], np.int64)
    if not is_sound or not len(at) or (at < 0).mean() > _MAX_GONE:
        return None
    chosen = (at[first] >= 0) & (at[second] >= 0)
    ends = at[first][chosen], at[second][chosen]
    new = np.setdiff1d(np.arange(len(md5s)), at)
    bounds = (threshold, lowest, nearest)
    return SavedPairs(np.minimum(*ends), np.maximum(*ends), nearness[chosen], bounds, method, recall, new)


def stored_pairs(
    store: PairStore,
    digest: str,
    md5s: Sequence[str],
    vectors: np.ndarray,
    bounds: Bounds,
    *,
    exact_products: int = EXACT_PRODUCTS,
) -> Pairs:
    """Return the pairs of `similar_pairs`; contents compared in an earlier run are not compared again.

    Args:
        store: of the library.
        digest: the model.
        md5s: the content of each row, all different.
        vectors: float32[n, dim] of length 1.
        bounds: other ones than last time compare everything again.
        exact_products: as in `similar_pairs`.
    """
    numbers = (bounds.threshold, bounds.lowest, float(bounds.nearest))
    saved = store.read(digest, md5s)
    if saved is None or saved.bounds != numbers:
        pairs = similar_pairs(vectors, bounds, exact_products=exact_products)
    elif len(saved.new):
        added = similar_pairs(vectors, bounds, saved.new, exact_products=exact_products)
        parts = ((saved.first, added.first), (saved.second, added.second), (saved.nearness, added.similarity))
        first, second, similarity = map(np.concatenate, parts)
        recall = min(saved.recall, added.recall)
        pairs = bounds.counting(Pairs(first, second, similarity, saved.method, recall))
    else:
        return Pairs(saved.first, saved.second, saved.nearness, saved.method, saved.recall)
    store.write(digest, md5s, numbers, pairs)
    return pairs


def stored_hash_pairs(store: PairStore, hashes: Mapping[str, str], per_photo: float) -> HashPairs:
    """Return pairs of near perceptual hashes; contents compared in an earlier run are not compared again.

    Args:
        store: of the library.
        hashes: the hash, 16 hex digits, of each content, whose place is its row.
        per_photo: as in `search_radius`.
    """
    md5s, bits = list(hashes), np.array([int(phash, 16) for phash in hashes.values()], np.uint64)
    radius, saved = search_radius(len(md5s), per_photo), store.read("hash", md5s)
    # In a library that grows the radius falls, and what was found within the larger one is at hand. By one
    # bit it may rise again before everything is searched anew: photos come and go.
    if saved is None or radius > saved.bounds[0] + 1:
        pairs = near_hashes(bits, radius)
    else:
        radius = min(radius, int(saved.bounds[0]))
        before = HashPairs(saved.first, saved.second, saved.nearness.astype(np.uint8), radius).within(radius)
        if not len(saved.new):
            return before
        pairs = nearest_hashes(before.joined_with(near_hashes(bits, radius, saved.new)))
    searched = Pairs(pairs.first, pairs.second, pairs.distance, f"within {radius} bits")
    store.write("hash", md5s, (float(radius), 0.0, 0.0), searched)
    return pairs
