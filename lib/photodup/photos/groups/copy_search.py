"""Copies of one picture, found by asking candidate pairs, and then what the answers suggest, on the pixels."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from photodup.photos.compare.evidence import EvidenceStore, Verified, pair_codes
from photodup.photos.compare.pixels import verify_pairs
from photodup.photos.compare.verify import Thresholds
from photodup.photos.groups.stars import Group
from photodup.photos.library.catalogue import Catalogue, Photo
from photodup.photos.search.neighbours import Pairs, stars

# Of comparing keepers with the copies of their copies; each round settles one keeper of each set.
MAX_ROUNDS = 20


class CopySearch:
    """Everything that was asked so far and what it said.

    Args:
        catalogue: of these photos.
        photos: one for each content, by row.
        store: what was compared before is read from it, what is compared now is written.
        thresholds: what a copy must reach on the pixels.
        may_be_one: leaves out the pairs (as `pair_codes` gives) that are known to be two pictures.
        progress: wraps the pairs to compare and their number, as tqdm does.

    Attributes:
        verified: the evidence.
        problems: one sentence for each photo that cannot be read, and for a store that cannot be written.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        photos: Sequence[Photo],
        store: EvidenceStore,
        thresholds: Thresholds,
        may_be_one: Callable[[np.ndarray], np.ndarray],
        progress: Callable[[Iterable, int], Iterable],
    ) -> None:
        self._catalogue, self._photos, self._store = catalogue, photos, store
        self._thresholds, self._may_be_one, self._progress = thresholds, may_be_one, progress
        self._known = store.read({photo.md5: i for i, photo in enumerate(photos)})
        self._asked = np.zeros(0, np.int64)
        self._unreadable: list[str] = []
        self.verified: Verified = self._known.among(self._asked)

    @property
    def problems(self) -> list[str]:
        """Return what could not be done, in sentences."""
        return self._unreadable + ([self._store.problem] if self._store.problem else [])

    def ask(self, *codes: np.ndarray) -> None:
        """Compare these pairs, and those that were copies before.

        What was proven once stays a candidate, whoever came between as a nearer neighbour since.
        """
        proven = np.array(list(self._known.copies(self._thresholds)), np.int64).reshape(-1, 2).T
        self._compare(self._may_be_one(np.unique(np.concatenate([*codes, pair_codes(*proven)]))))

    def rows(self) -> set[int]:
        """Return the photos that have a copy."""
        return {i for pair in self.verified.copies(self._thresholds) for i in pair}

    def stars(self, rank: np.ndarray) -> list[Group]:
        """Return stars of copies, the best ranked in the middle, each compared with all that may belong to it."""
        for _ in range(MAX_ROUNDS):
            copies = self.verified.copies(self._thresholds)
            scores = [found.score(self._thresholds) for found in copies.values()]
            found = stars(as_pairs(list(copies), scores), len(self._photos), rank=rank)
            more = not_asked(list(copies), found, rank, self._asked, self._may_be_one)
            if not len(more):
                break
            self._compare(more)
        return found

    def _compare(self, codes: np.ndarray) -> None:
        self._asked = np.union1d(self._asked, codes)
        new = np.setdiff1d(codes, self._known.codes)
        found, unreadable = verify_pairs(self._catalogue, self._photos, new, self._store, self._progress)
        self.verified = self.verified.with_(self._known.among(codes)).with_(found)
        self._unreadable += [sentence for sentence in unreadable if sentence not in self._unreadable]


def not_asked(
    pairs: Sequence[tuple[int, int]],
    found: Sequence[Group],
    rank: np.ndarray,
    asked: np.ndarray,
    may_be_one: Callable[[np.ndarray], np.ndarray],
) -> np.ndarray:
    """Return pairs of a keeper with copies of its copies that it was never compared with.

    Each photo is compared with its nearest few, and of thirty copies of one picture most are not among the
    keeper's. One keeper of each such set at a time: what it takes needs no other.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    rows, places = np.unique(np.array(pairs, np.int64).reshape(-1, 2), return_inverse=True)
    first, second = places.reshape(-1, 2).T
    graph = coo_array((np.ones(len(first)), (first, second)), shape=(len(rows), len(rows)))
    _, label = connected_components(graph, directed=False)
    by_label = rows[np.lexsort((rank[rows], label))]
    members = {star.keeper: star.members for star in found}
    codes = [np.zeros(0, np.int64)]
    for together in np.split(by_label, np.cumsum(np.bincount(label))[:-1]) if len(rows) else ():
        settled: set[int] = set()
        for keeper in together.tolist() if len(together) > 2 else ():
            if keeper in settled:
                continue
            settled |= {keeper, *members.get(keeper, ())}
            others = np.array([i for i in together.tolist() if i not in settled], np.int64)
            codes_of = pair_codes(np.full(len(others), keeper), others)
            open_ = may_be_one(np.setdiff1d(codes_of, asked))
            if len(open_):
                codes.append(open_)
                break
    return np.concatenate(codes)


def as_pairs(rows: Sequence[tuple[int, int]] | np.ndarray, similarity: Sequence[float] | np.ndarray) -> Pairs:
    """Return pairs of rows as `stars` takes them."""
    first, second = np.array(rows, np.int64).reshape(-1, 2).T
    return Pairs(first, second, np.array(similarity, np.float32), "given", 1.0, 0)
