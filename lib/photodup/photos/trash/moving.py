"""Moving one file so that a crash leaves it under its old name, its new name or both, never neither."""

import contextlib
import errno
import hashlib
import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path

_MAX_NAME_BYTES = 255  # of nearly every file system
_SAME = ("st_size", "st_mtime_ns")  # a number that stays with a file is not to be had on every volume
_NO_HARD_LINKS = frozenset(
    {errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES}
)


def md5_of(path: Path) -> str:
    """Return the hex MD5 of a file's bytes (an identity here, not a protection against forgery)."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def move_file(
    source: Path, target: Path, *, md5: str, times_ns: tuple[int, int], on_step: Callable[[str], None]
) -> None:
    """Move a regular file to a name that must be free, and set its access and modification times.

    On one volume the file itself moves, so nothing about it changes. Across volumes it is copied
    with its metadata, synced and compared before the original goes; a creation time is not carried.
    Neither way replaces a file that is there, or deletes one that another program saved meanwhile.

    Raises:
        OSError: nothing moved; a half-made copy may remain as `part_of(target)`. Where the original
            changed meanwhile it stays, and the target is what it was before.
    """
    before = os.lstat(source)
    on_step("link")
    try:
        os.link(source, target)  # unlike rename, refuses a name that is taken
    except OSError as error:
        if error.errno == errno.EXDEV:
            _copy(source, target, md5, on_step)
        elif error.errno in _NO_HARD_LINKS:  # exFAT, or a file of another owner
            if os.path.lexists(target):
                raise FileExistsError(errno.EEXIST, "the name is taken", str(target)) from None
            os.rename(source, target)
            before = None
        else:
            raise
    sync_folder(target.parent)
    on_step("unlink")
    if before:
        _unlink_unchanged(source, before)
    sync_folder(source.parent)
    on_step("times")
    with contextlib.suppress(OSError):  # not the owner: the times are then as they were
        os.utime(target, ns=times_ns)


def _copy(source: Path, target: Path, md5: str, on_step: Callable[[str], None]) -> None:
    part = part_of(target)
    try:
        on_step("copy")
        shutil.copy2(source, part)
        with open(part, "rb+") as file:
            os.fsync(file.fileno())
        on_step("compare")
        if md5_of(part) != md5:
            raise OSError(errno.EIO, "the copy differs from the original", str(source))
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, "the name is taken", str(target))
        on_step("rename")
        os.rename(part, target)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def _unlink_unchanged(path: Path, before: os.stat_result) -> None:
    with contextlib.suppress(FileNotFoundError):
        now = os.lstat(path)
        if any(getattr(now, name) != getattr(before, name) for name in _SAME):
            raise OSError(errno.EBUSY, "it changed while it was moved", str(path))
        os.unlink(path)


def part_of(path: Path) -> Path:
    """Return the name a copy has until it is complete: never longer than a name may be, as `.name.part` is."""
    short = hashlib.md5(os.fsencode(path.name), usedforsecurity=False).hexdigest()
    return path.with_name(f".{short}.photodup-part")


def free_name(path: Path) -> Path:
    """Return the path itself, or `name (restored).jpg`, `name (restored 2).jpg`, … if it is taken."""
    if not os.path.lexists(path):
        return path
    names = (" (restored)" if number == 1 else f" (restored {number})" for number in itertools.count(1))
    candidates = (path.with_name(_shortened(path.stem, suffix + path.suffix)) for suffix in names)
    return next(candidate for candidate in candidates if not os.path.lexists(candidate))


def _shortened(stem: str, suffix: str) -> str:
    room = _MAX_NAME_BYTES - len(os.fsencode(suffix))
    encoded = os.fsencode(stem)
    # Cut between characters: file systems that take UTF-8 only refuse half of one.
    return (stem if len(encoded) <= room else encoded[:room].decode("utf-8", "ignore")) + suffix


def make_folders(folder: Path) -> None:
    """Create missing folders, each synced into its parent so that a crash cannot forget it."""
    for path in reversed([p for p in (folder, *folder.parents) if not p.exists()]):
        path.mkdir(exist_ok=True)
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a folder's names durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
