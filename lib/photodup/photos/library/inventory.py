"""The inventory of an image file: everything beside the pixels of its first picture.

*Understood* parts are metadata by kind and other values by name, anywhere in the file. *Harmless* parts are what encoders
write about themselves. All others are *unknown*: the file to keep must have them too, byte for byte.
"""

import io
import re
import zlib
from base64 import b85decode, b85encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256

import numpy as np
from PIL import ExifTags, Image, ImageCms
from pydantic import TypeAdapter

from photodup.core.names import in_short
from photodup.photos.library import containers
from photodup.photos.library.metadata import (
    KINDS,
    MOST_XMP_BYTES,
    TABLES,
    Description,
    Directory,
    camera,
    collect_kinds,
    date_of,
    dates,
    further_texts,
    in_degrees,
    is_metadata,
    kinds_of,
    place_text,
    plain_text,
    read_xmp,
)

_ENCODER, _OF_PROGRAM, _OF_FILE, _OF_ENCODING, _SHARED = (
    re.compile(
        "|".join(TABLES[name]), re.DOTALL | (re.IGNORECASE if name in ("comments", "png_texts") else 0)
    )
    for name in ("comments", "png_texts", "xmp_of_file", "xmp_of_encoding", "shared_namespaces")
)
_HARMLESS = frozenset({containers.EXIF, containers.PROFILE, *TABLES["parts"]})
_OF_PLACE, _COMMENT, _SOFTWARE = frozenset(range(5)), 0x9286, 0x0131  # EXIF
_RATINGS, _TAKEN = (0x4746, 0x4749), (0x9003, 0x9004)
_OF_KINDS = frozenset({*TABLES["exif"], *_TAKEN, *_RATINGS, 0x010F, 0x0110, 0x9011, 0x9012, 0x9291, 0x9292})
_XMP_TAG, _IPTC_TAG, _RESOURCES_TAG, _LAYERS_TAG, _MORE_DIRECTORIES = 700, 33723, 34377, 37724, 330  # TIFF
_BITS_TAG = 258
_IPTC_RESOURCE, _XMP_RESOURCE = 0x0404, 0x0424
_IN_UTF_8 = (1, 90, b"\x1b%G")  # record, number and bytes of the character set in IPTC
_CAMERA_RAW = "http://ns.adobe.com/camera-raw-settings/1.0/ "
_LAYOUT_NAMES = frozenset(name for tag, name in ExifTags.TAGS.items() if not is_metadata(tag))
_LONG = 200  # characters, from which a value is kept as a digest
_MOST_STORED = 4_000_000  # bytes of one inventory that are unpacked

# Colours whose values in sRGB tell one profile from another: not so pure that they lie outside of it.
_COLOURS = np.array(np.meshgrid(*[[40, 128, 216]] * 3), np.uint8).reshape(3, -1).T
_SAME_COLOUR = 6  # levels of 255: variants of one profile


@dataclass(frozen=True)
class Inventory:
    """Everything in a file beside the pixels of its first picture.

    Attributes:
        kinds: metadata by kind (`metadata.KINDS`), and the `software` that wrote it.
        values: other texts by name; long ones as digests.
        parts: names of unknown parts, by digest.
        bits: per channel.
        is_transparent: whether some of its pixels are not opaque.
        colours: 27 colours in its profile, as sRGB in hex; empty for sRGB.
    """

    kinds: Description = field(default_factory=dict)
    values: Mapping[str, list[str]] = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)
    bits: int = 8
    is_transparent: bool = False
    colours: str = ""

    @property
    def taken_at(self) -> str | None:
        """Return the date and time in XMP, IPTC or a text; None if it is only the date of saving."""
        date = str(self.kinds.get("date", ""))
        return date if "T" in date and "date of" not in self.kinds else None


_STORED = TypeAdapter(Inventory)


def lost_parts(keeper: Inventory, member: Inventory) -> list[str]:
    """Return sentences about values, parts and colours of a member that the keeper lacks; not about kinds of metadata."""
    is_one_exposure = all(member.kinds.get(kind) == keeper.kinds.get(kind) for kind in ("camera", "date"))
    words = {text for texts in (*keeper.kinds.values(), *keeper.values.values()) for text in _list(texts)}
    names = [name for digest, name in member.parts.items() if digest not in keeper.parts]
    changed: list[str] = []
    for name, texts in member.values.items():
        if name == "MakerNote" and is_one_exposure and name in keeper.values:
            continue
        if set(texts) <= set(keeper.values.get(name, words)):
            continue
        (changed if name in keeper.values else names).append(name)
    names += [f"{member.bits} bits a channel"] if member.bits > keeper.bits else []
    names += ["transparency"] if member.is_transparent and not keeper.is_transparent else []
    if member.colours and not _are_alike(keeper.colours, member.colours):
        names.append("a colour profile")
    lines = [f"has {in_short(names)}, which the one to keep lacks"] if names else []
    return [*lines, f"says otherwise than the one to keep: {in_short(changed)}"] if changed else lines


def _list(texts: str | list[str]) -> list[str]:
    return texts if isinstance(texts, list) else [texts]


def _are_alike(first: str, second: str) -> bool:
    default = _COLOURS.tobytes().hex()
    first_rgb, second_rgb = (
        np.frombuffer(bytes.fromhex(colours or default), np.uint8).astype(int) for colours in (first, second)
    )
    return first_rgb.shape == second_rgb.shape and int(np.abs(first_rgb - second_rgb).max()) <= _SAME_COLOUR


def pack(inventory: Inventory) -> str:
    """Return an inventory as text for the catalogue."""
    return b85encode(zlib.compress(_STORED.dump_json(inventory))).decode()


@lru_cache(65536)
def unpack(text: str | None) -> Inventory:
    """Undo `pack`; an empty or invalid text, perhaps of a foreign catalogue, gives an empty inventory."""
    try:
        packed = zlib.decompressobj().decompress(b85decode(text or ""), _MOST_STORED)
        inventory = _STORED.validate_json(packed, strict=True)
        _are_alike("", inventory.colours)
        return inventory
    except (ValueError, zlib.error):
        return Inventory()


def read_inventory(
    image: Image.Image, data: bytes, exif: Directory, details: Directory, gps: Directory
) -> Inventory:
    """Return the inventory of a file.

    Args:
        image: the file, opened.
        data: its bytes.
        exif, details, gps: its directories of EXIF.
    """
    reading = _Reading()
    reading.take_exif(exif, details, gps)
    pixels, more_xmp = sha256(), []
    for name, body in containers.file_parts(data):
        if name == containers.PIXELS:
            pixels.update(body)
        elif name == containers.MORE_XMP:
            # Which packet it is of, where this piece begins, and the piece.
            more_xmp.append((body[:32], body[36:40], body[40:]))
        elif name == containers.BITS:
            reading.bits = max(reading.bits, *body[5:])
        else:
            reading.take(name, body)
    if more_xmp:
        reading.take(containers.XMP, b"".join(piece for _, _, piece in sorted(more_xmp)))
    n = 1 if image.format in ("JPEG", "MPO") else _n_pictures(image)
    if n > 1:
        reading.add_part(f"{n} pages or frames", data if image.format == "TIFF" else pixels.digest())
    elif image.format == "RAW" or (image.format == "TIFF" and _MORE_DIRECTORIES in exif):
        reading.add_part("what the sensor saw" if image.format == "RAW" else "further pictures", data)
    if image.mode in ("CMYK", "LAB"):
        reading.add("colour space", image.mode)
    return Inventory(
        collect_kinds(reading.kinds),
        {name: sorted(texts) for name, texts in reading.further_values().items()},
        reading.parts,
        max(reading.bits, _bits(image, data, exif)),
        _is_transparent(image),
        _colours(image.info.get("icc_profile") or b""),
    )


class _Reading:
    """Collects the metadata, values and unknown parts of one file."""

    def __init__(self) -> None:
        self.kinds: list[tuple[str, object]] = []
        self.values: dict[str, set[str]] = {}
        self.parts: dict[str, str] = {}
        self.bits = 0

    def add(self, name: str, value: object) -> None:
        """Add a value under a name; long ones as digests."""
        self.values.setdefault(name, set()).update(_texts(value))

    def add_text(self, kind: str, text: str | None, raw: object = b"") -> None:
        """Add a text under its kind, or under its name; one of unknown encoding as a digest."""
        if text is None:
            self.add(f"{kind} in an unknown encoding", sha256(repr(raw).encode()).hexdigest())
        elif kind in (*KINDS, "software") and not (kind in ("title", "caption") and text[:1] in ("{", "<")):
            texts = text.split(";") if kind in ("keywords", "author") else [text]
            self.kinds += [(kind, each) for each in texts]
        else:
            self.add(kind, text)

    def add_part(self, name: str, body: bytes) -> None:
        """Add an unknown part, unless it is empty."""
        if body.strip(b"\0"):
            self.parts[sha256(body).hexdigest()[:32]] = name

    def further_values(self) -> dict[str, set[str]]:
        """Return the values, and texts of a kind that `kinds` lacks."""
        for kind, text in further_texts(self.kinds):
            self.add(kind, text)
        return {name: texts for name, texts in self.values.items() if texts}

    def take(self, name: str, body: bytes) -> None:
        """Take a part of a container."""
        if name == containers.XMP:
            self._take_xmp(body)
        elif name == containers.IPTC:
            self._take_iptc(body)
        elif name == containers.RESOURCES:
            self._take_resources(body)
        elif name == containers.COMMENT or name.startswith(containers.TEXT):
            self._take_text(name.removeprefix(containers.TEXT), body.strip(b"\0 \r\n\t"))
        elif name not in _HARMLESS and body[:8].hex() not in TABLES["parts_with"].get(name, ()):
            self.add_part(name if name in containers.IN_WORDS else f"data of the kind {name}", body)

    def _take_text(self, key: str, body: bytes) -> None:
        text, kind = _decoded(body), TABLES["texts"].get(key.lower(), key.removeprefix("exif:"))
        if _OF_PROGRAM.fullmatch(key) or (kind == "comment" and text and _ENCODER.fullmatch(text)):
            return
        self.add_text(key if kind == "date" and not date_of(text or "") else kind, text, body)

    def _take_xmp(self, packet: bytes) -> None:
        packet = packet.removeprefix(b"://ns.adobe.com/xap/1.0/\0")  # some write the signature wrongly
        xmp = read_xmp(packet[:MOST_XMP_BYTES].strip(b"\0 \r\n\t"))
        self.kinds += kinds_of(xmp.values)
        for name, texts in xmp_values(xmp.values).items():
            namespace, _, local = name.rpartition(" ")
            if not _OF_ENCODING.search(name) and local not in _LAYOUT_NAMES:
                self.add(local if _SHARED.search(namespace) else name.rpartition("/")[2].strip(), texts)
        if not xmp.is_whole or len(packet) > MOST_XMP_BYTES:
            self.add_part("XMP that photodup cannot read", packet)

    def _take_iptc(self, data: bytes) -> None:
        records = list(containers.datasets(data))
        is_facebook = any(number == 40 and body[:4] == b"FBMD" for _, number, body in records)
        times = {55: "", 60: "", 62: "", 63: ""}
        for record, number, body in records:
            is_harmless = number in TABLES["iptc"] or (is_facebook and number in (40, 103))
            if record != 2 or is_harmless or not body.strip(b"\0 "):
                continue
            text = body.decode("utf-8", "replace") if _IN_UTF_8 in records else _decoded(body)
            if number in times:
                times[number] = text or ""
            else:
                self.add_text(TABLES["iptc_texts"].get(number, f"IPTC {number}"), text, body)
        for date, time in ((times[55], times[60]), (times[62], times[63])):
            self.kinds.append(("date", f"{date}T{time}" if date_of(f"{date}T{time}") else date))

    def _take_resources(self, data: bytes) -> None:
        for number, body in containers.resources(data):
            if number == _IPTC_RESOURCE:
                self._take_iptc(body)
            elif number == _XMP_RESOURCE:
                self._take_xmp(body)
            elif number not in TABLES["photoshop"]:
                self.add_part(f"Photoshop's resource {number}", body)

    def take_exif(self, exif: Directory, details: Directory, gps: Directory) -> None:
        """Take the directories of EXIF."""
        self.kinds += [(kind, date) for date, kind in dates(exif, details)]
        self.kinds += [("date", plain_text(details.get(tag))) for tag in _TAKEN]  # also a part of a date
        self.kinds += [("camera", camera(exif)), ("place", _position(gps))]
        self.kinds += [("rating", exif.get(tag)) for tag in _RATINGS]
        self.kinds.append(("software", plain_text(exif.get(_SOFTWARE))))
        for tag, value in [*exif.items(), *details.items()]:
            raw = value if isinstance(value, bytes) else _longs(value)
            if not is_metadata(tag) or tag in _OF_KINDS:
                continue
            if kind := TABLES["exif_texts"].get(tag):
                self.add_text(kind, _decoded(value), value)
            elif kind := TABLES["windows_texts"].get(tag):
                self.add_text(kind, _wide(value), value)
            elif tag == _XMP_TAG:
                self._take_xmp(raw)
            elif tag == _IPTC_TAG:
                self._take_iptc(raw)
            elif tag == _RESOURCES_TAG:
                self._take_resources(raw)
            elif tag == _LAYERS_TAG:
                self.add_part("Photoshop's layers", raw)
            elif tag == _COMMENT:
                # 8 bytes name its encoding.
                self.add("comment", value[8:] if isinstance(value, bytes) else value)
            else:
                self.add(ExifTags.TAGS.get(tag, f"EXIF's tag {tag}"), value)
        for tag, value in gps.items():
            if tag not in _OF_PLACE:
                self.add(ExifTags.GPSTAGS.get(tag, f"GPS tag {tag}"), value)


def xmp_values(properties: list[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """Return the XMP properties, such as edits, that are neither metadata by kind nor about the file itself."""
    values: dict[str, list[str]] = {}
    for name, text in properties:
        namespace, _, local = name.rpartition(" ")
        if namespace and local not in TABLES["xmp_kinds"] and not _OF_FILE.search(name):
            values.setdefault(name, []).extend([text.strip()] if text.strip() else [])
    is_developed = values.get(f"{_CAMERA_RAW}HasSettings") != ["False"]
    return {
        name: tuple(texts)
        for name, texts in values.items()
        if texts != ["0"] and (is_developed or not name.startswith(_CAMERA_RAW))
    }


def _texts(value: object) -> Iterator[str]:
    """Yield a value of any form as texts; equal values give equal texts."""
    if isinstance(value, tuple | list | set):
        for entry in value:
            yield from _texts(entry)
        return
    if isinstance(value, bytes):
        body = value.strip(b"\0 \r\n\t")
        text = _decoded(body)
        text = sha256(body).hexdigest() if text is None or not text.isprintable() else text
    elif isinstance(value, dict):
        text = sha256(repr(sorted(value.items())).encode()).hexdigest()
    else:
        text = _decoded(value) or str(value)
    text = text.strip("\0 \r\n\t")
    if text:
        yield _number(text) or (text if len(text) <= _LONG else sha256(text.encode()).hexdigest())


def _number(text: str) -> str:
    """Return a number, perhaps a fraction, with five digits; empty for any other text."""
    over, _, under = text.partition("/")
    try:
        return f"{float(over) / float(under or 1):.5g}" if len(text) < 40 else ""
    except (ValueError, ZeroDivisionError, OverflowError):
        return ""


def _decoded(value: object) -> str | None:
    """Return the text of bytes or of Pillow's string; None if the encoding is not certain."""
    if isinstance(value, str):
        try:
            body = value.encode("latin-1")  # Pillow takes EXIF's texts for Latin-1
        except UnicodeEncodeError:
            return value
    elif isinstance(value, bytes):
        body = value
    else:
        return "" if value is None else str(value)
    try:
        return body.strip(b"\0 \r\n\t").decode()
    except UnicodeDecodeError:
        return None


def _wide(value: object) -> str | None:
    """Return a text of Windows in EXIF: UTF-16, little-endian."""
    if isinstance(value, tuple) and all(isinstance(code, int) and 0 <= code < 256 for code in value):
        value = bytes(value)
    if not isinstance(value, bytes):
        return None
    try:
        return value.decode("utf-16-le").strip("\0 ")
    except UnicodeDecodeError:
        return None


def _longs(value: object) -> bytes:
    """Return the bytes of a field of 32-bit numbers."""
    numbers = value if isinstance(value, tuple) else (value,)
    return b"".join(n.to_bytes(4, "little") for n in numbers if isinstance(n, int) and 0 <= n < 2**32)


def _position(gps: Directory) -> str:
    signed = []
    for tag, letters in ((2, "NS"), (4, "EW")):
        degrees, letter = in_degrees(gps.get(tag)), plain_text(gps.get(tag - 1)).upper()[:1] or letters[0]
        if degrees is None or letter not in letters:
            return ""
        signed.append(-degrees if letter == letters[1] else degrees)
    return place_text(*signed)


def _n_pictures(image: Image.Image) -> int:
    try:
        return max(1, int(getattr(image, "n_frames", 1)))
    except Exception:  # a damaged second page raises nearly anything
        return 2


def _bits(image: Image.Image, data: bytes, exif: Directory) -> int:
    if image.format == "PNG":
        return max(8, data[24])
    if image.format == "TIFF":
        depths = exif.get(_BITS_TAG, 8)
        depths = depths if isinstance(depths, tuple) else (depths,)
        return max((depth for depth in depths if isinstance(depth, int)), default=8)
    return 16 if image.mode[:1] in ("I", "F") else 8


def _is_transparent(image: Image.Image) -> bool:
    if not (image.has_transparency_data or image.mode in ("La", "RGBa")):
        return False
    try:
        return bool((np.asarray(image.convert("RGBA").getchannel("A")) < 255).any())
    except Exception:  # in doubt it is
        return True


@lru_cache(256)
def _colours(profile: bytes) -> str:
    """Return `_COLOURS` in a profile as sRGB, hex, or its digest if inconvertible; empty for sRGB, grey, and none."""
    if not profile or profile[16:20] not in (b"RGB ",):
        return sha256(profile).hexdigest() if profile and profile[16:20] != b"GRAY" else ""
    try:
        colours = _in_srgb(Image.fromarray(_COLOURS[None]), profile).tobytes().hex()
    except Exception:
        return sha256(profile).hexdigest()
    return "" if _are_alike("", colours) else colours


def _in_srgb(image: Image.Image, profile: bytes) -> Image.Image:
    source, target = ImageCms.ImageCmsProfile(io.BytesIO(profile)), ImageCms.createProfile("sRGB")
    return ImageCms.profileToProfile(image, source, target, outputMode="RGB") or image


def in_colours_of(other: Image.Image, image: Image.Image) -> Image.Image | None:
    """Return a picture of another colour profile than sRGB in sRGB, if the other one is in sRGB; else None."""
    profile, of_other = (picture.info.get("icc_profile") or b"" for picture in (image, other))
    if not _colours(profile) or _colours(of_other):
        return None
    try:
        return _in_srgb(image, profile)
    except Exception:  # a damaged profile, or one of other colours than the picture's
        return None
