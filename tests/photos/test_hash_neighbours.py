"""Near perceptual hashes: all of them in small libraries, the nearest few in crowds, chance kept in bounds."""

import hashlib
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from photodup.photos.search.candidates import PairStore, stored_pairs
from photodup.photos.search.hash_neighbours import (
    MAX_RADIUS,
    MIRROR,
    NEAREST,
    SMALL_LIBRARY,
    TURNED_NEARER,
    bits_apart,
    near_hashes,
    nearest_across,
    nearest_hashes,
    search_radius,
)
from photodup.photos.state.own_folder import OwnFolder


def turned(bits: int) -> list[int]:
    """The hash in its eight orientations, the two of full radius first: squares of signs, mirrored and exchanged."""
    square = np.array([bits >> (63 - k) & 1 for k in range(64)]).reshape(8, 8)
    odd = np.arange(8) % 2
    signs = (0 * odd, odd, odd[:, None] + 0 * odd, odd[:, None] ^ odd)
    squares = [of ^ sign for of in (square, square.T) for sign in signs]
    return [int("".join(map(str, one.ravel())), 2) for one in squares]


def distance(a: int, turned_other: list[int]) -> int:
    return min((a ^ one).bit_count() + TURNED_NEARER * (i > 1) for i, one in enumerate(turned_other))


def brute_force(values: list[int], radius: int) -> tuple[dict, dict]:
    """Pairs within the radius: those surely among the `NEAREST` of either row, and those that tie for it."""
    others = [turned(bits) for bits in values]
    pairs = {(i, j): distance(a, b) for j, b in enumerate(others) for i, a in enumerate(values[:j])}
    found = {pair: d for pair, d in pairs.items() if d <= radius}
    by_row = defaultdict(list)
    for (i, j), bits in found.items():
        by_row[i].append(bits)
        by_row[j].append(bits)
    surely = {pair: d for pair, d in found.items() if any(rank(by_row[i], d, 1) <= NEAREST for i in pair)}
    perhaps = {pair: d for pair, d in found.items() if any(rank(by_row[i], d, 0) < NEAREST for i in pair)}
    return surely, perhaps


def rank(distances: list[int], d: int, ties: int) -> int:
    return sum(other < d + ties for other in distances)


def as_dict(pairs):
    assert (pairs.first < pairs.second).all()
    rows = zip(pairs.first.tolist(), pairs.second.tolist(), strict=True)
    return dict(zip(rows, bits_apart(pairs).tolist(), strict=True))


def hashes(n: int, seed: int) -> np.ndarray:
    """Random hashes, a third of them near another one in some orientation."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2**64, n, np.uint64)
    for i in range(2, n, 3):
        flips = sum(1 << int(b) for b in rng.choice(64, rng.integers(0, 12), replace=False))
        bits[i] = turned(int(bits[rng.integers(i)]))[rng.integers(8)] ^ flips
    return bits


@settings(max_examples=30)
@given(st.integers(0, 90), st.integers(0, 1000), st.integers(0, 30), st.integers(1, 50))
def test_they_are_those_of_comparing_all_with_all(n, seed, radius, block):
    bits = hashes(n, seed)
    found = as_dict(near_hashes(bits, radius, block=block))
    surely, perhaps = brute_force(bits.tolist(), radius)
    assert surely.items() <= found.items() <= perhaps.items()


@settings(max_examples=20)
@given(st.integers(0, 60), st.integers(0, 30), st.integers(0, 1000), st.integers(0, 30))
def test_across_two_libraries_they_are_the_nearest_few_in_any_orientation(n, m, seed, radius):
    bits = hashes(n + m, seed).tolist()
    there, here = ([f"{one:016x}" for one in side] for side in (bits[:n], bits[n:]))
    found = as_dict(nearest_across([*there, None], [None, *here], radius, 3))
    for row, one in enumerate(bits[n:], start=n + 2):
        ways = list(enumerate(turned(one)))
        near = [min((a ^ b).bit_count() + TURNED_NEARER * (i > 0) for i, b in ways) for a in bits[:n]]
        own = {first: apart for (first, second), apart in found.items() if second == row}
        assert all(near[first] == apart for first, apart in own.items())
        assert sorted(own.values()) == sorted(apart for apart in near if apart <= radius)[:3]


@settings(max_examples=20)
@given(st.integers(2, 80), st.integers(0, 1000), st.integers(0, 79))
def test_new_rows_bring_their_own_pairs_only(n, seed, cut):
    bits, start = hashes(n, seed), min(cut, n)
    before, added = near_hashes(bits[:start], 12), near_hashes(bits, 12, np.arange(start, n))
    assert (added.second >= start).all()
    assert as_dict(before) | as_dict(added) == as_dict(near_hashes(bits, 12))


def test_a_crowd_of_equal_hashes_is_not_all_with_all():
    bits = np.concatenate([hashes(50, 1), np.full(3000, 7, np.uint64), np.full(5, 9, np.uint64)])
    pairs = near_hashes(bits, 10)
    degree = np.bincount(np.concatenate([pairs.first, pairs.second]), minlength=len(bits))
    assert len(pairs) <= NEAREST * len(bits)
    assert (degree[50:3050] >= NEAREST).all(), "every one of them is compared with some of the others"
    last = {tuple(pair) for pair in zip(pairs.first.tolist(), pairs.second.tolist(), strict=True)}
    assert {(i, j) for i in range(3050, 3055) for j in range(i + 1, 3055)} <= last


@given(st.integers(2, 10**8), st.integers(2, 10**8), st.sampled_from([1.0, 5.0]))
def test_the_radius_falls_as_the_library_grows(n, m, per_photo):
    small, large = sorted((n, m))
    assert MAX_RADIUS >= search_radius(small, per_photo) >= search_radius(large, per_photo) >= 0
    assert search_radius(large, 1.0) <= search_radius(large, 5.0)


@pytest.mark.parametrize("n", [2000, 20_000])
def test_by_chance_there_are_no_more_pairs_than_promised(n):
    bits = np.random.default_rng(5).integers(0, 2**64, n, np.uint64)
    allowed = max(n, SMALL_LIBRARY)
    radius = search_radius(n, 1.0)
    assert len(near_hashes(bits, radius)) <= 1.1 * allowed
    # And the bound is not idle: one bit more would be too many.
    i, j = (np.random.default_rng(k).integers(0, n, 2_000_000) for k in (0, 1))
    x = bits[i] ^ bits[j]
    near = (np.bitwise_count(x) <= radius + 1) | (np.bitwise_count(x ^ np.uint64(MIRROR)) <= radius + 1)
    assert near[i != j].mean() * n * n / 2 > 0.9 * allowed


def md5(value: object) -> str:
    return hashlib.md5(str(value).encode()).hexdigest()


def stored(folder, names, bits, radius=MAX_RADIUS):
    """The pairs as `find_neighbours` gets them, and the new rows of each search; None for all."""
    searches = []

    def counted(new):
        searches.append(None if new is None else new.tolist())
        return near_hashes(bits, radius, new)

    with PairStore(OwnFolder(folder).neighbours) as store:
        return stored_pairs(store, "hash", f"{radius} bits", names, counted, nearest_hashes), searches


@settings(max_examples=25)
@given(data=st.data())
def test_kept_between_runs_they_are_those_of_a_fresh_comparison(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("store")
    OwnFolder(folder).prepare()
    bits = hashes(60, data.draw(st.integers(0, 50)))
    for _ in range(4):
        there = data.draw(st.lists(st.integers(0, 59), min_size=0, max_size=60, unique=True))
        kept, _ = stored(folder, [md5(i) for i in there], bits[there])
        fresh = near_hashes(bits[there], MAX_RADIUS)
        near_by = {pair for pair, d in as_dict(fresh).items() if d <= 12}
        assert near_by == {pair for pair, d in as_dict(kept).items() if d <= 12}


@pytest.mark.parametrize("fault", [None, "garbage", "cut"])
def test_only_what_is_new_is_searched(tmp_path, fault):
    OwnFolder(tmp_path).prepare()
    bits, names = hashes(400, 3), [md5(i) for i in range(400)]
    stored(tmp_path, names[:390], bits[:390])
    store = tmp_path / "neighbours.sqlite"
    if fault == "garbage":
        store.write_bytes(b"no database")
    elif fault == "cut":
        store.write_bytes(store.read_bytes()[:5000])
    pairs, searches = stored(tmp_path, names, bits)
    assert searches == [None if fault else list(range(390, 400))]
    assert as_dict(pairs) == as_dict(near_hashes(bits, MAX_RADIUS))
    pairs, searches = stored(tmp_path, names, bits, radius=10)
    assert searches == [None] and as_dict(pairs) == as_dict(near_hashes(bits, 10)), "another radius"
