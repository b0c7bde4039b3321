"""An append-only file of JSON lines that survives being killed in the middle of a write."""

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from photodup.errors import PhotodupError
from photodup.photos.library.catalogue import printable


class JournalError(PhotodupError):
    """The journal cannot be believed; it is left as it is for a person to read."""


class Journal:
    """Lines are appended whole and synced, and only then is anything done about them.

    A last line without its newline is a write that was cut short: nothing was done about it yet, so
    it is dropped. Any other unreadable line means damage, and that is an error.

    Args:
        path: the file; its folder need not exist until something is written.
        on_step: called with a name between the halves of a write; tests kill there.
    """

    def __init__(self, path: Path, on_step: Callable[[str], None] = lambda name: None) -> None:
        self.path = path
        self._step = on_step

    def read(self) -> list[dict[str, Any]]:
        """Return every complete line.

        Raises:
            JournalError: a line in the middle is no JSON object, or the file cannot be read.
        """
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise JournalError(
                f"{printable(self.path)} cannot be read ({error.strerror}): allow reading it."
            ) from None
        return [self._parsed(line, number) for number, line in enumerate(lines[:-1], start=1)]

    def damaged(self, number: int) -> JournalError:
        """Return the error for a line (from 1) that cannot be believed."""
        return JournalError(
            f"Line {number} of {printable(self.path)} is damaged: repair or move it; no photo was touched."
        )

    def _parsed(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            entry = json.loads(line)
        except ValueError:
            raise self.damaged(number) from None
        if not isinstance(entry, dict):
            raise self.damaged(number)
        return entry

    def append(self, *entries: dict[str, Any]) -> None:
        """Write lines and sync them once. Call inside `exclusive()`; a failed write is taken back."""
        line = b"".join(json.dumps(entry, ensure_ascii=True).encode() + b"\n" for entry in entries)
        self._step("journal")
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            end = os.fstat(descriptor).st_size
            try:
                half = len(line) // 2
                for piece in (line[:half], line[half:]):
                    while piece:
                        piece = piece[os.write(descriptor, piece) :]
                    self._step("journal line")
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, end)
                raise
        finally:
            os.close(descriptor)

    def _drop_cut_line(self) -> None:
        with open(self.path, "rb+") as file:
            if file.seek(0, os.SEEK_END) == 0:
                return
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the journal; a line that was cut short is dropped first.

        Raises:
            BlockingIOError: another process holds it.
        """
        lock = os.open(self.path.with_name("lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self.path.exists():
                self._drop_cut_line()
            else:
                self.path.touch(0o600)
                folder = os.open(self.path.parent, os.O_RDONLY)
                os.fsync(folder)
                os.close(folder)
            yield
        finally:
            os.close(lock)  # releases the lock, as does being killed
