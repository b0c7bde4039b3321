"""How the files of a drawn library are encoded: metadata, and what programs put into files beside their pixels."""

import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import ExifTags, Image, ImageCms

from oracle.library import Family, encoded

_NAMES = {
    "rdf": "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
    "xmp": "http://ns.adobe.com/xap/1.0/",
    "dc": "http://purl.org/dc/elements/1.1/",
    "lr": "http://ns.adobe.com/lightroom/1.0/",
    "crs": "http://ns.adobe.com/camera-raw-settings/1.0/",
    "exif": "http://ns.adobe.com/exif/1.0/",
    "photoshop": "http://ns.adobe.com/photoshop/1.0/",
    "GPano": "http://ns.google.com/photos/1.0/panorama/",
    "GCamera": "http://ns.google.com/photos/1.0/camera/",
    "hdrgm": "http://ns.adobe.com/hdr-gain-map/1.0/",
    "mwg-rs": "http://www.metadataworkinggroup.com/schemas/regions/",
    "MP": "http://ns.microsoft.com/photo/1.2/",
    "MPRI": "http://ns.microsoft.com/photo/1.2/t/RegionInfo#",
    "MPReg": "http://ns.microsoft.com/photo/1.2/t/Region#",
    "darktable": "http://darktable.sf.net/",
}
_OF_THE_PHOTO = range(0x8290, 0x9C90)  # tags of the Exif directory: exposure, dates, comment


def exif(family: Family, date: str | None = "", place: Sequence = (), **tags: Any) -> bytes:
    """Return EXIF as a camera writes it, with the family's date; further tags by their number, such as `x010e`."""
    block = Image.Exif()
    details = block.get_ifd(ExifTags.IFD.Exif)
    block[0x010F], block[0x0110] = "ACME", "ACME P1"
    if date is not None:
        details[0x9003] = date or family.date
    if place:
        block.get_ifd(ExifTags.IFD.GPSInfo).update({1: "N", 2: place[0], 3: "E", 4: place[1]})
    for name, value in tags.items():
        (details if (tag := int(name[1:], 16)) in _OF_THE_PHOTO and tag != 0x8298 else block)[tag] = value
    return block.tobytes()


def xmp(body: str) -> bytes:
    """Return an XMP packet with these properties."""
    spaces = " ".join(f'xmlns:{name}="{address}"' for name, address in _NAMES.items())
    description = f'<rdf:Description rdf:about="">{body}</rdf:Description>'
    return (
        f'<x:xmpmeta xmlns:x="adobe:ns:meta/" {spaces}><rdf:RDF>{description}</rdf:RDF></x:xmpmeta>'.encode()
    )


def words(name: str, *texts: str, of: str = "Bag") -> str:
    """Return an XMP property with several texts, or `of="Alt"` with one a language."""
    language = ' xml:lang="x-default"' if of == "Alt" else ""
    lines = "".join(f"<rdf:li{language}>{text}</rdf:li>" for text in texts)
    return f"<{name}><rdf:{of}>{lines}</rdf:{of}></{name}>"


def person(outer: str, inner: str, name: str) -> str:
    """Return an XMP property that names a person {} in a part of the picture."""
    resource = "rdf:parseType='Resource'"
    line = f"<rdf:li {resource}><{name}>{{}}</{name}></rdf:li>"
    return f"<{outer} {resource}><{inner}><rdf:Bag>{line}</rdf:Bag></{inner}></{outer}>"


def jpeg(family: Family, pixels: np.ndarray, quality: int = 92, body: str = "", **options: Any) -> bytes:
    """Return a camera's JPEG with the family's date. `body` is of an XMP packet; `segments` go in front of its tables."""
    segments = options.pop("segments", b"")
    options = {"exif": exif(family)} | options | ({"xmp": xmp(body)} if body else {})
    data = encoded(pixels, quality=quality, **options)
    return data[:2] + segments + data[2:]


def rated(family: Family, pixels: np.ndarray, suffix: str) -> bytes:
    """Return a picture in a format with five stars: a reason to prefer it."""
    formats = {"jpg": "JPEG", "tif": "TIFF", "heic": "HEIF"}
    return encoded(pixels, formats.get(suffix, suffix.upper()), exif=exif(family, x4746=5))


def segment(marker: int, payload: bytes) -> bytes:
    """Return a JPEG segment."""
    return b"\xff" + bytes([marker]) + struct.pack(">H", len(payload) + 2) + payload


def iptc_caption(text: bytes) -> bytes:
    """Return an APP13 segment with an IPTC caption that names no character set."""
    record = b"\x1c\x02\x78" + struct.pack(">H", len(text)) + text + b"\0" * (len(text) % 2 == 0)
    return segment(0xED, b"Photoshop 3.0\0008BIM\x04\x04\0\0" + struct.pack(">I", len(record)) + record)


def film(family: Family, n: int = 40_000) -> bytes:
    """Return bytes that begin as an MP4 does."""
    return b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom" + struct.pack(">I", 8 + n) + b"mdat" + family.rng.bytes(n)


def chunk(name: bytes, body: bytes) -> bytes:
    """Return a PNG chunk."""
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def multi_picture(first: bytes, second: bytes) -> bytes:
    """Return a JPEG with a second one behind it, which an MPF segment announces."""

    def index(total: int, offset: int) -> bytes:
        tags = struct.pack(">HHI4sHHIIHHIII", 0xB000, 7, 4, b"0100", 0xB001, 4, 1, 2, 0xB002, 7, 32, 50, 0)
        entries = struct.pack(">IIIIIIII", 0x20030000, total, 0, 0, 0x20002, len(second), offset, 0)
        return segment(0xE2, b"MPF\0MM\0*" + struct.pack(">IH", 8, 3) + tags + entries)

    total = len(first) + len(index(0, 0))
    return first[:2] + index(total, total - 10) + first[2:] + second


def swapped_profile() -> bytes:
    """Return a colour profile in which red and green change places: without it, the picture looks different."""
    profile = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    profile[24:36] = bytes(12)  # when it was made: the same bytes each time
    tags = {bytes(profile[at : at + 4]): at + 4 for at in range(132, 132 + 12 * profile[131], 12)}
    red, green = (slice(tags[name], tags[name] + 8) for name in (b"rXYZ", b"gXYZ"))
    profile[red], profile[green] = profile[green], profile[red]
    return bytes(profile)
