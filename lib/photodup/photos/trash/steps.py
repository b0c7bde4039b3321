"""One photo's removal, restore or purge: from its journal line to the files, and to the line that ends it.

Each step can be interrupted; `finish` goes on from whatever the journal says. `trash.py` says in which order.
"""

import os
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from photodup.names import printable
from photodup.photos.own.journal import Journal
from photodup.photos.own.own_key import read_key
from photodup.photos.trash.moving import md5_of
from photodup.photos.trash.staying import NO_KEEPER
from photodup.photos.trash.trash_entries import ITEMS, Moved, Operation, Removal, TrashError, signed
from photodup.photos.trash.trash_files import TrashFiles


class OperationSteps:
    """What happens to the files of one operation at a time; call it while the trash is held.

    Args:
        library: the scanned folder, absolute.
        files: its files and those of the trash.
        journal: where each step is written down before and after.
        on_step: as of `Trash`.
    """

    def __init__(
        self, library: Path, files: TrashFiles, journal: Journal, on_step: Callable[[str], None]
    ) -> None:
        self._library, self._files, self._journal, self._step = library, files, journal, on_step

    def remove(
        self,
        removal: Removal,
        batch: str,
        before: dict[Path, os.stat_result],
        homes: dict[Path, str],
        keeper: Path,
        shared: list[str],
    ) -> Operation:
        """Move a photo and its sidecars into the trash.

        Args:
            removal: the photo, as it was asked for.
            batch: the call that it belongs to.
            before: what each file was before it was hashed; the photo first.
            homes: each file's path in the library.
            keeper: the copy that stays; looked for again at the end.
            shared: paths in the library of sidecars that leave with another photo of the batch.

        Raises:
            TrashError, OSError: it did not happen, and everything is back.
        """
        operation = Operation(new_id(), batch, time.time(), removal.reason, "", shared=shared)
        for path, status in before.items():
            md5 = removal.md5 if path == removal.path else md5_of(path)
            trash = os.path.join(ITEMS, operation.id, homes[path])
            times = status.st_mtime_ns, status.st_atime_ns
            operation.files.append(Moved(homes[path], trash, md5, status.st_size, *times))
        self.write(operation, "removing", files=operation.files)
        try:
            for moved in operation.files:
                self._files.to_trash(moved)
            if not keeper.is_file():
                raise TrashError(f"{printable(removal.path)} stays: {NO_KEEPER}")
            self.write(operation, "removed")
        except (OSError, TrashError):
            self._bring_home(operation, "taken back")
            raise
        return operation

    def restore(self, operation: Operation, files: list[Moved]) -> list[Path]:
        """Restore those files of an operation that are there and were checked."""
        before, was_unfinished = operation.files, operation.unfinished
        # Where a crash may have left a file in both places, its name is not taken by another one.
        operation.files = files if was_unfinished else [self._files.renamed_if_taken(m) for m in files]
        self.write(operation, "restoring", files=operation.files)
        try:
            self._bring_home(operation, "restored", checked=True)
        except (OSError, TrashError):
            if not was_unfinished:  # else it is ours now, and whoever opens the trash next goes on with it
                self._back_to_trash(operation, before)
            raise
        return [self._library / moved.home for moved in operation.files]

    def _back_to_trash(self, operation: Operation, before: list[Moved]) -> None:
        """Undo a restore that failed half-way: everything is in the trash again, under its first names."""
        for moved in operation.files:
            if not self._files.is_in_trash(moved) and self._files.is_home(moved):
                self._files.to_trash(moved)
        operation.files = before
        self.write(operation, "removed", files=before)

    def _bring_home(self, operation: Operation, outcome: str, *, checked: bool = False) -> None:
        """Move back whatever is still in the trash; where a crash left a file in both places, end that."""
        for number, moved in enumerate(operation.files):
            if (todo := self._files.settle(moved)) == "done":
                continue
            if not checked:
                self._files.require_same(moved)
            if todo == "rename":  # someone else's file has the name by now
                moved = operation.files[number] = self._files.renamed_if_taken(moved)
                self.write(operation, operation.state, files=operation.files)
            self._files.to_home(moved)
        self._files.clear(operation)
        self.write(operation, outcome, files=operation.files)

    def delete(self, operation: Operation, *, checked: bool = False) -> None:
        """Delete an operation's files from the trash; one that is not as journalled is refused, unless checked."""
        for moved in operation.files:
            self._step("purge file")
            if checked or self._files.require_same(moved):
                self._files.delete(moved)
        self._files.clear(operation)
        self.write(operation, "purged")

    def finish(self, operation: Operation) -> None:
        """Finish what was interrupted: a removal is taken back, a restore or purge completed."""
        if operation.state == "removing":
            self._bring_home(operation, "taken back")
        elif operation.state == "restoring":
            self._bring_home(operation, "restored")
        elif operation.state == "purging":
            self.delete(operation)

    def write(self, operation: Operation, state: str, files: list[Moved] | None = None) -> None:
        """Append an operation's state, and its files where they are said for the first time or have changed."""
        line: dict = {"op": operation.id, "state": state, "time": time.time()}
        if files is not None:
            about: dict[str, Any] = {"batch": operation.batch, "reason": operation.reason}
            about |= {"shared": operation.shared} if operation.shared else {}
            line |= about | {"files": [asdict(moved) for moved in files]}
        self._journal.append(signed(read_key(), line))
        operation.state = state


def new_id() -> str:
    """Return a name that sorts by time, so the trash folder reads chronologically."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:8]}"
