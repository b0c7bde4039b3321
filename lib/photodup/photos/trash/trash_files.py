"""The files of a trash: opened beneath the library, known by size and content, moved there and back.

A file is moved so that a crash leaves it under its old name, its new name or both, never neither.
"""

import errno
import hashlib
import itertools
import os
import shutil
import stat
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath

from photodup.files import is_spelled_so
from photodup.names import printable
from photodup.photos.library.walking import application_library
from photodup.photos.trash.trash_entries import (
    ITEMS,
    OWN_FOLDERS,
    Moved,
    Operation,
    Removal,
    TrashError,
    Written,
    owner_of,
)
from photodup.safe_open import (
    PathInFolder,
    is_file,
    name_if_free,
    open_file,
    opened,
    remove_file,
    status_of,
    writing,
)

TRASH_FOLDER = ".photodup-trash"
NO_KEEPER = "no copy to keep is there unchanged, and one must remain."

_MAX_NAME_BYTES = 255  # of nearly every file system
_SAME = ("st_size", "st_mtime_ns")  # a number that stays with a file is not to be had on every volume
_NO_ATTRIBUTES = frozenset(
    {errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENODATA, errno.EINVAL, errno.EPERM, errno.EACCES}
)


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

    def at(self, home: str, *, make: bool = False) -> AbstractContextManager[PathInFolder | None]:
        """Open the folder of a path of the library; see `photodup.safe_open.opened`."""
        return opened(self.library, home, make=make)

    def in_trash(self, moved: Moved, *, make: bool = False) -> AbstractContextManager[PathInFolder | None]:
        """Open the folder of a file's path in the trash."""
        return opened(self.library, f"{TRASH_FOLDER}/{moved.trash}", make=make)

    def is_in_trash(self, moved: Moved) -> bool:
        """Whether anything has a file's name in the trash."""
        with self.in_trash(moved) as place:
            return status_of(place) is not None

    def is_home(self, file: Moved | Written) -> bool:
        """Whether the library has a file under its name that is the one moved or written, by size and content."""
        with self.at(file.home) as place:
            return place is not None and is_file(place) and _is_as_journalled(place, file)

    def write(self, home: str, data: bytes, mode: int | None) -> None:
        """Write a new file of the library whose name must be free, durably."""
        with self.at(home) as place:
            if place is None:
                raise FileNotFoundError(errno.ENOENT, "its folder is no longer there", home)
            remove_file(part_of(place))  # what an earlier crash may have left
            with writing(place, mode=mode, fsync=True, is_new=True, temporary=part_of(place).name) as file:
                self._step("write")
                file.write(data)
            os.fsync(place.folder)

    def take_back(self, written: Written) -> None:
        """Delete a file that photodup wrote, if it is still what was written; and what a crash left of it."""
        with self.at(written.home) as place:
            if place is None:
                return
            remove_file(part_of(place))
            if (before := status_of(place)) and is_file(place) and _is_as_journalled(place, written):
                self._step("take back")
                _unlink_unchanged(place, before)
                os.fsync(place.folder)

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

    def _move(self, source: PathInFolder | None, target: PathInFolder | None, moved: Moved) -> None:
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


def _is_same(home: PathInFolder, trash: PathInFolder, md5: str) -> bool:
    """Whether what has the name at home is the file in the trash, or a whole copy of it."""
    here, there = status_of(home), status_of(trash)
    if not here or not there or not is_file(home):
        return False
    return os.path.samestat(here, there) or md5_at(home) == md5


def _is_as_journalled(place: PathInFolder, moved: Moved | Written) -> bool:
    status = status_of(place)
    return status is not None and status.st_size == moved.size and md5_at(place) == moved.md5


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
        # The folders must list every part of it as it is written here. Where `IMG.JPG` and `img.jpg` are one file, only one
        # of them is listed, and it is not kept by removing the other; on exFAT even their inode numbers may differ.
        return there and is_spelled_so(path.absolute(), self._library, self._listed) and md5_of(path) == md5


def _identities(path: Path) -> list[tuple]:
    """Return what names a file: its path, and its inode unless other hard links hold the content."""
    absolute = Path(path).absolute()
    identities: list[tuple] = [(absolute.parent.resolve() / absolute.name,)]
    with suppress(OSError):
        status = os.lstat(path)
        if status.st_nlink == 1:
            identities.append((status.st_dev, status.st_ino))
    return identities


def md5_of(path: Path) -> str:
    """Return the hex MD5 of a file's bytes (an identity here, not a protection against forgery)."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def md5_at(place: PathInFolder) -> str:
    """Return the hex MD5 of a regular file's bytes.

    Raises:
        OSError: it is not there, a link, or no regular file.
    """
    with open(open_file(place), "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def move_file(
    source: PathInFolder,
    target: PathInFolder,
    *,
    md5: str,
    times_ns: tuple[int, int],
    on_step: Callable[[str], None],
) -> None:
    """Move a regular file to a name that must be free, and set its access and modification times.

    On one volume the file itself moves, so nothing about it changes. Across volumes it is copied
    with its metadata, synced and compared before the original goes; a creation time is not carried.
    Neither way replaces a file that is there, or deletes one that another program saved meanwhile.

    Raises:
        OSError: nothing moved; a half-made copy may remain as `part_of(target)`. Where the original
            changed meanwhile it stays, and the target is what it was before.
    """
    before = os.stat(source.name, dir_fd=source.folder, follow_symlinks=False)
    if not stat.S_ISREG(before.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", source.name)
    on_step("link")
    try:
        is_linked = name_if_free(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        copy_file(source, target, md5, on_step)
        is_linked = True
    os.fsync(target.folder)
    on_step("unlink")
    if is_linked:
        _unlink_unchanged(source, before)
    os.fsync(source.folder)
    on_step("times")
    set_times(target, times_ns)


def set_times(place: PathInFolder, times_ns: tuple[int, int]) -> None:
    """Set access and modification time where that can be done.

    Not of a file that has another name (a hard link): that one may lie outside the library.
    """
    with suppress(OSError):  # not the owner: the times are then as they were
        descriptor = open_file(place)
        try:
            if os.fstat(descriptor).st_nlink == 1:
                os.utime(descriptor, ns=times_ns)
        finally:
            os.close(descriptor)


def copy_file(
    source: PathInFolder, target: PathInFolder, md5: str, on_step: Callable[[str], None] = lambda name: None
) -> None:
    """Copy a regular file with its metadata to a name that must be free: synced and compared before it has the name.

    Raises:
        OSError: nothing has the name, or what had it before.
    """
    part = part_of(target)
    try:
        on_step("copy")
        remove_file(part)  # what an earlier crash may have left
        with (
            open(open_file(source), "rb") as original,
            open(open_file(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as copy,
        ):
            shutil.copyfileobj(original, copy, 1 << 20)
            copy.flush()
            _copy_metadata(original.fileno(), copy.fileno())
            os.fsync(copy.fileno())
        on_step("compare")
        if md5_at(part) != md5:
            raise OSError(errno.EIO, "the copy differs from the original", source.name)
        on_step("rename")
        name_if_free(part, target)
    finally:
        remove_file(part)


def _copy_metadata(source: int, target: int) -> None:
    """Carry times, permissions and, where there are any, extended attributes between open files."""
    if hasattr(os, "listxattr"):
        try:
            for name in os.listxattr(source):
                os.setxattr(target, name, os.getxattr(source, name))
        except OSError as error:
            if error.errno not in _NO_ATTRIBUTES:
                raise
    status = os.fstat(source)
    os.fchmod(target, stat.S_IMODE(status.st_mode))
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


def _unlink_unchanged(place: PathInFolder, before: os.stat_result) -> None:
    if now := status_of(place):
        if any(getattr(now, name) != getattr(before, name) for name in _SAME):
            raise OSError(errno.EBUSY, "it changed while it was moved", place.name)
        remove_file(place)


def part_of(place: PathInFolder) -> PathInFolder:
    """Return the name a copy has until it is complete: never longer than a name may be, as `.name.part` is."""
    short = hashlib.md5(os.fsencode(place.name), usedforsecurity=False).hexdigest()
    return place._replace(name=f".{short}.photodup-part")


def free_name(name: str, is_taken: Callable[[str], bool]) -> str:
    """Return the name itself, or `name (restored).jpg`, `name (restored 2).jpg`, … if it is taken."""
    if not is_taken(name):
        return name
    path = PurePosixPath(name)
    names = (" (restored)" if number == 1 else f" (restored {number})" for number in itertools.count(1))
    candidates = (_shortened(path.stem, suffix + path.suffix) for suffix in names)
    return next(candidate for candidate in candidates if not is_taken(candidate))


def _shortened(stem: str, suffix: str) -> str:
    room = _MAX_NAME_BYTES - len(os.fsencode(suffix))
    encoded = os.fsencode(stem)
    # Cut between characters: file systems that take UTF-8 only refuse half of one.
    return (stem if len(encoded) <= room else encoded[:room].decode("utf-8", "ignore")) + suffix


def sync_folder(folder: Path) -> None:
    """Make a folder's names durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
