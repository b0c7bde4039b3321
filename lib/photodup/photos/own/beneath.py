"""Opening what lies beneath a folder, and nothing else.

A path is walked one folder at a time, each opened inside the one before and never through a symbolic link,
so no `..`, no absolute path, no linked folder, and no folder that is exchanged in between, leads out. This
needs `openat` and its relatives, which every system has that photodup runs on (Linux and macOS: the
journal's lock needs `fcntl` too).
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Place(NamedTuple):
    """A name inside an open folder."""

    folder: int  # file descriptor
    name: str


def parts_of(relative: str) -> tuple[str, ...]:
    """Return the parts of a relative path.

    Raises:
        ValueError: it is absolute, empty, leads out or through `.`, or no file can have that name.
    """
    parts = tuple(relative.split("/"))
    os.fsencode(relative)  # UnicodeEncodeError is a ValueError
    if "\0" in relative or any(part in ("", ".", "..") for part in parts):
        raise ValueError("a path that leads out")
    return parts


@contextmanager
def opened(root: Path, relative: str, *, make: bool = False) -> Iterator[Place | None]:
    """Open the folder that holds a path beneath `root`; yield None where a folder on the way is missing.

    Args:
        root: any folder; links on the way to it are followed, for the user named it.
        relative: as `parts_of` allows.
        make: create missing folders, each synced into its parent so that a crash cannot forget it.

    Raises:
        OSError: a folder on the way is a symbolic link, no folder, or may not be opened.
        ValueError: the path leads out.
    """
    *folders, name = parts_of(relative)
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for number, part in enumerate(folders):
            try:
                inner = _inside(descriptor, part, make)
            except FileNotFoundError:
                break
            except OSError as error:
                raise OSError(error.errno, error.strerror, os.path.join(*folders[: number + 1])) from None
            os.close(descriptor)
            descriptor = inner
        else:
            yield Place(descriptor, name)
            return
        yield None
    finally:
        os.close(descriptor)


def _inside(folder: int, name: str, make: bool) -> int:
    if make:
        try:
            os.mkdir(name, dir_fd=folder)
            os.fsync(folder)
        except FileExistsError:
            pass
    try:
        return os.open(name, _FOLDER, dir_fd=folder)
    except OSError:
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, "a folder on the way is a symbolic link") from None
        raise


def status_of(place: Place | None) -> os.stat_result | None:
    """Return what is at a place, a link not followed; None if nothing is."""
    if place is None:
        return None
    try:
        return os.stat(place.name, dir_fd=place.folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def is_file(place: Place | None) -> bool:
    """Whether a regular file is there; a link is none."""
    status = status_of(place)
    return status is not None and stat.S_ISREG(status.st_mode)


def open_file(place: Place, flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """Return a descriptor of a regular file; a link, a pipe or a device is refused, and none is waited for.

    Raises:
        OSError: it is not there, no regular file, or may not be opened.
    """
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(place.name, flags, mode, dir_fd=place.folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", place.name)
    return descriptor


def remove_file(place: Place) -> None:
    """Unlink a name if it is there; a link is unlinked itself, never what it points to."""
    with suppress(FileNotFoundError):
        os.unlink(place.name, dir_fd=place.folder)
