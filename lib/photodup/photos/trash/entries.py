"""Operations in the trash's journal: reading them, their owners, and damaged lines.

The journal may come with somebody else's library. A line is used only in photodup's own form (`_operation`), and an
operation is this user's only if a line has this user's signature (`photodup.photos.state.own_key`); its unsigned lines
are then ignored. Every line names all files of its operation, so that one damaged line hides none.
"""

import errno
import hashlib
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from photodup.core.errors import PhotodupError
from photodup.core.names import printable
from photodup.core.safe_open import parts_of
from photodup.photos.state.journal import Journal, Line
from photodup.photos.state.own_folder import OWN_FOLDERS
from photodup.photos.state.own_key import is_signed, read_key, signature

PURPOSE = "trash 1"
ITEMS = "items"
_STATES = frozenset({"removing", "removed", "taken back", "restoring", "restored", "purging", "purged"})
UNKNOWN = "unknown"  # in the trash, but in no line of the journal
_RESCUED = "Restored from the trash"  # folder in the library for files whose former names are not known
_ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{8}", re.ASCII)
_MD5 = re.compile(r"[0-9a-f]{32}")
LAST_SECOND = 253_402_300_799  # of the year 9999, the last that can be printed
_NS = 2**63
DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class TrashError(PhotodupError):
    """A removal, restore or purge that did not happen; nothing was lost."""


class PartlyRestoredError(TrashError):
    """Some files could not come back; `restored` did."""

    def __init__(self, sentence: str, restored: list[Path]) -> None:
        super().__init__(sentence)
        self.restored = restored


@dataclass(frozen=True)
class Removal:
    """One photo to remove, and the copies that stay.

    Attributes:
        path: the photo.
        md5: its content hash (hex) at the scan; a changed file is not touched.
        keepers: path and MD5 of the group's photos that stay; one must be there unchanged.
        sidecars: files that leave with it (`photodup.photos.library.sidecars.files_moving_with`).
        reason: shown in `photodup trash list`.
    """

    path: Path
    md5: str
    keepers: Sequence[tuple[Path, str]]
    sidecars: Sequence[Path] = ()
    reason: str = ""


@dataclass(frozen=True)
class Note:
    """Metadata that only leaving photos have, to write beside the photo that stays.

    Attributes:
        path: an XMP sidecar; never a photo.
        before: MD5 of the present sidecar, None without one; a sidecar that differs is not touched.
        data: the new content.
        sources: the photos that have these metadata; they leave only once it is written.
        reason: shown in `photodup trash list`.
    """

    path: Path
    before: str | None
    data: bytes
    sources: frozenset[Path]
    reason: str = ""


@dataclass(frozen=True)
class Written:
    """A sidecar that photodup wrote: its path relative to the library, and its content."""

    home: str
    md5: str
    size: int


@dataclass(frozen=True)
class Moved:
    """One file of an operation: `home` relative to the library, `trash` to the trash folder."""

    home: str
    trash: str
    md5: str
    size: int
    mtime_ns: int


@dataclass
class Operation:
    """One photo's removal (the photo, then its sidecars) or one sidecar's change, and its state.

    Attributes:
        state: of its last journal line: removing, removed, taken back, restoring, restored, purging, purged; or unknown
            for files in the trash that no line names.
        is_doubtful: a later line is damaged or not this user's, and may have continued it.
        is_own: this user's photodup wrote it; others need a confirmation.
        written: the sidecar that a staying photo got; `files` then holds its former sidecar, if any.
    """

    id: str
    time: float
    reason: str
    state: str
    files: list[Moved] = field(default_factory=list)
    is_own: bool = True
    written: Written | None = None
    is_doubtful: bool = False

    @property
    def home(self) -> str:
        """Path in the library of its photo or sidecar."""
        return self.written.home if self.written else self.files[0].home

    @property
    def in_trash(self) -> bool:
        """Whether its files are in the trash now."""
        return self.state in ("removed", UNKNOWN)

    @property
    def unfinished(self) -> bool:
        """Whether it was interrupted and could not be finished since."""
        return self.state.endswith("ing")

    @property
    def bytes(self) -> int:
        """Size of its files together."""
        return sum(moved.size for moved in self.files)


@dataclass(frozen=True)
class TrashContents:
    """The contents of a journal: all operations, oldest first, and a sentence about each damaged line.

    `written_by_others` names sidecars (relative to the library) in other users' lines.
    """

    operations: list[Operation]
    problems: list[str] = field(default_factory=list)
    written_by_others: list[str] = field(default_factory=list)

    @property
    def listing(self) -> list[Operation]:
        """Return this user's operations with files in the trash, newest first."""
        return [o for o in reversed(self.operations) if o.in_trash and o.is_own]

    @property
    def unsigned(self) -> list[Operation]:
        """Return other users' operations whose files may be in the trash, newest first."""
        return [o for o in reversed(self.operations) if (o.in_trash or o.unfinished) and not o.is_own]

    @property
    def interrupted(self) -> list[Operation]:
        """Return this user's unfinished operations, oldest first."""
        return [o for o in self.operations if o.unfinished and o.is_own]


def sign(key: bytes | None, line: Line) -> Line:
    """Return a line with this user's signature, if there is a key."""
    return line | {"sig": signature(key, PURPOSE, line)} if key else line


def read_contents(journal: Journal) -> TrashContents:
    """Read a journal.

    Raises:
        JournalError: the journal cannot be read.
    """
    key, problems, last_damage = read_key(), [], 0
    latest: dict[str, dict[bool, tuple[int, Operation]]] = {}  # by operation and whether it is our own
    written: dict[str, str] = {}
    for number, line in enumerate(journal.read(), start=1):
        is_own = False
        try:
            if line is None:
                raise ValueError
            text = line.pop("sig", None)
            operation = _operation(line, is_signed(key, PURPOSE, line, text))
            is_own = operation.is_own
            latest.setdefault(operation.id, {})[is_own] = number, operation
            if line.get("written") and not is_own:
                with suppress(KeyError, TypeError, ValueError):
                    written[operation.id] = _written(line["written"]).home
        except (KeyError, TypeError, ValueError, RecursionError):
            problems.append(journal.damaged(number))
        last_damage = last_damage if is_own else number
    operations = []
    for states in latest.values():
        number, operation = states.get(True) or states[False]
        operation.is_doubtful = number < last_damage
        if operation.files or operation.written:
            operations.append(operation)
    return TrashContents(
        operations, problems, [home for op, home in written.items() if True not in latest[op]]
    )


def unknown_operation(moved: Moved) -> Operation:
    """Return an operation for a file in the trash that no operation names."""
    name = f"00000000-000000-{hashlib.md5(os.fsencode(moved.trash), usedforsecurity=False).hexdigest()[:8]}"
    time_s = min(max(moved.mtime_ns / 1e9, 0.0), float(LAST_SECOND))
    return Operation(name, time_s, "no line of the journal names it", UNKNOWN, [moved], is_own=False)


def former_home(trash: str) -> str:
    """Return the former name in the library of a file, from its path in the trash."""
    _, owner, *inside = parts_of(trash)
    if _ID.fullmatch(owner) and inside and inside[0].casefold() not in OWN_FOLDERS:
        return "/".join(inside)
    return "/".join((_RESCUED, owner, *inside))


def _operation(line: Line, is_own: bool) -> Operation:
    """Return the operation of a line; ValueError, KeyError or TypeError if photodup would not write it so."""
    time, texts = line["time"], [line[name] for name in ("op", "reason", "state")]
    if not all(isinstance(text, str) for text in texts) or isinstance(time, bool):
        raise TypeError
    if not _ID.fullmatch(line["op"]) or line["state"] not in _STATES or not 0 <= time <= LAST_SECOND:
        raise ValueError
    files = [Moved(**fields) for fields in line["files"]]
    for moved in files:
        _check_moved(moved, line["op"])
    # Only our own lines may name a file in the library that an undo deletes.
    written = _written(line["written"]) if line.get("written") and is_own else None
    if not files and not line.get("written"):
        raise ValueError
    op, reason, state = texts
    return Operation(op, time, reason, state, files, is_own, written)


def _written(fields: Line) -> Written:
    """Return a written sidecar; ValueError if it is no sidecar of the library."""
    written = Written(**fields)
    is_sidecar = isinstance(written.home, str) and written.home.lower().endswith(".xmp")
    if not is_sidecar or parts_of(written.home)[0].casefold() in OWN_FOLDERS:
        raise ValueError
    if not isinstance(written.md5, str) or not _MD5.fullmatch(written.md5) or type(written.size) is not int:
        raise ValueError
    return written


def _check_moved(moved: Moved, owner: str) -> None:
    """Refuse a file that photodup would not name, or outside the operation's folder in the trash."""
    if not all(isinstance(text, str) for text in (moved.home, moved.trash, moved.md5)):
        raise TypeError
    numbers = (moved.size, moved.mtime_ns)
    if not all(type(number) is int and -_NS <= number < _NS for number in numbers) or moved.size < 0:
        raise ValueError
    # On a case-insensitive disk `.PHOTODUP` is our own folder too.
    if parts_of(moved.home)[0].casefold() in OWN_FOLDERS or not _MD5.fullmatch(moved.md5):
        raise ValueError
    parts = parts_of(moved.trash)
    if len(parts) < 3 or parts[:2] != (ITEMS, owner):
        raise ValueError


def sentence_of(error: Exception, path: Path) -> str:
    """Return a sentence why a file was left alone."""
    if isinstance(error, PhotodupError):
        return str(error)
    number, name = getattr(error, "errno", None), printable(path)
    if number in DISK_FULL:
        return f"The disk is full at {name}: it was left alone, free some space first."
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return (
            f"{name} cannot be changed (read-only or locked): it was left alone, allow writing there first."
        )
    return f"{name} was left alone: {getattr(error, 'strerror', None) or error}."
