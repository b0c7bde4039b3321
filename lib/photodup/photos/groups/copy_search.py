"""Find copies: compare candidate pairs on their pixels, and connect those that are proven."""

import math
from collections.abc import Callable

import numpy as np

from photodup.photos.compare.limits import LIMITS
from photodup.photos.compare.pixels import Pixels
from photodup.photos.search.pair_codes import pair_rows


class CopySearch:
    """The pairs of a library that were compared, and the score of each.

    Args:
        pixels: of the photos, one for each content.
        comparable: returns those of some `pair_codes` that may be compared: neither two exposures nor set apart.

    Attributes:
        scores: `CopyEvidence.score` of each pair, by code; `proven` are the rows of copies.
        deadline_s: no pair is compared after this time, on the monotonic clock; until then, the largest files go first.
        is_complete: no pair was left out for the deadline.
    """

    def __init__(self, pixels: Pixels, comparable: Callable[[np.ndarray], np.ndarray]) -> None:
        self._pixels, self._comparable = pixels, comparable
        self.deadline_s, self.is_complete = math.inf, True
        self._sizes = np.array([photo.size_bytes for photo in pixels.photos], np.int64)
        self._known = pixels.store.read({photo.md5: i for i, photo in enumerate(pixels.photos)})
        self.scores: dict[int, float] = {}
        self.proven: list[tuple[int, int]] = []

    def ask(self, *codes: np.ndarray) -> None:
        """Compare these pairs, and those that were copies in an earlier run.

        A proven pair stays a candidate, even if others are nearer neighbours by now.
        """
        earlier = np.array(_copies(self._known), np.int64)
        allowed = self._comparable(np.unique(np.concatenate([*codes, earlier])))
        scores = {code: self._known[code] for code in allowed.tolist() if code in self._known}
        new = np.setdiff1d(allowed, np.array([*scores, *self.scores], np.int64))
        if self.deadline_s < math.inf:
            new = new[np.argsort(-np.minimum(*(self._sizes[rows] for rows in pair_rows(new))), kind="stable")]
        compared = self._pixels.verify_pairs(new, self.deadline_s)
        self.is_complete = len(compared) == len(new)
        self.scores |= scores | {code: score for code, score in compared.items() if score is not None}
        self.proven = list(map(pair_rows, _copies(self.scores)))

    def families(self) -> list[list[int]]:
        """Return the rows that proven pairs connect, in order; `choose` tells what one keeper does not reproduce."""
        # Without SciPy's graph functions: importing them would delay the page.
        connected: dict[int, list[int]] = {}
        for pair in self.proven:
            smaller, larger = sorted((connected.setdefault(row, [row]) for row in pair), key=len)
            if smaller is not larger:
                larger += smaller
                connected |= dict.fromkeys(smaller, larger)
        return [sorted(rows) for rows in {id(rows): rows for rows in connected.values()}.values()]


def _copies(scores: dict[int, float]) -> list[int]:
    return [code for code, score in scores.items() if score >= LIMITS.min_agreement]
