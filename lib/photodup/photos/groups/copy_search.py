"""Find copies: compare candidate pairs on their pixels, then the pairs that the results suggest."""

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from photodup.photos.compare.evidence import pair_codes, pair_rows
from photodup.photos.compare.limits import LIMITS
from photodup.photos.compare.pixels import Pixels
from photodup.photos.groups.families import Family, families

# Rounds that compare hubs with the copies of their copies, one hub of each connected set a round.
MAX_ROUNDS = 20


class CopySearch:
    """The pairs of a library that were compared, and the score of each.

    Args:
        pixels: of the photos, one for each content.
        comparable: returns those of some `pair_codes` that may be compared: neither two exposures nor set apart.

    Attributes:
        scores: `Verification.score` of each pair, by code; `proven` that of copies, by rows.
        deadline_s: no pair is compared after this time, on the monotonic clock; until then, the largest files go first.
        is_complete: no pair was left out for the deadline.
    """

    def __init__(self, pixels: Pixels, comparable: Callable[[np.ndarray], np.ndarray]) -> None:
        self._pixels, self._comparable = pixels, comparable
        self.deadline_s, self.is_complete = math.inf, True
        self._sizes = np.array([photo.size_bytes for photo in pixels.photos], np.int64)
        self._known = pixels.store.read({photo.md5: i for i, photo in enumerate(pixels.photos)})
        self._asked = np.zeros(0, np.int64)
        self.scores: dict[int, float] = {}
        self.proven: dict[tuple[int, int], float] = {}

    def ask(self, *codes: np.ndarray) -> None:
        """Compare these pairs, and those that were copies in an earlier run.

        A proven pair stays a candidate, even if others are nearer neighbours by now.
        """
        self.is_complete = True
        proven = np.array(list(_copies(self._known)), np.int64)
        self._compare(self._comparable(np.unique(np.concatenate([*codes, proven]))))

    def families(self, rank: np.ndarray) -> list[Family]:
        """Return families of copies, each hub compared with all that may belong to it."""
        for _ in range(MAX_ROUNDS):
            groups = families(self.proven, rank.tolist())
            more = not_asked(self.proven, groups, self._asked, self._comparable)
            if not len(more):
                return groups
            self._compare(more)
        return families(self.proven, rank.tolist())

    def _compare(self, codes: np.ndarray) -> None:
        self._asked = np.union1d(self._asked, codes)
        scores = {code: self._known[code] for code in codes.tolist() if code in self._known}
        new = np.setdiff1d(codes, np.array([*scores, *self.scores], np.int64))
        if self.deadline_s < math.inf:
            new = new[np.argsort(-np.minimum(*(self._sizes[rows] for rows in pair_rows(new))), kind="stable")]
        compared = self._pixels.verify_pairs(new, self.deadline_s)
        self.is_complete &= len(compared) == len(new)
        scores |= {code: score for code, score in compared.items() if score is not None}
        self.scores |= scores
        self.proven |= {pair_rows(code): score for code, score in _copies(scores).items()}


def _copies(scores: dict[int, float]) -> dict[int, float]:
    return {code: score for code, score in scores.items() if score >= LIMITS.min_agreement}


def not_asked(
    pairs: Iterable[tuple[int, int]],
    families: Sequence[Family],
    compared: np.ndarray,
    comparable: Callable[[np.ndarray], np.ndarray],
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
        open_ = comparable(np.setdiff1d(pair_codes(np.array(family.hub), rows_left), compared))
        if len(open_):
            codes.append(open_)
            searched.add(id(rows))
    return np.concatenate(codes)
