"""What a session can undo: the last actions, each with the state that its groups had before."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from photodup.photos.review.items import Item
from photodup.photos.trash.trash_entries import Operation


@dataclass(frozen=True)
class ItemState:
    """What was decided about one group."""

    key: str
    status: str
    remove: frozenset[int]
    apart: frozenset[int]


@dataclass(frozen=True)
class Step:
    """One undoable action: the states before it, the labels that it wrote, the operations that it did."""

    before: tuple[ItemState, ...]
    labels: tuple[int, ...] = ()
    operations: tuple[Operation, ...] = ()
    regroups: bool = False


def states_of(items: Sequence[Item]) -> tuple[ItemState, ...]:
    """Return what is decided about these groups now."""
    return tuple(ItemState(item.key, item.status, item.remove, item.apart) for item in items)


def put_back(items: Mapping[str, Item], states: Sequence[ItemState]) -> list[Item]:
    """Put groups, by key, back into earlier states; return them. Those that are no longer there are left out."""
    back = []
    for state in states:
        if item := items.get(state.key):
            item.status, item.remove, item.apart = state.status, state.remove, state.apart
            back.append(item)
    return back
