"""The space that removing photos frees: a file with hard links stays until its last name goes."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from photodup.photos.library.catalogue import Photo


def bytes_freed(root: Path, leaving: Iterable[Photo]) -> dict[int, int]:
    """Return the bytes that each photo frees when all of these leave, by the photo's id.

    Zero if a hard link to the file stays. If all its names leave, the first counts. Missing files are left out.
    """
    names: dict[tuple[int, int, int], list[Photo]] = {}
    for photo in leaving:
        with suppress(OSError):
            status = os.lstat(root / photo.path)
            names.setdefault((status.st_dev, status.st_ino, status.st_nlink), []).append(photo)
    return {
        photo.id: photo.size_bytes if photo is photos[0] and n_links <= len(photos) else 0
        for (_, _, n_links), photos in names.items()
        for photo in photos
    }
