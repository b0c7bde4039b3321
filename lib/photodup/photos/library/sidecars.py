"""Files that belong to a photograph and must go where it goes."""

import json
import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from unicodedata import normalize

from photodup.photos.library.catalogue import Photo
from photodup.photos.library.hashing import Memory, digest_of
from photodup.photos.library.inventory import unpack, xmp_values
from photodup.photos.library.metadata import (
    MOST_XMP_BYTES,
    Description,
    collect_kinds,
    further_texts,
    kinds_of,
    merge_descriptions,
    place_text,
    read_xmp,
)

# fmt: off
# Suffixes of photographs: pictures, and RAW files without a picture of their name.
PICTURE_SUFFIXES = frozenset({
    ".avif", ".bmp", ".gif", ".heic", ".heif", ".hif", ".jfif", ".jpe", ".jpeg", ".jpg", ".jxl", ".png", ".tif", ".tiff",
    ".webp",
})
RAW_SUFFIXES = frozenset({
    ".3fr", ".arw", ".bay", ".cap", ".cr2", ".cr3", ".crw", ".dcr", ".dcs", ".dng", ".erf", ".fff", ".gpr", ".iiq",
    ".k25", ".kdc", ".mdc", ".mef", ".mos", ".mrw", ".nef", ".nrw", ".orf", ".pef", ".ptx", ".raf", ".raw", ".rw2",
    ".rwl", ".rwz", ".sr2", ".srf", ".srw", ".x3f",
})
_ALBUM_KEYS = frozenset({  # of Google's export
    "title", "description", "access", "date", "location", "geoData", "enrichments", "sharedAlbumComments",
})
# fmt: on
FILM_SUFFIXES = frozenset({".mov", ".mp4", ".m4v"})  # of a Live Photo

# Sub-folders of programs with files of the folder's photographs (Nikon, Capture One, Silkypix, Exposure, gThumb), and the
# one in them that can be made again.
PROGRAM_FOLDERS = frozenset({"nksc_param", "captureone", "silkypix_ds", "alien skin", ".comments"})
_CACHE = "cache"

_APPLE = re.compile(r"img_[eo](?=\d)")  # IMG_E1.MOV and IMG_O1.AAE are of IMG_1.HEIC
# The end of JSON names in Google's export, which cuts names of more than 46 characters; other programs cut elsewhere.
_SUPPLEMENTAL, _LONG_NAME = ".supplemental-metadata", 40
_YEAR = re.compile(r"^(Photos|Fotos|Foto) \w+ \d{4}$")  # folders of Google's export that are no albums

# Keys of a JSON file about the export or the file itself; and the kinds of Google's keys.
_OF_EXPORT = re.compile(r"\w*(export|upload|download)\w*(time|date|at)", re.IGNORECASE)
_OF_GOOGLE = re.compile(
    r"title|url|imageViews|geoDataExif|(photoTaken|creation|photoLastModified|modification)Time|appSource|\w*Origin"
)
_GOOGLE_KINDS = {"description": "caption", "people": "people", "geoData": "place"}
# Files with lines about the photographs of their folder: Picasa's, of which only the owner's lines count, and a list of
# descriptions by name, of ACDSee and file managers.
_NOTES = frozenset({".picasa.ini", "picasa.ini", "descript.ion"})
_OF_PICASA = re.compile(r"(star|caption|keywords|faces|albums|geotag|filters|crop|rotate)=.*")
_DESCRIBED = re.compile(r'(?:"(.+?)"|(\S+))\s+(\S.*)')
# XMP properties that repeat the photo's own.
_OF_PHOTO = re.compile(r"/tiff/1\.0/|/exif/1\.0/|cipa\.jp/exif")


def photographs_among(names: Iterable[str]) -> set[str]:
    """Return the photographs among a folder's file names; RAW beside a picture of its name belongs to that.

    `._name` holds macOS attributes of `name`, whatever its suffix.
    """
    split = {name: os.path.splitext(_folded(name)) for name in names if not name.startswith("._")}
    pictures = {stem for stem, suffix in split.values() if suffix in PICTURE_SUFFIXES}
    return {
        name
        for name, (stem, suffix) in split.items()
        if suffix in PICTURE_SUFFIXES or (suffix in RAW_SUFFIXES and stem not in pictures)
    }


def files_moving_with(photos: Iterable[Path], never: Collection[Path] = ()) -> dict[Path, list[Path]]:
    """Return for each photo the files that leave with it, sorted by path: those that belong to it alone.

    Args:
        photos: the photos that leave.
        never: photos, which do not move with another.
    """
    folder_of = cache(_Folder)
    return {
        photo: sorted(file for file in folder_of(photo.parent).files_of_alone(photo) if file not in never)
        for photo in photos
    }


def xmp_of(photo: Path) -> Path:
    """Return a photo's own XMP sidecar, or the path of a new one: `IMG_1.jpg.xmp`."""
    folder = _Folder(photo.parent)
    by_name = {_folded(file.name): file for file in folder.files_of_alone(photo)}
    sidecar = by_name.get(f"{_folded(photo.name)}.xmp")
    if not sidecar and folder.is_alone(photo):
        sidecar = by_name.get(f"{_folded(photo.stem)}.xmp")
    return sidecar or photo.with_name(f"{photo.name}.xmp")


class _Folder:
    """The files of one folder and the photographs to which each belongs; empty if it cannot be read.

    A file that is no photograph belongs to the one with the longest name, with its suffix or without, with which the
    file's name begins, followed by no letter or digit: `IMG_1.xmp`, `IMG_1.jpg.xmp`, `IMG_1_HEVC.MOV`. Where several
    photographs have this name, the file belongs to those whose suffix it names, or else to all. Links belong to none.

    Attributes:
        files: all of them.
        owners: the photographs of each file that belongs to one.
        files_of: the files of each photograph, the shortest name first.
        without_owner: the JSON files that belong to no photograph.
    """

    def __init__(self, path: Path) -> None:
        self.files = _files(path)
        names = photographs_among(file.name for file in self.files)
        self._photos = [file for file in self.files if file.name in names]
        self._by_name: dict[str, list[Path]] = defaultdict(list)
        self._by_apple: dict[str, list[Path]] = defaultdict(list)
        for photo in self._photos:
            for name in sorted({_folded(photo.name), _folded(photo.stem)}):
                self._by_name[name].append(photo)
                self._by_apple[_APPLE.sub("img_", name)].append(photo)
        self.owners: dict[Path, list[Path]] = {}
        self.files_of: dict[Path, list[Path]] = defaultdict(list)
        files = [file for file in self.files if file.name not in names]
        for file in sorted([*files, *_files_of_programs(path)], key=lambda file: (len(file.name), file)):
            if owners := self._owners(file.name):
                self.owners[file] = owners
                for photo in owners:
                    self.files_of[photo].append(file)
        exported = (file for file in self.files if _suffix(file) == ".json")
        self.without_owner = [file for file in exported if file not in self.owners]

    def files_of_alone(self, photo: Path) -> list[Path]:
        """Return the files that belong to this photograph and no other."""
        return [file for file in self.files_of[photo] if self.owners[file] == [photo]]

    def is_alone(self, photo: Path) -> bool:
        """Return whether no other picture or RAW file has a photograph's stem."""
        stem, suffixes = _folded(photo.stem), PICTURE_SUFFIXES | RAW_SUFFIXES
        return sum(_folded(file.stem) == stem and _suffix(file) in suffixes for file in self.files) == 1

    def _owners(self, file_name: str) -> list[Path]:
        name = _folded(file_name)
        stem, suffix = os.path.splitext(name)
        photos = (suffix == ".json" and self._exported(stem)) or (
            _with_longest_name(name, self._by_name)
            or _with_longest_name(_APPLE.sub("img_", name), self._by_apple)
        )
        return (
            [photo for photo in photos if file_name.startswith(photo.name)]
            or [photo for photo in photos if f"{_suffix(photo)}." in f"{name}."]
            or photos
        )

    def _exported(self, stem: str) -> list[Path]:
        """Return the photographs of a JSON in Google's export: `a.jpg.supplemental-meta(2)` is of `a(2).jpg`."""
        name, number = re.fullmatch(r"(.*?)(\(\d+\))?", stem, re.DOTALL).groups(default="")  # type: ignore[union-attr]
        if _SUPPLEMENTAL.startswith(Path(name).suffix):
            name = Path(name).stem
        full = f"{Path(name).stem}{number}{Path(name).suffix}"
        if full in self._by_name or len(name) < _LONG_NAME:
            return self._by_name.get(full, [])
        stems = {
            photo: _folded(photo.stem)
            for photo in self._photos
            if _folded(photo.name).startswith(name) and _folded(photo.stem).endswith(number)
        }
        return [p for p in stems if not any(stems[p].startswith(f"{shorter}(") for shorter in stems.values())]


@dataclass(frozen=True)
class _Content:
    """The contents of a sidecar.

    Attributes:
        kinds: metadata by kind.
        values: its other values, by property or key; None if photodup does not understand the file.
    """

    kinds: Description = field(default_factory=dict)
    values: Mapping[str, str | tuple[str, ...]] | None = None


class Sidecars:
    """The files beside the photos of a library; each folder is read once, on demand.

    Attributes:
        library: its folder.
        memory: stores digests, so that only changed files are read again.
    """

    def __init__(self, library: Path) -> None:
        self.library, self._folder = library, cache(_Folder)
        self.along, self._content, self._album = cache(self._along), cache(_read), cache(self._read_album)
        self._noted = cache(lambda folder: _notes(self._folder(folder).files))
        self.memory: Memory | None = None

    def files_of(self, path: Path) -> list[Path]:
        """Return a photo's files, also shared ones, the shortest name first."""
        photo = self.library / path
        return self._folder(photo.parent).files_of.get(photo, [])

    def _along(self, path: Path) -> list[Path]:
        """Return a photo's files with more than metadata, which `describe` has."""
        return [file for file in self.files_of(path) if self._content(file).values != {}]

    def lost(self, keeper: Path, leaving: Path) -> list[str]:
        """Return the suffixes of a leaving photo's files without an equal beside the keeper, and of notes about it alone."""
        keeper_files = self.along(keeper)
        files = [f for f in self.along(leaving) if not any(self._is_equal(f, file) for file in keeper_files)]
        noted, of_keeper = (
            self._noted((self.library / path).parent).get(_folded(path.name), set())
            for path in (leaving, keeper)
        )
        return sorted({_suffix(file) for file in files} | {suffix for suffix, _ in noted - of_keeper})

    def _is_equal(self, file: Path, other: Path) -> bool:
        """Return whether another file has all values of a file, or its bytes; False if one cannot be read."""
        if file == other:
            return True
        values, other_values = self._content(file).values, self._content(other).values
        if values is not None and other_values is not None:
            return values.items() <= other_values.items()
        with suppress(OSError):
            return file.stat().st_size == other.stat().st_size and self._digest(file) == self._digest(other)
        return False

    def _digest(self, path: Path) -> str:
        with open(path, "rb") as file:
            return digest_of(file, path, "sha256", self.memory)

    def describe(self, photo: Photo) -> Description:
        """Return the metadata of a photo, its sidecars and its album, by kind."""
        xmp, exported = (
            [self._content(file).kinds for file in self.files_of(photo.path) if _suffix(file) == suffix]
            for suffix in (".xmp", ".json")
        )
        album = self._album((self.library / photo.path).parent)
        return merge_descriptions(merge_descriptions(*xmp), unpack(photo.inventory).kinds, *exported, album)

    def _read_album(self, folder: Path) -> Description:
        """Return an album of Google's export as a keyword below `Album`; empty for other folders."""
        keywords = [f"Album|{_album_title(file)}" for file in self.albums(folder)]
        return {"keywords": keywords} if keywords else {}

    def albums(self, folder: Path) -> list[Path]:
        """Return the JSON files with the title of a folder's album in Google's export, in any language."""
        return [file for file in self._folder(folder).without_owner if _album_title(file)]


def _album_title(file: Path) -> str:
    """Return the album title in a JSON file; empty for other files, and for titles of years."""
    album = _read_json(file)
    title = album.get("title") if album.keys() <= _ALBUM_KEYS else None
    return title if isinstance(title, str) and not _YEAR.match(title) else ""


def _read(path: Path) -> _Content:
    """Return the contents of an XMP or JSON file; of other files photodup knows only the bytes."""
    if _suffix(path) == ".xmp":
        with suppress(OSError), open(path, "rb") as file:
            data = file.read(MOST_XMP_BYTES + 1)
            packet = read_xmp(data[:MOST_XMP_BYTES].strip(b"\0 \r\n\t"))
            described = list(kinds_of(packet.values))
            if not packet.is_whole or len(data) > MOST_XMP_BYTES:
                return _Content(collect_kinds(described))
            values: dict[str, str | tuple[str, ...]] = {
                name: texts for name, texts in xmp_values(packet.values).items() if not _OF_PHOTO.search(name)
            }
            for kind, text in further_texts(described):
                values[kind] = (*values.get(kind, ()), text)
            return _Content(collect_kinds(described), values)
    if _suffix(path) == ".json" and (exported := _read_json(path)):
        is_google = "photoTakenTime" in exported
        kinds, of_export = (_google_kinds(exported), _OF_GOOGLE) if is_google else ({}, _OF_EXPORT)
        values = {
            key: json.dumps(value, sort_keys=True)
            for key, value in exported.items()
            if value and not of_export.fullmatch(key) and _GOOGLE_KINDS.get(key) not in kinds
        }
        if not _position(exported):  # zeros mean no place
            values.pop("geoData", None)
        return _Content(kinds, values)
    return _Content()


def _google_kinds(exported: Mapping[str, object]) -> Description:
    """Return metadata by kind, without the date: without one Google gives the time of upload."""
    people, position = exported.get("people"), _position(exported)
    persons = [person for person in people if isinstance(person, dict)] if isinstance(people, list) else []
    kinds: list[tuple[str, object]] = [("people", person.get("name")) for person in persons]
    # A caption such as "<3" is left out, because it may be markup of a program.
    kinds.append(("caption", exported.get("description")))
    return collect_kinds([*kinds, ("place", place_text(*position))] if position else kinds)


def _read_json(path: Path) -> dict[str, object]:
    """Return the object in a JSON file; empty if it cannot be read."""
    with suppress(OSError, ValueError, RecursionError), open(path, "rb") as file:
        value = json.loads(file.read(MOST_XMP_BYTES))
        return value if isinstance(value, dict) else {}
    return {}


def _position(exported: Mapping[str, object]) -> tuple[float, float] | None:
    place = exported.get("geoData")
    match [place.get(name) for name in ("latitude", "longitude")] if isinstance(place, dict) else ():
        case [int() | float() as latitude, int() | float() as longitude] if latitude or longitude:
            return latitude, longitude
    return None


def _notes(files: Iterable[Path]) -> dict[str, set[tuple[str, str]]]:
    """Return by folded name what the notes (`_NOTES`) among a folder's files say of them, as (suffix, line)."""
    notes: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for file in files:
        if _folded(file.name) not in _NOTES:
            continue
        name, lines, suffix = "", list[str](), _suffix(file)
        with suppress(OSError), open(file, "rb") as opened:
            lines = opened.read(MOST_XMP_BYTES).decode("utf-8-sig", "replace").splitlines()
        for line in map(str.strip, lines):
            if suffix == ".ion":
                if match := _DESCRIBED.fullmatch(line):
                    notes[_folded(match[1] or match[2])].add((suffix, match[3]))
            elif line.startswith("["):
                name = _folded(line.strip("[]"))
            elif _OF_PICASA.fullmatch(line):
                notes[name].add((suffix, line))
    return notes


def _with_longest_name(name: str, photos: Mapping[str, list[Path]]) -> list[Path]:
    """Return the photographs whose name is the longest beginning of a file's name, not before a letter or digit."""
    ends = (end for end in range(len(name), 0, -1) if not name[end : end + 1].isalnum())
    return next((photos[name[:end]] for end in ends if name[:end] in photos), [])


def _files(folder: Path) -> list[Path]:
    """Return the files of a folder without links; empty if it cannot be read."""
    with suppress(OSError), os.scandir(folder) as entries:
        return [
            folder / entry.name
            for entry in entries
            if entry.is_file(follow_symlinks=False) and not entry.name.startswith("._")
        ]
    return []


def _files_of_programs(folder: Path) -> list[Path]:
    """Return the files in the sub-folders of programs (`PROGRAM_FOLDERS`)."""
    files: list[Path] = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.casefold() in PROGRAM_FOLDERS and entry.is_dir(follow_symlinks=False):
                for path, folders, _ in os.walk(entry.path):
                    folders[:] = [name for name in folders if name.casefold() != _CACHE]
                    files += _files(Path(path))
    return files


def _folded(name: str) -> str:
    """Return a name in which NFC and NFD, upper and lower case are one."""
    return normalize("NFC", normalize("NFC", name).casefold())


def _suffix(path: Path) -> str:
    return path.suffix.lower()
