"""What is done with files everywhere, once for all; and how many cores this process may use."""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path


def real_path(folder: Path | str) -> Path:
    """Return where a path leads, `~` and links followed; unlike `Path.resolve`, a loop of links is no error."""
    return Path(os.path.realpath(os.path.expanduser(folder)))


@contextlib.contextmanager
def replacing(path: Path, *, fsync: bool = False) -> Iterator[Path]:
    """Yield a new name beside `path` to write to; it takes the place of `path` when the block ends well.

    A reader sees the old file or the new one, never a part. A block that raises, or writes nothing, leaves the
    old one. The folder must exist. The new name holds 16 random characters, so nobody can have put a link there.

    Args:
        path: the file to make or replace.
        fsync: bring the content to the disk before the name, or a power cut may leave the name on nothing.

    Raises:
        OSError: the file cannot be written or renamed.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        yield temporary
        if fsync:
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_atomically(path: Path, data: bytes | str, *, mode: int | None = None, fsync: bool = False) -> None:
    """Write a file so that a reader sees all of it or nothing of it; its folder is made if there is none.

    Args:
        path: the file to make or replace; a link there is replaced, not followed.
        data: the content; text is written as UTF-8 with its line ends as they are.
        mode: permissions such as 0o600, set before anything is written; None for what the umask leaves.
        fsync: bring the content to the disk first (see `replacing`).

    Raises:
        OSError: the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, fsync=fsync) as temporary:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else mode)
        with open(handle, "wb") as file:
            if mode is not None:
                os.fchmod(handle, mode)  # whatever the umask takes away
            file.write(data.encode() if isinstance(data, str) else data)


def available_cores() -> int:
    """Return how many cores this process may use, which in a container or under `taskset` are fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
