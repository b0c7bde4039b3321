"""The files of a trash: opened inside the library, identified by size and content, moved there and back.

Another program may replace or change a file at any moment. So a file is first moved in one step, then checked in the
trash or under a temporary name; a file that differs from the journal goes back. After a crash it has its old name, its new
name or, across volumes, both.
"""

import errno
import hashlib
import itertools
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath

from photodup.core.files import is_spelled_so
from photodup.core.names import printable
from photodup.core.safe_open import (
    PathInFolder,
    file_state,
    move_without_replacing,
    open_file,
    opened,
    remove_file,
    status_of,
    write_copy,
    writing,
)
from photodup.photos.library.walking import application_library
from photodup.photos.state.own_folder import OWN_FOLDERS
from photodup.photos.trash.entries import ITEMS, Moved, Operation, Removal, TrashError, Written, former_home

TRASH_FOLDER = ".photodup-trash"
NO_KEEPER = "no copy to keep is there unchanged, and one must remain."

_MAX_NAME_BYTES = 255  # of nearly every file system


class TrashFiles:
    """File operations of `photodup.photos.trash.quarantine.Trash`; no path leaves the library.

    Args:
        library: the scanned folder, absolute.
        on_step: as of `Trash`.
    """

    def __init__(self, library: Path, on_step: Callable[[str], None]) -> None:
        self.library, self.root = library, library / TRASH_FOLDER
        self._step = on_step

    def home_of(self, path: Path) -> str:
        """Return a file's path in the library; refuse files that must never be moved."""
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
        with self.in_library(home):  # no folder on the way is a link
            return home

    def describe(self, path: Path, operation: str, md5: str | None = None) -> Moved:
        """Return a file as an entry for the journal; refuse files that must never be moved.

        Args:
            path: the file.
            operation: whose folder in the trash it will get.
            md5: of its bytes, if it is known.
        """
        home, status = self.home_of(path), path.stat()
        trash = os.path.join(ITEMS, operation, home)
        return Moved(home, trash, md5 or md5_of(path), status.st_size, status.st_mtime_ns)

    def in_library(self, home: str, *, make: bool = False) -> AbstractContextManager[PathInFolder | None]:
        """Open the folder of a path in the library; see `photodup.core.safe_open.opened`."""
        return opened(self.library, home, make=make)

    def in_trash(self, moved: Moved, *, make: bool = False) -> AbstractContextManager[PathInFolder | None]:
        """Open the folder of a file's path in the trash."""
        return opened(self.library, f"{TRASH_FOLDER}/{moved.trash}", make=make)

    def is_home(self, file: Moved | Written) -> bool:
        """Return whether the moved or written file is in the library, by name, size and content."""
        with self.in_library(file.home) as place:
            return _is_as_journalled(place, file)

    def write(self, home: str, data: bytes, mode: int | None) -> None:
        """Write a new file in the library, synced; its name must be free."""
        with self.in_library(home) as place:
            if place is None:
                raise FileNotFoundError(errno.ENOENT, "its folder is no longer there", home)
            remove_file(partial_copy_of(place))  # of an earlier crash
            with writing(
                place, mode=mode, fsync=True, is_new=True, temporary=partial_copy_of(place).name
            ) as file:
                self._step("write")
                file.write(data)
            os.fsync(place.folder)

    def delete_written(self, written: Written) -> None:
        """Delete a file that photodup wrote, if it is unchanged, and its parts from a crash."""
        with self.in_library(written.home) as place:
            if place is None:
                return
            remove_file(partial_copy_of(place))
            if status_of(_aside_of(place)) or _is_as_journalled(place, written):
                self._step("take back")
                _discard(place, written)

    def put_back(self, homes: Iterable[str]) -> None:
        """Give files that a crash left under temporary names their names again."""
        for home in homes:
            with suppress(OSError, ValueError), self.in_library(home) as place:
                if place:
                    _put_back(place)

    def is_as_removed(self, moved: Moved) -> bool | None:
        """Return whether the file in the trash is the removed one, None if none; first undo an interrupted `_discard`."""
        with self.in_trash(moved) as place:
            if place:
                _put_back(place)
            return _is_as_journalled(place, moved) if status_of(place) else None

    def strays(self, journalled: Collection[str]) -> Iterator[Moved]:
        """Yield the files in the trash that no operation names, with their likely names in the library.

        Args:
            journalled: paths of known files in the trash; their temporary names are known too.
        """
        journalled = {name for path in journalled for name in (path, _aside_path(path))}
        with suppress(OSError), opened(self.library, f"{TRASH_FOLDER}/{ITEMS}") as place:
            if place is None:
                return
            for folder, _, names, inside in os.fwalk(place.name, dir_fd=place.folder):
                for name in names:
                    path, status = f"{folder}/{name}", status_of(PathInFolder(inside, name))
                    if path not in journalled and status and stat.S_ISREG(status.st_mode):
                        yield Moved(former_home(path), path, "", status.st_size, status.st_mtime_ns)

    def with_digest(self, moved: Moved) -> Moved:
        """Return a file in the trash with its present MD5."""
        with self.in_trash(moved) as place:
            return replace(moved, md5=md5_at(place)) if place else moved

    def clear(self, operation: Operation) -> None:
        """Remove the operation's empty folders from the trash."""
        with suppress(OSError), opened(self.library, f"{TRASH_FOLDER}/{ITEMS}/{operation.id}") as place:
            if place is None:
                return
            for _, folders, _, inside in os.fwalk(place.name, topdown=False, dir_fd=place.folder):
                for folder in folders:
                    with suppress(OSError):
                        os.rmdir(folder, dir_fd=inside)
            os.rmdir(place.name, dir_fd=place.folder)

    def to_trash(self, moved: Moved) -> None:
        """Move the file with this name in the library into the trash, and check it there.

        Raises:
            TrashError: it is another file, and may be in the trash; `to_home` brings it back.
            OSError: it cannot be moved.
        """
        with self.in_library(moved.home) as home, self.in_trash(moved, make=True) as trash:
            if home is None or trash is None:
                raise FileNotFoundError(errno.ENOENT, "it is no longer there", moved.home)
            self._step("move")
            try:
                move_without_replacing(home, trash, is_ours=True)
                self._step("look")
                is_moved = _is_as_journalled(trash, moved)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                copy_file(home, trash, moved.md5, self._step)
                self._step("delete")
                is_moved = _discard(home, moved)
            _sync(trash, home)
        if not is_moved:
            raise TrashError(
                f"{printable(moved.home)} changed while it was moved: it stays, scan again before removing it."
            )

    def to_home(self, moved: Moved, *, again: bool) -> bool:
        """Move a file from the trash to its name in the library.

        Args:
            moved: the file.
            again: a crash may have left it in both places; then keep the one in the library.

        Returns:
            True once it is not in the trash; False if its name in the library is taken.
        """
        with self.in_trash(moved) as trash:
            is_there = trash is not None and status_of(trash) is not None
            with self.in_library(moved.home, make=is_there) as home:
                if home:
                    remove_file(partial_copy_of(home))
                    _put_back(home)
                if not (trash and home and is_there):
                    return True
                remove_file(partial_copy_of(trash))
                if again and _is_as_journalled(home, moved) and _discard(trash, moved):
                    return True
                self._step("move")
                with suppress(FileExistsError):
                    self._move_home(trash, home)
                    _sync(home, trash)
                    return True
        return False

    def _move_home(self, trash: PathInFolder, home: PathInFolder) -> None:
        try:
            move_without_replacing(trash, home)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            copy_file(trash, home, digest := md5_at(trash), self._step)
            self._step("delete")
            if md5_at(home) != digest:
                raise FileExistsError(errno.EEXIST, "something else has the name by now", home.name) from None
            remove_file(trash)

    def delete(self, moved: Moved) -> bool:
        """Delete a file from the trash for good, if it is the removed one; return whether it is gone."""
        with self.in_trash(moved) as place:
            return place is None or _discard(place, moved)


def _is_as_journalled(place: PathInFolder | None, moved: Moved | Written) -> bool:
    status = status_of(place)
    if place is None or status is None or not stat.S_ISREG(status.st_mode) or status.st_size != moved.size:
        return False
    return md5_at(place) == moved.md5


def _discard(place: PathInFolder, moved: Moved | Written) -> bool:
    """Delete a moved or written file; return False and keep it if another file has its name.

    It is checked under a temporary name, so that nothing takes its place before the deletion.
    """
    aside = _aside_of(place)
    if not status_of(aside):  # else a crash left it there
        if not status_of(place):
            return True
        move_without_replacing(place, aside, is_ours=True)
    before = file_state(status_of(aside))
    is_same = _is_as_journalled(aside, moved) and file_state(status_of(aside)) == before
    if is_same:
        remove_file(aside)
    else:
        _put_back(place)
    os.fsync(place.folder)
    return is_same


def _put_back(place: PathInFolder) -> None:
    """Give a file that `_discard` renamed its name again, or a similar one."""
    aside = _aside_of(place)
    for name in free_names(place.name) if status_of(aside) else ():
        with suppress(FileExistsError):
            return move_without_replacing(aside, place._replace(name=name))


class RemainingCopies:
    """The copies that stay when some files leave together.

    Args:
        library: the folder of all files.
        removals: the files that leave.
    """

    def __init__(self, library: Path, removals: Iterable[Removal]) -> None:
        self._library = library
        files = (path for removal in removals for path in (removal.path, *removal.sidecars))
        self._leaving = {identity for path in files for identity in _identities(path)}
        self._verified: dict[tuple[Path, str], tuple[int, ...] | None] = {}
        self._listed: dict[Path, frozenset[str]] = {}

    def check(self, removal: Removal) -> None:
        """Read a photo again, and check that a copy of it stays.

        Raises:
            TrashError: the photo vanished or changed since the scan, or no copy of it stays.
        """
        name = printable(removal.path)
        if not removal.path.is_file():
            raise TrashError(f"{name} is no longer there: scan again.")
        if md5_of(removal.path) != removal.md5:
            raise TrashError(f"{name} has changed since the scan: scan again before removing it.")
        self.require_keeper(removal)

    def require_keeper(self, removal: Removal) -> None:
        """Check that a copy stays; read it again only if its status changed.

        Raises:
            TrashError: no copy stays.
        """
        if not any(self._remains(path, md5) for path, md5 in removal.keepers):
            raise TrashError(f"{printable(removal.path)} stays: {NO_KEEPER}")

    def _remains(self, path: Path, md5: str) -> bool:
        with suppress(OSError):
            state = file_state(os.lstat(path))
            if state is None or state == self._verified.get((path, md5)):
                return state is not None
            # All parts of the path must be spelled as in the folders. On a case-insensitive disk `IMG.JPG` and `img.jpg` are
            # one file, and only one name is listed; on exFAT even their inode numbers may differ.
            is_safe = self._leaving.isdisjoint(_identities(path))
            is_safe = is_safe and is_spelled_so(path.absolute(), self._library, self._listed)
            if is_safe and md5_of(path) == md5 and file_state(os.lstat(path)) == state:
                self._verified[path, md5] = state
                return True
        return False


def _identities(path: Path) -> list[tuple]:
    """Return what identifies a file: its path, and its inode if it has no other hard links."""
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


def copy_file(
    source: PathInFolder, target: PathInFolder, md5: str, on_step: Callable[[str], None] = lambda name: None
) -> None:
    """Copy a regular file with its metadata to a name that must be free: synced and compared before it has the name.

    Raises:
        OSError: it was not copied; a file that had the name keeps it. If the original changed at the last moment, the
            finished copy stays.
    """
    part = partial_copy_of(target)
    on_step("copy")
    remove_file(part)  # what an earlier crash may have left
    with open(open_file(source), "rb") as original:
        before = file_state(os.fstat(original.fileno()))
        try:
            write_copy(original, part)
            on_step("compare")
            if md5_at(part) != md5:
                raise OSError(errno.EIO, "the copy differs from the original", source.name)
            on_step("rename")
            move_without_replacing(part, target)
        finally:
            remove_file(part)
        if file_state(status_of(source)) != before:
            raise OSError(errno.EBUSY, "it changed while it was copied", source.name)


def _sync(*places: PathInFolder) -> None:
    for place in places:
        os.fsync(place.folder)


def partial_copy_of(place: PathInFolder) -> PathInFolder:
    """Return the name of a copy until it is complete: hashed, since `.name.part` could be too long."""
    short = hashlib.md5(os.fsencode(place.name), usedforsecurity=False).hexdigest()
    return place._replace(name=f".{short}.photodup-part")


def _aside_of(place: PathInFolder) -> PathInFolder:
    """Return the temporary name under which a file is checked before it is deleted."""
    return place._replace(name=f"{partial_copy_of(place).name}-aside")


def _aside_path(path: str) -> str:
    folder, name = os.path.split(path)
    return f"{folder}/{_aside_of(PathInFolder(-1, name)).name}"


def free_names(path: str) -> Iterator[str]:
    """Yield the path itself, then `name (restored).jpg`, `name (restored 2).jpg`, … until the caller finds a free one."""
    yield path
    first = PurePosixPath(path)
    for number in itertools.count(1):
        suffix = " (restored)" if number == 1 else f" (restored {number})"
        yield str(first.with_name(_shortened(first.stem, suffix + first.suffix)))


def _shortened(stem: str, suffix: str) -> str:
    room = _MAX_NAME_BYTES - len(os.fsencode(suffix))
    encoded = os.fsencode(stem)
    # Cut between characters: some file systems refuse names that are not UTF-8.
    return (stem if len(encoded) <= room else encoded[:room].decode("utf-8", "ignore")) + suffix
