"""Byte-identical copies that were told apart: recognised again after they were renamed or moved.

Other photos are told apart by content. Copies share theirs, so their names must say which is which, and names
change. A copy that is missing under its name is looked for among the names that nobody knew at the time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath

from photodup.names import printable
from photodup.photos.groups.results import TierGroup
from photodup.photos.library.catalogue import Photo


def without_copies_apart(
    groups: Sequence[TierGroup], told: Mapping[str, Sequence[Sequence[str]]]
) -> tuple[TierGroup, ...]:
    """Return groups without the byte-identical copies that were told apart; what is left alone is no group.

    Args:
        groups: as they are found, by content.
        told: by content, as `photodup.photos.library.feedback.Feedback.copies_apart` has it.
    """
    shown = []
    for group in groups:
        apart = apart_in(group, told)
        rest = [pair for pair in zip(group.members, group.evidence, strict=True) if pair[0].id not in apart]
        if rest:
            members, evidence = zip(*rest, strict=True)
            shown.append(replace(group, members=members, evidence=evidence) if apart else group)
    return tuple(shown)


def apart_in(group: TierGroup, told: Mapping[str, Sequence[Sequence[str]]]) -> frozenset[int]:
    """Return the ids of a group's members that were told apart from its keeper and share its bytes."""
    keeper = group.keeper
    copies = [photo for photo in group.members if photo.md5 == keeper.md5]
    return copies_apart(keeper, copies, told[keeper.md5]) if copies and keeper.md5 in told else frozenset()


def copies_apart(keeper: Photo, copies: Sequence[Photo], told: Sequence[Sequence[str]]) -> frozenset[int]:
    """Return the ids of the copies that were told apart from the keeper, whatever they are called now.

    Args:
        keeper: the photo of the group that stays.
        copies: the other files with its bytes.
        told: for each time that one was told apart: its path, the keeper's, and those of all other copies, as
            they were then.
    """
    now = {printable(photo.path): photo for photo in copies}
    apart: dict[str, Photo] = {}
    for files in told:
        name, kept, *_ = files
        new = [path for path in now if path not in files and path not in apart]
        if name in now:
            found = name
        elif kept in now and (name == printable(keeper.path) or printable(keeper.path) not in files):
            found = kept  # the two have changed places: the one that was told apart leads the group now
        else:
            moved = [path for path in new if PurePath(path).name == PurePath(name).name]
            found = next(iter(moved + new), "")
        if found:
            apart[found] = now[found]
    return frozenset(photo.id for photo in apart.values())
