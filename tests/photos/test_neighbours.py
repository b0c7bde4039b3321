"""The neighbour search finds what an exact search finds, grows, and makes the same stars."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.scale import synthetic_library
from photodup.core.errors import PhotodupError
from photodup.photos.search import neighbours
from photodup.photos.search.neighbours import TOLERANCE, Bounds, among_nearest, similar_pairs
from photodup.photos.search.stars import stars

DIM = 64
PLAIN = Bounds(0.9, 0.9)


@pytest.fixture(scope="module")
def library():
    return synthetic_library(6000, dim=DIM)


def as_set(pairs):
    return set(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True))


def in_cells(vectors, bounds, new=None, **goals):
    with mock.patch.multiple(neighbours, EXACT_PRODUCTS=1000, **goals):
        pairs = similar_pairs(vectors, bounds, new)
    assert pairs.method.startswith("IVF")
    return pairs


def test_the_search_reaches_its_recall_and_says_so(library):
    exact = as_set(similar_pairs(library, PLAIN))
    pairs = in_cells(library, PLAIN)
    assert as_set(pairs) <= exact, "every pair is checked in float32"
    assert len(as_set(pairs)) / len(exact) >= 0.98
    assert pairs.recall >= 0.98


def test_a_narrow_search_is_caught_by_the_sample():
    """The planted fault: with recall asked for loosely, the reported recall must fall below 1."""
    noise, bounds = unit(4000, DIM, 0), Bounds(0.35, 0.35)
    narrow = in_cells(noise, bounds, MIN_RECALL=0.0)
    exact = as_set(similar_pairs(noise, bounds))
    assert narrow.recall < 0.9
    assert abs(narrow.recall - len(as_set(narrow)) / len(exact)) < 0.15


@pytest.mark.parametrize("search", [similar_pairs, in_cells])
def test_new_rows_bring_their_own_pairs_only(library, search, monkeypatch):
    monkeypatch.setattr(neighbours, "MIN_RECALL", 1.0)
    new = np.sort(np.random.default_rng(3).choice(len(library), 1000, replace=False))
    former = np.setdiff1d(np.arange(len(library)), new)
    before = {tuple(former[list(pair)].tolist()) for pair in as_set(similar_pairs(library[former], PLAIN))}
    after = as_set(search(library, PLAIN, new))
    assert not before & after
    assert all(set(pair) & set(new.tolist()) for pair in after)
    expected = as_set(similar_pairs(library, PLAIN))
    assert before | after <= expected
    # The sample reached 100%; of all rows cells may still miss the odd pair.
    assert len(before | after) >= len(expected) * (1 if search is similar_pairs else 0.99)


@settings(max_examples=60)
@given(st.integers(1, 60), st.integers(0, 10_000), st.floats(0.3, 0.99))
def test_stars_follow_the_rule_of_the_exact_grouping(n, seed, threshold):
    vectors, rank = unit(n, 4, seed), np.random.default_rng(seed).permutation(n).tolist()
    pairs = similar_pairs(vectors, Bounds(threshold, threshold))
    found = stars(pairs, n, rank=rank)
    expected: dict[int, set[int]] = {}
    for row in np.argsort(rank).tolist():
        near = {keeper: vectors[keeper] @ vectors[row] for keeper in expected}
        best = max(near, key=near.__getitem__, default=row)
        if near.get(best, -1) >= threshold - TOLERANCE:
            expected[best].add(row)
        else:
            expected[row] = set()
    assert {keeper: set(rows) for keeper, rows in found.items()} == {
        k: rows for k, rows in expected.items() if rows
    }


def test_wrong_input_is_one_sentence():
    with pytest.raises(PhotodupError, match="between 0 and 1"):
        Bounds(1.5, 1.5)
    with pytest.raises(PhotodupError, match="not above it"):
        Bounds(0.5, 0.9)


def unit(n: int, dim: int, seed: int) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(n, dim)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def brute_force(vectors, threshold, nearest_from, k):
    """Pairs from the threshold on, and below it those among the `k` nearest of either row."""
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -1)
    near = np.argsort(-cosines, axis=1, kind="stable")[:, :k]
    among = np.zeros_like(cosines, bool)
    np.put_along_axis(among, near, True, axis=1)
    wanted = cosines >= threshold - TOLERANCE
    wanted |= (among | among.T) & (cosines >= nearest_from - TOLERANCE)
    return {(int(i), int(j)) for i, j in zip(*np.nonzero(np.triu(wanted, 1)), strict=True)}


@settings(max_examples=100)
@given(
    st.integers(2, 90), st.integers(0, 10_000), st.integers(1, 6), st.integers(0, 89), st.floats(0.3, 0.95), st.booleans()
)  # fmt: skip
def test_pairs_are_all_from_the_threshold_on_and_below_it_the_nearest_of_each_row(
    n, seed, k, cut, threshold, below
):
    """However a library grew, its pairs are those of its vectors."""
    vectors, cut, lowest = unit(n, 4, seed), min(cut, n), 0.2 if below else threshold
    bounds = Bounds(threshold, lowest, k)
    before, added = similar_pairs(vectors[:cut], bounds), similar_pairs(vectors, bounds, np.arange(cut, n))
    names = ("first", "second", "similarity")
    parts = [np.concatenate([getattr(p, name) for p in (before, added)]) for name in names]
    whole = bounds.counting(neighbours.Pairs(*parts))
    assert as_set(whole) == brute_force(vectors, threshold, lowest, k), "in two steps as in one"
    assert len(whole) == len(as_set(whole)), "no pair is found twice"
    assert (whole.first < whole.second).all() and (whole.similarity >= lowest - 1e-6).all()


def test_the_search_finds_the_nearest_in_cells_too(library):
    bounds = Bounds(0.95, 0.5, 5)
    expected = brute_force(library, 0.95, 0.5, 5)
    pairs = in_cells(library, bounds, MIN_NEAREST_RECALL=0.98)
    assert pairs.nearest_recall >= 0.95
    assert (library[pairs.first] * library[pairs.second]).sum(axis=1).min() >= 0.5 - 1e-6
    assert len(as_set(pairs) & expected) >= 0.95 * len(expected)
    assert len(pairs) < 6 * len(library)


def test_a_search_too_narrow_for_the_nearest_says_so():
    """The planted fault: noise has its neighbours in all cells, and few are searched."""
    noise = unit(4000, DIM, 0)
    pairs = in_cells(noise, Bounds(0.9, 0.2), MIN_RECALL=0, MIN_NEAREST_RECALL=0)
    assert pairs.nearest_recall < 0.6


def test_a_crowd_above_the_threshold_is_not_all_with_all(monkeypatch):
    monkeypatch.setattr(neighbours, "MAX_CROWD", 20)
    crowd = np.tile(unit(1, DIM, 0), (1000, 1)) + 0.001 * unit(1000, DIM, 1)
    crowd /= np.linalg.norm(crowd, axis=1, keepdims=True)
    for search in (similar_pairs, in_cells):
        pairs = search(crowd, PLAIN)
        degree = np.bincount(np.concatenate([pairs.first, pairs.second]), minlength=1000)
        assert degree.min() >= 20 and len(pairs) <= 20 * 1000


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0, 1, width=32)), max_size=60), st.integers(1, 5))
def test_among_nearest_is_what_sorting_says(findings, k):
    rows, similarity = (np.array([f[c] for f in findings], t) for c, t in ((0, np.int64), (1, np.float32)))
    chosen = among_nearest(rows, similarity, k)
    for row in set(rows.tolist()):
        mine = np.sort(similarity[rows == row])[::-1]
        assert sorted(similarity[(rows == row) & chosen], reverse=True) == mine[:k].tolist()
