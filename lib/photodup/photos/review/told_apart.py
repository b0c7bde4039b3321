"""Byte-identical copies that were told apart: recognised again after they were renamed or moved.

Other photos are told apart by content. Copies share theirs, so their names must say which is which, and names
change. A copy that is missing under its name is looked for among the names that nobody knew at the time.
"""

from collections.abc import Sequence
from pathlib import PurePath

from photodup.names import printable
from photodup.photos.library.catalogue import Photo


def copies_apart(keeper: Photo, copies: Sequence[Photo], told: Sequence[Sequence[str]]) -> frozenset[int]:
    """Return the ids of the copies that were told apart from the keeper, whatever they are called now.

    Args:
        keeper: the photo of the group that stays.
        copies: the other files with its bytes.
        told: for each time that one was told apart: its path, the keeper's, and those of all other copies, as
            they were then; nothing where the first edition wrote it down.
    """
    now = {printable(photo.path): photo for photo in copies}
    apart: dict[str, Photo] = {}
    for files in filter(None, told):
        name, kept, *_ = files
        new = [path for path in now if path not in files and path not in apart]
        if name in now:
            found = name
        elif kept in now and (name == printable(keeper.path) or printable(keeper.path) not in files):
            found = kept  # the two have changed places: the one that was told apart leads the group now
        else:
            moved = [path for path in new if PurePath(path).name == PurePath(name).name]
            found = next(iter(moved + new), None)
        if found:
            apart[found] = now[found]
    # Which copy it was is not known; that all were told apart is.
    if len([files for files in told if not files]) >= len(copies) - len(apart):
        return frozenset(photo.id for photo in copies)
    return frozenset(photo.id for photo in apart.values())
