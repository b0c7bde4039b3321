"""Removal from an Apple Photos library: an album that the owner empties in Photos. Nothing is deleted here.

Moving a file out of a Photos library damages the library. So marked photos go into the album "photodup: to delete", and
the owner deletes them there. Not run on macOS yet: written against photoscript 0.6, and tested on its classes with
AppleScript replaced.
"""

import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from photodup.core.errors import PhotodupError
from photodup.core.names import as_text, printable
from photodup.photos.library.apple import mac_module
from photodup.photos.library.catalogue import Catalogue
from photodup.photos.trash.entries import Moved, Note, Operation, Removal, TrashContents, sentence_of
from photodup.photos.trash.files import RemainingCopies

ALBUM = "photodup: to delete"


def photos_by_file(catalogue: Catalogue) -> dict[str, str]:
    """Return UUIDs in Apple Photos by path; empty for a library of plain files."""
    rows = catalogue.query("SELECT path, uuid FROM apple_photo JOIN file ON file.id = apple_photo.file")
    return {as_text(path): uuid for path, uuid in rows}


class AppleAlbum:
    """The album, with the interface of `Trash`: `remove` adds photos, `restore` takes them out, `contents` lists them.

    Args:
        root: the Photos library.
        uuids: UUID by path in the library, see `photos_by_file`.
    """

    moves_files = False

    def __init__(self, root: Path, uuids: Mapping[str, str]) -> None:
        self.root, self._uuids = Path(root), dict(uuids)
        self._paths = {uuid: path for path, uuid in self._uuids.items()}

    def remove(
        self, removals: Iterable[Removal], notes: Iterable[Note] = ()
    ) -> tuple[list[Operation], list[tuple[Removal, str]]]:
        """Add photos to the album; Photos keeps their metadata, so no note is written.

        Returns:
            The operations, and the refused removals with a sentence each.

        Raises:
            PhotodupError: not on macOS, photoscript missing, or Photos refuses.
        """
        removals = list(removals)
        photos, moved, refused = [], [], []
        script = mac_module("photoscript")
        remaining = RemainingCopies(self.root, removals)
        for removal in removals:
            try:
                uuid = self._uuids.get(as_text(removal.path.relative_to(self.root)))
                if uuid is None:
                    raise PhotodupError(f"{printable(removal.path.name)} is not known to Photos: scan again.")
                remaining.check(removal)
                photos.append(script.Photo(uuid))
            except (PhotodupError, OSError) as error:
                refused.append((removal, sentence_of(error, removal.path)))
            except ValueError:
                refused.append(
                    (removal, f"{printable(removal.path.name)} is no longer in Photos: scan again.")
                )
            else:
                moved.append(self._operation(uuid, removal.md5, removal.reason))
        if photos:
            library = script.PhotosLibrary()
            album = library.album(ALBUM) or library.create_album(ALBUM)
            added = {_without_suffix(photo.uuid) for photo in album.add(photos)}
            if missing := [operation for operation in moved if _without_suffix(operation.id) not in added]:
                raise PhotodupError(
                    f"Photos put {len(added)} of {len(moved)} photos into the album: look at it and repeat "
                    f"(first missing: {printable(missing[0].files[0].home)})."
                )
        return moved, refused

    def restore(self, operations: Iterable[Operation], *, confirmed: bool = False) -> list[Path]:
        """Take photos out of the album; return their files, which never moved."""
        operations = list(operations)
        script = mac_module("photoscript")
        album = script.PhotosLibrary().album(ALBUM)
        if album and operations:
            album.remove([script.Photo(operation.id) for operation in operations])
        return [self.root / operation.files[0].home for operation in operations]

    def contents(self) -> TrashContents:
        """Return the album's photos that this catalogue knows."""
        album = mac_module("photoscript").PhotosLibrary().album(ALBUM)
        uuids = {_without_suffix(uuid): uuid for uuid in self._paths}
        listed = [uuids.get(_without_suffix(photo.uuid)) for photo in (album.photos() if album else [])]
        return TrashContents([self._operation(uuid, "", "in the album") for uuid in reversed(listed) if uuid])

    def _operation(self, uuid: str, md5: str, reason: str) -> Operation:
        home = self._paths[uuid]
        path = self.root / home
        status = path.stat() if path.is_file() else None
        size, mtime_ns = (status.st_size, status.st_mtime_ns) if status else (0, 0)
        moved = Moved(home, "", md5, size, mtime_ns)
        return Operation(uuid, time.time(), reason, "removed", [moved])


def _without_suffix(uuid: str) -> str:
    return uuid.split("/")[0].upper()  # AppleScript adds "/L0/001"
