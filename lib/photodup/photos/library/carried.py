"""What only a photo that leaves says, written into the XMP sidecar of the photo that stays; never into a photo.

Nothing that stands in a sidecar is changed: its bytes stay as they are, and properties that it lacks are put in
between. Where that cannot be done, or the two say different things, the sidecar's word stays and nothing is written.
"""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any
from xml.dom import minidom

from PIL import ExifTags

from photodup.embedding import imaging
from photodup.photos.library.metadata import (
    MOST_TEXT,
    MOST_VALUES,
    MOST_XMP_BYTES,
    Packet,
    in_degrees,
    plain_text,
    read_packet,
)

# The namespaces of the XMP specification, parts 1 and 2, that digiKam, Lightroom and darktable read.
NAMESPACES = {
    "rdf": "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
    "dc": "http://purl.org/dc/elements/1.1/",
    "exif": "http://ns.adobe.com/exif/1.0/",
    "lr": "http://ns.adobe.com/lightroom/1.0/",
    "photoshop": "http://ns.adobe.com/photoshop/1.0/",
    "xmp": "http://ns.adobe.com/xap/1.0/",
}
# Properties of a place, as `place_of` gives them.
_PLACE = ("exif:GPSLatitude", "exif:GPSLongitude", "photoshop:City", "photoshop:State", "photoshop:Country")
_LANGUAGES, _LISTS = ("dc:title", "dc:description"), ("dc:subject", "lr:hierarchicalSubject")
_DATE = re.compile(r"(\d{4})-?(\d\d)-?(\d\d)(T\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)?)?")
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # of XML 1.0
_EMPTY = (
    '<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>\n<x:xmpmeta xmlns:x="adobe:ns:meta/">\n'
    f'<rdf:RDF xmlns:rdf="{NAMESPACES["rdf"]}">\n</rdf:RDF>\n</x:xmpmeta>\n<?xpacket end="w"?>\n'
)
Properties = Mapping[str, str | list[str]]


def properties(said: Mapping[str, Any], place: Mapping[str, str]) -> dict[str, dict[str, str | list[str]]]:
    """Return by kind the XMP properties that say the same; kinds that no sidecar can say are left out.

    Args:
        said: what would be lost, as `metadata.missing` gives it.
        place: as `place_of` gives it.
    """
    found: dict[str, dict[str, str | list[str]]] = {}
    if date := _DATE.fullmatch(str(said.get("date", ""))):
        text = "-".join(date.group(1, 2, 3)) + (date[4] or "")
        found["date"] = {"exif:DateTimeOriginal": text, "photoshop:DateCreated": text}
    if "place" in said and place:
        found["place"] = dict(place)
    if -1 <= said.get("rating", 0) <= 5 and "rating" in said:
        found["rating"] = {"xmp:Rating": str(said["rating"])}
    for kind, name in (("label", "xmp:Label"), ("title", "dc:title"), ("caption", "dc:description")):
        if 0 < len(said.get(kind, "")) < MOST_TEXT:  # of a longer one not all is known
            found[kind] = {name: said[kind]}
    if (words := said.get("keywords")) and len(words) < MOST_VALUES and len(max(words, key=len)) < MOST_TEXT:
        levels = [[word for word in words if ("|" in word) == is_level] for is_level in (False, True)]
        found["keywords"] = {name: some for name, some in zip(_LISTS, levels, strict=True) if some}
    return found


def place_of(photo: bytes, sidecar: bytes = b"") -> dict[str, str]:
    """Return where a photo was taken, as properties of XMP: of its sidecar, or what the file itself says.

    Args:
        photo: the file.
        sidecar: the XMP beside it; empty where there is none.
    """
    inside: Any = b""
    exif: Mapping[int, Any] = {}
    try:
        with imaging.open_image(photo) as header:
            inside, exif = header.info.get("xmp") or b"", header.getexif().get_ifd(ExifTags.IFD.GPSInfo)
    except Exception:  # broken metadata must not cost the page
        pass
    for data in (sidecar, inside.encode() if isinstance(inside, str) else inside):
        said = dict(read_packet(data.strip(b"\0 \r\n\t")).said)
        found = {name: said[full] for name in _PLACE if said.get(full := _full(name), "").strip()}
        if len(found.keys() & set(_PLACE[:2])) == 1:  # half a position is none
            found = {name: value for name, value in found.items() if name not in _PLACE[:2]}
        if found:
            return found
    signed = []
    for tag, reference, letters in ((2, 1, "NS"), (4, 3, "EW")):
        degrees, letter = in_degrees(exif.get(tag)), plain_text(exif.get(reference)).upper()[:1] or letters[0]
        if degrees is None or letter not in letters:
            return {}
        signed.append(-degrees if letter == letters[1] else degrees)
    return position(*signed) if any(signed) else {}


def position(latitude: float, longitude: float) -> dict[str, str]:
    """Return a position, in degrees of which south and west are negative, as properties of XMP."""
    found = {}
    for name, value, letters in zip(_PLACE, (latitude, longitude), ("NS", "EW"), strict=False):
        whole, part = divmod(abs(value), 1)
        found[name] = f"{whole:.0f},{60 * part:.6f}{letters[value < 0]}"
    return found


def merged(sidecar: bytes | None, new: Properties) -> bytes | None:
    """Return a sidecar with properties put in; what stands in it stays, byte for byte.

    Args:
        sidecar: what is there; None for no sidecar.
        new: by name, such as `dc:subject`; a list is added to what is listed there.

    Returns:
        None where it cannot be read, is not UTF-8, has one of the properties already, or has its list in another form.
    """
    old = _EMPTY.encode() if sidecar is None else sidecar
    before = read_packet(old)
    before.ends = {
        name: end for name, end in before.ends.items() if old.startswith(f"</{end[1]}:".encode(), end[0])
    }
    if not before.is_whole or "RDF" not in before.ends or len(old) > MOST_XMP_BYTES:
        return None
    known = {name for name, _ in before.said}
    clean = {name: _clean(value) for name, value in new.items()}
    inserted: list[tuple[int, str]] = []
    apart: dict[str, str | list[str]] = {}
    for name, value in clean.items():
        if _full(name) not in known:
            apart[name] = value
        elif isinstance(value, list) and _full(name) in before.ends:
            at, prefix = before.ends[_full(name)]
            inserted.append((at, "".join(_element(f"{prefix}:li", one).toxml() for one in value)))
        else:
            return None
    if apart:
        at, prefix = before.ends["RDF"]
        inserted.append((at, _description(prefix, before.about, apart).toprettyxml(" ")))
    data = old
    for at, text in sorted(inserted, reverse=True):
        data = data[:at] + text.encode() + data[at:]
    expected = _values(before) + Counter(
        (_full(name), one)
        for name, value in clean.items()
        for one in (value if isinstance(value, list) else [value])
    )
    after = read_packet(data)
    return data if after.is_whole and _said_only(_values(after), expected) else None


def _said_only(found: Counter, expected: Counter) -> bool:
    """Return whether nothing but what is expected is said, markup of our own aside."""
    markup = {name for name, _ in found - expected} <= {f"{NAMESPACES['rdf']} about", _XML_LANG}
    return markup and not expected - found


_XML_LANG = "http://www.w3.org/XML/1998/namespace lang"


def _values(packet: Packet) -> Counter:
    return Counter((name, value.strip()) for name, value in packet.said if value.strip())


def _full(name: str) -> str:
    prefix, local = name.split(":")
    return f"{NAMESPACES[prefix]} {local}"


def _clean(value: str | list[str]) -> str | list[str]:
    """Return a value as XML can say it, lines ended as XML ends them."""
    if isinstance(value, list):
        return [text for one in value if (text := str(_clean(one)))]
    return "\n".join(_NO_XML.sub("", value).strip().splitlines())


def _element(name: str, text: str = "") -> minidom.Element:
    element = minidom.Document().createElement(name)
    if text:
        element.appendChild(minidom.Document().createTextNode(text))
    return element


def _description(rdf: str, about: str, values: Properties) -> minidom.Element:
    """Return values as one description, by the prefix that RDF has there."""
    description = _element(f"{rdf}:Description")
    description.setAttribute(f"{rdf}:about", about)
    for prefix in sorted({name.split(":")[0] for name in values}):
        description.setAttribute(f"xmlns:{prefix}", NAMESPACES[prefix])
    for name, value in values.items():
        if name not in (*_LANGUAGES, *_LISTS):
            description.appendChild(_element(name, str(value)))
            continue
        container = _element(f"{rdf}:{'Alt' if name in _LANGUAGES else 'Bag'}")
        for one in value if isinstance(value, list) else [value]:
            item = _element(f"{rdf}:li", one)
            if name in _LANGUAGES:
                item.setAttribute("xml:lang", "x-default")
            container.appendChild(item)
        description.appendChild(_element(name)).appendChild(container)
    return description
