"""An append-only file of JSON lines that survives being killed in the middle of a write."""

import errno
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from photodup.core.errors import PhotodupError
from photodup.core.files import check_json
from photodup.core.names import printable
from photodup.core.safe_open import PathInFolder, open_file, opened, refuse_what_is_no_file

MOST_BYTES = 2**28  # a removal takes about 1,000

Line = dict[str, Any]  # a JSON object
_T = TypeVar("_T")


class JournalError(PhotodupError):
    """The journal cannot be used, and is left unchanged."""


class Journal:
    """Lines are appended whole and synced before anybody acts on them.

    A last line without a newline is an unfinished write, on which nobody has acted, so it is dropped. Any other
    unreadable line is damage: it stays and is reported, and the other lines are used. Journals come with other
    people's folders, so the file and its folders below `within` must not be links.

    Args:
        path: the file; its folder must exist before the first write.
        on_step: called with a name between the halves of a write; tests kill there.
        within: the folder below which no link is followed; default the file's own.
    """

    def __init__(
        self, path: Path, on_step: Callable[[str], None] = lambda name: None, *, within: Path | None = None
    ) -> None:
        self.path = path
        self._within = within or path.parent
        self._step = on_step

    def read(self) -> list[Line | None]:
        """Return all complete lines, None for those that are no JSON object.

        Raises:
            JournalError: the file cannot be read, or is too large for a journal.
        """
        try:
            with self._place("") as place, open(open_file(place), "rb") as file:
                self._refuse_large(file.fileno())
                content = file.read()
            check_json(content, 4 * MOST_BYTES)
            lines = content.split(b"\n")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise JournalError(
                f"{printable(self.path)} cannot be read ({error.strerror}): allow reading it."
            ) from None
        except ValueError as error:
            raise JournalError(f"{printable(self.path)} cannot be read ({error}): is it a journal?") from None
        return [_parsed(line) for line in lines[:-1]]

    def damaged(self, number: int) -> str:
        """Return a sentence about a damaged line, counted from 1."""
        return (
            f"Line {number} of {printable(self.path)} is damaged and was left out: the other lines are used, "
            "and nothing was touched because of it."
        )

    def append(self, *lines: Line) -> None:
        """Write lines and sync once; undo a failed write. Call it inside `exclusive()`."""
        text = b"".join(json.dumps(line, ensure_ascii=True).encode() + b"\n" for line in lines)
        self._step("journal")
        with self._writable(os.O_APPEND) as descriptor:
            end = os.fstat(descriptor).st_size
            try:
                half = len(text) // 2
                for piece in (text[:half], text[half:]):
                    while piece:
                        piece = piece[os.write(descriptor, piece) :]
                    self._step("journal line")
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, end)
                raise

    def _drop_cut_line(self) -> None:
        with self._writable() as descriptor, open(descriptor, "rb+", closefd=False) as file:
            if file.seek(0, os.SEEK_END) == 0:
                return
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Lock the journal, and drop an unfinished line.

        Raises:
            BlockingIOError: another process has locked it.
            OSError: it or its lock is no regular file, or has several names.
        """
        with self._place("lock") as place:
            lock = open_file(place, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._drop_cut_line()
            yield
        finally:
            os.close(lock)  # releases the lock, as does being killed

    def while_held(self, write: Callable[[], _T]) -> _T:
        """Call `write` with the journal locked, within about a second; make its folder first.

        Raises:
            PhotodupError: another process has locked it, or the disk is full.
        """
        try:
            self.path.parent.mkdir(exist_ok=True)
            for attempt in range(50):
                try:
                    with self.exclusive():
                        return write()
                except BlockingIOError:
                    time.sleep(0.02 * (attempt < 49))
            raise PhotodupError(f"{printable(self.path)} is in use by another photodup: try again.")
        except OSError as error:
            raise PhotodupError(
                f"{printable(self.path)} cannot be written ({error.strerror}): free some space, or allow writing it."
            ) from None

    @contextmanager
    def _place(self, name: str) -> Iterator[PathInFolder]:
        """Open the journal's folder; yield the journal, or another name in it."""
        with opened(self._within, str(self.path.relative_to(self._within))) as place:
            if place is None:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(self.path))
            yield place._replace(name=name) if name else place

    @contextmanager
    def _writable(self, flags: int = 0) -> Iterator[int]:
        with self._place("") as place:
            descriptor = open_file(place, os.O_RDWR | os.O_CREAT | flags)
            try:
                refuse_what_is_no_file(status := os.fstat(descriptor))
                self._refuse_large(descriptor)
                if not status.st_size:  # perhaps it was made just now
                    os.fsync(place.folder)
                yield descriptor
            finally:
                os.close(descriptor)

    def _refuse_large(self, descriptor: int) -> None:
        if os.fstat(descriptor).st_size > MOST_BYTES:
            raise JournalError(
                f"{printable(self.path)} has more than {MOST_BYTES >> 20} MB, so no photodup wrote it: move it away."
            )


def _parsed(line: bytes) -> Line | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):  # not JSON, not UTF-8, an endless number, brackets without end
        return None
    return entry if isinstance(entry, dict) else None
