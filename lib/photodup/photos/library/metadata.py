"""Metadata of a photograph in its file and sidecar: date, place, camera, rating and so on."""

import json
import math
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from xml.parsers import expat

import yaml
from pydantic import FiniteFloat, TypeAdapter

from photodup.core.names import in_short

TABLES = yaml.safe_load(Path(__file__).with_name("formats.yaml").read_text(encoding="utf-8"))
_LAYOUT = frozenset(TABLES["layout"])
# Values of a directory of EXIF by tag, of whatever type Pillow reads.
Directory = Mapping[int, Any]
# Metadata by kind; those of `_LISTS` have several texts.
Description = Mapping[str, str | list[str]]

# Metadata that an owner would miss, in the order of sentences, and their words there.
KINDS = {kind: kind for kind in ("date", "place", "camera")} | {
    "rating": "a rating of {}", "label": "a label", "title": "a title", "caption": "a caption", "keywords": "keywords",
    "people": "people", "author": "an author",
} | {kind: kind for kind in ("copyright", "city", "state", "country", "location")}  # fmt: skip
_REGIONS = "metadataworkinggroup.com/schemas/regions"  # whose `Name` is a person's; others' is a profile's
_RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns# "
# Several values each.
_LISTS, MOST_VALUES = frozenset({"keywords", "people", "author"}), 1000
_WORDS = frozenset({"title", "caption", "label", "copyright", "city", "state", "country", "location"})
_MOST_STARS = 9
MOST_TEXT = 2000  # characters that are read of a value
MOST_XMP_BYTES = 4_000_000  # of a packet or sidecar that are read
_MAKE, _MODEL = 0x010F, 0x0110
# Tags of the date, its fraction and its zone: when it was taken, else digitized, else saved.
_TAKEN, _SAVED = ((0x9003, 0x9291, 0x9011), (0x9004, 0x9292, 0x9012)), (0x0132, 0x9290, 0x9010)
_DATE = re.compile(
    r"(\d{4})[-:/. ]?(\d\d)[-:/. ]?(\d\d)([T ]+(\d\d):?(\d\d)(:?(\d\d)([.,]\d+)?)?)?\s*(Z|[+-]\d\d:?\d\d)?"
)
_SAME_PLACE = 2e-4  # degrees, some 20 m: programs round
# Tags of the exposure.
_EXPOSURE = {"time": 0x829A, "aperture": 0x829D, "sensitivity": 0x8827, "bias": 0x9204}
_EXPOSURES = TypeAdapter(dict[str, FiniteFloat])
# Makers whose note is a TIFF directory after a header: tags of the number in a burst or bracket and of the drive mode (from
# ExifTool), and values for none.
_MAKER_NOTE, _NOTE_HEADER, _NO_NUMBER = 0x927C, 12, (0, 65535)
_INTEGERS = {1: "B", 3: "H", 4: "I"}  # TIFF's types
_NOTES = {b"FUJIFILM": (0x1101, 0x1103), b"Panasonic": (0x002B, 0x002A), b"SONY": (0xB04A, 0xB049)}


def count_fields(*directories: Directory) -> int:
    """Count the EXIF fields with metadata: neither layout, nor pointer, nor empty."""
    return sum(
        is_metadata(tag) and not _is_empty(value)
        for directory in directories
        for tag, value in directory.items()
    )


def is_metadata(tag: int) -> bool:
    """Return whether a tag is metadata, not layout."""
    return tag not in _LAYOUT


def dates(exif: Directory, details: Directory) -> Iterator[tuple[str, str]]:
    """Yield the dates of EXIF, the best first, with their kind: `date`, or `saved`."""
    for tags in (*_TAKEN, _SAVED):
        fields = details if tags in _TAKEN else exif
        text, fraction, zone = (
            plain_text(part.get(tag)) for part, tag in zip((fields, details, details), tags, strict=True)
        )
        if not (date := date_of(text)):
            continue
        if fraction.isascii() and fraction.isdigit() and len(date) == 19:
            date += f".{fraction[:6]}"
        yield (date_of(date + zone) or date), "date" if tags in _TAKEN else "saved"


def date_of(text: str) -> str | None:
    """Return a date in ISO 8601, with fraction and zone if the text has them; None if it is no date."""
    if not (match := _DATE.fullmatch(text.strip("\0 \t\r\n"))):
        try:
            return parsedate_to_datetime(text).isoformat()
        except (ValueError, TypeError, IndexError):
            return None
    year, month, day, time, hour, minute, _, second, fraction, zone = match.groups()
    date = f"{year}-{month}-{day}" + (f"T{hour}:{minute}" if time else "") + (f":{second}" if second else "")
    date += f".{fraction[1:7]}" if fraction else ""
    date += "" if not zone or not time else "+00:00" if zone == "Z" else f"{zone[:3]}:{zone[-2:]}"
    try:
        datetime.fromisoformat(date)
    except ValueError:  # absent, or "0000:00:00 00:00:00" from a camera whose clock was never set
        return None
    return date


def camera(exif: Directory) -> str | None:
    """Return maker and model."""
    make, model = (plain_text(exif.get(tag)) for tag in (_MAKE, _MODEL))
    # "Canon" + "Canon EOS 5D" would read twice.
    return (model if model.startswith(make) else f"{make} {model}").strip() or None


def exposure(details: Directory) -> str | None:
    """Return the exposure as JSON, or None: seconds, f-number, ISO, EV, number in a sequence, the maker's drive mode."""
    values = {name: _number(details.get(tag)) for name, tag in _EXPOSURE.items()}
    values |= _series(details.get(_MAKER_NOTE))
    present = {name: value for name, value in values.items() if value is not None}
    return json.dumps(present) if present else None


def _series(note: object) -> dict[str, float]:
    """Return the number in a sequence and the drive mode of a maker's note; empty if it cannot be read."""
    begin = _NOTE_HEADER + 2
    if not isinstance(note, bytes) or len(note) < begin:
        return {}
    tags = next((tags for maker, tags in _NOTES.items() if note.startswith(maker)), None)
    if tags is None:
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


def read_exposure(text: str | None) -> dict[str, float]:
    """Return the values of `exposure`'s JSON; none if it is invalid, perhaps of a foreign catalogue."""
    with suppress(ValueError):
        return _EXPOSURES.validate_json(text or "{}", strict=True)
    return {}


def merge_descriptions(*descriptions: Description) -> Description:
    """Merge descriptions; where they differ, the first counts."""
    return collect_kinds(
        ("saved" if kind == "date" and "date of" in description else kind, text)
        for description in descriptions
        for kind, texts in description.items()
        if kind != "date of"
        for text in (texts if kind in _LISTS else [texts])
    )


def in_words(kinds: Description, *, plain: bool = False) -> str:
    """Return kinds as words: "date, place and a rating of 5", or plain: "date, place and rating"."""
    words = [kind if plain else phrase.format(kinds[kind]) for kind, phrase in KINDS.items() if kind in kinds]
    return in_short(words, None) or "none"


def missing_kinds(keeper: Description, leaving: Description) -> Description:
    """Return by kind the metadata of a leaving photo that the keeper lacks or has with another value."""
    lost: dict[str, str | list[str]] = {}
    for kind in KINDS:
        text, base = leaving.get(kind), keeper.get(kind)
        if text is None or text == base:
            continue
        if kind in _LISTS:
            text = sorted(set(text) - set(base or ()))
        elif base and kind == "date" and leaving.get("date of") == "saved":
            continue  # saving sets a date
        elif base and _are_one(kind, str(base), str(text)):
            continue
        if text:
            lost[kind] = text
    return lost


def _are_one(kind: str, first: str, second: str) -> bool:
    """Return whether two values differ in form alone: a shorter date, a rounded place, another spelling of the camera."""
    if kind == "date":
        first_digits, second_digits = ("".join(filter(str.isdigit, text))[:14] for text in (first, second))
        return first_digits.startswith(second_digits) or second_digits.startswith(first_digits)
    if kind == "place":
        with suppress(ValueError):
            pairs = zip(map(float, first.split()), map(float, second.split()), strict=True)
            return all(abs(left - right) < _SAME_PLACE for left, right in pairs)
    return kind == "camera"


def lost_in_words(keeper: Description, leaving: Description) -> str:
    """Return `missing_kinds` in words; empty if nothing is lost."""
    lost = missing_kinds(keeper, leaving)
    differing = {kind: text for kind, text in lost.items() if kind in keeper and kind not in _LISTS}
    alone, ours = (
        {kind: text for kind, text in part.items() if kind not in differing}
        for part in (lost, missing_kinds(leaving, keeper))
    )
    sentences = [f"has another {in_words(differing, plain=True)} than the one to keep"] if differing else []
    if alone:
        sentences.append(
            f"has {in_words(alone)}"
            + (f"; the one to keep has {in_words(ours)}" if ours else ", which the one to keep lacks")
        )
    return "; ".join(sentences)


def collect_kinds(values: Iterable[tuple[str, object]]) -> Description:
    """Return metadata by kind: lists merged, of other kinds the first value that is not empty."""
    kinds: dict[str, str] = {}
    lists: dict[str, set[str]] = {}
    for kind, value in values:
        text = value.strip("\0 \r\n\t")[:MOST_TEXT] if isinstance(value, str) else ""
        if kind == "rating":
            stars = round(_number(value) or 0)
            stars = stars if stars <= _MOST_STARS else 1 + round(stars / 25)  # in percent, as Windows writes
            text = str(stars) if stars else ""  # 0: not rated
        elif kind in ("title", "caption") and not is_title(text):
            continue
        elif kind in ("date", "saved"):
            text = date_of(text) or ""
        if not text:
            continue
        if kind not in _LISTS:
            kinds.setdefault(kind, text)
        elif len(several := lists.setdefault(kind, set())) < MOST_VALUES:
            several.add(text)
    if "saved" in kinds:
        kinds |= {"date of": "saved"} if "date" not in kinds else {}
        kinds.setdefault("date", kinds.pop("saved"))
    return kinds | {kind: sorted(values) for kind, values in lists.items()}


def is_title(text: str) -> bool:
    """Return whether a person may have written a text: it is no camera's default title, and no code."""
    return text.lower() not in TABLES["no_titles"] and text[:1] not in ("{", "<")


def further_texts(values: Iterable[tuple[str, object]]) -> Iterator[tuple[str, str]]:
    """Yield kind and text of what `collect_kinds` leaves out of several values.

    These are second texts and dates, texts cut for their length or like code, and dates such as "1952-06".
    """
    values = list(values)
    first = collect_kinds(values)
    for kind, value in values:
        text, base = value.strip("\0 \r\n\t") if isinstance(value, str) else "", first.get(kind)
        if kind == "date" and re.search("[1-9]", text):
            date = date_of(text) or text
            if base is None or not _are_one(kind, str(base), date):
                yield kind, date
        elif kind in _WORDS and text and text.lower() not in TABLES["no_titles"] and text != base:
            yield kind, text


@dataclass
class Packet:
    """The contents of an XMP packet or sidecar.

    Attributes:
        values: (property, text) of each value, the property as `namespace local name`.
        ends: byte offset where the list of a property (and `RDF`) ends, and RDF's prefix there.
        subject: `rdf:about`, the same in all descriptions.
        is_whole: it was read to its end.
    """

    values: list[tuple[str, str]] = field(default_factory=list)
    ends: dict[str, tuple[int, str]] = field(default_factory=dict)
    subject: str = ""
    is_whole: bool = False


def read_xmp(data: bytes) -> Packet:
    """Read XMP up to its first fault; XMP with a document type is refused."""
    packet = Packet()
    stack: list[str] = []
    text: list[str] = []

    def start(name: str, attributes: dict[str, str]) -> None:
        # Containers and their items belong to their property.
        full = " ".join(name.split(" ")[:2])
        stack.append(stack[-1] if stack and full.startswith(_RDF) else full)
        text.clear()
        for key, value in attributes.items():
            packet.values.append((" ".join(key.split(" ")[:2]), value))
        packet.subject = attributes.get(f"{_RDF}about rdf", packet.subject)

    def end(name: str) -> None:
        owner = stack.pop()
        packet.values.append((owner, "".join(text)))
        text.clear()
        _, local, *prefix = name.split(" ") if name.startswith(_RDF) else ("", "")
        if local in ("RDF", "Bag", "Seq", "Alt") and prefix:
            packet.ends[local if local == "RDF" else owner] = parser.CurrentByteIndex, prefix[0]

    def refuse(*_: object) -> None:
        raise ValueError("XMP has no document type, and an entity may stand for gigabytes")

    parser = expat.ParserCreate(namespace_separator=" ")
    parser.namespace_prefixes = True
    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = text.append, refuse
    with suppress(expat.ExpatError, ValueError):  # what was read before the fault counts
        parser.Parse(data, True)
        packet.is_whole = True
    return packet


def kinds_of(properties: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield kind and text of each known XMP property; a place in degrees."""
    degrees = {}
    for name, text in properties:
        namespace, _, local = name.rpartition(" ")
        if kind := "people" if local == "Name" and _REGIONS in namespace else TABLES["xmp_kinds"].get(local):
            yield kind, text
        elif local in ("GPSLatitude", "GPSLongitude") and (number := _degrees_of_xmp(text)) is not None:
            degrees[local] = number
    if len(degrees) == 2:
        yield "place", place_text(degrees["GPSLatitude"], degrees["GPSLongitude"])


def _degrees_of_xmp(text: str) -> float | None:
    """Return the degrees of `48,5.25N`, `48,5,15N` or `48.1`; south and west are negative."""
    numbers = [_number(part) for part in text.strip().rstrip("NSEWnsew").split(",")]
    size = in_degrees(tuple(numbers))
    return size if size is None or text.strip()[-1:].upper() not in ("S", "W") else -size


def place_text(latitude: float, longitude: float) -> str:
    """Return a position, degrees, as the text of the kind `place`; empty for none."""
    return f"{latitude:.6f} {longitude:.6f}" if latitude or longitude else ""


def plain_text(value: object) -> str:
    """Return an EXIF value as text without padding; empty for None."""
    return "" if value is None else str(value).strip("\0 ")


def _number(value: Any) -> float | None:
    if isinstance(value, tuple) and value:
        value = value[0]
    try:
        number = float(value)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def in_degrees(value: object) -> float | None:
    """Convert degrees, minutes and seconds to degrees; None if one is no number."""
    parts = [_number(part) for part in value] if isinstance(value, tuple) else []
    if not parts or None in parts:
        return None
    return sum(part / 60**i for i, part in enumerate(parts) if part is not None)


def _is_empty(value: object) -> bool:
    if isinstance(value, bytes):
        return not value.strip(b"\0 ")
    return isinstance(value, str) and not value.strip("\0 ")
