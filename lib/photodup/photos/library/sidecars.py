"""Files that belong to a photo and must go where it goes."""

import json
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from photodup.photos.library.catalogue import Photo
from photodup.photos.library.hashing import Memory, digest_of
from photodup.photos.library.metadata import MOST_XMP_BYTES, described_by_xmp, joined, read_described

# fmt: off
RAW_SUFFIXES = frozenset({
    ".3fr", ".arw", ".cr2", ".cr3", ".dng", ".erf", ".iiq", ".kdc", ".mef", ".mos", ".mrw", ".nef",
    ".nrw", ".orf", ".pef", ".raf", ".raw", ".rw2", ".rwl", ".srw", ".x3f",
})
RENDERED_SUFFIXES = frozenset({
    ".avif", ".bmp", ".heic", ".heif", ".jpeg", ".jpg", ".jxl", ".png", ".tif", ".tiff", ".webp",
})
FILM_SUFFIXES = frozenset({".mov", ".mp4"})  # of a Live Photo
_ATTACHED_SUFFIXES = frozenset({".aae", ".dop", ".mov", ".mp4", ".on1", ".pp3", ".thm", ".wav", ".xmp"})
_NAMED_IN_FULL = frozenset({".dop", ".json", ".on1", ".pp3", ".xmp"})  # IMG_1.jpg.xmp
# fmt: on
GOING_ALONG = _ATTACHED_SUFFIXES | _NAMED_IN_FULL | RAW_SUFFIXES
# How an XMP file says that a program developed the picture: Camera Raw, as an attribute or an element, and darktable.
_EDITS = (b'HasSettings="True"', b"HasSettings>True<", b"darktable:history>")


def moving_together(photos: Iterable[Path], staying: Iterable[Path] = ()) -> dict[Path, list[Path]]:
    """Return each photo with the files that leave with it, sorted by name.

    Found by name alone, as cameras and editors write them: `IMG_1.xmp` and `IMG_1.jpg.xmp` (metadata; also
    `.dop`, `.pp3`, `.on1`, and of Google's export `IMG_1.jpg.json` or `IMG_1.jpg.supplemental-metadata.json`),
    `IMG_1.AAE` and `IMG_O1.AAE` (Apple's edits), `IMG_1.MOV` (Live Photo), and the other half of a RAW+JPEG pair. What
    a photo that stays still needs is left alone: with `IMG_1.jpg` kept and `IMG_1.png` removed, only `IMG_1.png.xmp`
    leaves. Links are left alone. What several photos that leave share is listed with each of them, and leaves with
    the last (`photodup.photos.trash.trash.Trash.remove`).

    Args:
        photos: the photos that leave.
        staying: photos that must stay, such as the group's keeper; never taken for a sidecar.
    """
    photos, kept = list(photos), set(staying)
    leaving = set(photos)
    read = cache(_bundles)
    result: dict[Path, list[Path]] = {}
    for photo in photos:
        bundles = read(photo.parent)
        bundle = bundles.get(photo.stem.lower(), [])
        rendered = {p for p in bundle if p.suffix.lower() in RENDERED_SUFFIXES}
        peers = rendered or {p for p in bundle if p.suffix.lower() in RAW_SUFFIXES}
        raw_pair = photo.suffix.lower() in RAW_SUFFIXES and len(rendered) == 1
        shared = kept & set(bundle) or (peers - leaving and not raw_pair)
        namesakes = [p for p in bundle if p.name.lower() == photo.name.lower()]
        suffixes = RENDERED_SUFFIXES | _ATTACHED_SUFFIXES | RAW_SUFFIXES
        found = _of(photo, bundles, frozenset() if shared else suffixes)
        if len(namesakes) > 1:  # `a.jpg` and `A.JPG`: what is named in full is of the one that is spelled so
            found = [p for p in found if p.stem == photo.name or p in bundle]
        result[photo] = sorted(set(found) - leaving - kept)
    return result


def belonging_to(photo: Path) -> list[Path]:
    """Return the sidecars there are that belong to a photo by their names, other photos' too, sorted by name."""
    return _of(photo, _bundles(photo.parent), _ATTACHED_SUFFIXES)


def xmp_of(photo: Path) -> Path:
    """Return the XMP sidecar that is of a photo alone, or the name that a new one gets: `IMG_1.jpg.xmp`."""
    bundles = _bundles(photo.parent)
    own = photo.with_name(f"{photo.name}.xmp")
    named = [p for p in bundles.get(photo.name.lower(), ()) if p.suffix.lower() == ".xmp"]
    stem = bundles.get(photo.stem.lower(), ())
    if not named and sum(p.suffix.lower() in RAW_SUFFIXES | RENDERED_SUFFIXES for p in stem) == 1:
        named = [p for p in stem if p.suffix.lower() == ".xmp"]
    return named[0] if len(named) == 1 else own


class Beside:
    """What lies beside the photos of a library; each folder is read once, when it is first asked about.

    Attributes:
        memory: keeps digests of files while it is given, so that a file is read again only where it changed.
    """

    def __init__(self, library: Path) -> None:
        self._library, self._read = library, cache(_bundles)
        self.along, self._xmp = cache(self._along), cache(_read_xmp)
        self.memory: Memory | None = None

    def _along(self, path: Path) -> list[Path]:
        """Return the files beside a photo that belong to it; XMP and Google's JSON only where they say more than facts."""
        photo = self._library / path
        found = _of(photo, self._read(photo.parent), _ATTACHED_SUFFIXES | RAW_SUFFIXES)
        return [p for p in found if self._counts(p)]

    def _counts(self, path: Path) -> bool:
        if path.suffix.lower() == ".xmp":
            return self._xmp(path)[0]
        return path.suffix.lower() != ".json" or _google(path) != _GOOGLES

    def lost(self, keeper: Path, leaving: Path) -> list[str]:
        """Return the suffixes of the files that would leave with a photo and have no equal beside the keeper."""
        there = self.along(keeper)
        lost = [p for p in self.along(leaving) if not any(self._is_equal(p, one) for one in there)]
        return sorted({p.suffix.lower() for p in lost})

    def _is_equal(self, first: Path, second: Path) -> bool:
        """Return whether two files are of one kind and have the same bytes; of one that cannot be read nobody knows."""
        suffixes = {first.suffix.lower(), second.suffix.lower()}
        if len(suffixes) > 1 and not suffixes <= FILM_SUFFIXES:
            return False
        with suppress(OSError):
            if first == second or ((said := _google(first)) and said == _google(second)):
                return True
            same_size = first.stat().st_size == second.stat().st_size
            return same_size and self._digest(first) == self._digest(second)
        return False

    def _digest(self, path: Path) -> str:
        with open(path, "rb") as file:
            return digest_of(file, path, "sha256", self.memory)

    def described(self, photo: Photo) -> dict[str, Any]:
        """Return what a photo and its XMP sidecars say of it, by kind; `IMG_1.xmp` is of every `IMG_1`."""
        path = photo.path
        bundles = self._read((self._library / path).parent)
        beside = (*bundles.get(path.name.lower(), ()), *bundles.get(path.stem.lower(), ()))
        packets = [self._xmp(one)[1] for one in beside if one.suffix.lower() == ".xmp"]
        return joined(joined(*packets), read_described(photo.described))


def _of(photo: Path, bundles: dict[str, list[Path]], suffixes: frozenset[str]) -> list[Path]:
    """Return the files of a folder that belong to a photo by their names, sorted: with these suffixes, or its whole name."""
    found = [p for p in bundles.get(photo.stem.lower(), ()) if p.suffix.lower() in suffixes]
    found += [p for p in bundles.get(photo.name.lower(), ()) if p.suffix.lower() in _NAMED_IN_FULL]
    return sorted(set(found) - {photo})


def _read_xmp(path: Path) -> tuple[bool, dict[str, Any]]:
    """Return whether an XMP sidecar holds an edit, and what it says, by kind."""
    with suppress(OSError), open(path, "rb") as file:
        text = file.read(MOST_XMP_BYTES)
        return any(mark in text for mark in _EDITS), described_by_xmp(text)
    return True, {}  # it cannot be read, so nobody knows


_GOOGLES: dict[str, Any] = {"of": "Google's export"}


def _google(path: Path) -> dict[str, Any] | None:
    """Return what an owner said in the JSON of Google's export, which differs from export to export in the rest.

    None for any other file, and for one that cannot be read.
    """
    try:
        said = json.loads(path.read_bytes()) if path.suffix.lower() == ".json" else None
        if not isinstance(said, dict) or "photoTakenTime" not in said:
            return None
        place = said.get("geoData") or {}
        at = [place.get("latitude"), place.get("longitude")]
        words = {name: said.get(name) for name in ("description", "people", "favorited") if said.get(name)}
        return _GOOGLES | words | ({"place": at} if any(at) else {})
    except (OSError, ValueError, RecursionError, AttributeError):
        return None


_SUPPLEMENTAL = ".supplemental-metadata"  # as Google's export ends names since 2024, cut where they get long


def _bundles(folder: Path) -> dict[str, list[Path]]:
    """Read a folder and return its files by lower-case stem; an unreadable folder has none."""
    by_stem: dict[str, list[Path]] = defaultdict(list)
    try:
        entries = [entry for entry in folder.iterdir() if entry.is_file() and not entry.is_symlink()]
    except OSError:
        entries = []
    for entry in entries:
        stem = entry.stem.lower()
        if entry.suffix.lower() == ".aae" and stem.startswith("img_o"):
            stem = "img_" + stem.removeprefix("img_o")
        elif entry.suffix.lower() == ".json" and _SUPPLEMENTAL.startswith(Path(stem).suffix):
            stem = Path(stem).stem
        by_stem[stem].append(entry)
    return by_stem
