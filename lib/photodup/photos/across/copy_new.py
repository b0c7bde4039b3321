"""Copying the photos that another folder lacks: compared after the copy, journalled, and never over a file.

A file gets its name only once it is complete and synced. So an interrupted run leaves no partial file under its name, and
the same command continues: it skips files that are there with the same bytes.
"""

import errno
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from photodup.core.errors import PhotodupError
from photodup.core.files import real_path
from photodup.core.names import as_text, printable
from photodup.core.progress import bar
from photodup.core.safe_open import opened, remove_file, status_of
from photodup.photos.across.contained import Contained, OldPhoto
from photodup.photos.library.several import refuse_overlap
from photodup.photos.library.sidecars import Sidecars
from photodup.photos.library.walking import enterable_path
from photodup.photos.state.journal import Journal
from photodup.photos.state.own_folder import OwnFolder
from photodup.photos.trash.entries import sentence_of
from photodup.photos.trash.files import copy_file, md5_at, partial_copy_of

JOURNAL = "copied.jsonl"


def files_to_copy(comparison: Contained, photos: Sequence[OldPhoto]) -> list[tuple[str, str | None]]:
    """Return photos, their sidecars and albums, each file once: path relative to the old folder, and MD5 if known."""
    sidecars, old = Sidecars(comparison.old), comparison.old
    files: dict[Path, str | None] = {old / photo.path: photo.md5 for photo in photos}
    for path in list(files):
        files |= dict.fromkeys([*sidecars.files_of(path), *sidecars.albums(path.parent)])
    return [(str(path.relative_to(old)), md5) for path, md5 in files.items()]


def copy_new(
    comparison: Contained,
    photos: Sequence[OldPhoto],
    target: Path,
    on_step: Callable[[str], None] = lambda name: None,
) -> tuple[int, int, list[str]]:
    """Copy photos of the old folder, and what belongs to them, below a folder, under the paths that they have.

    Folders that a scan of the target would not enter, such as trash and hidden ones, get another name there.
    The journal, `.photodup/copied.jsonl` in that folder, says before each file what is copied, and after it that it was.

    Args:
        comparison: of `find_contained`.
        photos: some of its photos.
        target: the folder; made if it is not there.
        on_step: called with a name before each step that a crash could separate; tests kill there.

    Returns:
        How many files were copied, how many were there with these bytes, and a sentence for each that was not copied: its
        name is taken by other bytes, or it changed or cannot be read.

    Raises:
        PhotodupError: the folder overlaps the old one or cannot be written, or another photodup copies there.
    """
    own_folder, n_copied, n_there, refused = OwnFolder(target / ".photodup"), 0, 0, list[str]()
    journal = Journal(own_folder.path / JOURNAL, on_step, within=target)
    files = files_to_copy(comparison, photos)
    try:
        refuse_overlap(comparison.old, real_path(target))
        target.mkdir(parents=True, exist_ok=True)
        own_folder.prepare()
        with journal.exclusive():
            for path, md5 in bar(files, total=len(files), desc="copy", unit="file"):
                try:
                    is_new = _copy_one(comparison.old, target, path, md5, journal, on_step)
                    n_copied, n_there = n_copied + is_new, n_there + (not is_new)
                except (OSError, ValueError) as error:
                    refused.append(sentence_of(error, comparison.old / path))
    except BlockingIOError:
        raise PhotodupError(
            f"Another photodup copies into {printable(target)}: wait until it is done."
        ) from None
    except OSError as error:
        raise PhotodupError(sentence_of(error, target)) from None
    return n_copied, n_there, refused


def _copy_one(
    old: Path, target: Path, path: str, md5: str | None, journal: Journal, on_step: Callable[[str], None]
) -> bool:
    """Copy one file; return False if it is there already.

    Raises:
        OSError: it cannot be copied, or other bytes have the name.
    """
    home = enterable_path(path)
    with opened(old, path) as source, opened(target, home, make=True) as place:
        if source is None or place is None:
            raise FileNotFoundError(errno.ENOENT, "it is no longer there", path)
        remove_file(partial_copy_of(place))  # what a crash may have left
        md5 = md5 or md5_at(source)
        if status_of(place):
            if md5_at(place) == md5_at(source) == md5:
                return False
            raise FileExistsError(
                errno.EEXIST, f"{printable(target / home)} has other bytes and is not replaced", path
            )
        line = {
            "path": as_text(home),
            "original": as_text(path),
            "from": as_text(old),
            "md5": md5,
            "time": time.time(),
        }
        journal.append(line | {"state": "copying"})
        copy_file(source, place, md5, on_step)
        os.fsync(place.folder)  # the name, too, is there after a power cut
        journal.append(line | {"state": "copied"})
        return True
