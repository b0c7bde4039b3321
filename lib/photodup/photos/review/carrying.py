"""Metadata that only a group's leaving photos have: shown on the list, and written beside the staying photo."""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from photodup.core.names import escaped, printable
from photodup.photos.library.carried import merged, properties
from photodup.photos.library.catalogue import Photo
from photodup.photos.library.hashing import md5
from photodup.photos.library.metadata import KINDS, MOST_XMP_BYTES, in_words, joined, missing_kinds
from photodup.photos.library.sidecars import xmp_of
from photodup.photos.library.walking import opened_file
from photodup.photos.trash.entries import Note


@dataclass(frozen=True)
class SaidAlone:
    """Metadata of a leaving photo that the keeper lacks, by kind, in words.

    Attributes:
        photo: the leaving photo.
        written: values to write beside the keeper.
        conflicting: both values of kinds that differ: the one that stays and the one that goes.
        lost: kinds that are not written.
    """

    photo: Photo
    written: Mapping[str, str]
    conflicting: Mapping[str, tuple[str, str]]
    lost: Mapping[str, Any]

    @property
    def is_whole(self) -> bool:
        """Whether all of it is written."""
        return not self.conflicting and not self.lost

    @property
    def lost_in_words(self) -> str:
        """Return the lost kinds, such as "camera and people"."""
        return in_words(self.lost)


@dataclass(frozen=True)
class Carried:
    """The metadata of a group's leaving photos, the keeper's sidecar (relative to the library), and the write, if any."""

    sidecar: str
    entries: tuple[SaidAlone, ...]
    note: Note | None

    def of(self, photo: Photo) -> SaidAlone | None:
        """Return the entry of a photo, or None."""
        return next((entry for entry in self.entries if entry.photo.id == photo.id), None)


def carried(
    root: Path, keeper: Photo, leaving: Iterable[Photo], described: Callable[[Photo], Mapping[str, Any]]
) -> Carried | None:
    """Return the metadata that only leaving photos have, and the keeper's sidecar for it; None if there is none.

    If two leaving photos differ, the first one's value is written.

    Args:
        root: the library.
        keeper: the photo that stays.
        leaving: the photos that leave.
        described: returns the metadata of a photo and its sidecars, by kind.
    """
    if not (photos := list(leaving)):
        return None
    base = described(keeper)
    new: dict[str, Any] = {}
    entries: list[SaidAlone] = []
    for photo in photos:
        if not (lost := missing_kinds(base, described(photo))):
            continue
        if not entries:
            path = xmp_of(root / keeper.path)
            sidecar = _read(root, path)
        free = {kind: value for kind, value in lost.items() if kind not in base or isinstance(value, list)}
        writable = properties(free)
        writable = {kind: some for kind, some in writable.items() if merged(sidecar, some)}
        for name, value in ((name, value) for some in writable.values() for name, value in some.items()):
            new[name] = [*new.get(name, ()), *value] if isinstance(value, list) else new.get(name, value)
        entries.append(
            SaidAlone(
                photo,
                {kind: _text(lost[kind]) for kind in KINDS if kind in writable},
                {kind: (_text(base[kind]), _text(lost[kind])) for kind in lost if kind not in free},
                {kind: value for kind, value in free.items() if kind not in writable},
            )
        )
        base = joined(base, {kind: lost[kind] for kind in writable})
    if not entries:
        return None
    data = merged(sidecar, new) if new else None
    home = printable(path.relative_to(root))
    note = None
    if data is not None:
        sources = [entry.photo for entry in entries if entry.written]
        reason = f"written from {', '.join(printable(photo.path) for photo in sources[:3])}"
        before = md5(sidecar) if sidecar is not None else None
        note = Note(path, before, data, frozenset(root / photo.path for photo in sources), reason)
    return Carried(home, tuple(entries), note)


def _text(value: Any) -> str:
    return escaped(", ".join(value) if isinstance(value, list) else str(value))[:200]


def _read(root: Path, path: Path) -> bytes | None:
    """Return the bytes of a sidecar; None without one, and empty (never merged) if it cannot be read."""
    try:
        with opened_file(root, os.fspath(path.relative_to(root))) as file:
            return file.read(MOST_XMP_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError:
        return b""
