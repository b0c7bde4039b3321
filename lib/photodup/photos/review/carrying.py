"""Metadata that only a group's leaving photos have: shown on the list, and written beside the staying photo."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from photodup.core.names import escaped, printable
from photodup.photos.library.carried import merge_into, properties_of
from photodup.photos.library.catalogue import Photo
from photodup.photos.library.hashing import md5
from photodup.photos.library.metadata import (
    KINDS,
    MOST_XMP_BYTES,
    Description,
    merge_descriptions,
    missing_kinds,
)
from photodup.photos.library.sidecars import Sidecars, xmp_of
from photodup.photos.library.walking import open_photo_file
from photodup.photos.trash.entries import Note


@dataclass(frozen=True)
class LeavingMetadata:
    """Metadata of a leaving photo that the keeper lacks, by kind, in words.

    Attributes:
        leaving: the photo that goes.
        written: values to write beside the keeper.
        conflicting: both values of kinds that differ: the one that stays and the one that goes.
        lost: kinds that are not written.
    """

    leaving: Photo
    written: Mapping[str, str]
    conflicting: Mapping[str, tuple[str, str]]
    lost: Description

    @property
    def is_whole(self) -> bool:
        """Whether all of it is written."""
        return not self.conflicting and not self.lost


@dataclass(frozen=True)
class Transfer:
    """The metadata of a group's leaving photos, the keeper's sidecar (relative to the library), and the write, if any."""

    sidecar: str
    entries: tuple[LeavingMetadata, ...]
    note: Note | None

    def of(self, photo: Photo) -> LeavingMetadata | None:
        """Return the entry of a photo, or None."""
        return next((entry for entry in self.entries if entry.leaving.id == photo.id), None)


def plan_transfer(sidecars: Sidecars, keeper: Photo, leaving: Sequence[Photo]) -> Transfer | None:
    """Return the metadata that only leaving photos have, and the keeper's sidecar for it; None if there is none.

    If two leaving photos differ, the first one's value is written.

    Args:
        sidecars: of the library.
        keeper: the photo that stays.
        leaving: the photos that leave.
    """
    if not leaving:
        return None
    root, base = sidecars.library, sidecars.describe(keeper)
    new: dict[str, str | list[str]] = {}
    entries: list[LeavingMetadata] = []
    for photo in leaving:
        if not (lost := missing_kinds(base, sidecars.describe(photo))):
            continue
        if not entries:
            path = xmp_of(root / keeper.path)
            sidecar = _read(root, path)
        free = {kind: value for kind, value in lost.items() if kind not in base or isinstance(value, list)}
        writable = properties_of(free)
        writable = {kind: some for kind, some in writable.items() if merge_into(sidecar, some)}
        for name, value in ((name, value) for some in writable.values() for name, value in some.items()):
            new[name] = [*new.get(name, ()), *value] if isinstance(value, list) else new.get(name, value)
        entries.append(
            LeavingMetadata(
                photo,
                {kind: _text(lost[kind]) for kind in KINDS if kind in writable},
                {kind: (_text(base[kind]), _text(lost[kind])) for kind in lost if kind not in free},
                {kind: value for kind, value in free.items() if kind not in writable},
            )
        )
        base = merge_descriptions(base, {kind: lost[kind] for kind in writable})
    if not entries:
        return None
    data = merge_into(sidecar, new) if new else None
    home = printable(path.relative_to(root))
    note = None
    if data is not None:
        sources = [entry.leaving for entry in entries if entry.written]
        reason = f"written from {', '.join(printable(photo.path) for photo in sources[:3])}"
        before = md5(sidecar) if sidecar is not None else None
        note = Note(path, before, data, frozenset(root / photo.path for photo in sources), reason)
    return Transfer(home, tuple(entries), note)


def _text(value: str | list[str]) -> str:
    return escaped(", ".join(value) if isinstance(value, list) else value)[:200]


def _read(root: Path, path: Path) -> bytes | None:
    """Return the bytes of a sidecar; None without one, and empty (never merged) if it cannot be read."""
    try:
        with open_photo_file(root, os.fspath(path.relative_to(root))) as file:
            return file.read(MOST_XMP_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError:
        return b""
