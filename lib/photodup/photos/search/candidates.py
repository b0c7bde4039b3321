"""Which pairs of a library are worth a look at the pixels, and which are alike by embedding.

Candidates are the nearest neighbours by embedding and by perceptual hash (of the picture in its eight
orientations). Neither needs to be right, only to be asked often enough, and their number stays in proportion to
the photos: a few for each, however many there are.

Pairs are kept between runs, so that adding photos compares the new ones with all, not all with all. The state lies in
the library's own folder: `neighbours-<digest>.npz` for each model and `neighbours-hash.npz` hold which contents were
compared and the pairs found, `…-cells.npz` the index where there is one. It is a cache: delete it, and the next run
compares everything once.
"""

import hashlib
import re
from collections.abc import Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from photodup.photos.compare.evidence import pair_codes, pair_rows
from photodup.photos.library.catalogue import Catalogue, Model, Photo
from photodup.photos.library.metadata import read_exposure
from photodup.photos.search.hash_neighbours import HashPairs, near_hashes, nearest_hashes, search_radius
from photodup.photos.search.neighbours import EXACT_BELOW, ArraysError, NeighbourIndex, Pairs, read_arrays
from photodup.photos.state.own_folder import OwnFolder, OwnFolderError

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
        embedded_md5s = [md5 for md5 in catalogue.embedded(model.digest) if md5 in row]
        names = stored_order(folder, model.digest, embedded_md5s)
        vectors = catalogue.embeddings_of(model.digest, names)
        embedded_rows = np.array([row[md5] for md5 in names], np.int64)
        at[embedded_rows] = np.arange(len(names))
        if len(names) > 1:
            pairs = stored_pairs(folder, model.digest, names, vectors, threshold, nearest_from=nearest_from)
            codes = pair_codes(embedded_rows[pairs.first], embedded_rows[pairs.second])
            order = np.argsort(codes)
            alike, cosine, recall = codes[order], pairs.similarity[order], pairs.recall
            search = f"embedding ({pairs.method}) and hash"
    by_hash, radius = _hash_pairs(folder, photos, PER_PHOTO_BESIDE if search else PER_PHOTO_ALONE)
    search = f"{search or 'by hash only'} (within {radius} bits)"
    return Neighbours(alike, cosine, by_hash, search, recall, vectors, at)


def _hash_pairs(folder: Path, photos: Sequence[Photo], per_photo: float) -> tuple[np.ndarray, int]:
    hashed_rows = np.array([i for i, photo in enumerate(photos) if photo.phash is not None], np.int64)
    md5s, hashes = [photos[i].md5 for i in hashed_rows], [photos[i].phash for i in hashed_rows]
    pairs = stored_hash_pairs(folder, md5s, hashes, per_photo)
    return np.sort(pair_codes(hashed_rows[pairs.first], hashed_rows[pairs.second])), pairs.radius


_VERSION = 3
# The arrays of a state, of either kind, as `read_arrays` wants them.
_Layout = dict[str, tuple[str | int, ...]]
_STATE: _Layout = {
    "version": ("<i8",),
    "md5s": ("|S32", "row"),
    "first": ("<i4", "pair"),
    "second": ("<i4", "pair"),
}
_OF_MODEL: _Layout = _STATE | {
    "bounds": ("<f8", 3), "similarity": ("<f4", "pair"), "method": ("<U",), "recall": ("<f8",), "nearest_recall": ("<f8",),
}  # fmt: skip
_OF_HASH: _Layout = _STATE | {"bits": ("<u8", "row"), "radius": ("<i8",), "distance": ("|u1", "pair")}
# At most, with a fifth of the contents gone: `MAX_CROWD` and the nearest pairs of 12 bytes, an MD5 and a hash.
_BYTES_A_ROW = 8192
_METHOD = re.compile(r"exact|IVF \d{1,9} cells(, \d{1,9} searched)?")
_DIGEST = re.compile(r"[0-9a-f]{16}")
# With more than this share of the contents gone, everything is compared again: the index no longer fits what is
# left, nor is the place of those that were among a photo's nearest taken by the next ones.
_MAX_GONE = 0.2


def stored_order(folder: Path, digest: str, md5s: Sequence[str]) -> list[str]:
    """Return these contents in the order in which `stored_pairs` needs no copy of their vectors."""
    return _known_first(_read(_model_store(folder, digest), _OF_MODEL, len(md5s)), md5s)


def stored_pairs(
    folder: Path,
    digest: str,
    md5s: Sequence[str],
    vectors: np.ndarray,
    threshold: float,
    *,
    nearest_from: float | None = None,
    exact_below: int = EXACT_BELOW,
) -> Pairs:
    """Return the pairs of a `NeighbourIndex`; contents compared in an earlier run are not compared again.

    Args:
        folder: the library's own folder.
        digest: the model.
        md5s: the content of each row.
        vectors: float32[n, dim] of length 1, in any order; the pairs name rows of this array.
        threshold, nearest_from, exact_below: as in `NeighbourIndex`; other bounds than last time compare
            everything again.
    """
    store = _model_store(folder, digest)
    index = NeighbourIndex(vectors.shape[1], threshold, nearest_from=nearest_from, exact_below=exact_below)
    bounds = [index.threshold, index.lowest, index.nearest]
    saved = _read(store, _OF_MODEL, len(md5s))
    names = _known_first(saved, md5s)
    row = {md5: i for i, md5 in enumerate(md5s)}
    order = np.array([row[md5] for md5 in names], np.int64)
    if not np.array_equal(order, np.arange(len(order))):
        vectors = vectors[order]
    n_known, pairs = _continued(store, saved, index, names, vectors, bounds)
    if n_known < len(names) or pairs is None:
        before = pairs
        pairs = index.grow(np.ascontiguousarray(vectors, np.float32))
        if before is not None:
            pairs = _old_and_new(index, before, pairs, len(names) - n_known)
        _save_pairs(store, index, names, pairs, bounds)
    first, second = order[pairs.first], order[pairs.second]
    return replace(pairs, first=np.minimum(first, second), second=np.maximum(first, second))


def stored_hash_pairs(
    folder: Path, md5s: Sequence[str], hashes: Sequence[str], per_photo: float
) -> HashPairs:
    """Return pairs of near perceptual hashes; contents compared in an earlier run are not compared again.

    Args:
        folder: the library's own folder.
        md5s: the content of each row, all different.
        hashes: its hash, 16 hex digits.
        per_photo: as in `search_radius`.
    """
    store = OwnFolder(folder).pairs("hash")
    radius = search_radius(len(md5s), per_photo)
    saved = _read(store, _OF_HASH, len(md5s))
    row = {md5: i for i, md5 in enumerate(md5s)}
    old_md5s, before = [], None
    present = np.array([md5 in row for md5 in saved["md5s"]] if saved else [], bool)
    # In a library that grows the radius falls, and what was found within the larger one is at hand. By one
    # bit it may rise again before everything is searched anew: photos come and go.
    if saved and radius <= saved["radius"] + 1 and _enough_left(present):
        radius = min(radius, int(saved["radius"]))
        old_md5s = [md5 for md5, is_present in zip(saved["md5s"], present, strict=True) if is_present]
        bits = np.array([int(hashes[row[md5]], 16) for md5 in old_md5s], np.uint64)
        if np.array_equal(bits, saved["bits"][present]):
            first, second, distance = _pairs_still_there(saved, present, "distance")
            before = HashPairs(first, second, distance, radius).within(radius)
        else:
            old_md5s = []
    names = _known_first({"md5s": old_md5s}, md5s)
    order = np.array([row[md5] for md5 in names], np.int64)
    bits = np.array([int(hashes[i], 16) for i in order], np.uint64)
    pairs = near_hashes(bits, radius, start=len(old_md5s))
    if before is not None:
        pairs = nearest_hashes(before.joined_with(pairs))
    is_as_before = present.all() and len(old_md5s) == len(names)
    if before is None or saved is None or not is_as_before or radius != saved["radius"]:
        _write(
            store, names, bits=bits, radius=radius, first=pairs.first, second=pairs.second,
            distance=pairs.distance,
        )  # fmt: skip
    first, second = order[pairs.first], order[pairs.second]
    return replace(pairs, first=np.minimum(first, second), second=np.maximum(first, second))


def _old_and_new(index: NeighbourIndex, before: Pairs, added: Pairs, n_new: int) -> Pairs:
    parts = [(getattr(before, name), getattr(added, name)) for name in ("first", "second", "similarity")]
    method = f"{added.method}, {n_new:,} new among {len(index.vectors):,}"
    first, second, similarity = (np.concatenate(part) for part in parts)
    recalls = (min(getattr(before, name), getattr(added, name)) for name in ("recall", "nearest_recall"))
    recall, nearest_recall = recalls
    return index.counting(Pairs(first, second, similarity, method, recall, added.n_sampled, nearest_recall))


def _continued(
    store: Path,
    saved: dict | None,
    index: NeighbourIndex,
    names: list[str],
    vectors: np.ndarray,
    bounds: list[float],
) -> tuple[int, Pairs | None]:
    """Fill the index with what was compared before and is still there; nothing if that does not fit."""
    cells = _cells(store)
    if saved is None or saved["bounds"].tolist() != bounds:
        return 0, None
    current = set(names)
    present = np.array([md5 in current for md5 in saved["md5s"]], bool)
    if not _enough_left(present):
        return 0, None
    old = vectors[: np.count_nonzero(present)]
    if not cells.exists():
        index.vectors = old
    else:
        try:
            index.load(cells, old, present)
        except ArraysError:
            return 0, None
    first, second, similarity = _pairs_still_there(saved, present, "similarity")
    recall, nearest_recall = float(saved["recall"]), float(saved["nearest_recall"])
    return len(old), Pairs(first, second, similarity, str(saved["method"]), recall, 0, nearest_recall)


def _enough_left(present: np.ndarray) -> bool:
    return len(present) > 0 and (~present).mean() <= _MAX_GONE


def _pairs_still_there(saved: dict, present: np.ndarray, name: str) -> tuple[np.ndarray, ...]:
    """Return first, second and value of the saved pairs whose rows are still there, rows numbered anew."""
    place = np.cumsum(present) - 1
    first, second = saved["first"], saved["second"]
    keep = present[first] & present[second]
    return place[first[keep]], place[second[keep]], saved[name][keep]


def _save_pairs(
    store: Path, index: NeighbourIndex, names: list[str], pairs: Pairs, bounds: list[float]
) -> None:
    try:
        # First: pairs must never meet the cells of another run.
        OwnFolder(store.parent).delete(store.name, _cells(store).name)
        if index.has_cells:
            with OwnFolder(store.parent).writing(_cells(store).name) as file:
                index.save(file)
    except (OSError, OwnFolderError):
        return
    _write(
        store, names, bounds=bounds, first=pairs.first, second=pairs.second, similarity=pairs.similarity,
        method=pairs.method.split(",")[0] if "new among" in pairs.method else pairs.method,
        recall=pairs.recall, nearest_recall=pairs.nearest_recall,
    )  # fmt: skip


def _write(store: Path, names: list[str], **values: Any) -> None:
    """Write a state; a full disk costs the next run time and nothing else."""
    for name in ("first", "second"):
        values[name] = np.asarray(values[name], np.int32)
    with suppress(OSError, OwnFolderError), OwnFolder(store.parent).writing(store.name) as file:
        np.savez(file, version=_VERSION, md5s=np.array([md5.encode() for md5 in names]), **values)


def _known_first(saved: dict | None, md5s: Sequence[str]) -> list[str]:
    current = set(md5s)
    stored = [md5 for md5 in (saved["md5s"] if saved else ()) if md5 in current]
    stored_set = set(stored)
    return stored + [md5 for md5 in md5s if md5 not in stored_set]


def _read(store: Path, layout: _Layout, n_now: int) -> dict | None:
    """Read a state; None if there is none, or none that this version writes for a library of `n_now` contents."""
    try:
        state = read_arrays(store, layout, 65_536 + _BYTES_A_ROW * n_now)
    except ArraysError:
        return None
    md5s, first, second = state["md5s"].tolist(), state["first"], state["second"]
    is_sound = (
        state["version"] == _VERSION
        and len(set(md5s)) == len(md5s)
        and bool(((first >= 0) & (first < second) & (second < len(md5s))).all())
    )
    if "method" in state:
        values = np.concatenate([state["similarity"], [state["recall"], state["nearest_recall"]]])
        is_sound &= bool(_METHOD.fullmatch(str(state["method"])) and (np.abs(values) <= 1).all())
    else:
        is_sound &= 0 <= state["radius"] <= 64 and bool((state["distance"] <= state["radius"]).all())
    return state | {"md5s": [md5.decode("latin-1") for md5 in md5s]} if is_sound else None


def _model_store(folder: Path, digest: str) -> Path:
    # A server names its model's digest; whatever it says, the file lies in the own folder.
    name = digest[:16] if _DIGEST.match(digest) else hashlib.sha256(digest.encode()).hexdigest()[:16]
    return OwnFolder(folder).pairs(name)


def _cells(store: Path) -> Path:
    return store.with_name(f"{store.stem}-cells.npz")


# Two exposures differ in one of these by more than rounding: share of the larger value, and in its unit.
_ROUNDING = {"time": (0.02, 0.0), "aperture": (0.02, 0.0), "sensitivity": (0.02, 0.0), "bias": (0.0, 0.05)}
_ROUNDING |= {"sequence": (0.0, 0.0), "drive": (0.0, 0.0)}
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
            name: np.array([exposure.get(name, np.nan) for exposure in exposures], float)
            for name in _ROUNDING
        }
        counted = [_COUNTER.fullmatch(photo.path.stem) for photo in photos]
        self._series = _numbered([match and (match[1], match[3]) for match in counted])
        self._count = np.array([float(match[2][:15]) if match else np.nan for match in counted], float)

    def are_two(self, codes: np.ndarray) -> np.ndarray:
        """Return for each pair whether one camera says that these are two exposures.

        Another time (to the fraction that both have), exposure, drive mode or number in a sequence; without fractions,
        another number in the names of one second. Editors keep these fields, so copies agree on them. What one side lacks
        says nothing.
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
        moment = datetime.fromisoformat(photo.taken_at) if photo.taken_at else None
    except ValueError:
        moment = None
    if moment is None or photo.taken_at is None:
        return np.nan, np.nan, 0.0, np.nan
    local = moment.replace(tzinfo=None, microsecond=0) - datetime(1970, 1, 1)
    digits = re.match(r"\.(\d+)", photo.taken_at[19:])
    utc = moment.replace(microsecond=0).timestamp() if moment.tzinfo else np.nan
    return local.total_seconds(), moment.microsecond / 1e6, float(len(digits[1]) if digits else 0), utc
