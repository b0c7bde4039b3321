"""Perceptual hashes that are near each other, plain, mirrored or turned by quarters, among very many.

Two unrelated pictures differ in about 32 of the 64 bits, and in few by chance: among a million photos each
has several at 14 bits. So the radius within which a near hash is worth a look at the pixels falls as the library
grows, and with it what a hash alone can find; the embedding is there for the rest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np

from photodup.photos.search.neighbours import among_nearest

# Bits of 64 where few photos are compared: a crop to 70 % differs in about 22.
MAX_RADIUS = 24
# Neighbours of each photo.
NEAREST = 10
# In a smaller library as many chance pairs are allowed as in one of this size: minutes of looking at pixels.
SMALL_LIBRARY = 10_000
# Odd columns of the hash's 8 × 8 cosine terms change sign in a mirror, odd rows upside down.
MIRROR, FLIP = 0x5555555555555555, 0x00FF00FF00FF00FF
# So many bits nearer a hash must be when the picture is turned: few photos are, and six orientations more would bring
# three times as many chance pairs.
TURNED_NEARER = 6


@dataclass(frozen=True)
class HashPairs:
    """Pairs of rows whose hashes differ in `distance` bits, `radius` at most, the smaller row first.

    Turned against each other they differ in `TURNED_NEARER` bits less than `distance`.
    """

    first: np.ndarray
    second: np.ndarray
    distance: np.ndarray
    radius: int

    def __len__(self) -> int:
        return len(self.first)

    def within(self, radius: int) -> "HashPairs":
        """Return the pairs within a smaller radius."""
        return self._chosen(self.distance <= radius, radius)

    def joined_with(self, *added: "HashPairs") -> "HashPairs":
        """Return these pairs and others, none of them twice in all."""
        parts = (self, *added)
        first, second, distance = (
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("first", "second", "distance")
        )
        return HashPairs(first, second, distance, min(part.radius for part in parts))

    def _chosen(self, which: np.ndarray, radius: int | None = None) -> "HashPairs":
        limit = self.radius if radius is None else radius
        return HashPairs(self.first[which], self.second[which], self.distance[which], limit)


def mirrored_hash(phash: str) -> str:
    """Return what the perceptual hash of the mirror image would be, nearly: odd columns change sign."""
    return f"{int(phash, 16) ^ MIRROR:016x}"


def orientations(bits: np.ndarray) -> list[tuple[np.ndarray, int]]:
    """Return uint64[n] in all eight orientations, nearly, and how many bits nearer each must be.

    As it is and mirrored come first; then upside down and turned by 180°, and all four with rows and columns exchanged.
    """
    square = np.unpackbits(bits.astype(">u8").view(np.uint8)).reshape(-1, 8, 8)
    turned = np.packbits(square.transpose(0, 2, 1)).view(">u8").astype(np.uint64)
    masks = [np.uint64(mask) for mask in (0, MIRROR, FLIP, MIRROR ^ FLIP)]
    oriented = [plain ^ mask for plain in (bits, turned) for mask in masks]
    return [(rotated, 0 if i < 2 else TURNED_NEARER) for i, rotated in enumerate(oriented)]


def search_radius(n: int, per_photo: float) -> int:
    """Return the bits within which hashes of `n` photos are worth comparing on the pixels.

    The largest radius at which independent random hashes would give no more than `per_photo` pairs a photo by
    chance, plain and mirrored together. Bits of real hashes are not independent: of photographs measured here
    two to three times as many pairs were that near.
    """
    allowed = per_photo * max(n, SMALL_LIBRARY)
    chance = 0
    for radius in range(MAX_RADIUS + 1):
        chance += comb(64, radius)
        if n * n * chance / 2**64 > allowed:
            return radius - 1
    return MAX_RADIUS


def near_hashes(
    bits: np.ndarray, radius: int, new: np.ndarray | None = None, *, block: int = 4096
) -> HashPairs:
    """Return the pairs within a radius of which at least one row is new, among the nearest of either row.

    Args:
        bits: uint64[n].
        radius: 0..64, of pictures as they are and mirrored; for turned ones `TURNED_NEARER` bits less.
        new: the new rows; default all. The others were compared with each other already.
        block: rows searched at a time.
    """
    import faiss

    # The new ones last: an index that grows gives each pair once.
    order = (
        np.arange(len(bits))
        if new is None
        else np.concatenate([np.setdiff1d(np.arange(len(bits)), new), new])
    )
    bits, start = bits[order], 0 if new is None else len(bits) - len(new)
    searched, crowds = _searched(bits)
    begin_new = np.searchsorted(searched, start)
    codes = np.ascontiguousarray(bits[searched]).view(np.uint8).reshape(-1, 8)
    none = HashPairs(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.uint8), radius)
    parts = [crowds._chosen(crowds.second >= start, radius)]
    for oriented, nearer in orientations(bits):
        if radius < nearer:
            continue
        index = faiss.IndexBinaryFlat(64)
        index.add(codes[:begin_new])
        for begin in range(begin_new, len(searched), block):
            index.add(codes[begin : begin + block])
            rows = oriented[searched[begin : begin + block]].view(np.uint8).reshape(-1, 8)
            limits, distances, matches = index.range_search(rows, radius - nearer + 1)
            here = np.repeat(np.arange(begin, begin + len(rows)), np.diff(limits).astype(np.int64))
            before = matches < here  # each pair once, and no row with itself
            a, b = searched[matches[before]], searched[here[before]]
            apart = (distances[before] + nearer).astype(np.uint8)
            parts.append(nearest_hashes(HashPairs(a, b, apart, radius)))
    pairs = nearest_hashes(none.joined_with(*parts))
    first, second = order[pairs.first], order[pairs.second]
    return HashPairs(np.minimum(first, second), np.maximum(first, second), pairs.distance, radius)


def nearest_across(
    first: Sequence[str | None], second: Sequence[str | None], radius: int, limit: int
) -> HashPairs:
    """Return the nearest of the first hashes to each of the second, as it is and in its other seven orientations.

    Args:
        first, second: 16 hex digits each, or None for a blank picture, which has no neighbours.
        radius: bits by which a pair may differ, 0..64; turned or mirrored `TURNED_NEARER` less.
        limit: pairs of each of the second.

    Returns:
        Pairs whose rows count on from `first` into `second`; turned or mirrored ones with so many bits more than they
        differ by.
    """
    import faiss

    at = [np.array([i for i, phash in enumerate(side) if phash], np.int64) for side in (first, second)]
    codes = [np.array([int(phash, 16) for phash in side if phash], np.uint64) for side in (first, second)]
    k = min(limit, len(codes[0]))
    pairs = HashPairs(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.uint8), radius)
    if not k or not len(codes[1]):
        return pairs
    index = faiss.IndexBinaryFlat(64)
    index.add(codes[0].view(np.uint8).reshape(-1, 8))
    for i, (oriented, _) in enumerate(orientations(codes[1])):
        distance, neighbours = index.search(oriented.view(np.uint8).reshape(-1, 8), k)
        apart = (distance.ravel() + TURNED_NEARER * (i > 0)).astype(np.uint8)
        rows = np.repeat(at[1] + len(first), k)
        pairs = pairs.joined_with(HashPairs(at[0][neighbours.ravel()], rows, apart, radius).within(radius))
    pairs = _once(pairs)
    pairs = pairs._chosen(np.lexsort((pairs.first, pairs.distance, pairs.second)))
    place = np.arange(len(pairs)) - np.searchsorted(pairs.second, pairs.second)
    return pairs._chosen(place < limit)


def nearest_hashes(pairs: HashPairs) -> HashPairs:
    """Return each pair once, at its smaller distance, if it is among the `NEAREST` of either row."""
    pairs = _once(pairs)
    rows = np.concatenate([pairs.first, pairs.second])
    similarity = np.tile(1 - pairs.distance / np.float32(64), 2)
    return pairs._chosen(np.any(among_nearest(rows, similarity, NEAREST).reshape(2, -1), axis=0))


def _once(pairs: HashPairs) -> HashPairs:
    """Return each pair once, at its smaller distance."""
    order = np.lexsort((pairs.distance, pairs.second, pairs.first))
    first, second = pairs.first[order], pairs.second[order]
    again = np.zeros(len(order), bool)
    again[1:] = (first[1:] == first[:-1]) & (second[1:] == second[:-1])
    return pairs._chosen(order[~again])


def _searched(bits: np.ndarray) -> tuple[np.ndarray, HashPairs]:
    """Return the rows to search, and pairs of equal hashes for the others.

    Of a crowd with one hash (blank pages, a webcam's nights) the first few stand for all; each other one is
    paired with those before it. All with all would be the square of the crowd.
    """
    order = np.argsort(bits, kind="stable")
    equal = bits[order]
    begins = (
        np.flatnonzero(np.concatenate([[True], equal[1:] != equal[:-1]])) if len(bits) else np.zeros(0, int)
    )
    place = np.arange(len(bits)) - np.repeat(begins, np.diff(begins, append=len(bits)))
    late = np.flatnonzero(place > NEAREST)
    first = np.concatenate([order[late - back] for back in range(1, NEAREST + 1)]).astype(np.int64)
    second = np.tile(order[late], NEAREST)
    pairs = HashPairs(first, second, np.zeros(len(first), np.uint8), 0)
    return np.sort(order[place <= NEAREST]), pairs
