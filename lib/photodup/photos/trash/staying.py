"""Whether a copy stays: asked before any photo leaves, for the trash as for the album of Apple Photos."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from photodup.names import printable
from photodup.photos.trash.moving import md5_of
from photodup.photos.trash.trash_entries import Removal, TrashError

NO_KEEPER = "no copy to keep is there unchanged, and one must remain."


class RemainingCopies:
    """The copies that stay while some files leave together.

    Args:
        library: the folder that all of them lie in.
        removals: what leaves.
    """

    def __init__(self, library: Path, removals: Iterable[Removal]) -> None:
        self._library = library
        files = (path for removal in removals for path in (removal.path, *removal.sidecars))
        self._leaving = {identity for path in files for identity in _identities(path)}
        self._remains: dict[tuple[Path, str], bool] = {}
        self._listed: dict[Path, frozenset[str]] = {}

    def keeper(self, removal: Removal) -> Path:
        """Return the copy that stays, read again now.

        Raises:
            TrashError: the photo vanished or changed since the scan, or no copy of it stays.
        """
        name = printable(removal.path)
        if not removal.path.is_file():
            raise TrashError(f"{name} is no longer there: scan again.")
        if md5_of(removal.path) != removal.md5:
            raise TrashError(f"{name} has changed since the scan: scan again before removing it.")
        for path, md5 in removal.keepers:
            if (path, md5) not in self._remains:
                self._remains[path, md5] = self._does_remain(path, md5)
            if self._remains[path, md5]:
                return path
        raise TrashError(f"{name} stays: {NO_KEEPER}")

    def _does_remain(self, path: Path, md5: str) -> bool:
        there = path.is_file() and not path.is_symlink() and self._leaving.isdisjoint(_identities(path))
        return there and self._is_spelled_so(path) and md5_of(path) == md5

    def _is_spelled_so(self, path: Path) -> bool:
        """Whether the folders list every part of a path as it is written here.

        Where `IMG.JPG` and `img.jpg` are one file, only one of them is listed, and it is not kept by
        removing the other. Nothing else tells: on exFAT even their inode numbers may differ.
        """
        path = path.absolute()
        for part in (path, *path.parents):
            if part in (self._library, part.parent):
                break
            if part.parent not in self._listed:
                self._listed[part.parent] = frozenset(os.listdir(part.parent))
            if part.name not in self._listed[part.parent]:
                return False
        return True


def _identities(path: Path) -> list[tuple]:
    """Return what names a file: its path, and its inode unless other hard links hold the content."""
    absolute = Path(path).absolute()
    identities: list[tuple] = [(absolute.parent.resolve() / absolute.name,)]
    with suppress(OSError):
        status = os.lstat(path)
        if status.st_nlink == 1:
            identities.append((status.st_dev, status.st_ino))
    return identities
