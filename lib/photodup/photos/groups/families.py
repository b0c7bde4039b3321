"""Families: files that proven pairs connect, around the file with the most proven copies (the hub).

A star around the *best* file falls apart: the largest or sharpest copy is often the one least like the others. Around
the file with the most proven copies nearly every copy is proven with the hub itself. Others join only by two pairs of their
own, or two pairs between two families: one wrong pair joins nothing.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Proven pairs that join two families, with no photo in common on either side.
MIN_LINKS = 2


@dataclass(frozen=True, slots=True)
class Family:
    """Rows of one family; `hub` is the one of `members` with the most proven copies among them."""

    hub: int
    members: tuple[int, ...]


def families(scores: Mapping[tuple[int, int], float], rank: Sequence[int]) -> list[Family]:
    """Return disjoint families of two or more rows, by the rank of their best row.

    Args:
        scores: of each proven pair of rows, higher is surer.
        rank: place of each row, the best lowest; it settles what is equal otherwise.
    """
    near: dict[int, dict[int, float]] = {}
    for (i, j), score in scores.items():
        near.setdefault(i, {})[j] = score
        near.setdefault(j, {})[i] = score
    hubs: set[int] = set()
    covered: set[int] = set()
    for row in sorted(near, key=lambda row: (-len(near[row]), rank[row], row)):
        if row not in covered:
            hubs.add(row)
            covered |= {row, *near[row]}
    family_of = {hub: hub for hub in hubs}
    for row in near.keys() - hubs:
        # To the hub with which it shares most neighbours: with a wrong pair it shares none.
        company = near[row].keys() | {row}
        family_of[row] = max(
            near[row].keys() & hubs,
            key=lambda hub: (
                len(company & (near[hub].keys() | {hub})),
                len(near[hub]),
                near[row][hub],
                -rank[hub],
                -hub,
            ),
        )
    _join(family_of, near)
    rows_of: dict[int, set[int]] = {}
    for row, hub in family_of.items():
        rows_of.setdefault(hub, set()).add(row)
    groups = []
    for rows in rows_of.values():
        if len(rows) < 2:
            continue
        hub = min(rows, key=lambda row: (-len(near[row].keys() & rows), rank[row], row))
        groups.append(Family(hub, tuple(sorted(rows, key=lambda row: (rank[row], row)))))
    return sorted(groups, key=lambda family: (rank[family.members[0]], family.members[0]))


def _join(family_of: dict[int, int], near: Mapping[int, Mapping[int, float]]) -> None:
    """Join families that enough separate pairs connect; a family of one needs that many pairs of its own."""
    while True:
        sizes = Counter(family_of.values())
        between: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for row, hub in family_of.items():
            for neighbour in near[row]:
                if hub < family_of[neighbour]:
                    between.setdefault((hub, family_of[neighbour]), []).append((row, neighbour))
        for (first, second), pairs in sorted(between.items()):
            alone = 1 in (sizes[first], sizes[second])
            sides = [{pair[side] for pair in pairs} for side in (0, 1)]
            if (max if alone else min)(len(side) for side in sides) >= MIN_LINKS:
                larger, smaller = (first, second) if sizes[first] >= sizes[second] else (second, first)
                for row, hub in family_of.items():
                    if hub == smaller:
                        family_of[row] = larger
                break
        else:
            return
