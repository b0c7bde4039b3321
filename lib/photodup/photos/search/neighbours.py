"""Similar pairs among very many vectors, without comparing all with all.

Few rows are compared with all (`EXACT_PRODUCTS`). Of many, FAISS sorts all into cells (an inverted file, IVF) and compares
each row with the rows of its nearest cells only. The number of these cells is doubled until the recall, measured against an
exact search for a sample of rows, reaches the goal. The measured recall comes with the pairs.

Two bounds keep the number of pairs in proportion to the rows: below the threshold each row has its nearest few, and above it
its nearest `MAX_CROWD`, even in a crowd of equal pictures (a webcam's year).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from photodup.core.errors import PhotodupError

# Rounding of float32 products of unit vectors: a vector's product with itself may be 0.9999999.
TOLERANCE = 1e-6
# Most products of two rows in an exact search: 45,000 rows with each other, or 2,000 new ones with a million.
EXACT_PRODUCTS = 2_000_000_000
SAMPLE = 1000
# Shares of a sample's true pairs that are to be found: above the threshold, and below it, where neighbours lie further
# apart and in more cells. The search widens until both are reached.
MIN_RECALL, MIN_NEAREST_RECALL = 0.995, 0.95
# Most pairs above the threshold that each row keeps.
MAX_CROWD = 500
# Neighbours of a new row that count below the threshold: it may be among the nearest of an old row.
_NEAREST_OF_NEW = 100
# The search is not widened further than this for the sake of neighbours below the threshold.
_MAX_NEAREST_PROBES = 32
_BLOCK = 4096  # rows searched at a time

# FAISS's search: cosines and rows, float32 and int64 [n, k], of the k nearest, the nearest first.
_Search = Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Pairs:
    """Pairs of rows: `first[i] < second[i]`, each pair once.

    `similarity` is 0..1: a cosine, or of hashes the share of equal bits. `recall` is the share of the true pairs above the
    threshold of a sample that the search found (1.0 when exact), `nearest_recall` that of the nearest neighbours below it.
    """

    first: np.ndarray
    second: np.ndarray
    similarity: np.ndarray
    method: str = "exact"
    recall: float = 1.0
    nearest_recall: float = 1.0

    @classmethod
    def of(cls, rows: np.ndarray, neighbours: np.ndarray, similarity: np.ndarray, *facts: Any) -> "Pairs":
        """Return each pair once, at its highest similarity and by rising row, from matches of rows."""
        nearest = np.argsort(-similarity, kind="stable")
        first, second = np.minimum(rows, neighbours)[nearest], np.maximum(rows, neighbours)[nearest]
        _, chosen = np.unique(first << 32 | second, return_index=True)
        return cls(first[chosen], second[chosen], similarity[nearest][chosen], *facts)

    def __len__(self) -> int:
        return len(self.first)

    def chosen(self, rows: np.ndarray) -> "Pairs":
        """Return some of the pairs, by index or mask."""
        return replace(
            self, first=self.first[rows], second=self.second[rows], similarity=self.similarity[rows]
        )

    def joined_with(self, *added: "Pairs") -> "Pairs":
        """Return these pairs and others, each once at its highest similarity."""
        parts = [self, *added]
        columns = zip(*((part.first, part.second, part.similarity) for part in parts), strict=True)
        return Pairs.of(*map(np.concatenate, columns), self.method, min(part.recall for part in parts))

    def among_nearest(self, k: int) -> np.ndarray:
        """Return bool for each pair: it is among the `k` most similar of either row."""
        rows = np.concatenate([self.first, self.second])
        first, second = among_nearest(rows, np.tile(self.similarity, 2), k).reshape(2, -1)
        return first | second


@dataclass(frozen=True)
class Bounds:
    """Which pairs count.

    Attributes:
        threshold: from this cosine on every pair does (of a crowd each row's `MAX_CROWD` nearest).
        lowest: below the threshold and down to this cosine, the `nearest` most similar rows of either row do too; the
            threshold itself for none.
        nearest: how many.

    Raises:
        PhotodupError: cosines outside 0..1, or in the wrong order.
    """

    threshold: float
    lowest: float
    nearest: int = 10

    def __post_init__(self) -> None:
        if not 0 < self.lowest <= self.threshold <= 1:
            raise PhotodupError(
                f"A similarity threshold lies between 0 and 1, not {self.threshold}, and the lowest cosine "
                f"({self.lowest}) not above it."
            )

    def counting(self, pairs: Pairs) -> Pairs:
        """Return those of some pairs that count for either of their rows."""
        above = np.flatnonzero(pairs.similarity >= self.threshold - TOLERANCE)
        counts = np.zeros(len(pairs), bool)
        counts[above] = pairs.chosen(above).among_nearest(MAX_CROWD)
        if self.lowest < self.threshold:
            counts |= pairs.among_nearest(self.nearest)
        return pairs.chosen(counts)


def similar_pairs(vectors: np.ndarray, bounds: Bounds, new: np.ndarray | None = None) -> Pairs:
    """Return the pairs that count of which at least one row is new.

    Args:
        vectors: float32[n, dim] of length 1.
        bounds: which pairs count.
        new: the new rows; default all.
    """
    import faiss

    rows = np.arange(len(vectors)) if new is None else new
    matches = partial(_matches, vectors, bounds)

    def compare_all(queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        return faiss.knn(queries, vectors, k, metric=faiss.METRIC_INNER_PRODUCT)

    if len(rows) * len(vectors) <= EXACT_PRODUCTS:
        return bounds.counting(Pairs.of(*matches(compare_all, rows)))
    index = _cells(vectors)
    sample = np.random.default_rng(1).choice(rows, min(SAMPLE, len(rows)), replace=False)
    truth = matches(compare_all, sample)
    while True:
        recalls = _recalls(truth, matches(index.search, sample), bounds.threshold)
        is_wide = index.nprobe >= _MAX_NEAREST_PROBES or recalls[1] >= MIN_NEAREST_RECALL
        if (recalls[0] >= MIN_RECALL and is_wide) or index.nprobe >= index.nlist:
            break
        index.nprobe *= 2
    method = f"IVF {index.nlist} cells, {index.nprobe} searched"
    return bounds.counting(Pairs.of(*matches(index.search, rows), method, *recalls))


def _cells(vectors: np.ndarray) -> Any:
    """Return FAISS's index of these rows in cells, of which it searches two."""
    import faiss

    n_cells = int(2 ** np.round(np.log2(4 * np.sqrt(len(vectors)))))
    index: Any = faiss.index_factory(vectors.shape[1], f"IVF{n_cells},Flat", faiss.METRIC_INNER_PRODUCT)
    index.cp.niter, index.cp.seed = 6, 1
    index.cp.min_points_per_centroid, index.cp.max_points_per_centroid = 4, 40
    index.train(vectors)
    index.add(vectors)
    index.nprobe = 2
    return index


# Row, neighbour, and cosine of both.
_Matches = tuple[np.ndarray, np.ndarray, np.ndarray]


def _matches(vectors: np.ndarray, bounds: Bounds, search: _Search, rows: np.ndarray) -> _Matches:
    """Search these rows, and return what can count for them or for their neighbours."""
    k = min(MAX_CROWD + 1, len(vectors))  # a row is its own neighbour
    n_nearest = bounds.nearest + 1 if len(rows) == len(vectors) else _NEAREST_OF_NEW
    parts: list[_Matches] = [(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32))]
    for begin in range(0, len(rows) if k else 0, _BLOCK):
        block = rows[begin : begin + _BLOCK]
        cosines, neighbours = search(vectors[block], k)
        can_count = cosines >= bounds.threshold - TOLERANCE
        can_count[:, :n_nearest] |= cosines[:, :n_nearest] >= bounds.lowest - TOLERANCE
        can_count &= (neighbours >= 0) & (neighbours != block[:, None])
        parts.append((block[np.nonzero(can_count)[0]], neighbours[can_count], cosines[can_count]))
    rows, neighbours, cosines = (np.concatenate(part) for part in zip(*parts, strict=True))
    return rows, neighbours, np.minimum(cosines, 1)


def _recalls(truth: _Matches, matches: _Matches, threshold: float) -> tuple[float, float]:
    """Return the shares of the true neighbours that were matched, from the threshold on and below it."""
    expected, actual = (rows << 32 | neighbours for rows, neighbours, _ in (truth, matches))
    is_matched, above = np.isin(expected, actual), truth[2] >= threshold - TOLERANCE
    recall, below = (float(is_matched[part].mean()) if part.any() else 1.0 for part in (above, ~above))
    return recall, below


def among_nearest(rows: np.ndarray, similarity: np.ndarray, k: int) -> np.ndarray:
    """Return bool for each neighbour: it is among the `k` most similar (0..1) of its row; of equal ones the first."""
    nearness = np.maximum(similarity, 0).astype(np.float32).view(np.uint32)  # ordered as the numbers are
    order = np.argsort(rows.astype(np.uint64) << 32 | (0xFFFFFFFF - nearness), kind="stable")
    sorted_rows = rows[order]
    begins = np.flatnonzero(np.diff(sorted_rows, prepend=-1))
    place = np.arange(len(rows)) - np.repeat(begins, np.diff(begins, append=len(rows)))
    chosen = np.zeros(len(rows), bool)
    chosen[order] = place < k
    return chosen
