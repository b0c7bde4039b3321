"""Parse JSON, write files whole or not at all, and count the cores that this process may use."""

import contextlib
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from photodup.core.errors import PhotodupError
from photodup.core.names import printable
from photodup.core.safe_open import (
    PathInFolder,
    UnsafeNameError,
    opened,
    refuse_what_is_no_file,
    remove_file,
    status_of,
    writing,
)


def parse_json(text: bytes) -> Any:
    """Parse JSON from an untrusted source.

    Raises:
        ValueError: the text is no JSON, or its objects may take more memory than `check_json` allows.
        RecursionError: it nests without end.
    """
    check_json(text)
    return json.loads(text)


def check_json(text: bytes, most_bytes: int = 256_000_000) -> None:
    """Raise a ValueError if JSON, or lines of it, could take more than `most_bytes` in memory, such as many empty lists."""
    if len(text) < most_bytes // 50:  # so short a text cannot
        return
    containers, separators = (sum(map(text.count, signs)) for signs in ((b"[", b"{"), (b",", b'"', b"\n")))
    if len(text) + 32 * (3 * containers + separators) > most_bytes:
        raise ValueError(f"{len(text):,} bytes that would take more than {most_bytes:,} once read")


def real_path(folder: Path | str) -> Path:
    """Return a path with `~` and links followed; unlike with `Path.resolve`, a loop of links is no error."""
    return Path(os.path.realpath(os.path.expanduser(folder)))


def is_spelled_so(path: Path, within: Path, listed: dict[Path, frozenset[str]]) -> bool:
    """Return whether a path is spelled as its folders list it: some file systems also find other spellings.

    Args:
        path: absolute.
        within: a folder above it, whose own spelling is not checked.
        listed: cache of the names in each folder; those read now are added.

    Raises:
        OSError: a part of the path cannot be read as a folder.
    """
    for part in (path, *path.parents):
        if part in (within, part.parent):
            break
        if part.parent not in listed:
            listed[part.parent] = frozenset(os.listdir(part.parent))
        if part.name not in listed[part.parent]:
            return False
    return True


@contextlib.contextmanager
def replacing(path: Path, *, within: Path | None = None) -> Iterator[Path]:
    """Yield a new name beside `path` to write to; it takes the place of `path` when the block ends well.

    For libraries that write to a path; use `write_atomically` for bytes. A reader sees the old file or the new one, never
    a part. A block that raises, or writes nothing, leaves the old one.

    Args:
        path: the file to make or replace.
        within: as in `write_atomically`.

    Raises:
        PhotodupError: there is a link on the way, or no regular file at the name.
        OSError: the file cannot be written or renamed.
    """
    with _place(path, within) as place:
        refuse_what_is_no_file(status_of(place), hard_links=within is not None)
        # The name holds 32 random characters, so nobody can have put a link there.
        temporary = PathInFolder(place.folder, f".photodup-{secrets.token_hex(16)}.tmp")
        try:
            yield path.with_name(temporary.name)
            os.replace(temporary.name, place.name, src_dir_fd=place.folder, dst_dir_fd=place.folder)
        finally:
            remove_file(temporary)


def write_atomically(
    path: Path,
    data: bytes | str,
    *,
    within: Path | None = None,
    mode: int | None = None,
    fsync: bool = False,
    is_new: bool = False,
) -> None:
    """Write a file so that a reader sees all of it or nothing of it; its folders are made if there are none.

    Nothing is written through a link: the name must be free, or belong to a regular file.

    Args:
        path: the file to make or replace.
        data: the content; text is written as UTF-8 with its line ends as they are.
        within: a folder that others may have made: no folder below it may be a link, and the file may have no hard link.
            Default: the file's own folder; hard links of the file then keep the old content.
        mode, fsync, is_new: as in `safe_open.writing`.

    Raises:
        PhotodupError: there is a link on the way, or no regular file at the name.
        FileExistsError: `is_new`, and the name is taken.
        OSError: the file cannot be written.
    """
    with (
        _place(path, within) as place,
        writing(place, mode=mode, fsync=fsync, is_new=is_new, hard_links=within is not None) as file,
    ):
        file.write(data.encode() if isinstance(data, str) else data)


def remove(path: Path, *, within: Path) -> None:
    """Delete a file if it is there; below `within` no folder on the way may be a link.

    Raises:
        PhotodupError: one is.
        OSError: the file cannot be deleted.
    """
    with _place(path, within) as place:
        remove_file(place)


@contextlib.contextmanager
def _place(path: Path, within: Path | None) -> Iterator[PathInFolder]:
    folder = within or path.parent
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with opened(folder, str(path.relative_to(folder)), make=True) as place:
            assert place is not None  # its folders were made
            yield place
    except UnsafeNameError as error:
        where = folder / error.filename if error.filename else path
        raise PhotodupError(
            f"{printable(where)} is not written ({error.strerror}): photodup writes into files and folders of their "
            "own alone, so delete it or move it away."
        ) from None


def available_cores() -> int:
    """Return how many cores this process may use: fewer than the machine has in a container or under `taskset`."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
