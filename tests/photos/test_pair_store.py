"""Pairs kept between runs: the same as comparing everything, and only the new rows are compared."""

import hashlib
import sqlite3
from contextlib import closing
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from photodup.photos.search import candidates, neighbours
from photodup.photos.search.candidates import PairStore, stored_pairs
from photodup.photos.search.neighbours import Bounds, similar_pairs
from photodup.photos.state.own_folder import MARKER, OwnFolder

BOUNDS = Bounds(0.8, 0.8)
DIGEST = "a" * 64


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
    return named(similar_pairs(vectors, BOUNDS), md5s)


def stored(folder, md5s, vectors, bounds=BOUNDS, digest=DIGEST):
    with PairStore(OwnFolder(folder).neighbours) as store:
        search_new = partial(candidates.similar_pairs, vectors, bounds)
        return stored_pairs(store, digest, str(bounds), md5s, search_new, bounds.counting)


@settings(max_examples=25)
@given(data=st.data())
def test_any_sequence_of_additions_and_removals_gives_the_pairs_of_a_fresh_comparison(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("store")
    OwnFolder(folder).prepare()
    md5s, vectors = library(60, seed=data.draw(st.integers(0, 50)))
    for _ in range(4):
        there = data.draw(st.lists(st.integers(0, 59), min_size=2, max_size=60, unique=True))
        names, rows = [md5s[i] for i in there], vectors[there]
        assert named(stored(folder, names, rows), names) == fresh(names, rows)


@pytest.fixture
def searches(monkeypatch):
    """The number of new rows of each search; None for all."""
    calls = []

    def counted(vectors, bounds, new=None):
        calls.append(None if new is None else len(new))
        return similar_pairs(vectors, bounds, new)

    monkeypatch.setattr(candidates, "similar_pairs", counted)
    return calls


@pytest.mark.parametrize("exact_products", [10**9, 1000])
def test_only_the_new_rows_are_compared(tmp_path, monkeypatch, searches, exact_products):
    monkeypatch.setattr(neighbours, "EXACT_PRODUCTS", exact_products)
    OwnFolder(tmp_path).prepare()
    md5s, vectors = library(3000)
    stored(tmp_path, md5s[:2900], vectors[:2900])
    searches.clear()
    pairs = stored(tmp_path, md5s, vectors)
    assert searches == [100]
    assert len(named(pairs, md5s) & fresh(md5s, vectors)) >= 0.99 * len(fresh(md5s, vectors))
    searches.clear()
    # Some are gone, the order is another, nothing is new: nothing is compared.
    left = list(reversed(range(100, 3000)))
    names = [md5s[i] for i in left]
    again = stored(tmp_path, names, vectors[left])
    assert searches == [] and again.method == pairs.method and again.recall == pairs.recall
    assert named(again, names) == {pair for pair in named(pairs, md5s) if pair <= set(names)}
    # And then new ones join what is left.
    names, left = ["f" * 32] + [md5s[i] for i in range(100, 3000)], [0, *range(100, 3000)]
    joined = stored(tmp_path, names, vectors[left])
    assert searches == [1] and joined.recall >= 0.99


@pytest.mark.parametrize("fault", ["threshold", "model", "garbage", "cut", "most gone", "gone"])
def test_what_does_not_fit_is_compared_again(tmp_path, searches, fault):
    OwnFolder(tmp_path).prepare()
    md5s, vectors = library(1500)
    stored(tmp_path, md5s, vectors)
    searches.clear()
    file = tmp_path / "neighbours.sqlite"
    bounds, digest, n = BOUNDS, DIGEST, 1500
    if fault == "threshold":
        bounds = Bounds(0.9, 0.9)
    elif fault == "model":
        digest = "b" * 64
    elif fault == "garbage":
        file.write_bytes(b"no database")
    elif fault == "cut":
        file.write_bytes(file.read_bytes()[:5000])
    elif fault == "most gone":
        n = 600
    elif fault == "gone":
        file.unlink()
    pairs = stored(tmp_path, md5s[:n], vectors[:n], bounds, digest)
    assert searches == [None]
    assert named(pairs, md5s) == named(similar_pairs(vectors[:n], bounds), md5s)
    stored(tmp_path, md5s[:n], vectors[:n], bounds, digest)
    assert len(searches) == 1, "the file was made anew"


ONES = np.ones(5, "<i4"), np.ones(5, "<f4")
FORGED = {
    "rows that are not there": {"first": ONES[0], "second": np.full(5, 10**6, "<i4"), "nearness": ONES[1]},
    "rows below nothing": {"first": np.full(5, -5, "<i4"), "second": ONES[0], "nearness": ONES[1]},
    "fewer rows of one": {"first": np.zeros(1, "<i4")},
    "half a row": {"first": np.zeros(3, np.uint8)},
    "one content twice": {"md5s": np.full(32, 170, np.uint8)},
    "half a content": {"md5s": np.full(17, 170, np.uint8)},
    "values that are no numbers": {"nearness": np.full(100_000, np.nan, "<f4")},
}  # fmt: skip


def forge(folder, **values):
    with closing(sqlite3.connect(folder / "neighbours.sqlite")) as database, database:
        for column, value in values.items():
            database.execute(
                f"UPDATE search SET {column} = ?",
                (value.tobytes() if isinstance(value, np.ndarray) else value,),
            )


@pytest.mark.parametrize(
    "forged", [*FORGED.values(), {"method": "exact\x1b[2J"}, {"recall": -1.0}, {"recall": 1e308}], ids=str
)
def test_what_somebody_else_put_there_is_compared_again(tmp_path, monkeypatch, searches, forged):
    OwnFolder(tmp_path).prepare()
    md5s, vectors = library(1500)
    expected = named(stored(tmp_path, md5s, vectors), md5s)
    searches.clear()
    monkeypatch.setattr(candidates, "_digest", lambda blobs: "forged too")
    forge(tmp_path, **forged, digest="forged too")
    pairs = stored(tmp_path, md5s, vectors)
    assert searches == [None]
    assert named(pairs, md5s) == expected and pairs.method.isprintable()


def test_a_full_disk_costs_nothing_but_time(tmp_path, monkeypatch):
    OwnFolder(tmp_path).prepare()
    md5s, vectors = library(100)

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("photodup.photos.state.cache_file.open_database", full)
    assert named(stored(tmp_path, md5s, vectors), md5s) == fresh(md5s, vectors)
    assert [path.name for path in tmp_path.iterdir()] == [MARKER]
