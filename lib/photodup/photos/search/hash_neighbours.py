"""Find near perceptual hashes among very many: plain, mirrored or turned by quarters.

Two unrelated pictures differ in about 32 of the 64 bits, and in few by chance: among a million photos each
has several at 14 bits. So the radius within which a near hash is worth a look at the pixels falls as the library
grows, and with it what a hash alone can find; the embedding is there for the rest.
"""

from collections.abc import Sequence
from math import comb

import numpy as np

from photodup.photos.search.neighbours import Pairs, among_nearest

# Radius for few photos, in bits of 64: a crop to 70% differs in about 22.
MAX_RADIUS = 24
# Neighbours of each photo.
NEAREST = 10
# Smaller libraries are allowed the chance pairs of one of this size: minutes of comparing pixels.
SMALL_LIBRARY = 10_000
# Odd columns of the hash's 8 × 8 cosine terms change sign in a mirror, odd rows upside down.
MIRROR, FLIP = 0x5555555555555555, 0x00FF00FF00FF00FF
# Bits by which hashes of turned pictures must be nearer: few photos are turned, and six more orientations would bring three
# times as many chance pairs.
TURNED_NEARER = 6
NONE = Pairs(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32))


def mirrored_hash(phash: str) -> str:
    """Return what the perceptual hash of the mirror image would be, nearly: odd columns change sign."""
    return f"{int(phash, 16) ^ MIRROR:016x}"


def orientations(bits: np.ndarray) -> list[tuple[np.ndarray, int]]:
    """Return hashes uint64[n] in all eight orientations (approximate), and how many bits nearer each must be.

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


def near_hashes(bits: np.ndarray, radius: int, new: np.ndarray | None = None, *, block: int = 4096) -> Pairs:
    """Return the pairs within a radius of which at least one row is new, among the nearest of either row.

    Args:
        bits: uint64[n].
        radius: 0..64, of pictures as they are and mirrored; for turned ones `TURNED_NEARER` bits less.
        new: the new rows; default all. The others were compared with each other already.
        block: rows searched at a time.
    """
    import faiss

    order, start = np.arange(len(bits)), 0
    if new is not None:  # the new ones last: an index that grows gives each pair once
        order, start = np.concatenate([np.setdiff1d(order, new), new]), len(bits) - len(new)
    bits = bits[order]
    searched, crowds = _searched(bits)
    begin_new = np.searchsorted(searched, start)
    codes = np.ascontiguousarray(bits[searched]).view(np.uint8).reshape(-1, 8)
    parts = [crowds.chosen(crowds.second >= start)]
    for oriented, nearer in orientations(bits):
        if radius < nearer:
            continue
        index = faiss.IndexBinaryFlat(64)
        index.add(codes[:begin_new])
        for begin in range(begin_new, len(searched), block):
            index.add(codes[begin : begin + block])
            rows = oriented[searched[begin : begin + block]].view(np.uint8).reshape(-1, 8)
            limits, distances, matches = index.range_search(rows, radius - nearer + 1)
            queries = np.repeat(np.arange(begin, begin + len(rows)), np.diff(limits).astype(np.int64))
            before = matches < queries  # each pair once, and no row with itself
            a, b = searched[matches[before]], searched[queries[before]]
            parts.append(nearest_hashes(Pairs.of(a, b, _similarity(distances[before] + nearer))))
    pairs = nearest_hashes(parts[0].joined_with(*parts[1:]))
    return Pairs.of(order[pairs.first], order[pairs.second], pairs.similarity, f"within {radius} bits")


def nearest_across(
    first: Sequence[str | None], second: Sequence[str | None], radius: int, limit: int
) -> Pairs:
    """Return the nearest of the first hashes to each of the second, as it is and in its other seven orientations.

    Args:
        first, second: 16 hex digits each, or None for a blank picture, which has no neighbours.
        radius: bits by which a pair may differ, 0..64; turned or mirrored `TURNED_NEARER` less.
        limit: pairs of each of the second.

    Returns:
        Pairs; the rows of `second` are numbered after those of `first`. Turned or mirrored ones have `TURNED_NEARER` bits
        more.
    """
    import faiss

    at = [np.array([i for i, phash in enumerate(side) if phash], np.int64) for side in (first, second)]
    codes = [np.array([int(phash, 16) for phash in side if phash], np.uint64) for side in (first, second)]
    k, pairs = min(limit, len(codes[0])), NONE
    if not k or not len(codes[1]):
        return pairs
    index = faiss.IndexBinaryFlat(64)
    index.add(codes[0].view(np.uint8).reshape(-1, 8))
    for i, (oriented, _) in enumerate(orientations(codes[1])):
        distance, neighbours = index.search(oriented.view(np.uint8).reshape(-1, 8), k)
        similarity = _similarity(distance.ravel() + TURNED_NEARER * (i > 0))
        rows = np.repeat(at[1] + len(first), k)
        pairs = pairs.joined_with(Pairs(at[0][neighbours.ravel()], rows, similarity))
    pairs = pairs.chosen(bits_apart(pairs) <= radius)
    return pairs.chosen(among_nearest(pairs.second, pairs.similarity, limit))


def nearest_hashes(pairs: Pairs) -> Pairs:
    """Return the pairs that are among the `NEAREST` of either row."""
    return pairs.chosen(pairs.among_nearest(NEAREST))


def bits_apart(pairs: Pairs) -> np.ndarray:
    """Return for each pair in how many of 64 bits its hashes differ."""
    return np.rint(64 * (1 - pairs.similarity)).astype(np.int64)


def _similarity(distance: np.ndarray) -> np.ndarray:
    return 1 - distance.astype(np.float32) / 64


def _searched(bits: np.ndarray) -> tuple[np.ndarray, Pairs]:
    """Return the rows to search, and pairs of equal hashes for the others.

    Of a crowd with one hash (blank pages, a webcam's nights) the first few stand for all; each other one is
    paired with those before it. All with all would be the square of the crowd.
    """
    order = np.argsort(bits, kind="stable")
    equal = bits[order]
    begins = np.flatnonzero(np.diff(equal, prepend=~equal[:1]))
    place = np.arange(len(bits)) - np.repeat(begins, np.diff(begins, append=len(bits)))
    late = np.flatnonzero(place > NEAREST)
    first = np.concatenate([order[late - back] for back in range(1, NEAREST + 1)])
    pairs = Pairs(first, np.tile(order[late], NEAREST), np.ones(len(first), np.float32))
    return np.sort(order[place <= NEAREST]), pairs
