"""Which pairs of a library are worth a look at the pixels, and which are alike by embedding.

Candidates are the nearest neighbours by embedding and by perceptual hash (of the picture in its eight
orientations). They may be wrong. Their number is in proportion to the photos: a few for each.

Pairs are kept between runs in `neighbours.sqlite` in the library's own folder, so that adding photos compares the new ones
with all, not all with all. It is a cache: delete it, and the next run compares everything once.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from photodup.photos.library.catalogue import Catalogue, Model, Photo
from photodup.photos.search.hash_neighbours import near_hashes, nearest_hashes, search_radius
from photodup.photos.search.neighbours import Bounds, Pairs, similar_pairs
from photodup.photos.search.pair_codes import pair_codes
from photodup.photos.state.cache_file import CacheFile
from photodup.photos.state.sqlite_file import Form

# Chance pairs a photo that the hash may bring, alone and beside an embedding. Beside one, the hash finds edits of tone,
# which hardly change it: of 670 edits of 67 photographs the embedding missed 15, and 12 of those had not changed one bit.
PER_PHOTO_ALONE, PER_PHOTO_BESIDE = 5.0, 1.0
# With more than this share of the contents gone, everything is compared again, as the next ones may now be among a photo's
# nearest.
_MAX_GONE = 0.2


@dataclass(frozen=True)
class Neighbours:
    """Pairs of photos by row, each as one number (`pair_codes`).

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
    catalogue: Catalogue, photos: Sequence[Photo], model: Model | None, bounds: Bounds | None
) -> Neighbours:
    """Find the neighbours of all photos, comparing only what is new since the last run.

    Args:
        catalogue: of these photos.
        photos: one for each content, all different.
        model: whose embeddings to ask; None for the hash alone.
        bounds: which pairs count by embedding; None for the hash alone.
    """
    row = {photo.md5: i for i, photo in enumerate(photos)}
    vectors, at = np.zeros((0, 1), np.float32), np.full(len(photos), -1)
    alike, cosine, search, recall = np.zeros(0, np.int64), np.zeros(0, np.float32), "", 1.0
    with PairStore(catalogue.own.neighbours) as store:
        md5s = [md5 for md5 in catalogue.contents_with_vectors(model.digest) if md5 in row] if model else []
        if model and bounds and md5s:
            vectors = catalogue.embeddings_of(model.digest, md5s)
            embedded_rows = np.array([row[md5] for md5 in md5s], np.int64)
            at[embedded_rows] = np.arange(len(md5s))
            search_new = partial(similar_pairs, vectors, bounds)
            pairs = stored_pairs(store, model.digest, str(bounds), md5s, search_new, bounds.counting)
            codes = pair_codes(embedded_rows[pairs.first], embedded_rows[pairs.second])
            order = np.argsort(codes)
            alike, cosine, recall = codes[order], pairs.similarity[order], pairs.recall
            search = f"embedding ({pairs.method}) and hash"
        hashed = {photo.md5: int(photo.phash, 16) for photo in photos if photo.phash is not None}
        hashed_rows = np.array([row[md5] for md5 in hashed], np.int64)
        bits = np.array([*hashed.values()], np.uint64)
        radius = search_radius(len(bits), PER_PHOTO_BESIDE if search else PER_PHOTO_ALONE)
        search_new = partial(near_hashes, bits, radius)
        near = stored_pairs(store, "hash", f"{radius} bits", list(hashed), search_new, nearest_hashes)
    by_hash = np.sort(pair_codes(hashed_rows[near.first], hashed_rows[near.second]))
    search = f"{search or 'by hash only'} ({near.method})"
    return Neighbours(alike, cosine, by_hash, search, recall, vectors, at)


class PairStore(CacheFile):
    """The file: for each kind of search (a model's digest, or `hash`) the contents compared and the pairs among them."""

    FORM: ClassVar = Form(
        version=2,  # raise when the searches find other pairs
        statements=(
            "CREATE TABLE search (kind TEXT PRIMARY KEY, bounds TEXT NOT NULL, method TEXT NOT NULL, recall REAL NOT NULL, "
            "md5s BLOB NOT NULL, first BLOB NOT NULL, second BLOB NOT NULL, nearness BLOB NOT NULL, digest TEXT NOT NULL) "
            "STRICT",
        ),
    )
    AGAIN = "all photos will be compared again the next time"

    def read(self, kind: str, bounds: str, md5s: Sequence[str]) -> tuple[Pairs, np.ndarray] | None:
        """Return the stored pairs among these contents, by place in `md5s`, and the places of contents not searched yet.

        None if nothing is stored with these bounds, too many of the photos are gone, or the data are invalid.
        """
        columns = "method, recall, digest, md5s, first, second, nearness"
        sql = f"SELECT {columns} FROM search WHERE kind = ? AND bounds = ?"
        with self._reading() as db:
            rows = db.execute(sql, (kind, bounds)).fetchall()
            return _unpacked(rows[0], md5s) if rows else None
        return None

    def write(self, kind: str, bounds: str, md5s: Sequence[str], pairs: Pairs) -> None:
        """Remember a search; a full disk costs the next run time and nothing else."""
        columns = ((pairs.first, "<i4"), (pairs.second, "<i4"), (pairs.similarity, "<f4"))
        blobs = [np.asarray(numbers, form).tobytes() for numbers, form in columns]
        blobs = [bytes.fromhex("".join(md5s)), *blobs]
        row = (kind, bounds, pairs.method, pairs.recall, *blobs, _digest(blobs))
        self._write("INSERT OR REPLACE INTO search VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", [row])


def _digest(blobs: Sequence[bytes]) -> str:
    """Return a check sum: SQLite does not notice a flipped bit."""
    return hashlib.md5(b"".join(blobs), usedforsecurity=False).hexdigest()


def _unpacked(columns: tuple, md5s: Sequence[str]) -> tuple[Pairs, np.ndarray] | None:
    method, recall, digest, *blobs = columns
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
    pairs = Pairs.of(at[first][chosen], at[second][chosen], nearness[chosen], method, recall)
    return pairs, np.setdiff1d(np.arange(len(md5s)), at)


def stored_pairs(
    store: PairStore,
    kind: str,
    bounds: str,
    md5s: Sequence[str],
    search: Callable[[np.ndarray | None], Pairs],
    counting: Callable[[Pairs], Pairs],
) -> Pairs:
    """Return the pairs of a search; contents compared in an earlier run are not compared again.

    Args:
        store: of the library.
        kind: of the search: a model's digest, or `hash`.
        bounds: of the search in words; if they have changed, everything is compared again.
        md5s: the content of each row, all different.
        search: returns the pairs of which at least one row is new; of all rows for None.
        counting: returns those of old and new pairs that are near enough.
    """
    saved = store.read(kind, bounds, md5s)
    if saved is None:
        pairs = search(None)
    elif len(saved[1]):
        pairs = counting(saved[0].joined_with(search(saved[1])))
    else:
        return saved[0]
    store.write(kind, bounds, md5s, pairs)
    return pairs
