"""Similar pairs among very many vectors, without comparing all with all.

Below `EXACT_BELOW` rows every pair is compared. Above, FAISS's k-means sorts the rows into cells (an
inverted file, IVF) and each row is compared with the rows of its nearest cells only. How many cells is not
guessed: the number is doubled until the recall, measured against an exact search for a sample of rows,
reaches the goal. The measured recall comes with the result.

Two bounds keep the number of pairs in proportion to the rows, whatever they show: below the threshold only the
nearest few of each row are pairs, and above it a crowd of equal pictures (a webcam's year) is not all with all.
"""

import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from photodup.core.errors import PhotodupError

# Rounding of float32 products of unit vectors: a vector's product with itself may be 0.9999999.
TOLERANCE = 1e-6
# Above this an index pays: exact is n²/2 products, 0.1 s at 10,000 rows and 15 s at 100,000 on two cores
# (order of magnitude; `python -m benchmarks --only scale` measures it).
EXACT_BELOW = 30_000
SAMPLE = 1000
# Of a crowd above the threshold each row keeps so many.
MAX_CROWD = 500
# Nearest cells remembered for each row.
_STORED = 8
# Findings that are held before they are cut to what counts: 12 bytes each, and as much again to sort them.
_MAX_HELD = 30_000_000
# The search is not widened further than this for the sake of neighbours below the threshold.
_MAX_NEAREST_PROBES = 32


class ArraysError(PhotodupError):
    """A file of arrays that is not as `np.savez` wrote it; compare again."""


def read_arrays(
    path: Path, layout: Mapping[str, tuple[str | int, ...]], most_bytes: int
) -> dict[str, np.ndarray]:
    """Return arrays that `np.savez` wrote, each checked by its header before memory is used for it.

    A library's caches may be somebody else's: a file of 6 MB can unpack to 6 GB, and a header can promise any shape.

    Args:
        path: the file.
        layout: each array's dtype as NumPy writes it (`<U` is any length) and its sizes; a size with a name is
            the same wherever the name stands.
        most_bytes: of the file, and of each array.

    Raises:
        ArraysError: an array is missing, compressed, cut short, too large or of another dtype or shape.
    """
    arrays: dict[str, np.ndarray] = {}
    sizes: dict[str | int, int] = {}
    try:
        if path.stat().st_size > most_bytes:
            raise ValueError("it is larger than a library of this size needs")
        with zipfile.ZipFile(path) as archive:
            for name, (kind, *dims) in layout.items():
                member = archive.getinfo(f"{name}.npy")
                if member.compress_type != zipfile.ZIP_STORED or member.file_size > most_bytes:
                    raise ValueError(f"{name} is packed, or too large")
                with archive.open(member) as data:
                    if np.lib.format.read_magic(data) != (1, 0):
                        raise ValueError(f"{name} is of another version")
                    shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(data)
                    n_bytes = math.prod(shape) * dtype.itemsize
                    expected = [
                        size if isinstance(size, int) else sizes.setdefault(size, actual)
                        for size, actual in zip(dims, shape, strict=True)
                    ]
                    is_as_written = (
                        dtype.str.startswith(str(kind)) and not is_fortran and list(shape) == expected
                    )
                    is_whole = min(shape, default=0) >= 0 and data.tell() + n_bytes == member.file_size
                    if not is_as_written or not is_whole:
                        raise ValueError(f"{name} is {dtype} {shape}")
                    arrays[name] = np.frombuffer(data.read(n_bytes), dtype).reshape(shape)
    except Exception as error:  # zipfile's and NumPy's, a dozen kinds on damaged bytes
        raise ArraysError(f"{path} is not as photodup wrote it ({error}): build it again.") from None
    return arrays


@dataclass(frozen=True)
class Pairs:
    """Pairs of rows: `first[i] < second[i]`, each pair once, by rising row.

    `recall` is the share of the true pairs above the threshold of `n_sampled` rows that were found (1.0 and 0
    when exact), `nearest_recall` that of the nearest neighbours below it.
    """

    first: np.ndarray
    second: np.ndarray
    similarity: np.ndarray
    method: str
    recall: float
    n_sampled: int
    nearest_recall: float = 1.0

    def __len__(self) -> int:
        return len(self.first)


class NeighbourIndex:
    """An index of unit vectors that grows: new rows are compared with all, old rows never again.

    Args:
        dim: length of the vectors.
        threshold: from this cosine on every pair counts (of a crowd each row's `MAX_CROWD` nearest).
        nearest_from: below the threshold and down to this cosine, the `nearest` most similar rows of either
            row of a pair count too; default: the threshold, so none.
        nearest: how many.
        min_recall: goal for the share of true pairs above the threshold that are found; the search widens until
            a sample reaches it.
        min_nearest_recall: the same below it, where neighbours lie further apart and in more cells.
        exact_below: stay exact while there are fewer rows.
    """

    def __init__(
        self,
        dim: int,
        threshold: float,
        *,
        nearest_from: float | None = None,
        nearest: int = 10,
        min_recall: float = 0.995,
        min_nearest_recall: float = 0.95,
        exact_below: int = EXACT_BELOW,
    ) -> None:
        self.lowest = threshold if nearest_from is None else nearest_from
        if not 0 < self.lowest <= threshold <= 1:
            raise PhotodupError(
                f"A similarity threshold lies between 0 and 1, not {threshold}, and nearest_from "
                f"({self.lowest}) not above it."
            )
        self.dim, self.threshold, self.nearest = dim, threshold, nearest
        self.min_recall, self.min_nearest_recall = min_recall, min_nearest_recall
        self.exact_below = exact_below
        self.vectors = np.zeros((0, dim), np.float32)
        self._centres: np.ndarray = np.zeros((0, dim), np.float32)
        self._cells = np.zeros((0, _STORED), np.int32)
        self._probes = 2

    def add(self, vectors: np.ndarray) -> Pairs:
        """Add float32[n, dim] unit vectors as the next rows; return the pairs that at least one is in."""
        new = np.ascontiguousarray(vectors, np.float32)
        if new.ndim != 2 or new.shape[1] != self.dim:
            raise PhotodupError(f"This index holds vectors of {self.dim} values, not of shape {new.shape}.")
        return self.grow(new if not len(self.vectors) else np.concatenate([self.vectors, new]))

    def grow(self, rows: np.ndarray) -> Pairs:
        """Take float32[n, dim], whose first rows are those at hand, as all rows; return what `add` returns.

        The array is kept, not copied: a million rows are two gigabytes.
        """
        start, self.vectors = len(self.vectors), rows
        if len(rows) < self.exact_below:
            findings = self._exact(start)
            return self.counting(_pairs(*findings, "exact", 1.0, 0))
        if not self.has_cells:
            self._build()
        missing = rows[len(self._cells) :]
        self._cells = np.concatenate([self._cells, self._nearest_cells(missing, _STORED)])
        return self.counting(self._search(start))

    def counting(self, pairs: Pairs) -> Pairs:
        """Return those of some pairs that count for either of their rows."""
        rows = np.concatenate([pairs.first, pairs.second])
        counts = self.counts(rows, np.tile(pairs.similarity, 2)).reshape(2, -1).any(axis=0)
        chosen = {name: getattr(pairs, name)[counts] for name in ("first", "second", "similarity")}
        return replace(pairs, **chosen)

    def counts(self, rows: np.ndarray, similarity: np.ndarray) -> np.ndarray:
        """Return bool for each finding: it is similar enough for its row, or among that row's nearest."""
        above = np.flatnonzero(similarity >= self.threshold - TOLERANCE)
        counts = np.zeros(len(rows), bool)
        counts[above] = among_nearest(rows[above], similarity[above], MAX_CROWD)
        if self.lowest < self.threshold:
            counts |= among_nearest(rows, similarity, self.nearest)
        return counts

    @property
    def has_cells(self) -> bool:
        """Whether there is anything to save: a small index compares all with all."""
        return len(self._centres) > 0

    def save(self, file: BinaryIO) -> None:
        """Write the cells (not the vectors, which the catalogue has) so that the next add is incremental."""
        np.savez(file, centres=self._centres, cells=self._cells, probes=self._probes)

    def load(self, path: Path, vectors: np.ndarray, keep: np.ndarray | None = None) -> None:
        """Read cells that were saved with these rows in this order.

        Args:
            path: what `save` wrote.
            vectors: float32[n, dim] unit vectors.
            keep: bool for each row that was saved, where not all of them are still there.

        Raises:
            ArraysError: they are damaged, or those of another number of rows; build them again.
        """
        layout: dict[str, tuple[str | int, ...]]
        layout = {"centres": ("<f4", "cell", self.dim), "cells": ("<i4", "row", "near"), "probes": ("<i8",)}
        saved = read_arrays(path, layout, 65_536 + len(vectors) * (64 + 4 * self.dim))
        centres, cells, probes = saved["centres"], saved["cells"], int(saved["probes"])
        if not (
            probes > 0 < cells.size
            and np.isfinite(centres).all()
            and 0 <= cells.min() <= cells.max() < len(centres)
        ):
            raise ArraysError(f"{path} holds cells that no search makes.")
        if keep is not None and len(keep) == len(cells):
            cells = cells[keep]
        if len(cells) != len(vectors):
            raise ArraysError(
                f"{path} was made for {len(cells)} rows, the catalogue has {len(vectors)}: build it again."
            )
        self.vectors = np.ascontiguousarray(vectors, np.float32)
        self._centres, self._cells, self._probes = centres, cells, probes

    def _build(self) -> None:
        import faiss

        n = len(self.vectors)
        n_cells = int(2 ** np.round(np.log2(4 * np.sqrt(n))))
        rows = np.sort(np.random.default_rng(0).choice(n, min(n, 40 * n_cells), replace=False))
        kmeans = faiss.Kmeans(self.dim, n_cells, niter=6, spherical=True, seed=1, min_points_per_centroid=4)
        kmeans.train(self.vectors[rows])
        self._centres = np.asarray(kmeans.centroids)
        self._cells = np.zeros((0, _STORED), np.int32)

    def _nearest_cells(self, vectors: np.ndarray, k: int) -> np.ndarray:
        """Return int32[n, k]: the cells whose centres are nearest, the nearest first."""
        import faiss

        index = faiss.IndexFlatIP(self.dim)
        index.add(self._centres)
        batches = [
            index.search(vectors[i : i + 65536], min(k, len(self._centres)))[1].astype(np.int32)
            for i in range(0, len(vectors), 65536)
        ]
        return np.concatenate(batches)

    def _search(self, start: int) -> Pairs:
        """Search rows from `start` on, widening until a sample of them reaches the recall."""
        rng = np.random.default_rng(1)
        n_new = len(self.vectors) - start
        sample = start + rng.choice(n_new, min(SAMPLE, n_new), replace=False)
        truth = self._exact_neighbours(sample)
        while True:
            recall, nearest_recall = self._recall(sample, truth)
            enough = recall >= self.min_recall and nearest_recall >= self.min_nearest_recall
            wide = self._probes >= _MAX_NEAREST_PROBES and recall >= self.min_recall
            if enough or wide or self._probes >= len(self._centres):
                break
            self._probes *= 2
        findings = self._neighbours(np.arange(start, len(self.vectors)), both_ends=start > 0)
        method = f"IVF {len(self._centres)} cells, {min(self._probes, len(self._centres))} searched"
        return replace(_pairs(*findings, method, recall, len(sample)), nearest_recall=nearest_recall)

    def _neighbours(self, rows: np.ndarray, *, both_ends: bool = False) -> "_Findings":
        """Return (row, other, similarity): each row against the rows of its nearest cells.

        Cell by cell, as one matrix product: many times faster than row by row, since what belongs
        together is read from memory once. With `both_ends` what is among the nearest of the other row is
        found too: it may be an old one, and not be asked itself.
        """
        if self._probes <= self._cells.shape[1]:
            probed = self._cells[rows, : self._probes]
        else:
            probed = self._nearest_cells(self.vectors[rows], self._probes)
        probes = probed.shape[1]
        home = self._cells[:, 0]
        by_home = np.argsort(home, kind="stable")
        home_at = np.searchsorted(home[by_home], np.arange(len(self._centres) + 1))
        visits = np.argsort(probed.ravel(), kind="stable")
        visit_at = np.searchsorted(probed.ravel()[visits], np.arange(len(self._centres) + 1))
        collected = _Collected(self, both_ends=both_ends)
        for cell in range(len(self._centres)):
            inside = by_home[home_at[cell] : home_at[cell + 1]]
            visitors = rows[visits[visit_at[cell] : visit_at[cell + 1]] // probes]
            if not len(inside) or not len(visitors):
                continue
            home_vectors = self.vectors[inside]
            for begin in range(0, len(visitors), 4096):
                here = visitors[begin : begin + 4096]
                collected.add(self.vectors[here] @ home_vectors.T, here, inside)
        return collected.all()

    def _exact(self, start: int, block: int = 2048) -> "_Findings":
        """Compare rows from `start` on with all rows before them."""
        collected = _Collected(self, both_ends=True)
        for begin in range(start, len(self.vectors), block):
            end = min(begin + block, len(self.vectors))
            products = self.vectors[begin:end] @ self.vectors[:end].T
            collected.add(products, np.arange(begin, end), np.arange(end))
        return collected.all()

    def _exact_neighbours(self, rows: np.ndarray, block: int = 65536) -> "_Findings":
        collected = _Collected(self, both_ends=False)
        for begin in range(0, len(self.vectors), block):
            block_rows = np.arange(begin, min(begin + block, len(self.vectors)))
            collected.add(self.vectors[rows] @ self.vectors[begin : begin + block].T, rows, block_rows)
        return collected.cut()

    def _recall(self, sample: np.ndarray, truth: "_Findings") -> tuple[float, float]:
        """Return the shares of the true neighbours that are found, from the threshold on and below it."""
        keys = truth[0].astype(np.int64) << 32 | truth[1]
        rows, other_rows, _ = self._neighbours(sample)
        is_found = np.isin(keys, rows.astype(np.int64) << 32 | other_rows)
        above = truth[2] >= self.threshold - TOLERANCE
        recall, below = (float(is_found[part].mean()) if part.any() else 1.0 for part in (above, ~above))
        return recall, below


# Row, other row, similarity of each finding.
_Findings = tuple[np.ndarray, np.ndarray, np.ndarray]


class _Collected:
    """Findings of a search, cut to what can still count whenever there are too many to hold."""

    def __init__(self, index: NeighbourIndex, *, both_ends: bool) -> None:
        self._index, self._both_ends = index, both_ends
        self._parts: list[_Findings] = [
            (np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.float32))
        ]
        self._n, self._most = 0, _MAX_HELD
        # Below this similarity nothing can be among a row's nearest any more.
        self._floor = np.full(len(index.vectors), index.lowest - TOLERANCE, np.float32)

    def add(self, products: np.ndarray, left: np.ndarray, right: np.ndarray) -> None:
        """Take what counts of a block of cosines, of rows `left` with rows `right`."""
        chosen = self._choose(products, left)
        if self._both_ends and self._index.lowest < self._index.threshold:
            chosen |= self._choose(products.T, right).T
        i, j = np.nonzero(chosen)
        rows, peers = left[i], right[j]
        keep = rows != peers
        self._parts.append((rows[keep].astype(np.int32), peers[keep].astype(np.int32), products[i, j][keep]))
        self._n += int(np.count_nonzero(keep))
        if self._n > self._most:
            self._most = max(_MAX_HELD, 2 * len(self.cut()[0]))

    def _choose(self, products: np.ndarray, rows: np.ndarray) -> np.ndarray:
        limit = np.minimum(self._floor[rows], np.float32(self._index.threshold - TOLERANCE))
        chosen = products >= limit[:, None]
        k = self._index.nearest + 1  # a row finds itself too
        if self._index.lowest < self._index.threshold and np.count_nonzero(chosen) > 4 * k * len(rows):
            kth = np.partition(products, -k, axis=1)[:, -k]
            self._floor[rows] = np.maximum(self._floor[rows], kth)
            limit = np.minimum(self._floor[rows], limit.dtype.type(self._index.threshold - TOLERANCE))
            chosen = products >= limit[:, None]
        return chosen

    def cut(self) -> _Findings:
        """Return the findings that can count, and hold only those."""
        rows, neighbours, similarity = findings = self.all()
        counts = self._index.counts(rows, similarity)
        if self._both_ends:
            counts |= self._index.counts(neighbours, similarity)
        self._parts = [tuple(values[counts] for values in findings)]
        self._n = int(np.count_nonzero(counts))
        return self._parts[0]

    def all(self) -> _Findings:
        """Return all findings held."""
        rows, neighbours, similarity = (np.concatenate(values) for values in zip(*self._parts, strict=True))
        self._parts = [(rows, neighbours, similarity)]
        return self._parts[0]


def among_nearest(rows: np.ndarray, similarity: np.ndarray, k: int) -> np.ndarray:
    """Return bool for each finding: it is among the `k` most similar (0..1) of its row; of equal ones the first."""
    nearness = np.maximum(similarity, 0).astype(np.float32).view(np.uint32)  # ordered as the numbers are
    order = np.argsort(rows.astype(np.uint64) << 32 | (0xFFFFFFFF - nearness), kind="stable")
    sorted_rows = rows[order]
    begins = np.flatnonzero(np.diff(sorted_rows, prepend=-1))
    place = np.arange(len(rows)) - np.repeat(begins, np.diff(begins, append=len(rows)))
    chosen = np.zeros(len(rows), bool)
    chosen[order] = place < k
    return chosen


def _pairs(
    rows: np.ndarray, neighbours: np.ndarray, similarity: np.ndarray, method: str, recall: float, n: int
) -> Pairs:
    """Put the smaller row first, drop the second finding of a pair, sort."""
    first, second = np.minimum(rows, neighbours), np.maximum(rows, neighbours)
    _, unique = np.unique(first.astype(np.int64) << 32 | second, return_index=True)
    return Pairs(first[unique], second[unique], np.minimum(similarity[unique], 1), method, recall, n)
