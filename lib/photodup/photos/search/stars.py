"""Stars: groups of similar pictures around a keeper, without chains.

With connected components, a photograph joins a group because it resembles *some* member, and after a
few links the ends have nothing in common. Here every member is within the threshold of the keeper.
"""

from collections.abc import Sequence

import numpy as np

from photodup.photos.search.neighbours import Pairs


def stars(pairs: Pairs, n: int, *, rank: Sequence | np.ndarray | None = None) -> dict[int, list[int]]:
    """Group rows into stars from their pairs.

    Rows are visited from the best rank; a row joins the most similar keeper that it has a pair with (the better ranked of
    two equal ones) or becomes one. So no row is in two groups, no keeper has a pair with a better one, and with distinct
    ranks the groups do not depend on the order of the rows. Time grows with the number of pairs, not with n².

    Args:
        pairs: from `similar_pairs`; a row without pairs is in no group.
        n: rows.
        rank: one sortable value per row, the best keeper lowest; default: the order of the rows.

    Returns:
        The other rows of each group, by its keeper.
    """
    order = np.arange(n) if rank is None else np.array(sorted(range(n), key=lambda row: rank[row]), np.int64)
    place = np.empty(n, np.int64)
    place[order] = np.arange(n)
    a, b = place[pairs.first], place[pairs.second]
    later, earlier = np.maximum(a, b), np.minimum(a, b)
    # For each later row its earlier neighbours, the most similar first.
    by_row = np.lexsort((earlier, -pairs.similarity, later))
    members, groups = set[int](), dict[int, list[int]]()
    for row, keeper in zip(order[later[by_row]].tolist(), order[earlier[by_row]].tolist(), strict=True):
        if row not in members and keeper not in members:
            groups.setdefault(keeper, []).append(row)
            members.add(row)
    return groups
