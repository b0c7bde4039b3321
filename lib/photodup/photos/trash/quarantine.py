"""Remove photos without losing one: a move into `.photodup-trash/`, a journal, an undo.

The order is always the same. First the plan is appended to the journal and synced. Then each file is moved and checked.
Then the outcome is appended and synced. After a crash, the next opening of the trash takes an unfinished removal back, and
completes an unfinished restore or purge. So each file is in exactly one place, and the last line of its operation names
it. An operation that cannot be finished yet, such as in a read-only folder, waits without stopping others.

A library may come from somebody else, with a journal. So photodup finishes or purges by itself only operations that this
user's photodup signed. Others (another user's, a forger's, or those of a lost key) are listed apart, and restored or
purged only on request. For all of them paths stay inside the library, no link is followed, no file is replaced, and a file
whose size or content differs from the journal is not deleted. Files that no line names are listed as unknown.
"""

import os
import stat
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path

from photodup.core.errors import PhotodupError
from photodup.core.names import printable
from photodup.core.progress import bar
from photodup.core.safe_open import opened
from photodup.photos.library.hashing import md5 as md5_of_bytes
from photodup.photos.state.journal import Journal
from photodup.photos.state.own_key import own_key, read_key
from photodup.photos.trash.entries import (
    DISK_FULL,
    LAST_SECOND,
    UNKNOWN,
    Moved,
    Note,
    Operation,
    PartlyRestoredError,
    Removal,
    TrashContents,
    TrashError,
    Written,
    read_contents,
    sentence_of,
    sign,
    unknown_operation,
)
from photodup.photos.trash.files import TRASH_FOLDER, RemainingCopies, TrashFiles, free_names


class Trash:
    """The quarantine of one library, `.photodup-trash/` inside it.

    Opening it finishes interrupted operations, unless another process is working there. Changes take a lock, and fail at
    once if another process has it; reading needs none.

    Args:
        library: the scanned folder.
        on_step: called with a name before each step that a crash could separate; tests kill there.
    """

    moves_files = True

    def __init__(self, library: Path, on_step: Callable[[str], None] = lambda name: None) -> None:
        self.library = Path(library).absolute()
        self.root = self.library / TRASH_FOLDER
        self._files = TrashFiles(self.library, on_step)
        if not os.path.isdir(self.library):
            raise TrashError(
                f"There is no folder {printable(self.library)}: name the folder that was scanned."
            )
        if self.root.is_symlink():
            raise TrashError(f"{printable(self.root)} is a symbolic link: replace it by a real folder.")
        self._journal = Journal(self.root / "journal.jsonl", on_step, within=self.library)
        self._step = on_step
        if self.contents().interrupted:
            with suppress(TrashError), self._locked():
                pass  # taking the lock recovers; a read-only trash can still be read

    def contents(self) -> TrashContents:
        """Return the operations of the journal, and unknown files in the trash."""
        contents = read_contents(self._journal)
        inside = [o for o in contents.operations if o.in_trash or o.unfinished]
        strays = self._files.strays({moved.trash for operation in inside for moved in operation.files})
        return replace(contents, operations=[*map(unknown_operation, strays), *contents.operations])

    def remove(
        self, removals: Iterable[Removal], notes: Iterable[Note] = ()
    ) -> tuple[list[Operation], list[tuple[Removal, str]]]:
        """Write notes beside the photos that stay, then move photos and their sidecars into the trash.

        Each photo and each note is one operation.

        Returns:
            The operations, and the refused removals with a sentence each: a file changed or vanished since the scan,
            the last copy of a photo would go, a folder is read-only.

        Raises:
            TrashError: another photodup is working here, or the trash cannot be written.
            PhotodupError: this user's key, which signs operations, cannot be made.
        """
        removals = list(removals)
        operations, refused = [], []
        own_key()
        remaining = RemainingCopies(self.library, removals)
        with self._locked():
            unwritten: dict[Path, str] = {}
            written: list[tuple[Note, Operation]] = []
            for note in notes:
                try:
                    written.append((note, self._write_beside(note)))
                except (TrashError, OSError) as error:
                    unwritten |= dict.fromkeys(note.sources, sentence_of(error, note.path))
            for removal in bar(removals, total=len(removals), desc="move", unit="photo", disable=True):
                try:
                    if problem := unwritten.get(removal.path):
                        raise TrashError(
                            f"{printable(removal.path)} stays, as what it says has no place: {problem}"
                        )
                    operation = _begun(removal.reason)
                    for path in filter(os.path.exists, (removal.path, *removal.sidecars)):
                        md5 = removal.md5 if path == removal.path else None
                        operation.files.append(self._files.describe(path, operation.id, md5))
                    remaining.check(removal)
                    with self._removing(operation):
                        remaining.require_keeper(removal)
                    operations.append(operation)
                except (TrashError, OSError) as error:
                    refused.append((removal, sentence_of(error, removal.path)))
            staying = {removal.path for removal, _ in refused}
            for note, operation in written:
                operations.append(operation)
                if note.sources <= staying:
                    with suppress(TrashError, OSError):
                        self._bring_back(operation, operation.files)
                        operations.remove(operation)
        return operations, refused

    def restore(self, operations: Iterable[Operation], *, confirmed: bool = False) -> list[Path]:
        """Put files back under their names, with their times; return their paths.

        If the name is taken meanwhile, the file becomes `name (restored).jpg`.

        Args:
            operations: of `listing` or `unsigned`.
            confirmed: the user agreed to those of `unsigned`.

        Raises:
            PartlyRestoredError: a file is missing from the trash, was changed there, or cannot come back; all others
                are back.
        """
        restored: list[Path] = []
        refused: list[str] = []
        with self._locked():
            contents = self.contents()
            if confirmed:
                self._files.put_back(contents.written_by_others)
            present = self._present(
                contents.operations, operations, confirmed, {"removing", "restoring", "purging"}
            )
            # Newest first: a sidecar that was written twice then gets its first version back.
            present = [o for o in present[::-1] if o.written] + [o for o in present if not o.written]
            for operation in bar(present, total=len(present), desc="restore", unit="photo", disable=True):
                try:
                    # A sidecar that was edited since is not taken back; its former version stays in the trash.
                    written, path = operation.written, self.library / operation.home
                    is_changed = written and os.path.lexists(path) and not self._files.is_home(written)
                    if is_changed and not operation.unfinished:
                        raise TrashError(
                            f"{printable(path)} was changed since photodup wrote it: it stays as it is, look at it yourself."
                        )
                    files, changed = list[Moved](), list[str]()
                    for moved in operation.files:
                        is_same = self._files.is_as_removed(moved)
                        # Files of an interrupted operation may be at home already.
                        if is_same is not None or (operation.unfinished and self._files.is_home(moved)):
                            files.append(moved)
                        elif operation.state != "purging":
                            refused.append(f"{printable(moved.home)} was deleted from the trash by hand.")
                        if is_same is False:
                            changed.append(f"{printable(moved.home)} came back as something changed it.")
                    if files or written:
                        restored += self._bring_back(operation, files)
                        refused += changed
                except (OSError, TrashError) as error:
                    refused.append(sentence_of(error, path))
        if refused:
            back = f" {len(restored)} other files are back: scan again." if restored else ""
            raise PartlyRestoredError(f"{_first_of(refused)}{back}", restored)
        return restored

    def purge(self, operations: Iterable[Operation], *, confirmed: bool = False) -> int:
        """Delete files from the trash for good; return the bytes freed. Nothing else deletes a photo.

        Args:
            operations: of `listing` or `unsigned`.
            confirmed: the user agreed to those of `unsigned`.

        Raises:
            TrashError: a file is not the removed one and stays; all others are deleted.
        """
        freed_bytes = 0
        refused: list[str] = []
        with self._locked():
            to_purge = self._present(self.contents().operations, operations, confirmed, {"purging"})
            for operation in bar(to_purge, total=len(to_purge), desc="delete", unit="photo", disable=True):
                try:
                    if False in map(self._files.is_as_removed, operation.files):
                        raise TrashError(
                            f"{printable(operation.home)} in the trash is not the file that was removed (its content "
                            "differs): it was left there, and restoring brings it back."
                        )
                    freed_bytes += self._purge(operation)
                except (OSError, TrashError) as error:
                    refused.append(sentence_of(error, self.root / operation.home))
        if refused:
            raise TrashError(f"{_first_of(refused)} {freed_bytes / 1e6:.2f} MB of others are freed.")
        return freed_bytes

    def _present(
        self,
        everything: Iterable[Operation],
        chosen: Iterable[Operation],
        confirmed: bool,
        unfinished: set[str],
    ) -> list[Operation]:
        """Return the chosen operations that are in the trash, and those of others in an `unfinished` state."""
        ids = {operation.id for operation in chosen}
        present = []
        for operation in everything:
            waits = operation.state in unfinished and not operation.is_own
            if operation.id in ids and (operation.in_trash or waits):
                if not (operation.is_own or confirmed):
                    raise TrashError(
                        f"{operation.id} was not written by your photodup on this machine: nothing was done "
                        "about it; confirm that it is to be used."
                    )
                if operation.state == UNKNOWN:
                    operation.files = list(map(self._files.with_digest, operation.files))
                present.append(operation)
        return present

    # ---- one operation, from its journal line to the files and to the line that ends it; the trash is locked

    @contextmanager
    def _removing(self, operation: Operation) -> Iterator[None]:
        """Move an operation's files into the trash and run the block; if either fails, move them back."""
        self._write(operation, "removing")
        try:
            for moved in operation.files:
                self._files.to_trash(moved)
            yield
            self._write(operation, "removed")
        except (OSError, TrashError):
            self._bring_home(operation, "taken back")
            raise

    def _write_beside(self, note: Note) -> Operation:
        """Write a sidecar, after moving an existing one into the trash.

        Raises:
            TrashError, OSError: nothing was changed.
        """
        if note.path.suffix.lower() != ".xmp":
            raise TrashError(
                f"{printable(note.path)} is no XMP sidecar: photodup writes into no other file here."
            )
        operation = _begun(note.reason)
        home, mode = self._files.home_of(note.path), None
        if note.path.exists():
            mode = stat.S_IMODE(note.path.stat().st_mode)
            operation.files = [self._files.describe(note.path, operation.id)]
        if [moved.md5 for moved in operation.files] != ([note.before] if note.before else []):
            raise TrashError(
                f"{printable(note.path)} has changed since the list was shown: look at it again."
            )
        operation.written = Written(home, md5_of_bytes(note.data), len(note.data))
        with self._removing(operation):
            self._files.write(home, note.data, mode)
        return operation

    def _bring_back(self, operation: Operation, files: list[Moved]) -> list[Path]:
        """Restore the checked files of an operation."""
        before, was_unfinished = operation.files, operation.unfinished or bool(operation.written)
        operation.files = files
        self._write(operation, "restoring")
        try:
            self._bring_home(operation, "restored", again=was_unfinished)
        except (OSError, TrashError):
            if not was_unfinished:  # else it is ours now, and the next opening of the trash continues it
                for moved in operation.files:  # move everything into the trash again
                    if self._files.is_as_removed(moved) is None and self._files.is_home(moved):
                        self._files.to_trash(moved)
                operation.files = before
                self._write(operation, "removed")
            raise
        return [self.library / moved.home for moved in operation.files]

    def _bring_home(self, operation: Operation, outcome: str, *, again: bool = True) -> None:
        """Move back all files still in the trash; a file that a crash left in both places stays in one."""
        if operation.written:
            self._files.delete_written(operation.written)
        for number, moved in enumerate(operation.files):
            for home in free_names(moved.home):
                if home != moved.home:  # another file has the name
                    operation.files[number] = replace(moved, home=home)
                    self._write(operation, operation.state)
                if self._files.to_home(operation.files[number], again=again):
                    break
        self._files.clear(operation)
        self._write(operation, outcome)

    def _purge(self, operation: Operation) -> int:
        """Delete an operation's unchanged files from the trash; return the bytes freed."""
        try:
            self._write(operation, "purging")
        except OSError as error:
            # People purge because the disk is full: the deletion makes room for its journal line.
            if error.errno not in DISK_FULL:
                raise
        freed_bytes, remaining = operation.bytes, []
        for moved in operation.files:
            self._step("purge file")
            if not self._files.delete(moved):  # changed at the last moment
                remaining.append(moved)
        self._files.clear(operation)
        operation.files = remaining or operation.files
        self._write(operation, "removed" if remaining else "purged")
        return freed_bytes - sum(moved.size for moved in remaining)

    def _finish(self, operation: Operation) -> None:
        """Take an interrupted removal back, or complete a restore or purge."""
        if operation.state == "purging":
            self._purge(operation)
        elif operation.state == "restoring":
            self._bring_home(operation, "restored")
        elif operation.is_doubtful and self._is_complete(operation):  # the damaged line said so
            self._write(operation, "removed")
        else:
            self._bring_home(operation, "taken back")

    def _is_complete(self, operation: Operation) -> bool:
        """Return whether all of a removal was done."""
        is_written = not operation.written or self._files.is_home(operation.written)
        return is_written and all(self._files.is_as_removed(moved) for moved in operation.files)

    def _write(self, operation: Operation, state: str) -> None:
        """Append an operation with its state; every line is enough to restore it."""
        fields = asdict(operation)
        line = {name: fields[name] for name in ("time", "reason", "written", "files")}
        line |= {"op": operation.id, "state": state}
        self._journal.append(sign(read_key(), line))
        operation.state = state

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the trash for one process and thread, and recover it."""
        with suppress(PhotodupError):  # without a key the lines are unsigned
            own_key()
        try:
            with opened(self.library, TRASH_FOLDER) as place, suppress(FileExistsError):
                if place:
                    os.mkdir(place.name, 0o700, dir_fd=place.folder)  # the files may be private
                    os.fsync(place.folder)
            with self._journal.exclusive():
                for operation in self.contents().interrupted:
                    # Such as a read-only folder: the next opening tries again.
                    with suppress(OSError, TrashError):
                        self._finish(operation)
                yield
        except BlockingIOError:
            raise TrashError(
                f"Another photodup is changing {printable(self.root)}: wait until it is done."
            ) from None
        except OSError as error:
            raise TrashError(sentence_of(error, self.root)) from error


def _first_of(refused: list[str]) -> str:
    return refused[0] + (f" (and {len(refused) - 1} more)" if len(refused) > 1 else "")


def _begun(reason: str) -> Operation:
    """Return a new operation, whose id sorts by time; the time is limited to what a journal accepts."""
    now_s = min(max(time.time(), 0.0), LAST_SECOND - 86_400.0)
    begun = time.strftime("%Y%m%d-%H%M%S", time.localtime(now_s))
    return Operation(f"{begun}-{uuid.uuid4().hex[:8]}", now_s, reason, "")
