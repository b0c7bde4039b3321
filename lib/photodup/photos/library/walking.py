"""Which files of a folder are photographs, and their bytes: the only place that opens them."""

import errno
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from photodup.embedding import imaging
from photodup.errors import PhotodupError
from photodup.extras import is_installed
from photodup.names import escaped, printable
from photodup.photos.library.sidecars import RAW_SUFFIXES, RENDERED_SUFFIXES
from photodup.photos.state.own_folder import OwnFolder
from photodup.safe_open import open_file, opened

SUFFIXES = frozenset(b".jpg .jpeg .jpe .jfif .png .webp .tif .tiff .heic .heif .hif .avif .gif .bmp".split())

# What the extra `photos-more` reads, and by which module.
_MORE = {b".jxl": "pillow_jxl"} | {suffix.encode(): "rawpy" for suffix in RAW_SUFFIXES}

# Never entered: our own folders. That of a catalogue given with --catalogue is known by its marker.
OWN_FOLDERS = frozenset({b".photodup", b".photodup-trash"})

# A file is read in one piece; nothing a camera writes comes near this.
MAX_FILE_BYTES = 2**30

_LATEST_NS = 2**63 - 1

# Packages of macOS that look like folders: the files belong to an application, and must not move.
_PACKAGES = (b".photoslibrary", b".photolibrary", b".aplibrary", b".migratedphotolibrary")
_NOT_ENTERED = (
    "library of a photo application, not entered: for Apple Photos use photodup scan --apple-photos"
)

# What the system, a NAS or a file server keeps for a while and then empties: a file in there is no copy to rely on.
_PASSING = re.compile(
    rb"\.trash(-\d+|es)?|\$recycle\.bin|recycler|[#@.]recycle|[#.]snapshots?|@recently-snapshot|\.zfs",
    re.IGNORECASE,
)
_TRASH_OF_HOME = b".local/share/Trash"
_TRASHED = re.compile(rb"\.(trashed|pending)-\d+-")  # a file of Android, which deletes it after 30 days
_PASSES = "trash or snapshots of the system, not entered: what lies there goes without a word"

_NOT_FOLLOWED = "symbolic link, not followed: one photograph must not be seen as two"


@dataclass(frozen=True, slots=True)
class UnreadFile:
    """A file or folder that could not be read, and why; `path` is relative to the library."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{printable(self.path)}: {escaped(self.reason)}"


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file as listed, before it is read. `path` is in bytes, relative to the library."""

    path: bytes
    size_bytes: int
    mtime_ns: int

    @classmethod
    def of(cls, path: bytes, status: os.stat_result) -> "ListedFile":
        """Return a file as the system describes it. A time past 2262 counts as the last that SQLite can hold."""
        return cls(path, status.st_size, min(status.st_mtime_ns, _LATEST_NS))


@dataclass
class Listing:
    """What a walk of some folders found. Nothing is known today of what lies in `closed` ones, or of `silent` files."""

    entries: list[ListedFile] = field(default_factory=list)
    problems: list[UnreadFile] = field(default_factory=list)
    closed: list[bytes] = field(default_factory=list)  # with a trailing slash
    silent: set[bytes] = field(default_factory=set)
    only: tuple[bytes, ...] = (b"",)  # with a trailing slash: where it looked
    unread: list[bytes] = field(default_factory=list)  # photographs that only the extra `photos-more` reads

    @property
    def left_out(self) -> str:
        """One sentence about `unread`; empty where all is read."""
        if not self.unread:
            return ""
        names = ", ".join([*map(printable, self.unread[:3]), *(["…"] if len(self.unread) > 3 else [])])
        return f"{len(self.unread)} left out ({names}): pip install 'photodup[photos-more]' reads RAW and JPEG XL."


def application_library(path: Path) -> Path | None:
    """Return the library of a photo application that a path lies in, if any."""
    inside = (p for p in (path, *path.parents) if os.fsencode(p.suffix).lower() in _PACKAGES)
    return next(inside, None)


def walk(root: Path, only: Sequence[str] = ()) -> Listing:
    """List the photographs below a folder, ordered by path. Symbolic links are reported, not followed.

    Args:
        root: the library.
        only: the folders in it to look at, relative to it, none in another; empty for all.
    """
    folders, base = [os.fsencode(name) for name in only], os.fsencode(root)
    listing = Listing(only=tuple(folder + b"/" for folder in folders) or (b"",))
    folders = folders or [b""]
    if inside := next(filter(None, (application_library(root / name) for name in only or ("",))), None):
        raise PhotodupError(f"{printable(inside)} is a {_NOT_ENTERED}.")
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(os.path.join(base, folder)) as found:
                children = list(found)
        except OSError as error:
            if not folder:
                raise PhotodupError(f"Cannot read the folder {printable(root)}: {error.strerror}.") from None
            listing.problems.append(UnreadFile(_path(folder), f"folder cannot be read: {error.strerror}"))
            listing.closed.append(folder + b"/")
            continue
        names = [os.path.splitext(child.name.lower()) for child in children]
        rendered = {stem for stem, suffix in names if suffix.decode("latin-1") in RENDERED_SUFFIXES}
        for child, (stem, suffix) in zip(children, names, strict=True):
            path = os.path.join(folder, child.name)
            try:
                # "._name" holds macOS attributes of "name" on foreign volumes: no image, whatever the suffix.
                # RAW beside the picture made of it belongs to that.
                is_more = suffix == b".jxl" or (suffix in _MORE and stem not in rendered)
                is_photo = (suffix in SUFFIXES or is_more) and not stem.startswith(b"._")
                if child.is_symlink():
                    if is_photo or child.is_dir():
                        listing.problems.append(UnreadFile(_path(path), _NOT_FOLLOWED))
                elif child.is_dir(follow_symlinks=False):
                    if child.name.lower().endswith(_PACKAGES):
                        listing.problems.append(UnreadFile(_path(path), _NOT_ENTERED))
                    elif _PASSING.fullmatch(child.name) or path.endswith(_TRASH_OF_HOME):
                        listing.problems.append(UnreadFile(_path(path), _PASSES))
                    elif child.name not in OWN_FOLDERS and not (
                        child.name.endswith(b".d") and OwnFolder(root / os.fsdecode(path)).is_marked
                    ):
                        folders.append(path)
                elif is_photo and _TRASHED.match(child.name):
                    listing.problems.append(UnreadFile(_path(path), _PASSES))
                elif is_photo and child.is_file(follow_symlinks=False):
                    if is_more and not is_installed(_MORE[suffix]):
                        listing.unread.append(path)
                        continue
                    status = child.stat(follow_symlinks=False)
                    listing.entries.append(ListedFile.of(path, status))
            except FileNotFoundError:
                continue  # Gone since the folder was listed.
            except OSError as error:  # A folder that may be listed only, or a file system that fails.
                listing.silent.add(path)
                listing.closed.append(path + b"/")
                listing.problems.append(UnreadFile(_path(path), error.strerror or str(error)))
    listing.entries.sort(key=lambda entry: entry.path)
    return listing


def read_bytes(root: Path, entry: ListedFile) -> tuple[bytes, ListedFile]:
    """Read a file once; the size and time returned are those of the bytes returned, not of the listing.

    No link below the library is followed, neither the file's own name nor a folder on the way: the walk lists
    nothing behind one, so a name that leads through a link today has been exchanged since it was listed.

    Raises:
        FileNotFoundError: it is gone.
        OSError: it cannot be read, lies behind a link, is no regular file, or changed while it was read.
        photodup.embedding.imaging.ImageError: it is larger than any photograph.
    """
    with opened_file(root, os.fsdecode(entry.path)) as file:
        status = os.fstat(file.fileno())
        if status.st_size > MAX_FILE_BYTES:
            raise imaging.ImageError(f"{status.st_size / 1e9:.1f} GB is more than any photograph")
        data = file.read(status.st_size + 1)
    if len(data) != status.st_size:
        raise OSError("changed while it was read")
    return data, ListedFile.of(entry.path, status)


def opened_file(root: Path, relative: str) -> BinaryIO:
    """Open a regular file of a library to read it; no link below the library is followed.

    Raises:
        FileNotFoundError: it is gone.
        OSError: it cannot be opened, lies behind a link, or is no regular file.
    """
    try:
        with opened(root, relative) as place:
            if place is None:
                raise FileNotFoundError(errno.ENOENT, "no longer there", relative)
            return open(open_file(place), "rb")
    except ValueError:  # a catalogue may come with a folder that somebody else made
        raise OSError(errno.EINVAL, "its path leads outside the library") from None


def _path(path: bytes) -> Path:
    return Path(os.fsdecode(path))
