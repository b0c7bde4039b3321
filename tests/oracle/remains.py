"""What is left of a drawn family on disk, and which of its parts no file holds any more. Nothing of photodup is used."""

import io
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any
from xml.etree import ElementTree

import cv2
import numpy as np
from PIL import ExifTags, Image, ImageOps, IptcImagePlugin

from oracle.library import Family, Picture, View

Files = Mapping[PurePosixPath, bytes]

# A tile of the picture is held where its mean error, in levels of 255, is at most so much above the smallest that any file
# had: side in pixels, factor, levels. A digit fills a good part of a small tile. A large one tells another exposure's noise
# from a compression of the same strength.
TILES = ((24, 1.3, 0.5), (192, 1.15, 0.2))
LEAST_RESOLUTION = (
    0.97  # of the best before: a copy of half or three quarters of the size holds no fine detail
)

_XMP = re.compile(rb"<x:xmpmeta.*?</x:xmpmeta>", re.DOTALL)
_DATE = re.compile(r"(\d{4})[:-](\d\d)[:-](\d\d)[ T](\d\d:\d\d:\d\d)")
_DEGREES = re.compile(r"(\d+),([\d.]+)(?:,([\d.]+))?([NSEW])")
_SIDECARS = {".xmp", ".json"}


def losses(folder: Path, family: Family) -> dict[str, str]:
    """Return what no file holds any more: the part's name, with a description of what is left."""
    before = {file.path: file.data for file in family.files}
    after = _files(folder / family.name)
    attended = _attended(after, family)
    lost = {}
    for picture in family.pictures.values():
        if pixels := _lost_pixels(picture, family, before, after):
            lost[picture.name] = f"{picture.name}: {pixels}"
    texts = set().union(*(values(path, data) for path, data in attended.items()))
    stored = [blob for path, data in attended.items() for blob in _blobs(path, data)]
    for file in family.files:
        for name, value in file.values.items():
            if value not in texts:
                lost[name] = f"{name}: {value!r} of {file.path} stands nowhere"
        for name, data in file.inside.items():
            if not any(data in blob for blob in stored):
                lost[name] = f"{name}: {len(data)} bytes of {file.path} stand nowhere"
        if file.is_attachment and file.data not in attended.values():
            lost["beside"] = f"beside: {file.path} is gone, or is left without its photograph"
    return lost


def _files(folder: Path) -> dict[PurePosixPath, bytes]:
    """Return what lies in a folder, but not in photodup's own folders, of which the trash is one."""
    paths = [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    names = {PurePosixPath(path.relative_to(folder).as_posix()): path for path in paths}
    return {
        name: path.read_bytes()
        for name, path in names.items()
        if not any(part.startswith(".photodup") for part in name.parts)
    }


def _attended(files: Files, family: Family) -> Files:
    """Leave out the files that lay beside a photograph which has gone, and new ones beside none."""
    owners = {file.path: file.owner for file in family.files}
    photos = {path for path in files if owners.get(path, path) is None}

    def is_attended(path: PurePosixPath) -> bool:
        if path in owners:
            return path in photos or owners[path] in photos
        return any(photo.parent == path.parent and path.name.startswith(photo.stem) for photo in photos)

    return {path: data for path, data in files.items() if is_attended(path)}


# ---- pixels


def _lost_pixels(picture: Picture, family: Family, before: Files, after: Files) -> str:
    """Return a description of the tiles that no file shows as well as before; empty if all are there."""
    views = [(file.path, view) for file in family.files for view in file.views if view.scene == picture.scene]
    measured = {(path, view): _measure(before[path], view, picture) for path, view in views}
    remaining = [
        measured[path, view] if after[path] == before[path] else _measure(after[path], view, picture)
        for path, view in views
        if path in after
    ]
    for side, factor, floor in TILES:
        shares = [(_tiles(errors, side), resolution) for errors, resolution in measured.values()]
        least = np.minimum.reduce([tiles for tiles, _ in shares])
        is_exact = any(not tiles.any() for tiles, _ in shares)
        allowed = np.zeros_like(least) if is_exact else least * factor + floor
        best = np.maximum.reduce([np.where(tiles <= allowed, resolution, 0) for tiles, resolution in shares])
        left = [(_tiles(errors, side), resolution) for errors, resolution in remaining]
        nowhere = np.full(least.shape, np.inf)
        smallest = np.minimum.reduce(
            [np.where(resolution >= LEAST_RESOLUTION * best, tiles, np.inf) for tiles, resolution in left]
            or [nowhere]
        )
        if (is_lost := smallest > allowed).any():
            worst = np.unravel_index(np.argmax(np.where(is_lost, smallest, 0)), least.shape)
            return (
                f"{is_lost.sum()} of {is_lost.size} tiles of {side} pixels; the worst has an error of {smallest[worst]:.2f} "
                f"where it had {least[worst]:.2f}; best resolution {max([r for _, r in left], default=0):.2f}"
            )
    return ""


def _tiles(errors: np.ndarray, side: int) -> np.ndarray:
    """Return the mean of each tile; of a picture smaller than one, of the whole."""
    starts = [np.arange(0, max(1, length - side // 2), side) for length in errors.shape]
    sums = np.add.reduceat(np.add.reduceat(errors, starts[0], 0), starts[1], 1)
    lengths = [np.diff([*start, length]) for start, length in zip(starts, errors.shape, strict=True)]
    return sums / np.outer(*lengths)


def _measure(data: bytes, view: View, picture: Picture) -> tuple[np.ndarray, float]:
    """Return the error of each pixel in levels of 255 (infinite where it is not shown), and the resolution, at most 1."""
    height, width, channels = picture.pixels.shape
    errors = np.full((height, width), np.inf)
    shown = _pixels(data, view.frame, has_alpha=channels == 4)
    if shown is None:
        return errors, 0.0
    shown = np.rot90(shown, -view.turn)
    edge = slice(view.margin, -view.margin or None)
    shown = np.ascontiguousarray(shown[edge, edge])
    left, top, right, bottom = view.box
    size = right - left, bottom - top
    resolution = min(1.0, shown.shape[1] / size[0], shown.shape[0] / size[1])
    if shown.shape[1::-1] != size:
        shown = cv2.resize(shown, size, interpolation=cv2.INTER_CUBIC if resolution < 1 else cv2.INTER_AREA)
    errors[top:bottom, left:right] = np.abs(shown - _comparable(picture.pixels)[top:bottom, left:right]).mean(
        axis=2
    )
    return errors, resolution


def _comparable(pixels: np.ndarray) -> np.ndarray:
    """Return float32 levels of 255; what is transparent has no colour."""
    levels = pixels.astype(np.float32) / (257 if pixels.dtype == np.uint16 else 1)
    if levels.shape[2] == 4:
        levels[..., :3] *= levels[..., 3:] / 255
    return levels


def _pixels(data: bytes, frame: int, *, has_alpha: bool) -> np.ndarray | None:
    """Return float32 levels of 255 [height, width, 3 or 4] of all bits of a file; None if it is no picture."""
    if data[:4] in (b"\x89PNG", b"II*\0", b"MM\0*") and not frame:  # Pillow reads 8 bits of these
        deep = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
        if deep is not None and deep.dtype == np.uint16 and deep.ndim == 3:
            return _comparable(deep[..., ::-1] if deep.shape[2] == 3 else deep[..., [2, 1, 0, 3]])
    try:
        image = Image.open(io.BytesIO(data))
        image.seek(frame)
        image = ImageOps.exif_transpose(image)
        transparent = image.convert("RGBA")
    except (OSError, EOFError, SyntaxError, ValueError):
        return None
    if has_alpha:
        return _comparable(np.asarray(transparent))
    if image.has_transparency_data:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), transparent)
    return _comparable(np.asarray(image.convert("RGB")))


# ---- values and attachments


def _blobs(path: PurePosixPath, data: bytes) -> Iterator[bytes]:
    yield data
    with suppress(OSError, SyntaxError, ValueError):
        yield Image.open(io.BytesIO(data)).info.get("icc_profile") or b""


def values(path: PurePosixPath, data: bytes) -> set[str]:
    """Return the texts of a file, and `date Y-M-D h:m:s`, `place LAT LON` and `rating N` however they are spelled."""
    texts: set[str] = set()
    if path.suffix.lower() == ".json":
        texts = set(_json_texts(json.loads(data)))
    elif path.suffix.lower() != ".xmp":
        texts = set(_image_texts(data))
    for packet in [data] if path.suffix.lower() == ".xmp" else _XMP.findall(data):
        texts |= set(_xmp_texts(packet))
    return texts | {f"date {'-'.join(d[:3])} {d[3]}" for text in texts for d in _DATE.findall(text)}


def _image_texts(data: bytes) -> Iterator[str]:
    try:
        image = Image.open(io.BytesIO(data))
        image.load()
    except (OSError, SyntaxError, ValueError):
        return
    exif = image.getexif()
    tags = dict(exif) | dict(exif.get_ifd(ExifTags.IFD.Exif))
    yield from (
        text for tag, value in tags.items() for text in _texts(value, is_utf16=0x9C9B <= tag <= 0x9C9F)
    )
    if 0x4746 in tags:
        yield f"rating {tags[0x4746]}"
    gps = exif.get_ifd(ExifTags.IFD.GPSInfo)
    if 2 in gps and 4 in gps:
        signs = (-1 if gps.get(i) in ("S", "W") else 1 for i in (1, 3))
        yield _place(*(sign * _decimal(gps[i]) for sign, i in zip(signs, (2, 4), strict=True)))
    for value in [*image.info.values(), *getattr(image, "text", {}).values()]:
        yield from _texts(value)
    with warnings.catch_warnings(), suppress(SyntaxError, ValueError, OSError):
        for value in (IptcImagePlugin.getiptcinfo(image) or {}).values():  # type: ignore[arg-type]
            yield from (
                text for one in (value if isinstance(value, list) else [value]) for text in _texts(one)
            )


def _texts(value: Any, *, is_utf16: bool = False) -> Iterator[str]:
    if isinstance(value, tuple) and is_utf16:
        value = bytes(value)
    if isinstance(value, bytes):
        value = value.removeprefix(b"ASCII\0\0\0")
        for encoding in ("utf-16-le",) if is_utf16 else ("utf-8", "latin-1"):
            with suppress(UnicodeDecodeError):
                yield value.decode(encoding).strip("\0 ")
    elif isinstance(value, str):
        yield value.strip("\0 ")


def _decimal(degrees: Any) -> float:
    return sum(float(part) / 60**i for i, part in enumerate(degrees))


def _place(latitude: float, longitude: float) -> str:
    return f"place {latitude:.3f} {longitude:.3f}"


def _xmp_texts(packet: bytes) -> Iterator[str]:
    """Return each value of an XMP packet, alone and with its property's local name."""
    try:
        root = ElementTree.fromstring(packet)
    except ElementTree.ParseError:
        return
    pairs = [pair for node in root.iter() for pair in [(node.tag, node.text or ""), *node.attrib.items()]]
    named = {name.rpartition("}")[2]: text.strip() for name, text in pairs if text.strip()}
    yield from (text.strip() for _, text in pairs)
    if "Rating" in named:
        yield f"rating {named['Rating']}"
    places = [_DEGREES.fullmatch(named.get(f"GPS{axis}", "")) for axis in ("Latitude", "Longitude")]
    if all(places):
        parts = [place.groups(default="0") for place in places if place]
        yield _place(*(_decimal(part[:3]) * (-1 if part[3] in "SW" else 1) for part in parts))


def _json_texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if value.get("latitude"):
            yield _place(value["latitude"], value["longitude"])
        if str(value.get("timestamp", "")).isdigit():
            yield f"{datetime.fromtimestamp(int(value['timestamp']), UTC):%Y-%m-%d %H:%M:%S}"
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for child in children:
        yield from _json_texts(child)
    if isinstance(value, str):
        yield value.strip()
