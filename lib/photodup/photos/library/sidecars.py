"""Files that belong to a photo and must go where it goes."""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
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
# As Google's export ends names since 2024, cut where they get long; and its folders in which every photo of a year lies.
_SUPPLEMENTAL, _YEAR = ".supplemental-metadata", re.compile(r"^(Photos|Fotos|Foto) \w+ \d{4}$")
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
        self.along, self._said, self._album = cache(self._along), cache(_read_said), cache(self._read_album)
        self.memory: Memory | None = None

    def _along(self, path: Path) -> list[Path]:
        """Return the files beside a photo that belong to it; XMP and Google's JSON only where they say more than facts."""
        photo = self._library / path
        found = _of(photo, self._read(photo.parent), _ATTACHED_SUFFIXES | RAW_SUFFIXES)
        return [p for p in found if self._said(p).beyond]

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
            is_googles = suffixes == {".json"} and self._said(first) != _UNKNOWN
            if first == second or (is_googles and self._said(first) == self._said(second)):
                return True
            same_size = first.stat().st_size == second.stat().st_size
            return same_size and self._digest(first) == self._digest(second)
        return False

    def _digest(self, path: Path) -> str:
        with open(path, "rb") as file:
            return digest_of(file, path, "sha256", self.memory)

    def described(self, photo: Photo) -> dict[str, Any]:
        """Return what a photo, its sidecars and its album say of it, by kind; `IMG_1.xmp` is of every `IMG_1`."""
        path = self._library / photo.path
        bundles = self._read(path.parent)
        beside = (*bundles.get(path.name.lower(), ()), *bundles.get(path.stem.lower(), ()))
        xmp, exported = (
            [self._said(one).kinds for one in beside if one.suffix.lower() == suffix]
            for suffix in (".xmp", ".json")
        )
        return joined(joined(*xmp), read_described(photo.described), *exported, self._album(path.parent))

    def _read_album(self, folder: Path) -> dict[str, Any]:
        """Return the album that a folder of Google's export is, as a keyword below `Album`; nothing for other folders."""
        found = [path for path in self._read(folder).get("metadata", ()) if path.name == "metadata.json"]
        title = read_google(found[0]).get("title") if found else None
        return {"keywords": [f"Album|{title}"]} if isinstance(title, str) and not _YEAR.match(title) else {}


def _of(photo: Path, bundles: dict[str, list[Path]], suffixes: frozenset[str]) -> list[Path]:
    """Return the files of a folder that belong to a photo by their names, sorted: with these suffixes, or its whole name."""
    found = [p for p in bundles.get(photo.stem.lower(), ()) if p.suffix.lower() in suffixes]
    found += [p for p in bundles.get(photo.name.lower(), ()) if p.suffix.lower() in _NAMED_IN_FULL]
    return sorted(set(found) - {photo})


@dataclass(frozen=True)
class _Said:
    """What a sidecar says: by kind, and as text what it holds beyond that; empty if nothing."""

    kinds: Mapping[str, Any] = field(default_factory=dict)
    beyond: str = "unknown"


_UNKNOWN = _Said()


def _read_said(path: Path) -> _Said:
    """Return what an XMP sidecar, or the JSON of Google's export, says; of any other file nobody knows."""
    if path.suffix.lower() == ".xmp":
        with suppress(OSError), open(path, "rb") as file:
            text = file.read(MOST_XMP_BYTES)
            return _Said(described_by_xmp(text), "edit" if any(mark in text for mark in _EDITS) else "")
    if path.suffix.lower() == ".json" and "photoTakenTime" in (said := read_google(path)):
        # No date: to a photo without one Google gives the time at which it got there.
        people = said.get("people")
        names = (
            [one.get("name") for one in people if isinstance(one, dict)] if isinstance(people, list) else []
        )
        place = "GPS" if _position(said) else None
        kinds = {"caption": said.get("description"), "place": place, "people": names}
        taken = joined(read_described(json.dumps(kinds)))
        # Words that are taken for a program's, such as "<3", and favourites are no kind: they hold a copy back.
        words = {"description": "caption", "people": "people", "favorited": ""}
        beyond = {name: said[name] for name, kind in words.items() if said.get(name) and kind not in taken}
        return _Said(taken, json.dumps(beyond) if beyond else "")
    return _UNKNOWN


def read_google(path: Path) -> dict[str, Any]:
    """Return the JSON of Google's export beside a photo, or of an album; empty where it cannot be read."""
    with suppress(OSError, ValueError, RecursionError), open(path, "rb") as file:
        said = json.loads(file.read(MOST_XMP_BYTES))
        return said if isinstance(said, dict) else {}
    return {}


def exported_place(photo: Path) -> tuple[float, float] | None:
    """Return the latitude and longitude (degrees) in the JSON of Google's export beside a photo; None without."""
    beside = _bundles(photo.parent).get(photo.name.lower(), ())
    said = (read_google(path) for path in beside if path.suffix.lower() == ".json")
    return next(filter(None, map(_position, said)), None)


def _position(said: Mapping[str, Any]) -> tuple[float, float] | None:
    place = said.get("geoData")
    match [place.get(name) for name in ("latitude", "longitude")] if isinstance(place, dict) else ():
        case [int() | float() as latitude, int() | float() as longitude] if latitude or longitude:
            return latitude, longitude
    return None


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
        elif entry.suffix.lower() == ".json":
            stem = _exported(stem)
        by_stem[stem].append(entry)
    return by_stem


def _exported(stem: str) -> str:
    """Return the name of the photo that a JSON of Google's export is of: `a.jpg.supplemental-meta(2)` is of `a(2).jpg`."""
    name, number = re.fullmatch(r"(.*?)(\(\d+\))?", stem, re.DOTALL).groups(default="")  # type: ignore[union-attr]
    if _SUPPLEMENTAL.startswith(Path(name).suffix):
        name = Path(name).stem
    photo = Path(name)
    return f"{photo.stem}{number}{photo.suffix}" if photo.suffix else name + number
