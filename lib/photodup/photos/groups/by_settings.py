"""Grouping a library as its owner wants it: by its stored settings, without the copies that were dismissed.

Photos that were dismissed as no duplicates are known by content. Byte-identical copies share theirs, so their names
must say which is which, and names change. A copy that is missing under its name is looked for among the names that
nobody knew at the time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import compress
from pathlib import PurePath
from typing import Any

from photodup.names import printable
from photodup.photos.groups.results import TierGroup, Tiers
from photodup.photos.groups.tiers import GroupingOptions, find_tiers
from photodup.photos.library.catalogue import Catalogue, Photo
from photodup.photos.library.feedback import Feedback
from photodup.photos.library.settings import inside, load_settings
from photodup.progress import bar


def tiers_by_settings(
    catalogue: Catalogue,
    *,
    keep: str | None = None,
    folders: Sequence[str] | None = None,
    threshold: float | None = None,
    never_from: Sequence[str] = (),
    **options: Any,
) -> Tiers:
    """Group by the library's stored settings and feedback; what a command line says wins over them.

    Args:
        catalogue: scanned, and embedded if there is to be a `similar` tier.
        keep: rules as `resolution,format,…`, most important first.
        folders: folders by priority, relative to the library.
        threshold: smallest cosine of similar pictures, in place of the model's own.
        never_from: folders, relative to the library, from which nothing is suggested, beside the protected ones.
        **options: as in `GroupingOptions`.

    Raises:
        PhotodupError: an unknown rule, a folder outside the library, settings that cannot be read.
    """
    folder = catalogue.own.path
    feedback = Feedback(folder)
    settings = load_settings(folder).with_rules(keep, inside(folders or ()))
    options["threshold"] = settings.threshold if threshold is None else threshold
    options |= {"protected": (*settings.protected, *never_from), "not_within": settings.not_within}
    return find_tiers(
        catalogue, GroupingOptions(rules=settings.rules(feedback), feedback=feedback, **options)
    )


def with_bar(pairs: Any, total: int) -> Any:
    """Show how far the comparison of pairs is."""
    return bar(pairs, total=total, desc="compare", unit="pair")


def without_dismissed(
    groups: Sequence[TierGroup], dismissed: Mapping[str, Sequence[Sequence[str]]]
) -> tuple[TierGroup, ...]:
    """Return groups without the byte-identical copies that were dismissed; a photo left alone is no group.

    Args:
        groups: as they are found, by content.
        dismissed: by content, as `Feedback.dismissed_copies` has it.
    """
    shown = []
    for group in groups:
        gone = dismissed_copies(group, dismissed)
        if not gone:
            shown.append(group)
        elif len(gone) < len(group.members):
            stays = [photo.id not in gone for photo in group.members]
            names = ("members", "evidence", "differs", "why", "places", "says_only")
            left: dict[str, Any] = {name: tuple(compress(getattr(group, name), stays)) for name in names}
            shown.append(replace(group, **left))
    return tuple(shown)


def dismissed_copies(group: TierGroup, dismissed: Mapping[str, Sequence[Sequence[str]]]) -> frozenset[int]:
    """Return the ids of a group's members with its keeper's bytes that were dismissed, whatever they are called now.

    Args:
        group: as it is found, by content.
        dismissed: by content, for each time that a copy was dismissed: its path, the keeper's, and those of all
            other copies, as they were then.
    """
    keeper = group.keeper
    now = {printable(photo.path): photo for photo in group.members if photo.md5 == keeper.md5}
    gone: dict[str, Photo] = {}
    for files in dismissed.get(keeper.md5, ()):
        name, kept, *_ = files
        new = [path for path in now if path not in files and path not in gone]
        if name in now:
            found = name
        elif kept in now and (name == printable(keeper.path) or printable(keeper.path) not in files):
            found = kept  # the two have changed places: the one that was dismissed leads the group now
        else:
            moved = [path for path in new if PurePath(path).name == PurePath(name).name]
            found = next(iter(moved + new), "")
        if found:
            gone[found] = now[found]
    return frozenset(photo.id for photo in gone.values())
