"""Moving one file so that a crash leaves it under its old name, its new name or both, never neither."""

import contextlib
import errno
import hashlib
import itertools
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from photodup.beneath import Place, open_file, remove_file, status_of

_MAX_NAME_BYTES = 255  # of nearly every file system
_SAME = ("st_size", "st_mtime_ns")  # a number that stays with a file is not to be had on every volume
_NO_HARD_LINKS = frozenset(
    {errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES}
)
_NO_ATTRIBUTES = frozenset(
    {errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENODATA, errno.EINVAL, errno.EPERM, errno.EACCES}
)


def md5_of(path: Path) -> str:
    """Return the hex MD5 of a file's bytes (an identity here, not a protection against forgery)."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def md5_at(place: Place) -> str:
    """Return the hex MD5 of a regular file's bytes.

    Raises:
        OSError: it is not there, a link, or no regular file.
    """
    with open(open_file(place), "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def move_file(
    source: Place, target: Place, *, md5: str, times_ns: tuple[int, int], on_step: Callable[[str], None]
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
    is_linked = True
    on_step("link")
    try:
        # Unlike rename, this refuses a name that is taken.
        os.link(
            source.name,
            target.name,
            src_dir_fd=source.folder,
            dst_dir_fd=target.folder,
            follow_symlinks=False,
        )
    except OSError as error:
        if error.errno == errno.EXDEV:
            _copy(source, target, md5, on_step)
        elif error.errno in _NO_HARD_LINKS:  # exFAT, or a file of another owner
            _refuse_taken(target)
            _rename(source, target)
            is_linked = False
        else:
            raise
    os.fsync(target.folder)
    on_step("unlink")
    if is_linked:
        _unlink_unchanged(source, before)
    os.fsync(source.folder)
    on_step("times")
    set_times(target, times_ns)


def set_times(place: Place, times_ns: tuple[int, int]) -> None:
    """Set access and modification time where that can be done.

    Not of a file that has another name (a hard link): that one may lie outside the library.
    """
    with contextlib.suppress(OSError):  # not the owner: the times are then as they were
        descriptor = open_file(place)
        try:
            if os.fstat(descriptor).st_nlink == 1:
                os.utime(descriptor, ns=times_ns)
        finally:
            os.close(descriptor)


def _copy(source: Place, target: Place, md5: str, on_step: Callable[[str], None]) -> None:
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
        _refuse_taken(target)
        on_step("rename")
        _rename(part, target)
    except OSError:
        remove_file(part)
        raise


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


def _rename(source: Place, target: Place) -> None:
    os.rename(source.name, target.name, src_dir_fd=source.folder, dst_dir_fd=target.folder)


def _refuse_taken(target: Place) -> None:
    if status_of(target):
        raise FileExistsError(errno.EEXIST, "the name is taken", target.name)


def _unlink_unchanged(place: Place, before: os.stat_result) -> None:
    if now := status_of(place):
        if any(getattr(now, name) != getattr(before, name) for name in _SAME):
            raise OSError(errno.EBUSY, "it changed while it was moved", place.name)
        remove_file(place)


def part_of(place: Place) -> Place:
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
