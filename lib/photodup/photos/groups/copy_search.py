"""Find copies: compare candidate pairs on their pixels, then the pairs that the results suggest."""

import math
import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from photodup.photos.compare.evidence import EvidenceStore, pair_code, pair_codes, pair_rows
from photodup.photos.compare.kept_features import FeatureStore
from photodup.photos.compare.pixels import Pixels
from photodup.photos.compare.verify import Verification
from photodup.photos.groups.families import Family, families
from photodup.photos.library.catalogue import Catalogue, Photo

# Rounds that compare hubs with the copies of their copies, one hub of each connected set a round.
MAX_ROUNDS = 20


class CopySearch:
    """The pairs of a library that were compared, and the evidence of each.

    Args:
        catalogue: of these photos.
        photos: one for each content, by row.
        store: evidence of earlier runs, to which new evidence is added.
        features: the stored features of photos.
        may_be_one: returns those of some `pair_codes` that may be compared: neither two exposures nor set apart.

    Attributes:
        verified: the evidence of each pair, by code; `proven` that of copies, by rows.
        deadline_s: no pair is compared after this time, on the monotonic clock; until then, the largest files go first.
        is_complete: no pair was left out for the deadline.
        problems: one sentence for each photo that cannot be read, and for stores that cannot be written.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        photos: Sequence[Photo],
        store: EvidenceStore,
        features: FeatureStore,
        may_be_one: Callable[[np.ndarray], np.ndarray],
    ) -> None:
        self._stores = store, features
        self.deadline_s, self.is_complete = math.inf, True
        self._sizes = np.array([photo.size_bytes for photo in photos], np.int64)
        self.pixels = Pixels(catalogue, photos, store, features)
        self._may_be_one = may_be_one
        self._known = store.read({photo.md5: i for i, photo in enumerate(photos)})
        self._asked = np.zeros(0, np.int64)
        self.verified: dict[int, Verification] = {}
        self.proven: dict[tuple[int, int], Verification] = {}

    @property
    def problems(self) -> list[str]:
        """Return what could not be done, in sentences."""
        of_stores = [store.problem for store in self._stores if store.problem]
        return [*self.pixels.problems.values(), *of_stores[:1]]

    def ask(self, *codes: np.ndarray) -> None:
        """Compare these pairs, and those that were copies in an earlier run.

        A proven pair stays a candidate, even if others are nearer neighbours by now.
        """
        self.is_complete = True
        proven = np.array([code for code, evidence in self._known.items() if evidence.is_copy()], np.int64)
        self._compare(self._may_be_one(np.unique(np.concatenate([*codes, proven]))))

    def rows(self) -> set[int]:
        """Return the photos that have a copy."""
        return {i for pair in self.proven for i in pair}

    def evidence(self, i: int, j: int) -> Verification | None:
        """Return what is known of two rows; None where they were not compared."""
        return self.verified.get(pair_code(i, j))

    def families(self, rank: np.ndarray) -> list[Family]:
        """Return families of copies, each hub compared with all that may belong to it."""
        for _ in range(MAX_ROUNDS):
            groups = self._families(rank)
            more = not_asked(self.proven, groups, self._asked, self._may_be_one)
            if not len(more):
                break
            self._compare(more)
        return self._families(rank)

    def is_ruled_out(self, i: int, j: int) -> bool:
        """Return whether two rows are known to be two pictures without comparing them."""
        return not len(self._may_be_one(np.array([pair_code(i, j)])))

    def compare_with(self, keepers: Iterable[tuple[int, Iterable[int]]]) -> None:
        """Compare each keeper with the others of its family, if not done yet; the deadline does not apply."""
        codes = [pair_code(keeper, member) for keeper, members in keepers for member in members]
        more = np.setdiff1d(np.array(codes, np.int64), self._asked)
        if len(more := self._may_be_one(more)):
            self._compare(more, math.inf)

    def _families(self, rank: np.ndarray) -> list[Family]:
        scores = {pair: evidence.score() for pair, evidence in self.proven.items()}
        return families(scores, rank.tolist())

    def _compare(self, codes: np.ndarray, deadline_s: float | None = None) -> None:
        self._asked = np.union1d(self._asked, codes)
        remembered = {code: self._known[code] for code in codes.tolist() if code in self._known}
        new = np.setdiff1d(codes, np.array([*remembered, *self.verified], np.int64))
        deadline_s = self.deadline_s if deadline_s is None else deadline_s
        if deadline_s < math.inf:
            new = new[np.argsort(-np.minimum(*(self._sizes[rows] for rows in pair_rows(new))), kind="stable")]
        verified = remembered | self.pixels.verify_pairs(new, deadline_s)
        self.is_complete &= len(new) == 0 or time.monotonic() < deadline_s
        self.verified |= verified
        self.proven |= {
            pair_rows(code): evidence for code, evidence in verified.items() if evidence.is_copy()
        }


def not_asked(
    pairs: Iterable[tuple[int, int]],
    families: Sequence[Family],
    compared: np.ndarray,
    may_be_one: Callable[[np.ndarray], np.ndarray],
) -> np.ndarray:
    """Return pairs of hubs with copies of their copies that were never compared.

    Each photo is compared with its nearest few, and most of thirty copies of one picture are not among the hub's. Of
    connected families only the largest one's hub is compared: photos that join it need no other hub.
    """
    # Without SciPy's graph functions: importing them would delay the page.
    connected: dict[int, list[int]] = {}
    for pair in pairs:
        smaller, larger = sorted((connected.setdefault(row, [row]) for row in pair), key=len)
        if smaller is not larger:
            larger += smaller
            connected |= dict.fromkeys(smaller, larger)
    codes, searched = [np.zeros(0, np.int64)], set()
    for family in sorted(families, key=lambda family: -len(family.members)):
        rows = connected[family.hub]
        rows_left = np.array([row for row in rows if row != family.hub], np.int64)
        if id(rows) in searched or len(rows_left) < 2:
            continue
        open_ = may_be_one(np.setdiff1d(pair_codes(np.array(family.hub), rows_left), compared))
        if len(open_):
            codes.append(open_)
            searched.add(id(rows))
    return np.concatenate(codes)
