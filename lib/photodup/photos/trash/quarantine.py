"""Removing photos without losing one: a move into `.photodup-trash/`, a journal, an undo.

The order is always the same. What is about to happen is appended to the journal and synced; then each file is moved, and
looked at after that; then the outcome is appended and synced. Whoever opens the trash next finishes what a crash
interrupted: an unfinished removal is taken back, an unfinished restore or purge is completed. So after
recovery each file is in exactly one place, and the last journal line of its operation says which. What
cannot be finished yet (a folder that is read-only today) waits, and stops nothing else.

A library may come from somebody else, with a journal in it. So only operations that this user's photodup
signed are finished or purged by themselves; others (another user's, a forger's, or those
of a key that is lost) are listed apart, and restored or purged when that is asked for expressly. Whoever
wrote it, every path is resolved beneath the library, no link followed, no name is ever replaced, and a file whose size or
content is not as journalled is not deleted. What no line names is listed as unknown.
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
from photodup.photos.library.sidecars import belonging_to
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
    signed,
    unknown_operation,
)
from photodup.photos.trash.files import (
    TRASH_FOLDER,
    RemainingCopies,
    TrashFiles,
    free_names,
)


class Trash:
    """The quarantine of one library, `.photodup-trash/` inside it.

    Opening it finishes what a crash interrupted, unless another process is at work there; reading
    needs no lock, changing takes one and fails at once if it is held.

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
        self._in_trash: tuple[tuple[int, ...] | None, dict[str, Operation]] = None, {}
        if self.contents().interrupted:
            with suppress(TrashError), self._locked():
                pass  # taking the lock recovers; where nothing can be written, there is still much to read

    def contents(self) -> TrashContents:
        """Return what the journal says, read once, and what lies in the trash besides."""
        contents = read_contents(self._journal)
        inside = [
            operation for operation in contents.operations if operation.in_trash or operation.unfinished
        ]
        strays = self._files.strays({moved.trash for operation in inside for moved in operation.files})
        return replace(contents, operations=[*map(unknown_operation, strays), *contents.operations])

    def find(self, name: str) -> Operation | None:
        """Return this user's operation of that id if its files are in the trash now.

        The journal is read again only after it changed: a page of a thousand pictures asks a thousand times.
        """
        state = self._journal.state()  # before reading, so a line that comes meanwhile is read the next time
        read_state, operations = self._in_trash
        if state is None or state != read_state:
            operations = {operation.id: operation for operation in self.contents().listing}
            self._in_trash = state, operations
        return operations.get(name)

    def remove(
        self, removals: Iterable[Removal], notes: Iterable[Note] = ()
    ) -> tuple[list[Operation], list[tuple[Removal, str]]]:
        """Move photos and their sidecars into the trash, once what only they say is written beside what stays.

        Each photo and each note is its own operation; all of one call share a batch, so one undo takes them back.

        Returns:
            The operations done, and the removals refused, each with one sentence why: a file that
            changed or vanished since the scan, a photo whose last copy would go, a read-only folder.

        Raises:
            TrashError: another photodup is at work here, or the trash cannot be written.
            PhotodupError: this user's key cannot be made, without which no undo could be told from a forgery.
        """
        removals, batch = list(removals), _new_id()
        operations, refused = [], []
        last = {sidecar: removal.path for removal in removals for sidecar in removal.sidecars}
        shared: set[Path] = set()  # by photos that were left alone
        own_key()
        remaining = RemainingCopies(self.library, removals)
        with self._locked():
            unwritten: dict[Path, str] = {}
            written: list[tuple[Note, Operation]] = []
            for note in notes:
                try:
                    written.append((note, self._write_beside(note, batch)))
                except (TrashError, OSError) as error:
                    unwritten |= dict.fromkeys(note.sources, sentence_of(error, note.path))
            for removal in _watched(removals, "move"):
                leaving = (p for p in removal.sidecars if last[p] == removal.path and p not in shared)
                files = (removal.path, *leaving)
                try:
                    if problem := unwritten.get(removal.path):
                        raise TrashError(
                            f"{printable(removal.path)} stays, as what it says has no place: {problem}"
                        )
                    operation = Operation(_new_id(), batch, _now_s(), removal.reason, "")
                    for path in filter(os.path.exists, files):
                        md5 = removal.md5 if path == removal.path else None
                        operation.files.append(self._files.described(path, operation.id, md5))
                    remaining.check(removal)
                    together = {*removal.sidecars, *belonging_to(removal.path)}
                    beside = sorted(together - set(files))
                    operation.shared = [os.path.relpath(path, self.library) for path in beside]
                    with self._removing(operation):
                        remaining.require_keeper(removal)
                    operations.append(operation)
                except (TrashError, OSError) as error:
                    shared.update(removal.sidecars)
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
        """Put files back under their names, with their times; return where they are now.

        A name that has been taken meanwhile is not overwritten: the file comes back as
        `name (restored).jpg`. A sidecar that belongs to several photos comes back with the first of them.

        Args:
            operations: of `listing()`, or of `unsigned()`.
            confirmed: also those of `unsigned()`: the user was asked.

        Raises:
            PartlyRestoredError: a file is gone from the trash, was changed there, or cannot come back; everything
                else has by then.
        """
        restored: list[Path] = []
        refused: list[str] = []
        with self._locked():
            contents = self.contents()
            everything = contents.operations
            if confirmed:
                self._files.put_back(contents.written_by_others)
            present = self._present(everything, operations, confirmed, {"removing", "restoring", "purging"})
            # A sidecar that was written twice comes back the way it went.
            present = [o for o in present[::-1] if o.written] + [o for o in present if not o.written]
            for operation in _watched(present, "restore"):
                try:
                    # A sidecar that somebody changed since is not taken back; what it was before stays in the trash.
                    written, path = operation.written, self.library / operation.home
                    is_changed = written and os.path.lexists(path) and not self._files.is_home(written)
                    if is_changed and not operation.unfinished:
                        raise TrashError(
                            f"{printable(path)} was changed since photodup wrote it: it stays as it is, look at it yourself."
                        )
                    same = {moved: self._files.is_as_removed(moved) for moved in operation.files}
                    # What was interrupted may have part of its files at home: that is no loss.
                    files = [
                        moved
                        for moved, is_same in same.items()
                        if is_same is not None or (operation.unfinished and self._files.is_home(moved))
                    ]
                    if operation.state != "purging":
                        gone = [moved for moved in operation.files if moved not in files]
                        refused += (f"{printable(m.home)} was deleted from the trash by hand." for m in gone)
                    if files or written:
                        changed = [moved.home for moved in files if same[moved] is False]
                        staying = (other for other in everything if other not in present)
                        files += self._sidecars_shared_with(operation, staying)
                        restored += self._bring_back(operation, files)
                        refused += (
                            f"{printable(home)} came back as something changed it." for home in changed
                        )
                except (OSError, TrashError) as error:
                    refused.append(sentence_of(error, path))
        if refused:
            more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
            back = f" {len(restored)} other files are back: scan again." if restored else ""
            raise PartlyRestoredError(f"{refused[0]}{more}{back}", restored)
        return restored

    def purge(self, operations: Iterable[Operation], *, confirmed: bool = False) -> int:
        """Delete files from the trash for good; return the bytes freed. Nothing else ever unlinks a photo.

        Args:
            operations: of `listing()`, or of `unsigned()`.
            confirmed: also those of `unsigned()`: the user was asked.

        Raises:
            TrashError: a file is not the one that was removed, and was left; everything else is deleted.
        """
        freed = 0
        refused: list[str] = []
        with self._locked():
            everything, going = self.contents().operations, []
            for operation in self._present(everything, operations, confirmed, {"purging"}):
                try:
                    if False in map(self._files.is_as_removed, operation.files):
                        raise TrashError(
                            f"{printable(operation.home)} in the trash is not the file that was removed (its content "
                            "differs): it was left there, and restoring brings it back."
                        )
                    going.append(operation)
                except (OSError, TrashError) as error:
                    refused.append(sentence_of(error, self.root / operation.home))
            staying = [operation for operation in everything if operation not in going]
            for operation in _watched(going, "delete"):
                try:
                    self._hand_over(operation, staying)
                    freed += self._purge(operation)
                except (OSError, TrashError) as error:
                    refused.append(sentence_of(error, self.root / operation.home))
        if refused:
            more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
            raise TrashError(f"{refused[0]}{more} {freed / 1e6:.2f} MB of others are freed.")
        return freed

    def _sidecars_shared_with(self, operation: Operation, operations: Iterable[Operation]) -> list[Moved]:
        """Return the sidecars of a photo that left with other photos, and are in the trash unchanged."""
        sidecars = []
        for other in operations:
            if other.in_trash and other.is_own and operation.is_own:
                for moved in other.files[1:]:
                    with suppress(TrashError, OSError):
                        if moved.home in operation.shared and self._files.is_as_removed(moved):
                            sidecars.append(moved)
        return sidecars

    def _hand_over(self, operation: Operation, staying: Iterable[Operation]) -> None:
        """Give the sidecars of a photo that is about to be deleted to the photos in the trash that need them too.

        The journal says first that they are the other photo's; only then may the line be written that deletes.

        Raises:
            OSError: it could not be written down.
        """
        if not operation.is_own:
            return
        for heir in staying:
            sidecars = [moved for moved in operation.files[1:] if moved.home in heir.shared]
            # Where it has a file of that name already, the sidecar belonged to a namesake.
            sidecars = [moved for moved in sidecars if moved.home not in {file.home for file in heir.files}]
            if sidecars and heir.in_trash and heir.is_own:
                heir.files = heir.files + sidecars
                self._write(heir, "removed")
                operation.files = [moved for moved in operation.files if moved not in sidecars]

    def _present(
        self,
        everything: Iterable[Operation],
        chosen: Iterable[Operation],
        confirmed: bool,
        unfinished: set[str],
    ) -> list[Operation]:
        """Return the operations that are still there; in an `unfinished` state only those that are not our own."""
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
                    operation.files = list(map(self._files.digested, operation.files))
                present.append(operation)
        return present

    # ---- one operation, from its journal line to the files and to the line that ends it; the trash is held

    @contextmanager
    def _removing(self, operation: Operation) -> Iterator[None]:
        """Move an operation's files into the trash, then let the block do the rest; if that fails, all is back."""
        self._write(operation, "removing")
        try:
            for moved in operation.files:
                self._files.to_trash(moved)
            yield
            self._write(operation, "removed")
        except (OSError, TrashError):
            self._bring_home(operation, "taken back")
            raise

    def _write_beside(self, note: Note, batch: str) -> Operation:
        """Write a sidecar; the one that is there goes into the trash first.

        Raises:
            TrashError, OSError: it did not happen, and everything is as before.
        """
        if note.path.suffix.lower() != ".xmp":
            raise TrashError(
                f"{printable(note.path)} is no XMP sidecar: photodup writes into no other file here."
            )
        operation = Operation(_new_id(), batch, _now_s(), note.reason, "")
        home, mode = self._files.home_of(note.path), None
        if note.path.exists():
            mode = stat.S_IMODE(note.path.stat().st_mode)
            operation.files = [self._files.described(note.path, operation.id)]
        if [moved.md5 for moved in operation.files] != ([note.before] if note.before else []):
            raise TrashError(
                f"{printable(note.path)} has changed since the list was shown: look at it again."
            )
        operation.written = Written(home, md5_of_bytes(note.data), len(note.data))
        with self._removing(operation):
            self._files.write(home, note.data, mode)
        return operation

    def _bring_back(self, operation: Operation, files: list[Moved]) -> list[Path]:
        """Restore those files of an operation that are there and were checked."""
        before, was_unfinished = operation.files, operation.unfinished or bool(operation.written)
        operation.files = files
        self._write(operation, "restoring")
        try:
            self._bring_home(operation, "restored", again=was_unfinished)
        except (OSError, TrashError):
            if not was_unfinished:  # else it is ours now, and whoever opens the trash next goes on with it
                for moved in operation.files:  # all is in the trash again, under its first names
                    if self._files.is_as_removed(moved) is None and self._files.is_home(moved):
                        self._files.to_trash(moved)
                operation.files = before
                self._write(operation, "removed")
            raise
        return [self.library / moved.home for moved in operation.files]

    def _bring_home(self, operation: Operation, outcome: str, *, again: bool = True) -> None:
        """Move back whatever is still in the trash; where a crash left a file in both places, end that."""
        if operation.written:
            self._files.take_back(operation.written)
        for number, moved in enumerate(operation.files):
            for home in free_names(moved.home):
                if home != moved.home:  # someone else's file has the name by now
                    operation.files[number] = replace(moved, home=home)
                    self._write(operation, operation.state)
                if self._files.to_home(operation.files[number], again=again):
                    break
        self._files.clear(operation)
        self._write(operation, outcome)

    def _purge(self, operation: Operation) -> int:
        """Delete an operation's files from the trash, but one that is not as journalled; return the bytes freed."""
        try:
            self._write(operation, "purging")
        except OSError as error:
            # A full disk is what people purge for: here the deletion makes the room to write it down.
            if error.errno not in DISK_FULL:
                raise
        freed, left = operation.bytes, []
        for moved in operation.files:
            self._step("purge file")
            if not self._files.delete(moved):  # something changed it at the last moment
                left.append(moved)
        self._files.clear(operation)
        operation.files = left or operation.files
        self._write(operation, "removed" if left else "purged")
        return freed - sum(moved.size for moved in left)

    def _finish(self, operation: Operation) -> None:
        """Finish what was interrupted: a removal is taken back, a restore or purge completed."""
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
        """Append an operation's state, with all that is known of it: any one line is enough to restore it."""
        fields = asdict(operation)
        line = {name: fields[name] for name in ("batch", "time", "reason", "shared", "written", "files")}
        line |= {"op": operation.id, "state": state}
        self._journal.append(signed(read_key(), line))
        operation.state = state

    def _recover(self) -> None:
        for operation in self.contents().interrupted:
            # A folder that is read-only today: whoever comes next tries again.
            with suppress(OSError, TrashError):
                self._finish(operation)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the trash, recovered; one process and one thread at a time."""
        with suppress(PhotodupError):  # without a key, what is written now counts as unsigned
            own_key()
        try:
            with opened(self.library, TRASH_FOLDER) as place, suppress(FileExistsError):
                if place:
                    os.mkdir(
                        place.name, 0o700, dir_fd=place.folder
                    )  # whatever comes here may have been private
                    os.fsync(place.folder)
            with self._journal.exclusive():
                self._recover()
                yield
        except BlockingIOError:
            raise TrashError(
                f"Another photodup is changing {printable(self.root)}: wait until it is done."
            ) from None
        except OSError as error:
            raise TrashError(sentence_of(error, self.root)) from error


def _new_id() -> str:
    """Return a name that sorts by time, so the trash folder reads chronologically."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(_now_s()))}-{uuid.uuid4().hex[:8]}"


def _now_s() -> float:
    """Return the time, within what a journal may say: a clock can be set to anything, and orders nothing here."""
    return min(max(time.time(), 0.0), LAST_SECOND - 86_400.0)


def _watched(items: list, desc: str) -> Iterable:
    """Return these, so that a page that waits is told how many are done; a terminal is told nothing."""
    return bar(items, total=len(items), desc=desc, unit="photo", disable=True)
