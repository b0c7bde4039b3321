"""Stars: groups around a keeper, so nothing is chained in. Similar scenes are grouped so.

With connected components, a photograph joins a group because it resembles *some* member, and after a
few links the ends have nothing in common. Here every member is within the threshold of the keeper.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from photodup.errors import PhotodupError
from photodup.photos.search.neighbours import TOLERANCE, Pairs

__all__ = ["TOLERANCE", "Group", "group_by_cosine", "stars"]


@dataclass(frozen=True, slots=True)
class Group:
    """Row numbers of one star; `similarities[i]` is the cosine of `members[i]` with `keeper`.

    Members are ordered by falling similarity, then by rank.
    """

    keeper: int
    members: tuple[int, ...]
    similarities: tuple[float, ...]


def group_by_cosine(
    vectors: np.ndarray, threshold: float, *, rank: Sequence | None = None, block: int = 1024
) -> list[Group]:
    """Group unit vectors into stars.

    Rows are visited in the order of `rank`. A row within the threshold of one or more keepers joins the
    most similar of them (the better ranked of two equal ones); otherwise it becomes a keeper itself. So no
    row is in two groups, no keeper is within the threshold of a better one, and with distinct ranks the
    groups do not depend on the order of the rows.

    Args:
        vectors: float32[n, d]; need not be of length 1, but not zero.
        threshold: smallest cosine between a member and its keeper, -1..1.
        rank: one sortable value per row, the best keeper lowest; default: the order of the rows.
        block: rows compared at a time. Memory is a few matrices of block × 16,384 and a copy of `vectors`;
            time grows with n × number of keepers.

    Returns:
        Groups of two or more, in the order of their keepers' rank.

    Raises:
        PhotodupError: threshold out of range, or a vector that is zero or not finite.
    """
    if not -1 <= threshold <= 1:
        raise PhotodupError(f"A cosine threshold lies between -1 and 1, not {threshold}.")
    vectors = np.asarray(vectors, dtype=np.float32)
    n = len(vectors)
    if rank is not None and len(rank) != n:
        raise PhotodupError(f"{n} vectors need {n} ranks, not {len(rank)}.")
    if n == 0:
        return []
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not (np.isfinite(norms) & (norms > 0)).all():
        raise PhotodupError("A vector is zero or not finite: embed the library again.")
    order = np.array(range(n) if rank is None else sorted(range(n), key=lambda row: rank[row]))
    ranked = vectors[order] / norms[order]  # Row i is now the i-th best.
    limit = threshold - TOLERANCE

    keepers: list[int] = []  # positions in `ranked`, ascending
    keeper_rows = np.empty_like(ranked)  # their vectors, contiguous for the matrix product
    members: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for start in range(0, n, block):
        rows = ranked[start : start + block]
        best, best_keeper = _nearest(rows, keeper_rows[: len(keepers)])
        within = rows @ rows.T
        new: list[int] = []  # keepers found in this block, as offsets
        for i in range(len(rows)):
            similarity, keeper = best[i], best_keeper[i]
            if new:
                nearest_new = int(np.argmax(within[i, new]))
                if within[i, new[nearest_new]] > similarity:
                    similarity, keeper = within[i, new[nearest_new]], len(keepers) - len(new) + nearest_new
            if similarity >= limit:
                members[keepers[keeper]].append((min(float(similarity), 1.0), start + i))
            else:
                keeper_rows[len(keepers)] = rows[i]
                keepers.append(start + i)
                new.append(i)
    groups = []
    for keeper in sorted(members):
        found = sorted(members[keeper], key=lambda pair: (-pair[0], pair[1]))
        groups.append(
            Group(
                keeper=int(order[keeper]),
                members=tuple(int(order[position]) for _, position in found),
                similarities=tuple(similarity for similarity, _ in found),
            )
        )
    return groups


def _nearest(rows: np.ndarray, keepers: np.ndarray, width: int = 16384) -> tuple[np.ndarray, np.ndarray]:
    """Return each row's largest cosine with a keeper, and which keeper that is (the first of equals)."""
    best = np.full(len(rows), -np.inf, dtype=np.float32)
    which = np.zeros(len(rows), dtype=np.int64)
    for start in range(0, len(keepers), width):
        similarities = rows @ keepers[start : start + width].T
        position = similarities.argmax(axis=1)
        largest = similarities[np.arange(len(rows)), position]
        better = largest > best
        best[better], which[better] = largest[better], position[better] + start
    return best, which


def stars(pairs: Pairs, n: int, *, rank: Sequence | np.ndarray | None = None) -> list[Group]:
    """Group rows into stars from their pairs, by the rule of `group_by_cosine`.

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
