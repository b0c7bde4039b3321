"""Apple Photos libraries on macOS: originals and metadata, never written to. Not run here."""

import importlib
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, Unpack

from photodup.core.errors import PhotodupError
from photodup.photos.library.catalogue import Catalogue, CatalogueError
from photodup.photos.library.scan import ScanOptions, ScanReport, scan, update
from photodup.photos.library.walking import ListedFile, Listing, UnreadFile

DEFAULT_FOLDER = "~/Pictures/photodup-apple"  # photodup's own for the library


def rescan(
    root: Path, catalogue: Path | None, only: Sequence[str], **options: Unpack[ScanOptions]
) -> ScanReport:
    """Scan a library again: through Apple Photos if its catalogue has photos from there, else as a folder; see `scan`."""
    is_apple = False
    # Where there is no catalogue yet, or a damaged one, `scan` makes it.
    with suppress(CatalogueError), Catalogue(root, catalogue) as opened:
        is_apple = bool(opened.query("SELECT 1 FROM apple_photo LIMIT 1"))
    if is_apple:
        return scan_apple_photos(root, catalogue, **options)
    return scan(root, catalogue, only=only, **options)


def scan_apple_photos(
    library: Path | str | None = None, catalogue: Path | str | None = None, **options: Unpack[ScanOptions]
) -> ScanReport:
    """Scan the originals of an Apple Photos library on macOS; the library is only read. `options` are those of `update`.

    Needs the extra `apple` (osxphotos). Originals that are only in iCloud are reported as problems. The
    catalogue lies outside the library, which belongs to Photos. Not run here (needs macOS): written against
    osxphotos 0.77.

    Raises:
        PhotodupError: not on macOS, or osxphotos is not installed.
    """
    database = mac_module("osxphotos").PhotosDB(*([str(Path(library).expanduser())] if library else []))
    root = Path(database.library_path).resolve()
    listing, names = _originals(database, root)
    folder = catalogue or DEFAULT_FOLDER
    report = update(root, folder, listing, **options)
    with Catalogue(root, folder) as opened, opened.transaction() as connection:
        connection.executemany(
            "INSERT OR REPLACE INTO apple_photo (file, uuid, original_filename) "
            "SELECT id, ?, ? FROM file WHERE path = ?",
            [(uuid, name, path) for path, (uuid, name) in names.items()],
        )
    return report


def mac_module(name: str) -> ModuleType:
    """Import what the extra `apple` brings.

    Raises:
        PhotodupError: not on macOS, or it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError:
        raise PhotodupError(
            f"An Apple Photos library needs macOS and {name}: pip install 'photodup[apple]'."
        ) from None


def _originals(database: Any, root: Path) -> tuple[Listing, dict[bytes, tuple[str, str | None]]]:
    """Return the originals that lie in the library, and UUID and first name of each by its path."""
    listing, names = Listing(), {}
    for photo in database.photos(movies=False):
        reason = None
        if photo.path is None:
            reason = "only in iCloud: download it in Photos first"
        elif photo.isreference:
            reason = "lies outside the Photos library: scan its folder"
        else:
            try:
                path = os.fsencode(Path(photo.path).resolve().relative_to(root))
                status = os.stat(photo.path)
            except (OSError, ValueError) as error:
                reason = str(error)
        if reason:
            listing.problems.append(UnreadFile(Path(photo.original_filename or photo.uuid), reason))
            continue
        listing.entries.append(ListedFile.of(path, status))
        names[path] = (photo.uuid, photo.original_filename)
    listing.entries.sort(key=lambda entry: entry.path)
    return listing, names
