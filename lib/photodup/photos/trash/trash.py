"""Removing photos without losing one: a move into `.photodup-trash/`, a journal, an undo.

The order is always the same. What is about to happen is appended to the journal and synced; then the
files move; then the outcome is appended and synced. Whoever opens the trash next finishes what a crash
interrupted: an unfinished removal is taken back, an unfinished restore or purge is completed. So after
recovery each file is in exactly one place, and the last journal line of its operation says which. What
cannot be finished yet (a folder that is read-only today) waits, and stops nothing else.
"""

import errno
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePath

from photodup.errors import PhotodupError
from photodup.photos.library.catalogue import printable
from photodup.photos.library.journal import Journal, JournalError
from photodup.photos.library.walking import application_library
from photodup.photos.trash.moving import free_name, make_folders, md5_of, move_file, part_of, sync_folder

TRASH_FOLDER = ".photodup-trash"

_NO_KEEPER = "no copy to keep is there unchanged, and one must remain."
_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class TrashError(PhotodupError):
    """A removal, restore or purge that did not happen; nothing was lost."""


@dataclass(frozen=True)
class Removal:
    """One photo to remove, with the copies that stay.

    Attributes:
        path: the photo.
        md5: its content hash (hex) at the scan; a file that changed since is not touched.
        keepers: path and md5 of each photo of the group that stays; one must be there unchanged.
        sidecars: files that leave with it (`photodup.photos.library.sidecars.moving_together`). One that several
            removals name leaves with the last of them, and only if all of them leave.
        reason: shown in `photodup trash list`.
    """

    path: Path
    md5: str
    keepers: Sequence[tuple[Path, str]]
    sidecars: Sequence[Path] = ()
    reason: str = ""


@dataclass(frozen=True)
class Moved:
    """One file of an operation: `home` relative to the library, `trash` to the trash folder."""

    home: str
    trash: str
    md5: str
    size: int
    mtime_ns: int
    atime_ns: int


@dataclass
class Operation:
    """One photo's removal (the photo first, then its sidecars) and what became of it.

    `state` is its last journal line: removing, removed, taken back, restoring, restored, purging, purged.
    """

    id: str
    batch: str
    time: float
    reason: str
    state: str
    files: list[Moved] = field(default_factory=list)

    @property
    def in_trash(self) -> bool:
        """Whether its files are in the trash now."""
        return self.state == "removed"

    @property
    def unfinished(self) -> bool:
        """Whether it was interrupted and could not be finished since."""
        return self.state.endswith("ing")

    @property
    def bytes(self) -> int:
        """Size of its files together."""
        return sum(moved.size for moved in self.files)


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
        self._step = on_step
        if not os.path.isdir(self.library):
            raise TrashError(
                f"There is no folder {printable(self.library)}: name the folder that was scanned."
            )
        if self.root.is_symlink():
            raise TrashError(f"{printable(self.root)} is a symbolic link: replace it by a real folder.")
        self._journal = Journal(self.root / "journal.jsonl", on_step)
        if any(operation.unfinished for operation in self.operations()):
            with suppress(TrashError), self._locked():
                pass  # taking the lock recovers; where nothing can be written, there is still much to read

    def operations(self) -> list[Operation]:
        """Return every operation in the journal, oldest first, with its present state."""
        found: dict[str, Operation] = {}
        try:
            for line in self._journal.read():
                if line["op"] not in found:
                    when = float(line["time"])
                    found[line["op"]] = Operation(line["op"], line["batch"], when, line["reason"], "")
                operation = found[line["op"]]
                operation.state = str(line["state"])
                if "files" in line:  # a restore may have had to choose another name
                    operation.files = [_trusted(Moved(**moved)) for moved in line["files"]]
        except (KeyError, TypeError, ValueError) as error:
            raise JournalError(
                f"{printable(self._journal.path)} is damaged near {error}: repair or move it."
            ) from None
        return list(found.values())

    def listing(self) -> list[Operation]:
        """Return the operations whose files are in the trash now, newest first."""
        return [operation for operation in reversed(self.operations()) if operation.in_trash]

    def remove(self, removals: Iterable[Removal]) -> tuple[list[Operation], list[tuple[Removal, str]]]:
        """Move photos and their sidecars into the trash.

        Each photo is its own operation; all of one call share a batch, so one undo takes them back.

        Returns:
            The operations done, and the removals refused, each with one sentence why: a file that
            changed or vanished since the scan, a photo whose last copy would go, a read-only folder.
        """
        removals, batch = list(removals), _new_id()
        done, refused = [], []
        files_leaving = [path for removal in removals for path in (removal.path, *removal.sidecars)]
        leaving = {identity for path in files_leaving for identity in _identities(path)}
        keeper_stays: dict[tuple[Path, str], bool] = {}
        self._listed: dict[Path, frozenset[str]] = {}
        last = {sidecar: removal.path for removal in removals for sidecar in removal.sidecars}
        needed: set[Path] = set()  # by photos that were left alone
        with self._locked():
            for removal in removals:
                mine = [
                    path for path in removal.sidecars if last[path] == removal.path and path not in needed
                ]
                try:
                    files = (removal.path, *mine)
                    before = {path: path.stat() for path in files if path.exists()}  # hashing touches atime
                    keeper = self._check(removal, leaving, keeper_stays)
                    done.append(self._remove_one(removal, batch, before, keeper))
                except (TrashError, OSError) as error:
                    needed.update(removal.sidecars)
                    refused.append((removal, _sentence(error, removal.path)))
        return done, refused

    def restore(self, operations: Iterable[Operation]) -> list[Path]:
        """Put files back under their names, with their times; return where they are now.

        A name that has been taken meanwhile is not overwritten: the file comes back as
        `name (restored).jpg`.

        Raises:
            PartlyRestoredError: a file is gone from the trash, or cannot come back; everything else has by then.
        """
        restored: list[Path] = []
        refused: list[str] = []
        with self._locked():
            for operation in self._present(operations):
                gone = [moved.home for moved in operation.files if not (self.root / moved.trash).is_file()]
                refused += (f"{printable(Path(home))} was deleted from the trash by hand." for home in gone)
                if len(gone) == len(operation.files):
                    continue
                try:
                    restored += self._restore_one(operation)
                except OSError as error:
                    refused.append(_sentence(error, self.library / operation.files[0].home))
        if refused:
            more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
            back = f" {len(restored)} other files are back: scan again." if restored else ""
            raise PartlyRestoredError(f"{refused[0]}{more}{back}", restored)
        return restored

    def purge(self, operations: Iterable[Operation]) -> int:
        """Delete files from the trash for good; return the bytes freed. Nothing else ever unlinks a photo."""
        freed = 0
        with self._locked():
            for operation in self._present(operations):
                try:
                    self._write(operation, "purging")
                except OSError as error:
                    # A full disk is what people purge for: here the deletion makes the room to write it down.
                    if error.errno not in _DISK_FULL:
                        raise
                self._finish_purge(operation)
                freed += operation.bytes
        return freed

    def _check(self, removal: Removal, leaving: set, known: dict[tuple[Path, str], bool]) -> Path:
        """Return the copy that stays."""
        for path in (removal.path, *removal.sidecars):
            if path.is_symlink():
                raise TrashError(f"{printable(path)} is a symbolic link: remove the photo it points to.")
            if owner := application_library(path):
                raise TrashError(
                    f"{printable(path)} belongs to {printable(owner)}: remove it in that application."
                )
            inside = path.resolve().is_relative_to(self.library.resolve())
            if not inside or self.root in path.absolute().parents:
                raise TrashError(
                    f"{printable(path)} is outside {printable(self.library)}: nothing there is ever moved."
                )
        name = printable(removal.path)
        if not removal.path.is_file():
            raise TrashError(f"{name} is no longer there: scan again.")
        if md5_of(removal.path) != removal.md5:
            raise TrashError(f"{name} has changed since the scan: scan again before removing it.")
        for path, md5 in removal.keepers:
            if (path, md5) not in known:
                stays = path.is_file() and not path.is_symlink() and leaving.isdisjoint(_identities(path))
                known[path, md5] = stays and self._is_spelled_so(path) and md5_of(path) == md5
            if known[path, md5]:
                return path
        raise TrashError(f"{name} stays: {_NO_KEEPER}")

    def _is_spelled_so(self, path: Path) -> bool:
        """Whether the folders list every part of a path as it is written here.

        Where `IMG.JPG` and `img.jpg` are one file, only one of them is listed, and it is not kept by
        removing the other. Nothing else tells: on exFAT even their inode numbers may differ.
        """
        path = path.absolute()
        for part in (path, *path.parents):
            if part in (self.library, part.parent):
                break
            if part.parent not in self._listed:
                self._listed[part.parent] = frozenset(os.listdir(part.parent))
            if part.name not in self._listed[part.parent]:
                return False
        return True

    def _remove_one(
        self, removal: Removal, batch: str, before: dict[Path, os.stat_result], keeper: Path
    ) -> Operation:
        operation = Operation(_new_id(), batch, time.time(), removal.reason, "")
        for path in before:
            home, status = path.absolute().relative_to(self.library), before[path]
            md5 = removal.md5 if path == removal.path else md5_of(path)
            trash = os.path.join("items", operation.id, home)
            times = status.st_mtime_ns, status.st_atime_ns
            operation.files.append(Moved(str(home), trash, md5, status.st_size, *times))
        self._write(operation, "removing", batch=batch, reason=removal.reason, files=operation.files)
        try:
            for moved in operation.files:
                self._move(self.library / moved.home, self.root / moved.trash, moved)
            if not keeper.is_file():
                raise TrashError(f"{printable(removal.path)} stays: {_NO_KEEPER}")
            self._write(operation, "removed")
        except (OSError, TrashError):
            self._finish_home(operation, "taken back")
            raise
        return operation

    def _restore_one(self, operation: Operation) -> list[Path]:
        before = operation.files
        there = [moved for moved in before if (self.root / moved.trash).is_file()]
        operation.files = [self._renamed_if_taken(moved) for moved in there]
        self._write(operation, "restoring", files=operation.files)
        try:
            self._finish_home(operation, "restored")
        except OSError:
            self._finish_trash(operation, before)
            raise
        return [self.library / moved.home for moved in operation.files]

    def _finish_trash(self, operation: Operation, before: list[Moved]) -> None:
        """Undo a restore that failed half-way: everything is in the trash again, under its first names."""
        for moved in operation.files:
            home, trash = self.library / moved.home, self.root / moved.trash
            if not os.path.lexists(trash):
                self._move(home, trash, moved)
        operation.files = before
        self._write(operation, "removed", files=before)

    def _finish_home(self, operation: Operation, outcome: str) -> None:
        """Move back whatever is still in the trash; where a crash left a file in both places, end that."""
        for number, moved in enumerate(operation.files):
            home, trash = self.library / moved.home, self.root / moved.trash
            for leftover in (part_of(home), part_of(trash)):
                leftover.unlink(missing_ok=True)
            if not os.path.lexists(trash):
                continue
            if _is_same(home, trash, moved.md5):
                trash.unlink()
                with suppress(OSError):
                    os.utime(home, ns=(moved.atime_ns, moved.mtime_ns))
                continue
            if os.path.lexists(home):  # someone else's file has the name by now
                moved = operation.files[number] = self._renamed_if_taken(moved)
                self._write(operation, operation.state, files=operation.files)
            self._move(trash, self.library / moved.home, moved)
        self._clear(operation)
        self._write(operation, outcome, files=operation.files)

    def _finish_purge(self, operation: Operation) -> None:
        for moved in operation.files:
            self._step("purge file")
            (self.root / moved.trash).unlink(missing_ok=True)
        self._clear(operation)
        self._write(operation, "purged")

    def _recover(self) -> None:
        for operation in self.operations():
            with suppress(OSError):  # a folder that is read-only today: whoever comes next tries again
                if operation.state == "removing":
                    self._finish_home(operation, "taken back")
                elif operation.state == "restoring":
                    self._finish_home(operation, "restored")
                elif operation.state == "purging":
                    self._finish_purge(operation)

    def _present(self, wanted: Iterable[Operation]) -> list[Operation]:
        ids = {operation.id for operation in wanted}
        return [operation for operation in self.operations() if operation.id in ids and operation.in_trash]

    def _renamed_if_taken(self, moved: Moved) -> Moved:
        return replace(moved, home=str(free_name(self.library / moved.home).relative_to(self.library)))

    def _move(self, source: Path, target: Path, moved: Moved) -> None:
        make_folders(target.parent)
        times_ns = (moved.atime_ns, moved.mtime_ns)
        move_file(source, target, md5=moved.md5, times_ns=times_ns, on_step=self._step)

    def _write(self, operation: Operation, state: str, **more: object) -> None:
        if "files" in more:
            more["files"] = [asdict(moved) for moved in operation.files]
        self._journal.append({"op": operation.id, "state": state, "time": time.time()} | more)
        operation.state = state

    def _clear(self, operation: Operation) -> None:
        """Remove the operation's empty folders from the trash; what is not ours is left alone."""
        for path, _, _ in os.walk(self.root / "items" / operation.id, topdown=False):
            with suppress(OSError):
                os.rmdir(path)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the trash, recovered; one process and one thread at a time."""
        try:
            if not self.root.is_dir():
                self.root.mkdir(mode=0o700, exist_ok=True)  # whatever comes here may have been private
                sync_folder(self.library)
            with self._journal.exclusive():
                self._recover()
                yield
        except BlockingIOError:
            raise _Busy(
                f"Another photodup is changing {printable(self.root)}: wait until it is done."
            ) from None
        except OSError as error:
            raise TrashError(_sentence(error, self.root)) from error


class PartlyRestoredError(TrashError):
    """Something could not come back; `restored` did."""

    def __init__(self, sentence: str, restored: list[Path]) -> None:
        super().__init__(sentence)
        self.restored = restored


class _Busy(TrashError):
    pass


def _identities(path: Path) -> list[tuple]:
    """Return what names a file: its path, and its inode unless other hard links hold the content."""
    absolute = Path(path).absolute()
    identities: list[tuple] = [(absolute.parent.resolve() / absolute.name,)]
    with suppress(OSError):
        status = os.lstat(path)
        if status.st_nlink == 1:
            identities.append((status.st_dev, status.st_ino))
    return identities


def _is_same(home: Path, trash: Path, md5: str) -> bool:
    """Whether what has the name at home is the file in the trash, or a whole copy of it."""
    if not os.path.isfile(home) or os.path.islink(home):
        return False
    return os.path.samefile(home, trash) or md5_of(home) == md5


def _trusted(moved: Moved) -> Moved:
    for relative in (moved.home, moved.trash):
        path = PurePath(relative)
        if path.is_absolute() or ".." in path.parts:
            raise JournalError(f"The trash journal names {relative}, outside the library: repair it.")
    return moved


def _new_id() -> str:
    """Return a name that sorts by time, so the trash folder reads chronologically."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:8]}"


def _sentence(error: Exception, path: Path) -> str:
    if isinstance(error, PhotodupError):
        return str(error)
    number, name = getattr(error, "errno", None), printable(path)
    if number in _DISK_FULL:
        return f"The disk is full at {name}: it was left alone, free some space first."
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return (
            f"{name} cannot be changed (read-only or locked): it was left alone, allow writing there first."
        )
    return f"{name} was left alone: {getattr(error, 'strerror', None) or error}."
