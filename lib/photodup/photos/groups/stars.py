"""Stars: groups around a keeper, so nothing is chained in. Similar scenes are grouped so.

With connected components, a photograph joins a group because it resembles *some* member, and after a
few links the ends have nothing in common. Here every member is within the threshold of the keeper.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from photodup.photos.search.neighbours import Pairs


@dataclass(frozen=True, slots=True)
class Star:
    """Row numbers of one star; `similarities[i]` is the cosine of `members[i]` with `keeper`.

    Members are ordered by falling similarity, then by rank.
    """

    keeper: int
    members: tuple[int, ...]
    similarities: tuple[float, ...]


def stars(pairs: Pairs, n: int, *, rank: Sequence | np.ndarray | None = None) -> list[Star]:
    """Group rows into stars from their pairs.

    Rows are visited from the best rank; a row joins the most similar keeper that it has a pair with (the better ranked of
    two equal ones) or becomes one. So no row is in two groups, no keeper has a pair with a better one, and with distinct
    ranks the groups do not depend on the order of the rows. Time grows with the number of pairs, not with n².

    Args:
        pairs: as `similar_pairs` gives: what has none is in no group.
        n: rows.
        rank: one sortable value per row, the best keeper lowest; default: the order of the rows.

    Returns:
        Groups of two or more, in the order of their keepers' rank.
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
        ranked = sorted(groups[keeper], key=lambda member: (-member[0], member[1]))
        members = tuple(int(order[position]) for _, position in ranked)
        result.append(Star(int(order[keeper]), members, tuple(similarity for similarity, _ in ranked)))
    return result
