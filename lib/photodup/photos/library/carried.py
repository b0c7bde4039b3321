"""Merge the metadata of a leaving photo into the XMP sidecar of the photo that stays; never into a photo.

The sidecar's bytes stay, and missing properties are inserted between them. If that is not possible, or a property differs,
nothing is written.
"""

import re
from collections import Counter
from collections.abc import Mapping
from xml.sax.saxutils import escape, quoteattr

from photodup.photos.library.metadata import (
    MOST_TEXT,
    MOST_VALUES,
    MOST_XMP_BYTES,
    Description,
    Packet,
    read_xmp,
)

# The namespaces of the XMP specification, parts 1 and 2, that digiKam, Lightroom and darktable read.
NAMESPACES = {
    "rdf": "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
    "dc": "http://purl.org/dc/elements/1.1/",
    "exif": "http://ns.adobe.com/exif/1.0/",
    "Iptc4xmpCore": "http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/",
    "lr": "http://ns.adobe.com/lightroom/1.0/",
    "photoshop": "http://ns.adobe.com/photoshop/1.0/",
    "xmp": "http://ns.adobe.com/xap/1.0/",
}
# The property of each kind with a single text; and the lists, with the containers that XMP prescribes.
_OF_KINDS = {
    "label": "xmp:Label", "title": "dc:title", "caption": "dc:description", "copyright": "dc:rights",
    "city": "photoshop:City", "state": "photoshop:State", "country": "photoshop:Country",
    "location": "Iptc4xmpCore:Location",
}  # fmt: skip
_LISTS = ("dc:subject", "lr:hierarchicalSubject")
_CONTAINERS = dict.fromkeys(("dc:title", "dc:description", "dc:rights"), "Alt") | dict.fromkeys(_LISTS, "Bag")
_CONTAINERS["dc:creator"] = "Seq"
_RATINGS = ("-1", "1", "2", "3", "4", "5")
_DATE = re.compile(r"(\d{4})-?(\d\d)-?(\d\d)(T\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)?)?")
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # of XML 1.0
_EMPTY = (
    '<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>\n<x:xmpmeta xmlns:x="adobe:ns:meta/">\n'
    f'<rdf:RDF xmlns:rdf="{NAMESPACES["rdf"]}">\n</rdf:RDF>\n</x:xmpmeta>\n<?xpacket end="w"?>\n'
)
# What our own description adds beside the properties.
_MARKUP = {f"{NAMESPACES['rdf']} about", "http://www.w3.org/XML/1998/namespace lang"}
Properties = Mapping[str, str | list[str]]


def properties_of(lost: Description) -> dict[str, Properties]:
    """Return XMP properties for lost metadata, by kind; kinds without a property are left out.

    Args:
        lost: from `metadata.missing_kinds`.
    """
    by_kind: dict[str, Properties] = {}
    if date := _DATE.fullmatch(str(lost.get("date", ""))):
        text = "-".join(date.group(1, 2, 3)) + (date[4] or "")
        by_kind["date"] = {"exif:DateTimeOriginal": text, "photoshop:DateCreated": text}
    if "place" in lost:
        by_kind["place"] = properties_of_place(*map(float, str(lost["place"]).split()))
    if (stars := lost.get("rating")) in _RATINGS:
        by_kind["rating"] = {"xmp:Rating": str(stars)}
    for kind, name in _OF_KINDS.items():
        if 0 < len(lost.get(kind, "")) < MOST_TEXT:  # a longer one was read in part
            by_kind[kind] = {name: lost[kind]}
    for kind in ("keywords", "author"):
        words = lost.get(kind)
        if not words or len(words) >= MOST_VALUES or len(max(words, key=len)) >= MOST_TEXT:
            continue
        levels = [[word for word in words if ("|" in word) == is_level] for is_level in (False, True)]
        names = zip(_LISTS, levels, strict=True) if kind == "keywords" else [("dc:creator", words)]
        by_kind[kind] = {name: texts for name, texts in names if texts}
    return by_kind


def properties_of_place(latitude: float, longitude: float) -> Properties:
    """Return a position, in degrees (south and west negative), as XMP properties."""
    texts = {}
    for axis, degrees, letters in (("Latitude", latitude, "NS"), ("Longitude", longitude, "EW")):
        whole, part = divmod(abs(degrees), 1)
        texts[f"exif:GPS{axis}"] = f"{whole:.0f},{60 * part:.6f}{letters[degrees < 0]}"
    return texts


def merge_into(sidecar: bytes | None, new: Properties) -> bytes | None:
    """Return a sidecar with properties inserted; its own bytes stay.

    Args:
        sidecar: its bytes; None for no sidecar.
        new: properties by name, such as `dc:subject`; a list extends an existing list.

    Returns:
        None if it cannot be read, is not UTF-8, has one of the properties, or a list in another form; and for a property
        of which XML can hold nothing.
    """
    old = _EMPTY.encode() if sidecar is None else sidecar
    before = read_xmp(old)
    before.ends = {
        name: end for name, end in before.ends.items() if old.startswith(f"</{end[1]}:".encode(), end[0])
    }
    clean = {name: _clean(value) for name, value in new.items()}
    is_readable = before.is_whole and "RDF" in before.ends and len(old) <= MOST_XMP_BYTES
    if not is_readable or not all(clean.values()):
        return None
    existing = {name for name, _ in before.values}
    inserted: list[tuple[int, str]] = []
    apart: dict[str, list[str]] = {}
    for name, texts in clean.items():
        if _full(name) not in existing:
            apart[name] = texts
        elif isinstance(new[name], list) and _full(name) in before.ends:
            at, prefix = before.ends[_full(name)]
            inserted.append((at, _items(prefix, texts)))
        else:
            return None
    if apart:
        at, prefix = before.ends["RDF"]
        inserted.append((at, _description(prefix, before.subject, apart)))
    data = old
    for at, text in sorted(inserted, reverse=True):
        data = data[:at] + text.encode() + data[at:]
    expected = _values(before) + Counter(
        (_full(name), text) for name, texts in clean.items() for text in texts
    )
    after = read_xmp(data)
    added, missing = _values(after) - expected, expected - _values(after)
    is_as_expected = after.is_whole and not missing and {name for name, _ in added} <= _MARKUP
    return data if is_as_expected else None


def _values(packet: Packet) -> Counter:
    return Counter((name, value.strip()) for name, value in packet.values if value.strip())


def _full(name: str) -> str:
    prefix, local = name.split(":")
    return f"{NAMESPACES[prefix]} {local}"


def _clean(value: str | list[str]) -> list[str]:
    """Return texts without characters that XML forbids, with uniform line ends; empty ones are left out."""
    texts = value if isinstance(value, list) else [value]
    clean = ("\n".join(_NO_XML.sub("", text).strip().splitlines()) for text in texts)
    return [text for text in clean if text]


def _items(rdf: str, texts: list[str], attributes: str = "") -> str:
    return "".join(f"<{rdf}:li{attributes}>{escape(text)}</{rdf}:li>" for text in texts)


def _description(rdf: str, subject: str, values: Mapping[str, list[str]]) -> str:
    """Return values as one description element; `rdf` is the prefix of RDF."""
    elements = ""
    for name, texts in values.items():
        if container := _CONTAINERS.get(name):
            language = ' xml:lang="x-default"' if container == "Alt" else ""
            text = f"<{rdf}:{container}>{_items(rdf, texts, language)}</{rdf}:{container}>"
        else:
            text = escape(texts[0])
        elements += f" <{name}>{text}</{name}>\n"
    prefixes = sorted({name.split(":")[0] for name in values})
    spaces = "".join(f" xmlns:{prefix}={quoteattr(NAMESPACES[prefix])}" for prefix in prefixes)
    return f"<{rdf}:Description {rdf}:about={quoteattr(subject)}{spaces}>\n{elements}</{rdf}:Description>\n"
