"""Similar pairs among very many vectors, and stars from them, without comparing all with all.

Below `EXACT_BELOW` rows every pair is compared. Above, FAISS's k-means sorts the rows into cells (an
inverted file, IVF) and each row is compared with the rows of its nearest cells only. How many cells is not
guessed: the number is doubled until the recall, measured against an exact search for a sample of rows,
reaches the goal. The measured recall comes with the result.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from photodup.errors import PhotodupError
from photodup.photos.grouping import TOLERANCE, Group

# Above this an index pays: exact is n²/2 products, 0.1 s at 10,000 rows and 15 s at 100,000 on two cores
# (order of magnitude; `python -m photodup.bench.grouping_bench` measures it).
EXACT_BELOW = 30_000
SAMPLE = 1000
# Nearest cells remembered for each row.
_STORED = 8


@dataclass(frozen=True)
class Pairs:
    """Pairs of rows at or above a threshold: `first[i] < second[i]`, each pair once, by rising row.

    `recall` is the share of the true pairs of `n_sampled` rows that were found (1.0 and 0 when exact).
    """

    first: np.ndarray
    second: np.ndarray
    similarity: np.ndarray
    method: str
    recall: float
    n_sampled: int

    def __len__(self) -> int:
        return len(self.first)


class NeighbourIndex:
    """An index of unit vectors that grows: new rows are compared with all, old rows never again.

    Args:
        dim: length of the vectors.
        threshold: smallest cosine of a pair.
        min_recall: goal for the share of true pairs found; the search widens until a sample reaches it.
        exact_below: stay exact while there are fewer rows.
    """

    def __init__(
        self, dim: int, threshold: float, *, min_recall: float = 0.995, exact_below: int = EXACT_BELOW
    ) -> None:
        if not 0 < threshold <= 1:
            raise PhotodupError(f"A similarity threshold lies between 0 and 1, not {threshold}.")
        self.dim, self.threshold, self.min_recall, self.exact_below = dim, threshold, min_recall, exact_below
        self.vectors = np.zeros((0, dim), np.float32)
        self._centres: np.ndarray | None = None
        self._cells = np.zeros((0, _STORED), np.int32)

    def add(self, vectors: np.ndarray) -> Pairs:
        """Add float32[n, dim] unit vectors as the next rows; return the pairs that at least one is in."""
        new = np.ascontiguousarray(vectors, np.float32)
        if new.ndim != 2 or new.shape[1] != self.dim:
            raise PhotodupError(f"This index holds vectors of {self.dim} values, not of shape {new.shape}.")
        start = len(self.vectors)
        # A library that is added in one go is not copied: a million rows are two gigabytes.
        self.vectors = new if start == 0 else np.concatenate([self.vectors, new])
        if len(self.vectors) < self.exact_below:
            return _pairs(*_exact(self.vectors, start, self.threshold), "exact", 1.0, 0)
        if self._centres is None:
            self._build()
        missing = self.vectors[len(self._cells) :]
        self._cells = np.concatenate([self._cells, self._nearest_cells(missing, _STORED)])
        return self._search(start)

    def save(self, path: Path) -> None:
        """Write the cells (not the vectors, which the catalogue has) so that the next add is incremental."""
        if self._centres is not None:
            with open(path, "wb") as file:
                np.savez(file, centres=self._centres, cells=self._cells)

    def load(self, path: Path, vectors: np.ndarray) -> None:
        """Read cells that were saved with these rows in this order.

        Raises:
            PhotodupError: they are those of another number of rows; build them again.
        """
        with np.load(path) as saved:
            centres, cells = saved["centres"], saved["cells"]
        if (len(cells), centres.shape[1]) != (len(vectors), self.dim):
            raise PhotodupError(
                f"{path} was made for {len(cells)} rows, the catalogue has {len(vectors)}: build it again."
            )
        self.vectors = np.ascontiguousarray(vectors, np.float32)
        self._centres, self._cells = centres, cells

    def _build(self) -> None:
        import faiss

        n = len(self.vectors)
        n_cells = int(2 ** np.round(np.log2(4 * np.sqrt(n))))
        rows = np.sort(np.random.default_rng(0).choice(n, min(n, 40 * n_cells), replace=False))
        kmeans = faiss.Kmeans(self.dim, n_cells, niter=6, spherical=True, seed=1, min_points_per_centroid=4)
        kmeans.train(self.vectors[rows])
        self._centres = kmeans.centroids
        self._cells = np.zeros((0, _STORED), np.int32)

    def _nearest_cells(self, vectors: np.ndarray, k: int) -> np.ndarray:
        """Return int32[n, k]: the cells whose centres are nearest, the nearest first."""
        import faiss

        index = faiss.IndexFlatIP(self.dim)
        index.add(self._centres)
        found = [
            index.search(vectors[i : i + 65536], min(k, len(self._centres)))[1].astype(np.int32)
            for i in range(0, len(vectors), 65536)
        ]
        return np.concatenate(found)

    def _search(self, start: int) -> Pairs:
        """Search rows from `start` on, widening until a sample of them reaches the recall."""
        rng = np.random.default_rng(1)
        n_new = len(self.vectors) - start
        sample = start + rng.choice(n_new, min(SAMPLE, n_new), replace=False)
        truth = self._exact_neighbours(sample)
        probes = 2
        while True:
            recall = self._recall(sample, truth, probes)
            if recall >= self.min_recall or probes >= len(self._centres):
                break
            probes *= 2
        found = self._neighbours(np.arange(start, len(self.vectors)), probes)
        method = f"IVF {len(self._centres)} cells, {min(probes, len(self._centres))} searched"
        return _pairs(*found, method, recall, len(sample))

    def _neighbours(self, rows: np.ndarray, probes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (row, other, similarity): each row against the rows of its nearest cells.

        Cell by cell, as one matrix product: many times faster than row by row, since what belongs
        together is read from memory once.
        """
        if probes <= self._cells.shape[1]:
            wanted = self._cells[rows, :probes]
        else:
            wanted = self._nearest_cells(self.vectors[rows], probes)
        probes = wanted.shape[1]
        home = self._cells[:, 0]
        by_home = np.argsort(home, kind="stable")
        home_at = np.searchsorted(home[by_home], np.arange(len(self._centres) + 1))
        visits = np.argsort(wanted.ravel(), kind="stable")
        visit_at = np.searchsorted(wanted.ravel()[visits], np.arange(len(self._centres) + 1))
        found = [(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32))]
        for cell in range(len(self._centres)):
            inside = by_home[home_at[cell] : home_at[cell + 1]]
            visitors = rows[visits[visit_at[cell] : visit_at[cell + 1]] // probes]
            if not len(inside) or not len(visitors):
                continue
            there = self.vectors[inside]
            for begin in range(0, len(visitors), 4096):
                here = visitors[begin : begin + 4096]
                products = self.vectors[here] @ there.T
                i, j = np.nonzero(products >= self.threshold - TOLERANCE)
                a, b = here[i], inside[j]
                keep = a != b
                found.append((a[keep], b[keep], products[i, j][keep]))
        return tuple(np.concatenate(parts) for parts in zip(*found, strict=True))

    def _exact_neighbours(self, rows: np.ndarray, block: int = 65536) -> set[tuple[int, int]]:
        found = set()
        for begin in range(0, len(self.vectors), block):
            products = self.vectors[rows] @ self.vectors[begin : begin + block].T
            for i, j in zip(*np.nonzero(products >= self.threshold - TOLERANCE), strict=True):
                if rows[i] != begin + j:
                    found.add((int(rows[i]), int(begin + j)))
        return found

    def _recall(self, sample: np.ndarray, truth: set[tuple[int, int]], probes: int) -> float:
        rows, others, _ = self._neighbours(sample, probes)
        found = set(zip(rows.tolist(), others.tolist(), strict=True))
        return len(truth & found) / len(truth) if truth else 1.0


def _exact(vectors: np.ndarray, start: int, threshold: float, block: int = 2048) -> tuple[np.ndarray, ...]:
    """Compare rows from `start` on with all rows before them."""
    found = []
    for begin in range(start, len(vectors), block):
        end = min(begin + block, len(vectors))
        products = vectors[begin:end] @ vectors[:end].T
        rows, others = np.nonzero(products >= threshold - TOLERANCE)
        keep = others < rows + begin
        rows, others = rows[keep], others[keep]
        found.append((rows + begin, others, products[rows, others]))
    if not found:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32)
    return tuple(np.concatenate(parts) for parts in zip(*found, strict=True))


def _pairs(
    rows: np.ndarray, others: np.ndarray, similarity: np.ndarray, method: str, recall: float, n: int
) -> Pairs:
    """Put the smaller row first, drop the second finding of a pair, sort."""
    first, second = np.minimum(rows, others), np.maximum(rows, others)
    _, unique = np.unique(first.astype(np.int64) << 32 | second, return_index=True)
    return Pairs(first[unique], second[unique], np.minimum(similarity[unique], 1), method, recall, n)


def stars(pairs: Pairs, n: int, *, rank: Sequence | np.ndarray | None = None) -> list[Group]:
    """Group rows into stars from their pairs, by the rule of `photodup.photos.grouping.group_by_cosine`.

    Rows are visited from the best rank; a row joins the most similar keeper it has a pair with (the
    better ranked of two equal ones) or becomes one. Time grows with the number of pairs, not with n².
    """
    order = np.arange(n) if rank is None else np.array(sorted(range(n), key=lambda row: rank[row]), np.int64)
    place = np.empty(n, np.int64)
    place[order] = np.arange(n)
    a, b = place[pairs.first], place[pairs.second]
    later, earlier = np.maximum(a, b), np.minimum(a, b)
    # For each later row its earlier neighbours, the most similar first.
    by_row = np.lexsort((earlier, -pairs.similarity, later))
    is_member = np.zeros(n, bool)
    groups: dict[int, list[tuple[float, int]]] = {}
    joined = -1
    for row, other, similarity in zip(
        later[by_row].tolist(), earlier[by_row].tolist(), pairs.similarity[by_row].tolist(), strict=True
    ):
        if row != joined and not is_member[other]:
            groups.setdefault(other, []).append((similarity, row))
            is_member[row], joined = True, row
    result = []
    for keeper in sorted(groups):
        found = sorted(groups[keeper], key=lambda member: (-member[0], member[1]))
        members = tuple(int(order[position]) for _, position in found)
        result.append(Group(int(order[keeper]), members, tuple(similarity for similarity, _ in found)))
    return result
