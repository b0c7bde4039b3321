"""photodup's own folder for a library, and the only code that deletes in it.

It is `.photodup/` in the library, or the folder given with `--catalogue`, and has a marker file.
Only files with photodup's own names are deleted, and only in a folder with the marker. No link is followed: each folder is
opened inside the one above, so that it cannot be exchanged after a check.
"""

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from photodup.core.errors import PhotodupError
from photodup.core.files import real_path
from photodup.core.names import printable
from photodup.core.safe_open import (
    TEMPORARY,
    PathInFolder,
    open_file,
    opened,
    remove_file,
    status_of,
    writing,
)

# In a library: never walked, and nothing in them is moved.
OWN_FOLDERS = frozenset({".photodup", ".photodup-trash"})
MARKER = "photodup-folder.txt"

_MARK = "photodup keeps its files for one photo library in this folder."
_ABOUT = f"""{_MARK}
It made the folder, and it may delete or replace what it wrote here: put nothing of your own into it.
settings.json, feedback.jsonl and review/ hold your decisions; everything else can be made again.
"""
_MAY_BE_DELETED = re.compile(r"(?:evidence|neighbours)\.sqlite(?:-wal|-shm|-journal)?")


class OwnFolderError(PhotodupError):
    """The folder is not photodup's, or contains a link; nothing was changed."""


class OwnFolder:
    """One library's folder; `prepare` makes or checks it. Code that opens its files follows no link.

    Attributes:
        catalogue: the database of the photos.
        settings, feedback, decisions: files with what the owner chose: settings, labels of photos, decisions on groups.
        evidence, neighbours: databases: compared pairs, pairs worth comparing.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.catalogue = self.path / "catalogue.sqlite"
        self.settings = self.path / "settings.json"
        self.feedback = self.path / "feedback.jsonl"
        self.decisions = self.path / "review" / "decisions.jsonl"
        self.evidence = self.path / "evidence.sqlite"
        self.neighbours = self.path / "neighbours.sqlite"

    def prepare(self) -> None:
        """Make the folder with its marker, or check an existing one.

        Raises:
            OwnFolderError: it is a link, contains one, or is not photodup's.
            OSError: it cannot be made or read.
        """
        with suppress(FileExistsError):
            self.path.mkdir(parents=True)
        if not stat.S_ISDIR(os.lstat(self.path).st_mode):
            raise OwnFolderError(
                f"{printable(self.path)} must be a folder of photodup's own, not a link or a file: replace it, or "
                "name another folder with --catalogue."
            )
        names = self._names()
        with suppress(OSError, OwnFolderError), self._opened(MARKER):
            return  # photodup made it
        if not all(map(TEMPORARY.fullmatch, names)):
            raise OwnFolderError(
                f"{printable(self.path)} holds files and was not made by photodup: move it away, or name another "
                "folder with --catalogue."
            )
        with self._marker() as marker, writing(marker, mode=0o600) as file:
            file.write(_ABOUT.encode())

    def write(self, name: str, content: bytes) -> None:
        """Write a file in the folder atomically and synced; no link is followed.

        Raises:
            OwnFolderError: photodup did not make the folder.
            OSError: it cannot be written.
        """
        with self._opened(name) as place, writing(place, mode=0o600, fsync=True) as file:
            file.write(content)

    def delete(self, *names: str) -> None:
        """Delete files that can be made again; missing ones are no error, links stay.

        Args:
            names: relative to the folder.

        Raises:
            ValueError: the file cannot be made again from the photographs.
            OwnFolderError: photodup did not make the folder.
            OSError: a file cannot be deleted.
        """
        for name in names:
            if not _MAY_BE_DELETED.fullmatch(name):
                raise ValueError(f"{name} is no file that can be made again")
            with suppress(FileNotFoundError), self._opened(name) as place:
                if (status := status_of(place)) and stat.S_ISREG(status.st_mode):
                    remove_file(place)

    def _names(self) -> set[str]:
        """Return the names in the folder; refuse links, since SQLite and journals would write to their targets."""
        names = set[str]()
        for folder in (self.path, self.path / "review"):
            with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
                for entry in entries:
                    if not (entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)):
                        raise OwnFolderError(
                            f"{printable(entry.path)} is a link or no regular file, and photodup writes only inside its "
                            "own folder: replace it by a real file or folder, or delete it."
                        )
                    if folder == self.path:
                        names.add(entry.name)
        return names

    @contextmanager
    def _opened(self, name: str) -> Iterator[PathInFolder]:
        """Open this folder, which has to have its marker; yield the place of a file in it."""
        with self._marker() as marker:
            if not _is_whole(marker):
                raise OwnFolderError(
                    f"{printable(self.path)} was not made by photodup: nothing in it is touched."
                )
            yield marker._replace(name=name)

    @contextmanager
    def _marker(self) -> Iterator[PathInFolder]:
        """Open this folder, which may be no link; yield the place of its marker."""
        with opened(self.path.parent, f"{self.path.name}/{MARKER}") as marker:
            if marker is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.path))
            yield marker


def own_folder_of(library: Path, path: Path | str | None) -> OwnFolder:
    """Return the own folder of a library.

    Args:
        library: its folder, links followed.
        path: of `--catalogue`, whose links are followed; None for the default, which may be no link.
    """
    return OwnFolder(library / ".photodup" if path is None else real_path(path))


def _is_whole(marker: PathInFolder) -> bool:
    """Return whether photodup wrote a marker."""
    with suppress(OSError), open(open_file(marker), "rb") as file:
        return file.read(len(_MARK)) == _MARK.encode()
    return False
