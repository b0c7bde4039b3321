"""What a file, or the sidecar beside it, says about a photograph: when, where, by which camera, how it was rated."""

import json
import math
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any
from xml.parsers import expat

from PIL import IptcImagePlugin

# Baseline TIFF: a TIFF's first directory also holds the file's structure, and a JPEG's holds pointers. Tag
# numbers from the TIFF 6.0 and Exif 2.32 specifications; what is not listed is metadata.
# fmt: off
_LAYOUT = frozenset({
    254, 255, 256, 257, 258, 259, 262, 263, 264, 265, 266,       # kind, size, depth, compression, halftones
    273, 274, 277, 278, 279, 280, 281,                           # strips, orientation, range of samples
    282, 283, 284, 288, 289, 290, 291, 292, 293, 296,            # resolution, planes, fax options
    301, 317, 318, 319, 320, 321, 322, 323, 324, 325, 330,       # transfer curve, predictor, palette, tiles
    332, 334, 336, 337, 338, 339, 340, 341, 342, 347,            # inks, extra samples, JPEG tables
    512, 513, 514, 515, 517, 518, 519, 520, 521,                 # JPEG in TIFF, and the thumbnail's place
    529, 530, 531, 532, 34675,                                   # YCbCr coefficients, colour profile
    34665, 34853, 40965,                                         # pointers to Exif, GPS and interoperability
    36864, 37121, 37122, 40960, 40961, 40962, 40963,             # versions, components, colour space, size
})
# fmt: on

# What an owner would miss, in the order in which a sentence names it.
KINDS = ("date", "place", "camera", "rating", "label", "title", "caption", "keywords", "people")
_AS_WORDS = {"rating": "a rating of {}", "label": "a label", "title": "a title", "caption": "a caption"}
# Of XMP by its local name, and of IPTC by its number: the kind that each property is.
XMP_KINDS = {
    "Rating": "rating", "Label": "label", "title": "title", "Headline": "title", "description": "caption",
    "subject": "keywords", "hierarchicalSubject": "keywords", "TagsList": "keywords",
    "PersonInImage": "people", "DateTimeOriginal": "date", "DateCreated": "date", "GPSLatitude": "place",
    "City": "place", "Country": "place", "Location": "place", "Model": "camera",
}  # fmt: skip
_IPTC = {
    (2, 5): "title", (2, 105): "title", (2, 120): "caption", (2, 25): "keywords", (2, 55): "date",
    (2, 90): "place", (2, 92): "place", (2, 101): "place",
}  # fmt: skip
_REGIONS = "metadataworkinggroup.com/schemas/regions"  # whose `Name` is a person's; others' is a profile's
_RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns# "
# Several values each.
_LISTS, MOST_VALUES = frozenset({"keywords", "people"}), 1000
MOST_TEXT = 2000  # characters that are read of a value
MOST_XMP_BYTES = 4_000_000  # of a packet or sidecar that are read
# What cameras and libraries write as a title into every file.
_NO_TITLE = (
    "olympus digital camera",
    "sony dsc",
    "dcim",
    "samsung",
    "default",
    "digital camera",
    "screenshot",
)

_MAKE, _MODEL, _DATETIME, _SOFTWARE, _DESCRIPTION = 0x010F, 0x0110, 0x0132, 0x0131, 0x010E
_RATING, _XP_TITLE, _XP_COMMENT, _XP_KEYWORDS = 0x4746, 0x9C9B, 0x9C9C, 0x9C9E
_ORIGINAL, _OFFSET_ORIGINAL, _SUBSEC_ORIGINAL = 0x9003, 0x9011, 0x9291
_LATITUDE, _LONGITUDE = 2, 4
# How one exposure was made.
_EXPOSURE = {"time": 0x829A, "aperture": 0x829D, "sensitivity": 0x8827, "bias": 0x9204}
# Makers whose note is a TIFF directory after so many bytes: the tags of the number in a burst or bracket and of the drive
# mode, as ExifTool lists them; and what stands for none.
_MAKER_NOTE, _NOTE_HEADER, _NO_NUMBER = 0x927C, 12, (0, 65535)
_INTEGERS = {1: "B", 3: "H", 4: "I"}  # TIFF's types
_NOTES = {b"FUJIFILM": (0x1101, 0x1103), b"Panasonic": (0x002B, 0x002A), b"SONY": (0xB04A, 0xB049)}


def count_fields(*directories: Mapping[int, Any]) -> int:
    """Return how many fields of EXIF directories hold metadata: neither layout, nor pointer, nor empty."""
    return sum(
        is_metadata(tag) and not _is_empty(value)
        for directory in directories
        for tag, value in directory.items()
    )


def is_metadata(tag: int) -> bool:
    """Return whether a tag says something about the picture."""
    return tag not in _LAYOUT


def taken_at(exif: Mapping[int, Any], details: Mapping[int, Any]) -> str | None:
    """Return when a photo was taken: local time in ISO 8601, with the fraction and the UTC offset that are there."""
    for value, subsec in (
        (details.get(_ORIGINAL), plain_text(details.get(_SUBSEC_ORIGINAL))),
        (exif.get(_DATETIME), ""),
    ):
        try:
            taken = datetime.strptime(plain_text(value), "%Y:%m:%d %H:%M:%S").isoformat()
        except ValueError:  # Absent, or "0000:00:00 00:00:00" from a camera whose clock was never set.
            continue
        if subsec.isascii() and subsec.isdigit():
            taken += f".{subsec[:6]}"
        offset = plain_text(details.get(_OFFSET_ORIGINAL))
        return taken + offset if _is_offset(offset) else taken
    return None


def camera(exif: Mapping[int, Any]) -> str | None:
    """Return maker and model."""
    make, model = (plain_text(exif.get(tag)) for tag in (_MAKE, _MODEL))
    # "Canon" + "Canon EOS 5D" would read twice.
    return (model if model.startswith(make) else f"{make} {model}").strip() or None


def exposure(details: Mapping[int, Any]) -> str | None:
    """Return how an exposure was made as JSON; None if unknown.

    That is seconds, f-number, ISO, EV, number in a sequence and the maker's number of the drive mode.
    """
    values = {name: _number(details.get(tag)) for name, tag in _EXPOSURE.items()}
    values |= _series(details.get(_MAKER_NOTE))
    known = {name: value for name, value in values.items() if value is not None}
    return json.dumps(known) if known else None


def _series(note: Any) -> dict[str, float]:
    """Return the number in a sequence and the drive mode that a maker's note gives; none where it cannot be read."""
    tags = next(
        (tags for maker, tags in _NOTES.items() if isinstance(note, bytes) and note.startswith(maker)), None
    )
    begin = _NOTE_HEADER + 2
    if tags is None or len(note) < begin:
        return {}
    order = "<" if note[begin - 1] == 0 else ">"  # fewer than 256 fields
    (n,) = struct.unpack_from(f"{order}H", note, begin - 2)
    entries = note[begin : begin + 12 * n]
    values = {}
    for tag, kind, count, value in struct.iter_unpack(f"{order}HHI4s", entries[: len(entries) // 12 * 12]):
        if tag in tags and count == 1 and kind in _INTEGERS:
            (number,) = struct.unpack_from(order + _INTEGERS[kind], value)
            values["sequence" if tag == tags[0] else "drive"] = float(number)
    if values.get("sequence") in _NO_NUMBER:
        del values["sequence"]
    return values


def described(image: Any, exif: Mapping[int, Any], details: Mapping[int, Any], gps: Mapping[int, Any]) -> str:
    """Return the metadata of an open picture as JSON: by kind (`KINDS`), and the `software` that wrote it."""
    position = [in_degrees(gps.get(tag)) for tag in (_LATITUDE, _LONGITUDE)]
    said: list[tuple[str, Any]] = [
        ("date", taken_at(exif, details)),
        ("place", "GPS" if None not in position and any(position) else None),
        ("camera", camera(exif)),
        ("rating", exif.get(_RATING)),
        ("title", _wide(exif.get(_XP_TITLE))),
        ("caption", plain_text(exif.get(_DESCRIPTION))),
        ("caption", _wide(exif.get(_XP_COMMENT))),
        *(("keywords", word) for word in _wide(exif.get(_XP_KEYWORDS)).split(";")),
        ("software", plain_text(exif.get(_SOFTWARE))),
        *_iptc(image),
    ]
    xmp = image.info.get("xmp")
    if isinstance(xmp, str):
        xmp = xmp.encode()
    return json.dumps(_joined([*said, *(_xmp(xmp) if isinstance(xmp, bytes) else ())]))


def described_by_xmp(packet: bytes) -> dict[str, Any]:
    """Return what an XMP packet or sidecar says, by kind; what cannot be read says nothing."""
    return _joined(_xmp(packet))


@lru_cache(65536)
def read_described(text: str | None) -> Mapping[str, Any]:
    """Undo the JSON of `described`; what somebody else put into a catalogue in its place says nothing."""
    return {kind: value for kind, value in _object(text).items() if _is_sound(kind, value)}


def read_exposure(text: str | None) -> dict[str, float]:
    """Undo the JSON of `exposure`, likewise."""
    values = {name: _number(value) for name, value in _object(text).items()}
    return {name: value for name, value in values.items() if value is not None}


def joined(*descriptions: Mapping[str, Any]) -> dict[str, Any]:
    """Return what several descriptions say together; where they differ, the first counts."""
    return _joined(
        (kind, one)
        for said in descriptions
        for kind, value in said.items()
        for one in (value if kind in _LISTS else [value])
    )


def in_words(kinds: Mapping[str, Any]) -> str:
    """Return kinds as words: "date, place and a rating of 5"."""
    words = [_AS_WORDS.get(kind, kind).format(kinds[kind]) for kind in KINDS if kind in kinds]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words) or "none"


def missing(kept: Mapping[str, Any], leaving: Mapping[str, Any]) -> dict[str, Any]:
    """Return what would be lost, by kind: what the leaving photo says and the kept one does not, or says otherwise."""
    lost: dict[str, Any] = {}
    for kind in KINDS:
        value, known = leaving.get(kind), kept.get(kind)
        if value is None or value == known:
            continue
        if kind in _LISTS:
            value = sorted(set(value) - set(known or ()))
            if not value:
                continue
        # Another place or camera of one picture is a spelling; of dates one may be shorter.
        elif known and (kind in ("place", "camera") or (kind == "date" and _is_one_date(known, value))):
            continue
        lost[kind] = value
    return lost


def lost_in_words(kept: Mapping[str, Any], leaving: Mapping[str, Any]) -> str:
    """Return what a leaving photo says and the kept one does not, in a sentence that names both; empty if nothing."""
    if not (lost := missing(kept, leaving)):
        return ""
    own = missing(leaving, kept)
    said = f"has {in_words(lost)}"
    return f"{said}; the one to keep has {in_words(own)}" if own else f"{said}, which the one to keep lacks"


def _object(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_sound(kind: str, value: Any) -> bool:
    if kind in _LISTS:
        return isinstance(value, list) and all(isinstance(one, str) for one in value)
    return isinstance(value, int if kind == "rating" else str)


def _is_one_date(first: str, second: str) -> bool:
    one, other = ("".join(filter(str.isdigit, text))[:14] for text in (first, second))
    return one.startswith(other) or other.startswith(one)


def _joined(said: Any) -> dict[str, Any]:
    """Return what was said, by kind: lists together, of other kinds the first that is not empty."""
    found: dict[str, Any] = {}
    lists: dict[str, set[str]] = {}
    for kind, value in said:
        if kind == "rating":
            number = _number(value)
            value = round(number) if number else None  # 0: not rated
        elif isinstance(value, str):
            value = value.strip("\0 \r\n\t")[:MOST_TEXT]
            if kind in ("title", "caption") and (value.lower() in _NO_TITLE or value[:1] in ("{", "<")):
                continue
        if not value:
            continue
        if kind not in _LISTS:
            found.setdefault(kind, value)
        elif len(several := lists.setdefault(kind, set())) < MOST_VALUES:
            several.add(value)
    return found | {kind: sorted(values) for kind, values in lists.items()}


def _iptc(image: Any) -> Iterator[tuple[str, str]]:
    try:
        values = IptcImagePlugin.getiptcinfo(image) or {}
    except Exception:  # Broken IPTC must not cost the photograph.
        return
    for number, kind in _IPTC.items():
        given = values.get(number, ())
        for value in given if isinstance(given, list) else [given]:
            if isinstance(value, bytes):
                yield kind, value.decode("utf-8", "replace")


@dataclass
class Packet:
    """What an XMP packet or sidecar holds.

    Attributes:
        said: (property, text) of each value, the property as `namespace local name`.
        ends: where the list of a property ends, and the whole (`RDF`): byte offset, and the prefix of RDF there.
        about: what its descriptions are about; the same in all of them.
        is_whole: whether it was read to its end.
    """

    said: list[tuple[str, str]] = field(default_factory=list)
    ends: dict[str, tuple[int, str]] = field(default_factory=dict)
    about: str = ""
    is_whole: bool = False


def read_packet(data: bytes) -> Packet:
    """Read XMP as far as it can be read; one with a document type, or none at all, holds nothing."""
    packet = Packet()
    stack: list[str] = []
    text: list[str] = []

    def start(name: str, attributes: dict[str, str]) -> None:
        # Containers and their items are of their property.
        full = " ".join(name.split(" ")[:2])
        stack.append(stack[-1] if stack and full.startswith(_RDF) else full)
        text.clear()
        for key, value in attributes.items():
            packet.said.append((" ".join(key.split(" ")[:2]), value))
        packet.about = attributes.get(f"{_RDF}about rdf", packet.about)

    def end(name: str) -> None:
        owner = stack.pop()
        packet.said.append((owner, "".join(text)))
        text.clear()
        _, local, *prefix = name.split(" ") if name.startswith(_RDF) else ("", "")
        if local in ("RDF", "Bag", "Seq", "Alt") and prefix:
            packet.ends[local if local == "RDF" else owner] = parser.CurrentByteIndex, prefix[0]

    def refuse(*_: Any) -> None:
        raise ValueError("XMP has no document type, and an entity may stand for gigabytes")

    parser = expat.ParserCreate(namespace_separator=" ")
    parser.namespace_prefixes = True
    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = text.append, refuse
    with suppress(expat.ExpatError, ValueError):  # what was read before the fault was said all the same
        parser.Parse(data, True)
        packet.is_whole = True
    return packet


def _xmp(data: bytes) -> list[tuple[str, str]]:
    """Return (kind, value) of each property known here."""
    said = []
    for name, value in read_packet(data[:MOST_XMP_BYTES].strip(b"\0 \r\n\t")).said:
        namespace, _, local = name.rpartition(" ")
        kind = "people" if local == "Name" and _REGIONS in namespace else XMP_KINDS.get(local)
        if kind:
            said.append((kind, value))
    return said


def plain_text(value: Any) -> str:
    """Return a value of EXIF as text, without what fills it up; empty for None."""
    return "" if value is None else str(value).strip("\0 ")


def _wide(value: Any) -> str:
    """Return a text as Windows writes it into EXIF: UTF-16, little endian."""
    if isinstance(value, tuple) and all(isinstance(one, int) and 0 <= one < 256 for one in value):
        value = bytes(value)
    return value.decode("utf-16-le", "replace") if isinstance(value, bytes) else ""


def _number(value: Any) -> float | None:
    if isinstance(value, tuple) and value:
        value = value[0]
    try:
        number = float(value)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def in_degrees(value: Any) -> float | None:
    """Return degrees of degrees, minutes and seconds; None if one of them is no number."""
    parts = [_number(part) for part in value] if isinstance(value, tuple) else []
    if not parts or None in parts:
        return None
    return sum(part / 60**i for i, part in enumerate(parts) if part is not None)


def _is_offset(text: str) -> bool:
    try:
        return len(text) == 6 and text[0] in "+-" and datetime.strptime(text, "%z") is not None
    except ValueError:
        return False


def _is_empty(value: Any) -> bool:
    if isinstance(value, bytes):
        return not value.strip(b"\0 ")
    return isinstance(value, str) and not value.strip("\0 ")
