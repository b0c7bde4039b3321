"""Pairs kept between runs: the same as comparing everything, and only the new rows are compared."""

import hashlib
import zipfile
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from photodup.photos.search.candidates import stored_pairs
from photodup.photos.search.neighbours import ArraysError, NeighbourIndex, read_arrays
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


@settings(max_examples=25)
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


def rewritten(path, **changes):
    """Write a file of arrays anew, its check sums right, with other arrays in it."""
    with np.load(path) as saved:
        arrays = dict(saved)
    for name in changes.keys() & arrays.keys():
        arrays[name] = changes[name](arrays[name])
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})


def filled(value):
    """Return what puts one value everywhere into an array."""
    return lambda array: np.full_like(array, value)


def packed(path, *_):
    """6 GB in 6 MB, by one hundredth of it."""
    with np.load(path) as saved:
        arrays = dict(saved)
    np.savez_compressed(path, **arrays | {"second": np.zeros(16_000_000, np.int32)})


def promising(path, *_, shape="(10000000000000,)"):
    """Give an array's header another shape, in the same bytes."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    for name, data in members.items():
        if b"'shape': (" in data[:128] and b"()" not in data[:128]:
            length = int.from_bytes(data[8:10], "little")
            header = data[10 : 10 + length].decode()
            before = header[: header.index("'shape': ") + len("'shape': ")]
            header = f"{before}{shape}, }}".ljust(length - 1) + "\n"
            members[name] = (
                data[:8] + len(header).to_bytes(2, "little") + header.encode() + data[10 + length :]
            )
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)


FORGED = {
    "packed": packed,
    "a shape of terabytes": promising,
    "a shape below nothing": partial(promising, shape="(-1,)"),
    "a header that nests": partial(promising, shape="(" * 3000),
    "a part is missing": partial(rewritten, method=lambda _: None, probes=lambda _: None),
    "a part of another shape": partial(rewritten, method=lambda _: "exact\x1b[2J", probes=lambda _: np.array([1, 2])),
    "rows that are not there": partial(rewritten, second=filled(10**6), cells=filled(7000)),
    "rows below nothing": partial(rewritten, first=filled(-5), cells=filled(-1)),
    "fewer rows of one": partial(rewritten, first=lambda rows: rows[1:], cells=lambda rows: rows[1:]),
    "one content twice": partial(rewritten, md5s=filled(b"a" * 32), probes=filled(-1)),
    "values that are no numbers": partial(rewritten, similarity=filled(np.nan), centres=filled(np.nan)),
    "a search without end": partial(rewritten, recall=filled(np.nan), probes=filled(0)),
    "objects": partial(rewritten, first=lambda _: np.array([{}], object), cells=lambda _: np.array([{}], object)),
    "numbers of another kind": partial(rewritten, md5s=lambda md5s: np.arange(len(md5s)), cells=np.float64),
}  # fmt: skip


@pytest.mark.parametrize("which", ["", "-cells"])
@pytest.mark.parametrize("forged", FORGED)
def test_what_somebody_else_put_there_is_compared_again(tmp_path, forged, which):
    OwnFolder(tmp_path).prepare()
    md5s, vectors = library(1500)
    options = {"exact_below": 1000}
    expected = named(stored_pairs(tmp_path, "a" * 64, md5s, vectors, THRESHOLD, **options), md5s)
    store = tmp_path / f"neighbours-{'a' * 16}{which}.npz"
    FORGED[forged](store)
    found = stored_pairs(tmp_path, "a" * 64, md5s, vectors, THRESHOLD, **options)
    assert named(found, md5s) == expected and found.method.isprintable()


def test_nothing_is_unpacked_that_photodup_did_not_write(tmp_path):
    np.savez(tmp_path / "a.npz", second=np.zeros(5, np.int32))
    layout = {"second": ("<i4", "pair")}
    assert read_arrays(tmp_path / "a.npz", layout, 1000)["second"].tolist() == [0] * 5
    with pytest.raises(ArraysError, match="larger than a library of this size needs"):
        read_arrays(tmp_path / "a.npz", layout, 100)
    packed(tmp_path / "a.npz")
    assert (tmp_path / "a.npz").stat().st_size < 70_000
    with pytest.raises(ArraysError, match="packed, or too large"):
        read_arrays(tmp_path / "a.npz", layout, 10**9)


def test_a_full_disk_costs_nothing_but_time(tmp_path, monkeypatch):
    OwnFolder(tmp_path).prepare()
    md5s, vectors = library(100)

    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    assert named(stored_pairs(tmp_path, "a" * 64, md5s, vectors, THRESHOLD), md5s) == fresh(md5s, vectors)
    assert [path.name for path in tmp_path.iterdir()] == [MARKER]
