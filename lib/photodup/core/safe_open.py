"""Opening and writing what lies beneath a folder, and nothing else: every file that photodup writes goes through here.

A path is walked one folder at a time, each opened inside the one before and never through a symbolic link,
so no `..`, no absolute path, no linked folder, and no folder that is exchanged in between, leads out. This
needs `openat` and its relatives, which every system has that photodup runs on (Linux and macOS: the
journal's lock needs `fcntl` too).

A name that is not photodup's own is never checked and then replaced or deleted: another program may use it in between.
The file is moved first, by `move_without_replacing`, and checked where no other program works.
"""

import ctypes
import errno
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

TEMPORARY = re.compile(r"\.photodup-[0-9a-f]{32}\.tmp")  # left by a write that was killed
_ROOT = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_SYSTEM = ctypes.CDLL(None, use_errno=True)
_RENAME_NOREPLACE = {"renameat2": 1, "renameatx_np": 4}  # of Linux and of macOS, with the flag that refuses
_NO_ATTRIBUTES = frozenset(
    {errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENODATA, errno.EINVAL, errno.EPERM, errno.EACCES}
)


class UnsafeNameError(OSError):
    """The name belongs to a link, a hard link or no regular file: writing there would change something elsewhere."""


class PathInFolder(NamedTuple):
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
def opened(root: Path | int, relative: str, *, make: bool = False) -> Iterator[PathInFolder | None]:
    """Open the folder that holds a path beneath `root`; yield None where a folder on the way is missing.

    Args:
        root: any folder; links on the way to it are followed, for the user named it. Or the descriptor of an open one.
        relative: as `parts_of` allows.
        make: create missing folders, each synced into its parent so that a crash cannot forget it.

    Raises:
        UnsafeNameError: a folder on the way is a symbolic link, or no folder.
        OSError: a folder on the way may not be opened.
        ValueError: the path leads out.
    """
    *folders, name = parts_of(relative)
    descriptor = os.dup(root) if isinstance(root, int) else os.open(root, _ROOT)
    try:
        for number, part in enumerate(folders):
            try:
                inner = _inside(descriptor, part, make)
            except FileNotFoundError:
                break
            except OSError as error:
                kind = UnsafeNameError if isinstance(error, UnsafeNameError) else OSError
                raise kind(error.errno, error.strerror, os.path.join(*folders[: number + 1])) from None
            os.close(descriptor)
            descriptor = inner
        else:
            yield PathInFolder(descriptor, name)
            return
        yield None
    finally:
        os.close(descriptor)


def _inside(folder: int, name: str, make: bool) -> int:
    if make:
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=folder)
            os.fsync(folder)
    try:
        return os.open(name, _FOLDER, dir_fd=folder)
    except OSError:
        kind = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        if stat.S_ISLNK(kind):
            raise UnsafeNameError(errno.ELOOP, "a folder on the way is a symbolic link") from None
        if not stat.S_ISDIR(kind):
            raise UnsafeNameError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None
        raise


def status_of(place: PathInFolder | None) -> os.stat_result | None:
    """Return the status of a name, of a link itself; None if the name is free."""
    if place is None:
        return None
    try:
        return os.stat(place.name, dir_fd=place.folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def open_file(place: PathInFolder | None, flags: int = os.O_RDONLY) -> int:
    """Return a descriptor of a regular file; a link, a pipe or a device is refused, and none is waited for.

    Args:
        place: the file; None for one in a folder that is not there.
        flags: as of `os.open`.

    Raises:
        OSError: it is not there, no regular file, or may not be opened.
    """
    if place is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(place.name, flags, 0o600, dir_fd=place.folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", place.name)
    return descriptor


def remove_file(place: PathInFolder) -> None:
    """Unlink a name if it is there; a link is unlinked itself, never what it points to."""
    with suppress(FileNotFoundError):
        os.unlink(place.name, dir_fd=place.folder)


def refuse_what_is_no_file(status: os.stat_result | None, *, hard_links: bool = True) -> None:
    """Check that a name is free or belongs to a regular file.

    Args:
        status: what is there, a link not followed; None: nothing.
        hard_links: refuse a file with another name too.

    Raises:
        UnsafeNameError: a symbolic link, a hard link, a folder, a pipe or a device.
    """
    if status is None:
        return
    if stat.S_ISLNK(status.st_mode):
        raise UnsafeNameError(errno.ELOOP, "it is a symbolic link")
    if not stat.S_ISREG(status.st_mode):
        raise UnsafeNameError(errno.EINVAL, "it is no regular file")
    if hard_links and status.st_nlink > 1:
        # The other name may be any file of this user; a folder that somebody else made can do that.
        raise UnsafeNameError(errno.EMLINK, "it has another name, a hard link")


@contextmanager
def writing(
    place: PathInFolder,
    *,
    mode: int | None = None,
    fsync: bool = False,
    is_new: bool = False,
    hard_links: bool = True,
    temporary: str = "",
) -> Iterator[BinaryIO]:
    """Yield a file to write to; it takes its name when the block ends well, so that a reader sees all or nothing.

    A block that raises leaves what was there. The bytes go into a file of a new random name beside it, which nobody
    can have put a link at.

    Args:
        place: the name; nothing may have it but a regular file.
        mode: permissions such as 0o600, set before anything is written; None for what the umask leaves.
        fsync: bring the content to the disk before the name, or a power cut may leave the name on nothing.
        is_new: never replace a file that is there.
        hard_links: refuse a file that has another name; else this name gets a file of its own, and the other stays.
        temporary: the name until then, by which the caller finds what a killed process left; default a random one.

    Raises:
        UnsafeNameError: the name is a link's or no regular file's.
        FileExistsError: `is_new`, and the name is taken.
        OSError: the file cannot be written.
    """
    refuse_what_is_no_file(status_of(place), hard_links=hard_links)
    part = PathInFolder(place.folder, temporary or f".photodup-{secrets.token_hex(16)}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(part.name, flags, 0o666 if mode is None else mode, dir_fd=place.folder)
    try:
        with open(descriptor, "wb") as file:
            if mode is not None:
                os.fchmod(descriptor, mode)  # whatever the umask takes away
            yield file
            if fsync:
                file.flush()
                os.fsync(descriptor)
        if is_new:
            move_without_replacing(part, place)
        else:
            os.replace(part.name, place.name, src_dir_fd=place.folder, dst_dir_fd=place.folder)
    finally:
        remove_file(part)  # there if the block raised


def move_without_replacing(source: PathInFolder, target: PathInFolder, *, is_ours: bool = False) -> None:
    """Move whatever has a name, file or folder, to a name that must be free.

    Linux and macOS do that in one step on most file systems. Elsewhere (NFS, some of FUSE) a file gets its new name as a
    hard link, or as a copy if the file system has no hard links, and then loses the old name. In that case one of the two
    names has to be photodup's own, which no other program uses.

    Args:
        source: what moves; a link itself, never what it points to.
        target: its new name, in an open folder.
        is_ours: the new name is photodup's own; else the old one is.

    Raises:
        FileExistsError: the new name is taken.
        OSError: it cannot be moved; `EXDEV` where the new name is on another volume.
    """
    if _rename_in_one_step(source, target):
        return
    folders = {"src_dir_fd": source.folder, "dst_dir_fd": target.folder}
    status = os.stat(source.name, dir_fd=source.folder, follow_symlinks=False)
    if is_ours or stat.S_ISDIR(status.st_mode):  # a folder replaces nothing but an empty folder
        if status_of(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target.name)
        os.rename(source.name, target.name, **folders)
        return
    try:
        os.link(source.name, target.name, follow_symlinks=False, **folders)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOENT, errno.EXDEV):
            raise
        if stat.S_ISLNK(status.st_mode):
            path = os.readlink(source.name, dir_fd=source.folder)
            os.symlink(path, target.name, dir_fd=target.folder)
        else:
            with open(open_file(source), "rb") as original:
                write_copy(original, target)
    remove_file(source)


def _rename_in_one_step(source: PathInFolder, target: PathInFolder) -> bool:
    """Return whether the system renamed it; any error but a taken name is left to the other ways."""
    for name, flag in _RENAME_NOREPLACE.items():
        rename = getattr(_SYSTEM, name, None)
        names = os.fsencode(source.name), os.fsencode(target.name)
        if rename and not rename(source.folder, names[0], target.folder, names[1], flag):
            return True
        if rename and ctypes.get_errno() == errno.EEXIST:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target.name)
    return False


def write_copy(original: BinaryIO, target: PathInFolder) -> None:
    """Write an open file's content, times, permissions and extended attributes under a name that must be free, synced.

    Raises:
        FileExistsError: the name is taken.
        OSError: it cannot be read or written; what was written is removed.
    """
    with open(open_file(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as copy:
        try:
            shutil.copyfileobj(original, copy, 1 << 20)
            copy.flush()
            _copy_metadata(original.fileno(), copy.fileno())
            os.fsync(copy.fileno())
        except OSError:
            status = status_of(target)
            if status and os.path.samestat(status, os.fstat(copy.fileno())):
                remove_file(target)
            raise


def _copy_metadata(source: int, target: int) -> None:
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


def file_state(status: os.stat_result | None) -> tuple[int, ...] | None:
    """Return a fingerprint that changes when a file is replaced or written to; None for anything but a regular file."""
    if status is None or not stat.S_ISREG(status.st_mode):
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
