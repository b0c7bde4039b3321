"""Pairs kept between runs: the same as comparing everything, and only the new rows are compared."""

import hashlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from photodup.photos.search.candidates import stored_pairs
from photodup.photos.search.neighbours import NeighbourIndex
from photodup.photos.state.own_folder import MARKER, OwnFolder

THRESHOLD = 0.8


def library(n: int, seed: int = 0, dim: int = 32):
    """Unit vectors in tight clusters of three, with a content hash each."""
    rng = np.random.default_rng(seed)
    centres = np.repeat(rng.normal(size=(-(-n // 3), dim)), 3, axis=0)[:n]
    vectors = (centres + 0.1 * rng.normal(size=(n, dim))).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return [hashlib.md5(f"{seed}-{i}".encode()).hexdigest() for i in range(n)], vectors


def named(pairs, md5s):
    assert (pairs.first < pairs.second).all()
    found = zip(pairs.first.tolist(), pairs.second.tolist(), strict=True)
    return {frozenset((md5s[i], md5s[j])) for i, j in found}


def fresh(md5s, vectors):
    return named(NeighbourIndex(vectors.shape[1], THRESHOLD).add(vectors), md5s)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_sequence_of_additions_and_removals_gives_the_pairs_of_a_fresh_comparison(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("store")
    OwnFolder(folder).prepare()
    md5s, vectors = library(60, seed=data.draw(st.integers(0, 50)))
    for _ in range(4):
        there = data.draw(st.lists(st.integers(0, 59), min_size=2, max_size=60, unique=True))
        names, rows = [md5s[i] for i in there], vectors[there]
        assert named(stored_pairs(folder, "a" * 64, names, rows, THRESHOLD), names) == fresh(names, rows)


@pytest.mark.parametrize("exact_below", [10_000, 1000])
def test_only_the_new_rows_are_compared(tmp_path, monkeypatch, exact_below):
    OwnFolder(tmp_path).prepare()
    md5s, vectors = library(3000)
    options = {"exact_below": exact_below}
    stored_pairs(tmp_path, "a" * 64, md5s[:2900], vectors[:2900], THRESHOLD, **options)
    added = []
    grow = NeighbourIndex.grow

    def counted(self, rows):
        added.append((len(self.vectors), len(rows) - len(self.vectors)))
        return grow(self, rows)

    monkeypatch.setattr(NeighbourIndex, "grow", counted)
    pairs = stored_pairs(tmp_path, "a" * 64, md5s, vectors, THRESHOLD, **options)
    assert added == [(2900, 100)] and "100 new among 3,000" in pairs.method
    assert len(named(pairs, md5s) & fresh(md5s, vectors)) >= 0.99 * len(fresh(md5s, vectors))
    added.clear()
    # Some are gone, the order is another, nothing is new: nothing is compared.
    left = list(reversed(range(100, 3000)))
    names = [md5s[i] for i in left]
    again = stored_pairs(tmp_path, "a" * 64, names, vectors[left], THRESHOLD, **options)
    assert added == []
    assert named(again, names) == {pair for pair in named(pairs, md5s) if pair <= set(names)}
    # And then new ones join what is left.
    names, left = [md5s[i] for i in range(100, 3000)] + ["f" * 32], [*range(100, 3000), 0]
    joined = stored_pairs(tmp_path, "a" * 64, names, vectors[left], THRESHOLD, **options)
    assert added == [(2900, 1)] and joined.recall >= 0.99


@pytest.mark.parametrize("fault", ["threshold", "model", "garbage", "cut", "most gone", "cells gone"])
def test_what_does_not_fit_is_compared_again(tmp_path, fault):
    OwnFolder(tmp_path).prepare()
    md5s, vectors = library(1500)
    options = {"exact_below": 1000}
    stored_pairs(tmp_path, "a" * 64, md5s, vectors, THRESHOLD, **options)
    store, cells = tmp_path / f"neighbours-{'a' * 16}.npz", tmp_path / f"neighbours-{'a' * 16}-cells.npz"
    assert store.is_file() and cells.is_file()
    threshold, digest, n = THRESHOLD, "a" * 64, 1500
    if fault == "threshold":
        threshold = 0.9
    elif fault == "model":
        digest = "b" * 64
    elif fault == "garbage":
        store.write_bytes(b"no archive")
    elif fault == "cut":
        cells.write_bytes(cells.read_bytes()[:100])
    elif fault == "most gone":
        n = 600
    elif fault == "cells gone":
        cells.unlink()
    pairs = stored_pairs(tmp_path, digest, md5s[:n], vectors[:n], threshold, **options)
    expected = NeighbourIndex(32, threshold).add(vectors[:n])
    assert len(named(pairs, md5s) & named(expected, md5s)) >= 0.99 * len(expected)


def test_a_full_disk_costs_nothing_but_time(tmp_path, monkeypatch):
    OwnFolder(tmp_path).prepare()
    md5s, vectors = library(100)

    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    assert named(stored_pairs(tmp_path, "a" * 64, md5s, vectors, THRESHOLD), md5s) == fresh(md5s, vectors)
    assert [path.name for path in tmp_path.iterdir()] == [MARKER]
