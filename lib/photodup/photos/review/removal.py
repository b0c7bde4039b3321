"""What a removal of everything that is marked would move, what it teaches, and what is said about it."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from photodup.names import printable
from photodup.photos.library.catalogue import Photo
from photodup.photos.library.feedback import Label
from photodup.photos.library.sidecars import moving_together
from photodup.photos.review.items import MARKED, Item
from photodup.photos.trash.trash_entries import Removal


def digest_of(marked: Iterable[Item]) -> str:
    """Return a digest of what is marked: whoever agreed to a list agreed to no other."""
    listed = [(item.key, sorted(item.remove)) for item in marked]
    return hashlib.sha256(repr(listed).encode()).hexdigest()[:16]


def removals_of(root: Path, items: Sequence[Item]) -> list[Removal]:
    """Return a removal for each photo that is marked, once, with its sidecars and the photos that stay.

    Args:
        root: the library.
        items: all its groups: a photo of another group may need a sidecar too.
    """
    marked = [(item, photo) for item in items if item.status == MARKED for photo in item.photos]
    marked = [(item, photo) for item, photo in marked if photo.id in item.remove]
    leaving = {photo.id for _, photo in marked}
    staying = {p.id: p for item in items for p in item.photos if p.id not in leaving}
    sidecars = moving_together(
        [root / photo.path for _, photo in marked], [root / photo.path for photo in staying.values()]
    )
    removals: dict[int, Removal] = {}
    for item, photo in marked:
        if photo.id not in removals:
            kept = [p for p in item.photos if p.id not in item.remove]
            keepers = [(root / p.path, p.md5) for p in kept]
            path = root / photo.path
            reason = f"{item.group.tier}: kept {printable(kept[0].path)}"
            removals[photo.id] = Removal(path, photo.md5, keepers, sidecars[path], reason)
    return list(removals.values())


def labels_of(item: Item, gone: Sequence[Photo]) -> list[Label]:
    """Return what the removal of some photos says: copies that were accepted, and a keeper that was not suggested."""
    stays = next(photo for photo in item.photos if photo.id not in item.remove)
    labels: list[Label] = []
    if item.group.tier == "copies":
        labels = [("same", [stays.md5, p.md5]) for p in gone if p.md5 != stays.md5]
    if item.group.keeper.id in item.remove:
        labels.append(("keeper", [stays.md5]))
    return labels


def sidecars_that_stay(removals: Sequence[Removal], refused: set[Path]) -> list[str]:
    """Say which sidecars stay although a photo that they belong to has left, and for whose sake."""
    needed = {
        path: removal.path for removal in removals if removal.path in refused for path in removal.sidecars
    }
    gone = {path for removal in removals if removal.path not in refused for path in removal.sidecars}
    return [
        f"{printable(path)} stays: it also belongs to {printable(needed[path].name)}, which was left alone."
        for path in sorted(gone & needed.keys())
    ]


def digest_of_ids(ids: Iterable[str]) -> str:
    """Return a digest of some operations."""
    return hashlib.sha256(" ".join(sorted(ids)).encode()).hexdigest()[:16]


def back_in_folders(paths: Sequence[Path], most: int = 5) -> str:
    """Say which files were restored."""
    n = len(paths)
    said = "1 file is back in its folder" if n == 1 else f"{n} files are back in their folders"
    named = ", ".join(printable(path) for path in paths[:most])
    return f"{said}: {named}{f' and {n - most} more' if n > most else ''}." if n else f"{said}."
