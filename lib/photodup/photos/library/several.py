"""Several folders in one review: their common parent is the library, with one catalogue and one trash."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from photodup.core.errors import PhotodupError
from photodup.core.files import real_path
from photodup.core.names import printable
from photodup.photos.library.scan import existing_folder
from photodup.photos.library.settings import check_folders, load_settings
from photodup.photos.state.own_folder import own_folder_of


@dataclass(frozen=True)
class Folders:
    """The library and folders of a command.

    Attributes:
        root: the library.
        only: the folders to look at, relative to it; empty for all.
        untouched: folders without suggestions, relative to it: read-only ones, and those protected in a library of
            their own.
        notes: sentences for the owner.
    """

    root: Path
    only: tuple[str, ...] = ()
    untouched: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def in_full(self, names: Sequence[str] | None) -> list[str]:
        """Return folders as `check_folders` takes them: one of `only` may be written relative to the working directory."""
        full = {self.root / name for name in self.only}
        return [str(real) if (real := real_path(name)) in full else name for name in names or ()]


def as_one_library(paths: Sequence[Path]) -> Folders:
    """Return the common library of some folders.

    Args:
        paths: one folder, which is the library, or several that lie apart on one file system.

    Raises:
        PhotodupError: one is not there, or lies in another or on another file system, or the folder above all of
            them may not be written.
    """
    if len(paths) == 1:
        return Folders(paths[0])
    folders = [existing_folder(folder) for folder in paths]
    for pair in combinations(folders, 2):
        refuse_overlap(*pair)
    root = Path(os.path.commonpath(folders))
    above = f"{printable(root)}, the folder above all of them, where their catalogue and trash lie"
    for folder in folders:
        if os.stat(folder).st_dev != os.stat(root).st_dev:
            raise PhotodupError(
                f"{printable(folder)} lies on another file system than {above}: review it alone, or compare it with "
                "`photodup contained`."
            )
    if not os.access(root, os.W_OK | os.X_OK):
        raise PhotodupError(f"photodup may not write into {above}: allow it, or review each folder alone.")
    only, untouched, notes = check_folders(root, list(map(str, folders))), [], []
    notes.append(f"One catalogue and one trash for these folders: `photodup trash list {printable(root)}`.")
    for folder, name in zip(folders, only, strict=True):
        if not os.access(folder, os.W_OK):
            untouched.append(name)
            notes.append(f"{printable(name)} is read-only: its photos may be kept, and none is suggested.")
        own_folder = own_folder_of(folder, None)
        if os.path.isfile(own_folder.catalogue):
            untouched += [f"{name}/{inner}" for inner in load_settings(own_folder.path).protected]
            notes.append(
                f"{printable(name)} is a library of its own too: what it protects stays protected, its other decisions "
                "do not count here, and its trash stays its own."
            )
    return Folders(root, only, tuple(untouched), tuple(notes))


def refuse_overlap(first: Path, second: Path) -> None:
    """Refuse two folders that are the same, or of which one lies in the other.

    Raises:
        PhotodupError: they overlap.
        OSError: the first is not there.
    """
    if _lies_in(second, first) or (second.exists() and _lies_in(first, second)):
        raise PhotodupError(
            f"{printable(first)} and {printable(second)} are one folder or one in the other: name two folders apart."
        )


def _lies_in(inner: Path, outer: Path) -> bool:
    """Return whether a folder lies in another or is that folder, by inode: a folder can have several paths."""
    status = os.stat(outer)
    return any(os.path.samestat(os.stat(at), status) for at in (inner, *inner.parents) if at.exists())
