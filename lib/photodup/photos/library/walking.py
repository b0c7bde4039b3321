"""Find the photographs in a folder, and read them without following links."""

import errno
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from photodup.core.errors import PhotodupError
from photodup.core.extras import is_installed
from photodup.core.names import escaped, in_short, printable
from photodup.core.safe_open import open_file, opened
from photodup.embedding import imaging
from photodup.photos.library.sidecars import PROGRAM_FOLDERS, RAW_SUFFIXES, photographs_among
from photodup.photos.state.own_folder import OWN_FOLDERS

# Suffixes of the extra `photos-more`, and their modules.
_MORE = {".jxl": "pillow_jxl"} | dict.fromkeys(RAW_SUFFIXES, "rawpy")

# Pictures that are only reported.
_OTHER_PICTURES = frozenset({
    ".mpo", ".jps", ".pns", ".insp", ".jp2", ".j2k", ".jpf", ".jpx", ".jxr", ".wdp", ".psd", ".psb", ".xcf", ".kra", ".exr",
    ".hdr", ".tga", ".pcx", ".ppm", ".pgm", ".pbm", ".dcm", ".fits", ".apng", ".svg", ".ico", ".icns",
})  # fmt: skip

# A file is read at once; cameras write far less.
MAX_FILE_BYTES = 2**30

_LATEST_NS = 2**63 - 1

# Libraries and catalogues of photo applications: the files in these folders belong to the application and must not move.
_PACKAGE = re.compile(
    r".+\.(\w*library|\w*(catalog|catalogue|vault|bundle)|lr[\w-]*|co(session|catalog)\w*|rtfd|app)",
    re.IGNORECASE,
)
_NOT_ENTERED = (
    "library of a photo application, not entered: for Apple Photos use photodup scan --apple-photos"
)

# Folders that programs empty by themselves, so that a file in them is no reliable copy.
_PASSING = re.compile(
    # trash: of systems, file servers, phones and synchronisation; what was recovered from a damaged disk
    r"\$.+|[#@~_]?(trash|recycled?)|recycler|lost\+found|lost\.dir|found\.\d{3}|network trash folder"
    r"|.*(trash|recycle)[ _.-]?(bin|can|box)(\.\w+)?|recently[ _-]deleted"
    # snapshots and versions
    r"|[#@~]snapshots?|files_versions|_gsdata_|filehistory|.*\.backupdb|windows\.old"
    r"|system volume information"
    # caches, thumbnails, and what is still on its way
    r"|@(eadir|tmp|__thumb|sharesnap|recently-snapshot)|appdata_\w+|(.*\.)?caches?|thumb(nail)?s|temporary items"
    r"|.*\.(part|crdownload|download|tmp)|.*[._-]partial",
    re.IGNORECASE,
)
_TRASHED = re.compile(r"\.(trashed|pending)-\d+-")  # a file of Android, which deletes it after 30 days
_PASSES = "trash, versions or a cache, not entered: programs empty these by themselves"
_HIDDEN = "hidden folder, not entered: programs keep caches and trash in such; name it to scan it"
# Hidden, and holds the owner's photographs as they were before Picasa's edits.
_ORIGINALS = ".picasaoriginals"

_NOT_FOLLOWED = "symbolic link, not followed: one photograph must not be seen as two"


@dataclass(frozen=True, slots=True)
class UnreadFile:
    """An unread file or folder, and the reason; `path` is relative to the library."""

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
        """Return a file with its status; a time past 2262 becomes the last that SQLite can hold."""
        return cls(path, status.st_size, min(status.st_mtime_ns, _LATEST_NS))


@dataclass
class Listing:
    """The result of a walk. `closed` folders and files could not be read."""

    entries: list[ListedFile] = field(default_factory=list)
    problems: list[UnreadFile] = field(default_factory=list)
    closed: list[bytes] = field(default_factory=list)  # with a trailing slash
    only: tuple[bytes, ...] = (b"",)  # with a trailing slash: where it looked
    unread: list[bytes] = field(default_factory=list)  # photographs that only the extra `photos-more` reads
    foreign: list[bytes] = field(default_factory=list)  # pictures of other formats
    # Folders of programs, and files in their trash.
    not_entered: list[UnreadFile] = field(default_factory=list)

    @property
    def left_out(self) -> list[str]:
        """Sentences about `not_entered`, `unread` and `foreign`."""
        sentences = [f"{place}." for place in self.not_entered[:_MOST_NAMED]]
        if more := self.not_entered[_MOST_NAMED:]:
            folders = sorted({place.path.name for place in more})
            sentences.append(f"{len(more):,} more not entered ({in_short(folders)}).")
        if self.unread:
            names = in_short(map(os.fsdecode, self.unread))
            n = len(self.unread)
            sentences.append(
                f"{n} left out ({names}): pip install 'photodup[photos-more]' reads RAW and JPEG XL."
            )
        if self.foreign:
            names = in_short(map(os.fsdecode, sorted(self.foreign)))
            sentences.append(f"{len(self.foreign)} pictures of other formats, not looked at ({names}).")
        return sentences


_MOST_NAMED = 10


def application_library(path: Path) -> Path | None:
    """Return the library of a photo application that a path lies in, if any."""
    return next((p for p in (path, *path.parents) if _PACKAGE.fullmatch(p.name)), None)


def _reason_not_to_enter(name: str) -> str:
    """Return why a folder with this name is not entered; empty if it is."""
    if _PACKAGE.fullmatch(name):
        return _NOT_ENTERED
    if name.startswith(".") and name != _ORIGINALS:
        return _HIDDEN
    return _PASSES if _PASSING.fullmatch(name) else ""


def enterable_path(path: str) -> str:
    """Return a file's path, with folders renamed that the walk of a library does not enter.

    `.dtrash` becomes `dtrash (copied)`; `PROGRAM_FOLDERS` keep their names.
    """
    *folders, file = Path(path).parts
    passed_over = {name for name in folders if _reason_not_to_enter(name)}
    passed_over -= {name for name in folders if name.casefold() in PROGRAM_FOLDERS}
    parts = [f"{name.lstrip('.$#@~')} (copied)" if name in passed_over else name for name in folders]
    return os.path.join(*parts, file.lstrip(".") if _TRASHED.match(file) else file)


def walk(root: Path, only: Sequence[str] = (), *, everything: bool = False) -> Listing:
    """List the photographs in a folder, ordered by path; symbolic links are reported, not followed.

    Args:
        root: the library.
        only: the folders to look at, relative to it, none inside another; empty for all.
        everything: also hidden folders, trash, caches and libraries of applications.

    Raises:
        PhotodupError: the folder cannot be read, or (unless `everything`) lies in the library of an application.
    """
    folders, base = [os.fsencode(name) for name in only], os.fsencode(root)
    listing = Listing(only=tuple(folder + b"/" for folder in folders) or (b"",))
    folders = folders or [b""]
    packages = (application_library(root / name) for name in only or ("",))
    if not everything and (package := next(filter(None, packages), None)):
        raise PhotodupError(f"{printable(package)} is a {_NOT_ENTERED}.")
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(os.path.join(base, folder)) as scanned:
                children = list(scanned)
        except OSError as error:
            if not folder:
                raise PhotodupError(f"Cannot read the folder {printable(root)}: {error.strerror}.") from None
            listing.problems.append(UnreadFile(_path(folder), f"folder cannot be read: {error.strerror}"))
            listing.closed.append(folder + b"/")
            continue
        photographs = photographs_among(os.fsdecode(child.name) for child in children)
        for child in children:
            path, name = os.path.join(folder, child.name), os.fsdecode(child.name)
            is_photo, suffix = name in photographs, os.path.splitext(name.lower())[1]
            try:
                if child.is_symlink():
                    if is_photo or child.is_dir():
                        listing.problems.append(UnreadFile(_path(path), _NOT_FOLLOWED))
                elif child.is_dir(follow_symlinks=False):
                    reason = "" if everything else _reason_not_to_enter(name)
                    if not reason:
                        folders.append(path)
                    elif name not in OWN_FOLDERS:
                        listing.not_entered.append(UnreadFile(_path(path), reason))
                elif is_photo and not everything and _TRASHED.match(name):
                    listing.not_entered.append(UnreadFile(_path(path), _PASSES))
                elif is_photo and not child.is_file(follow_symlinks=False):
                    listing.problems.append(UnreadFile(_path(path), "no regular file, not looked at"))
                elif is_photo and suffix in _MORE and not is_installed(_MORE[suffix]):
                    listing.unread.append(path)
                elif is_photo:
                    listing.entries.append(ListedFile.of(path, child.stat(follow_symlinks=False)))
                elif suffix in _OTHER_PICTURES:
                    listing.foreign.append(path)
            except FileNotFoundError:
                continue  # gone since the folder was listed
            except OSError as error:  # a folder that may only be listed, or a failing file system
                listing.closed.append(path + b"/")
                listing.problems.append(UnreadFile(_path(path), error.strerror or str(error)))
    listing.entries.sort(key=lambda entry: entry.path)
    listing.not_entered.sort(key=lambda place: os.fsencode(place.path))
    return listing


def read_bytes(root: Path, path: bytes) -> tuple[bytes, ListedFile]:
    """Read a file of a library once; return its bytes with their size and time.

    No link in the library is followed: the walk lists nothing behind one, so such a path was exchanged since.

    Raises:
        FileNotFoundError: it is gone.
        OSError: it cannot be read, lies behind a link, is no regular file, or changed while it was read.
        photodup.embedding.imaging.ImageError: it is larger than any photograph.
    """
    with open_photo_file(root, os.fsdecode(path)) as file:
        status = os.fstat(file.fileno())
        if status.st_size > MAX_FILE_BYTES:
            raise imaging.ImageError(f"{status.st_size / 1e9:.1f} GB is more than any photograph")
        data = file.read(status.st_size + 1)
    if len(data) != status.st_size:
        raise OSError("changed while it was read")
    return data, ListedFile.of(path, status)


def open_photo_file(root: Path, relative: str) -> BinaryIO:
    """Open a regular file of a library for reading; no link in the library is followed.

    Raises:
        FileNotFoundError: it is gone.
        OSError: it cannot be opened, lies behind a link, or is no regular file.
    """
    try:
        with opened(root, relative) as place:
            return open(open_file(place), "rb")
    except ValueError:  # from a foreign catalogue
        raise OSError(errno.EINVAL, "its path leads outside the library") from None


def _path(path: bytes) -> Path:
    return Path(os.fsdecode(path))
