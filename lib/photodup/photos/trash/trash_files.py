"""The files of a trash: opened beneath the library, known by size and content, moved there and back."""

import errno
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path

from photodup.beneath import Place, is_file, opened, remove_file, status_of
from photodup.names import printable
from photodup.photos.library.walking import application_library
from photodup.photos.trash.moving import free_name, md5_at, move_file, part_of, set_times
from photodup.photos.trash.trash_entries import ITEMS, OWN_FOLDERS, Moved, Operation, TrashError, owner_of

TRASH_FOLDER = ".photodup-trash"


class TrashFiles:
    """Everything that touches a file for `photodup.photos.trash.trash.Trash`; no path leaves the library.

    Args:
        library: the scanned folder, absolute.
        on_step: as of `Trash`.
    """

    def __init__(self, library: Path, on_step: Callable[[str], None]) -> None:
        self.library, self.root = library, library / TRASH_FOLDER
        self._step = on_step

    def home_of(self, path: Path) -> str:
        """Return a file's path in the library, after refusing what must never be moved."""
        if path.is_symlink():
            raise TrashError(f"{printable(path)} is a symbolic link: remove the photo it points to.")
        if owner := application_library(path):
            raise TrashError(
                f"{printable(path)} belongs to {printable(owner)}: remove it in that application."
            )
        inside = path.resolve().is_relative_to(self.library.resolve())
        absolute = path.absolute()
        if not inside or absolute == self.library or self.root in absolute.parents:
            raise TrashError(
                f"{printable(path)} is outside {printable(self.library)}: nothing there is ever moved."
            )
        if not absolute.is_relative_to(self.library) or ".." in absolute.parts:
            absolute = self.library / path.resolve().relative_to(self.library.resolve())
        home = str(absolute.relative_to(self.library))
        if home.split("/")[0].casefold() in OWN_FOLDERS:
            raise TrashError(f"{printable(path)} is photodup's own: nothing there is ever moved.")
        with self.at(home):  # no folder on the way is a link
            return home

    def at(self, home: str, *, make: bool = False) -> AbstractContextManager[Place | None]:
        """Open the folder of a path of the library; see `photodup.beneath.opened`."""
        return opened(self.library, home, make=make)

    def in_trash(self, moved: Moved, *, make: bool = False) -> AbstractContextManager[Place | None]:
        """Open the folder of a file's path in the trash."""
        return opened(self.library, f"{TRASH_FOLDER}/{moved.trash}", make=make)

    def is_in_trash(self, moved: Moved) -> bool:
        """Whether anything has a file's name in the trash."""
        with self.in_trash(moved) as place:
            return status_of(place) is not None

    def is_home(self, moved: Moved) -> bool:
        """Whether the file itself, by size and content, has its name in the library."""
        with self.at(moved.home) as place:
            return place is not None and is_file(place) and _is_as_journalled(place, moved)

    def require_same(self, moved: Moved) -> bool:
        """Return whether a file is in the trash.

        Raises:
            TrashError: what is there is not what the journal says.
        """
        with self.in_trash(moved) as place:
            if place is None or not status_of(place):
                return False
            if is_file(place) and _is_as_journalled(place, moved):
                return True
        raise TrashError(
            f"{printable(self.root / moved.trash)} is not the file that was removed (its content differs): it "
            "was left there, look at it yourself."
        )

    def renamed_if_taken(self, moved: Moved) -> Moved:
        """Return a file with a name in the library that is free."""
        with self.at(moved.home) as place:
            if place is None:
                return moved
            name = free_name(place.name, lambda name: status_of(place._replace(name=name)) is not None)
        return replace(moved, home=os.path.join(os.path.dirname(moved.home), name))

    def _move(self, source: Place | None, target: Place | None, moved: Moved) -> None:
        if source is None or target is None:
            raise FileNotFoundError(errno.ENOENT, "it is no longer there", moved.home)
        times_ns = (moved.atime_ns, moved.mtime_ns)
        move_file(source, target, md5=moved.md5, times_ns=times_ns, on_step=self._step)

    def clear(self, operation: Operation) -> None:
        """Remove the operation's empty folders from the trash; what is not ours is left alone."""
        for owner in {operation.id, *map(owner_of, operation.files)}:
            with suppress(OSError), opened(self.library, f"{TRASH_FOLDER}/{ITEMS}/{owner}") as place:
                if place is None:
                    continue
                for _, folders, _, inside in os.fwalk(place.name, topdown=False, dir_fd=place.folder):
                    for folder in folders:
                        with suppress(OSError):
                            os.rmdir(folder, dir_fd=inside)
                os.rmdir(place.name, dir_fd=place.folder)

    def to_trash(self, moved: Moved) -> None:
        """Move a file from its name in the library into the trash."""
        with self.at(moved.home) as home, self.in_trash(moved, make=True) as trash:
            self._move(home, trash, moved)

    def to_home(self, moved: Moved) -> None:
        """Move a file from the trash to its name in the library, which must be free."""
        with self.in_trash(moved) as trash, self.at(moved.home, make=True) as home:
            self._move(trash, home, moved)

    def delete(self, moved: Moved) -> None:
        """Delete a file from the trash for good."""
        with self.in_trash(moved) as place:
            if place:
                remove_file(place)

    def settle(self, moved: Moved) -> str:
        """Remove what a crash left of a move beside a file's two names; say what remains to be done.

        Returns:
            `done`: it is not in the trash (any more). `move`: it is. `rename`: it is, and its name is taken.
        """
        with self.in_trash(moved) as trash, self.at(moved.home) as home:
            for place in (home, trash):
                if place:
                    remove_file(part_of(place))
            if trash is None or not status_of(trash):
                return "done"
            if home and _is_same(home, trash, moved.md5):
                remove_file(trash)
                set_times(home, (moved.atime_ns, moved.mtime_ns))
                return "done"
            return "rename" if status_of(home) else "move"


def _is_same(home: Place, trash: Place, md5: str) -> bool:
    """Whether what has the name at home is the file in the trash, or a whole copy of it."""
    here, there = status_of(home), status_of(trash)
    if not here or not there or not is_file(home):
        return False
    return os.path.samestat(here, there) or md5_at(home) == md5


def _is_as_journalled(place: Place, moved: Moved) -> bool:
    status = status_of(place)
    return status is not None and status.st_size == moved.size and md5_at(place) == moved.md5
