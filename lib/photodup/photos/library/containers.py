"""The parts of an image file, each under a name: segments of JPEG, chunks of PNG and WebP, boxes of HEIF, AVIF and JXL.

No picture is decoded and no size trusted: a part ends with the file at the latest. Unreadable data is one part,
`UNREAD`.
"""

import re
import struct
import zlib
from collections.abc import Iterable, Iterator

from photodup.embedding.jpeg_scans import is_jpeg

PIXELS, COMMENT, EXIF, XMP = "pixels", "comment", "EXIF", "XMP"
IPTC, PROFILE, TEXT, BITS = "IPTC", "profile", "text ", "bits"
RESOURCES, MORE_XMP, UNREAD = "Photoshop resources", "more XMP", "data that photodup cannot read"
BEHIND, FILM, HDR = "data behind the picture", "a film inside", "wide or HDR colours"
GAIN_MAP, PICTURE = "a gain map (HDR)", "a second picture"
IN_WORDS = (UNREAD, BEHIND, FILM, GAIN_MAP, PICTURE, HDR)  # names for sentences
Part = tuple[str, bytes]

MOST_PARTS = 20_000  # of a file; the rest is one part
MOST_UNPACKED = 64_000_000  # bytes of compressed texts and profiles

# Names of JPEG segments (by number and signature), PNG and WebP chunks, ImageMagick's raw profiles in PNG, and boxes. Others
# keep their own.
_NAMES = {
    "APP1 Exif": EXIF, "APP1 http://ns.adobe.com/xap/1.0/": XMP, "APP1 XMP": XMP,
    "APP1 http://ns.adobe.com/xmp/extension/": MORE_XMP,
    "APP2 ICC_PROFILE": PROFILE, "APP13 Photoshop 3.0": RESOURCES,
    "PNG eXIf": EXIF, "WebP ICCP": PROFILE, "WebP EXIF": EXIF, "WebP XMP ": XMP,
    "raw exif": EXIF, "raw app1": EXIF, "raw xmp": XMP, "raw iptc": IPTC, "raw 8bim": RESOURCES, "raw icc": PROFILE,
    "raw icm": PROFILE, "box Exif": EXIF, "box xml ": XMP, "box mpvd": FILM, "box moov": FILM,
} | {f"PNG {name}": PIXELS for name in ("IHDR", "PLTE", "IDAT", "IEND", "tRNS", "acTL", "fcTL", "fdAT")} | {
    f"WebP {name}": PIXELS for name in ("VP8 ", "VP8L", "VP8X", "ALPH", "ANIM", "ANMF")
} | {f"box {name}": PIXELS for name in ("ftyp", "mdat", "JXL ", "jxlc", "jxlp", "jxli", "jxll", "jbrd")}  # fmt: skip
# In a scan's data 0xFF is followed by 0x00 or a restart marker; anything else ends the scan.
_MARKER = re.compile(rb"\xff([^\x00\xff\xd0-\xd7])")
_SOI, _EOI, _SOS, _APP0, _COMMENT = 0xD8, 0xD9, 0xDA, 0xE0, 0xFE
_OF_PIXELS = frozenset({*range(0xC0, 0xE0)} - {_SOI, _EOI})  # frames, tables, scans
_ENTRIES, _PREVIEWS = 0xB002, (0x010001, 0x010002)  # of the multi-picture format


def file_parts(data: bytes) -> Iterator[Part]:
    """Yield name and bytes of each part of a file; nothing for a format without parts, such as BMP and TIFF."""
    n_bytes = 0
    for number, part in enumerate(_walk(data)):
        n_bytes += len(part[1])
        if number >= MOST_PARTS or n_bytes > 2 * (len(data) + MOST_UNPACKED):
            yield UNREAD, data
            return
        yield part


def _walk(data: bytes) -> Iterable[Part]:
    if is_jpeg(data):
        return _jpeg(data)
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        return _png(data)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return _webp(data)
    if data[:4] == b"GIF8":
        return _gif(data)
    return _boxes_of_file(data) if data[4:8] in (b"ftyp", b"JXL ") else ()


def _jpeg(data: bytes) -> Iterator[Part]:
    position, index, is_scanned = 2, 0, False
    while match := _MARKER.search(data, position):
        if not is_scanned and (between := data[position : match.start()].strip(b"\0\xff")):
            yield UNREAD, between
        marker, position = match[1][0], match.end()
        if marker == _EOI:
            break
        if marker in (0x01, _SOI):
            continue
        length = int.from_bytes(data[position : position + 2], "big")
        body = data[position + 2 : position + length]
        is_scanned |= marker == _SOS
        if _APP0 <= marker < _APP0 + 16:
            signature = body[:40].partition(b"\0")[0]
            name = f"APP{marker - _APP0} {signature.decode('ascii', 'replace')}"
            index = position + 6 if name == "APP2 MPF" else index
            yield _NAMES.get(name, name), body[len(signature) + 1 :]
        elif marker == _COMMENT:
            yield COMMENT, body
        else:
            yield PIXELS if marker in _OF_PIXELS else f"segment {marker:02X}", body
        position += max(length, 2)
    else:
        position = len(data)
    yield from _behind(data, position, _pictures(data, index) if index else ())


def _pictures(data: bytes, index: int) -> Iterator[tuple[int, int, int]]:
    """Yield kind, begin and end of the pictures in a multi-picture index, without the first."""
    order = "<" if data[index : index + 2] == b"II" else ">"
    try:
        (directory,) = struct.unpack_from(f"{order}I", data, index + 4)
        (n,) = struct.unpack_from(f"{order}H", data, index + directory)
        for i in range(min(n, 100)):
            tag, _, count, place = struct.unpack_from(f"{order}HHII", data, index + directory + 2 + 12 * i)
            for entry in range(16, min(count, 16 * 100), 16) if tag == _ENTRIES else ():
                kind, size, begin = struct.unpack_from(f"{order}III", data, index + place + entry)
                yield kind & 0xFFFFFF, index + begin, index + begin + size
    except struct.error:
        return


def _behind(data: bytes, end: int, pictures: Iterable[tuple[int, int, int]] = ()) -> Iterator[Part]:
    """Yield the data after the end of a picture, without padding and previews."""
    for kind, first, last in sorted(pictures, key=lambda picture: picture[1]):
        if end <= first < last <= len(data):
            yield from _behind(data[:first], end)
            picture, end = data[first:last], last
            if kind not in _PREVIEWS:
                is_gain = b"hdrgm" in picture or b"gainmap" in picture.lower() or b"ts:21496" in picture
                yield GAIN_MAP if is_gain else PICTURE, picture
    if tail := data[end:].strip(b"\0\n\r "):
        yield FILM if b"ftyp" in tail[:64] else PICTURE if is_jpeg(tail) else BEHIND, tail


def _png(data: bytes) -> Iterator[Part]:
    position = 8
    while position + 12 <= len(data):
        size, kind = int.from_bytes(data[position : position + 4], "big"), data[position + 4 : position + 8]
        body, name = data[position + 8 : position + 8 + size], f"PNG {kind.decode('ascii', 'replace')}"
        position += 12 + size
        if kind in (b"tEXt", b"zTXt", b"iTXt", b"iCCP"):
            yield _png_text(kind, body) or (UNREAD, body)
        else:
            yield _NAMES.get(name, name), body
        if kind == b"IEND":
            break
    yield from _behind(data, position)


def _png_text(kind: bytes, body: bytes) -> Part | None:
    """Return a text, in UTF-8, or a colour profile; None if it cannot be unpacked."""
    key, _, content = body.partition(b"\0")
    is_packed = kind in (b"zTXt", b"iCCP")
    if kind == b"iTXt":
        is_packed = content[:1] == b"\1"
        content = b"\0" + content[2:].split(b"\0", 2)[-1]
    if is_packed:
        unpacker = zlib.decompressobj()
        try:
            content = unpacker.decompress(content[1:], MOST_UNPACKED)
        except zlib.error:
            return None
        if unpacker.unconsumed_tail:
            return None
    elif kind == b"iTXt":
        content = content[1:]
    if kind == b"iCCP":
        return PROFILE, content
    name = key.decode("latin-1")
    if name == "XML:com.adobe.xmp":
        return XMP, content
    if profile := re.fullmatch(r"Raw profile type (\w+)", name):
        try:  # as ImageMagick writes it: a line with the name, one with the length, then hex digits
            content = bytes.fromhex(content.split(None, 2)[2].decode("ascii"))
        except (ValueError, IndexError):
            return None
        return _NAMES.get(f"raw {profile[1].lower()}", name), content
    try:
        content.decode()
    except UnicodeDecodeError:
        content = content.decode("latin-1").encode()
    return TEXT + name, content


def _webp(data: bytes) -> Iterator[Part]:
    position, end = 12, min(len(data), 8 + int.from_bytes(data[4:8], "little"))
    while position + 8 <= end:
        name = f"WebP {data[position : position + 4].decode('ascii', 'replace')}"
        size = int.from_bytes(data[position + 4 : position + 8], "little")
        yield _NAMES.get(name, name), data[position + 8 : position + 8 + size]
        position += 8 + size + size % 2
    yield from _behind(data, max(position, end))


def _gif(data: bytes) -> Iterator[Part]:
    def colours(at: int) -> int:
        return 3 * 2 ** ((data[at] & 7) + 1) if data[at] & 0x80 else 0

    def blocks(at: int) -> tuple[bytes, int]:
        body = []
        while size := data[at]:
            body.append(data[at + 1 : at + 1 + size])
            at += 1 + size
        return b"".join(body), at + 1

    try:
        position = 13 + colours(10)
        while (kind := data[position]) != 0x3B:
            if kind == 0x2C:
                body, position = blocks(position + 11 + colours(position + 9))
                yield PIXELS, body
                continue
            label, begin = data[position + 1], position + 2
            body, position = blocks(begin)
            name = {0xF9: PIXELS, 0xFE: COMMENT}.get(label, f"GIF extension {label:02X}")
            if kind == 0x21 and label == 0xFF:
                name = {b"NETSCAPE2.0": PIXELS, b"ANIMEXTS1.0": PIXELS, b"ICCRGBG1012": PROFILE, b"XMP DataXMP": XMP}.get(
                    body[:11], f"GIF {body[:11].decode('ascii', 'replace')}"
                )  # fmt: skip
                # XMP lies there unblocked, followed by bytes that end the blocks for any reader.
                body = data[begin + 12 : position].split(b"\1\xff\xfe")[0] if name == XMP else body[11:]
            yield name, body
        yield from _behind(data, position + 1)
    except IndexError:
        yield UNREAD, data[-1000:]


def _boxes(data: bytes, position: int = 0) -> Iterator[tuple[str, bytes]]:
    """Yield type and bytes of each box."""
    while position + 8 <= len(data):
        size, head = int.from_bytes(data[position : position + 4], "big"), 8
        if size == 1:
            size, head = int.from_bytes(data[position + 8 : position + 16], "big"), 16
        if size and size < head:
            yield "", data[position:]
            return
        end = position + size if size else len(data)
        yield data[position + 4 : position + 8].decode("latin-1"), data[position + head : end]
        position = end


def _boxes_of_file(data: bytes) -> Iterator[Part]:
    for kind, body in _boxes(data):
        if kind == "meta":
            try:
                yield from _items(data, body)
            except (LookupError, ValueError):
                yield UNREAD, body
        elif not kind:
            yield UNREAD, body
        elif kind not in ("free", "skip", "wide"):
            yield _NAMES.get(f"box {kind}", f"box {kind}"), body


def _items(data: bytes, meta: bytes) -> Iterator[Part]:
    """Yield the items of a HEIF or AVIF but the first picture, its tiles, transparency and thumbnails."""
    boxes = dict(_boxes(meta, 4))
    primary = _numbers(boxes["pitm"], 4, 4 if boxes["pitm"][0] else 2, 1)[0]
    wide = 4 if boxes.get("iref", b"\0")[0] else 2
    harmless, auxiliary = {primary}, set()
    for kind, body in _boxes(boxes.get("iref", b""), 4):
        source, n = _numbers(body, 0, wide, 1)[0], _numbers(body, wide, 2, 1)[0]
        targets = _numbers(body, wide + 2, wide, n)
        if kind == "dimg" and source == primary:
            harmless.update(targets)
        elif kind == "thmb":
            harmless.add(source)
        elif kind == "auxl":
            auxiliary.add(source)
    of_items = list(_boxes(dict(_boxes(boxes.get("iprp", b""))).get("ipco", b"")))
    properties = [body for kind, body in of_items if kind == "auxC"]
    for kind, body in of_items:
        if kind == "pixi":
            yield BITS, body
        elif kind == "colr" and body[:4] == b"nclx" and not _is_usual(*_numbers(body, 4, 2, 2)):
            yield HDR, body
    if all(b"alpha" in urn or urn[4:].startswith(b"urn:mpeg:hevc:2015:auxid:1\0") for urn in properties):
        harmless |= auxiliary
    is_gain = any(b"gainmap" in urn.lower() for urn in properties)
    iinf = boxes["iinf"]
    extents = _extents(data, boxes)
    for _, info in _boxes(iinf, 8 if iinf[0] else 6):
        size = 4 if info[0] > 2 else 2
        number, form = _numbers(info, 4, size, 1)[0], info[6 + size : 10 + size]
        body = extents.get(number, b"")
        if form == b"Exif":
            yield EXIF, body[4:]
        elif form == b"mime" and b"rdf+xml" in info:
            yield XMP, body
        elif number not in harmless:
            yield GAIN_MAP if is_gain or form == b"tmap" else PICTURE, form + body


def _is_usual(primaries: int, transfer: int) -> bool:
    """Return whether colours are those of sRGB and television: neither wide nor HDR."""
    return primaries in (1, 2, 5, 6) and transfer in (1, 2, 6, 13)


def _extents(data: bytes, boxes: dict[str, bytes]) -> dict[int, bytes]:
    """Return the bytes of each item."""
    place, version = boxes["iloc"], boxes["iloc"][0]
    sizes = place[4] >> 4, place[4] & 15, place[5] >> 4, place[5] & 15 if version else 0
    wide = 4 if version == 2 else 2
    n, position, bodies = _numbers(place, 6, wide, 1)[0], 6 + wide, {}
    left, n_left = 2 * len(data), MOST_PARTS
    for _ in range(n):
        number = _numbers(place, position, wide, 1)[0]
        position += wide
        method = place[position + 1] & 15 if version else 0
        position += 4 if version else 2
        base = _numbers(place, position, sizes[2], 1)[0]
        n_extents = _numbers(place, position + sizes[2], 2, 1)[0]
        position += sizes[2] + 2
        source, body = boxes.get("idat", b"") if method == 1 else data, []
        n_left -= n_extents + 1
        if n_left < 0:
            raise ValueError("more than any photograph has")
        for _ in range(n_extents):
            begin = base + _numbers(place, position + sizes[3], sizes[0], 1)[0]
            length = _numbers(place, position + sizes[3] + sizes[0], sizes[1], 1)[0]
            body.append(source[begin : begin + length] if length else source[begin:])
            position += sizes[3] + sizes[0] + sizes[1]
            left -= len(body[-1])
            if left < 0:
                raise ValueError("items that overlap")
        bodies[number] = b"".join(body)
    return bodies


def _numbers(data: bytes, position: int, size: int, n: int) -> list[int]:
    """Return n numbers of `size` bytes each; zeros for size 0."""
    if position + size * n > len(data):
        raise IndexError(position)
    return [int.from_bytes(data[position + size * i : position + size * (i + 1)], "big") for i in range(n)]


def resources(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and bytes of Photoshop's resources."""
    position = 0
    while data[position : position + 4] == b"8BIM" and position + 12 <= len(data):
        number = int.from_bytes(data[position + 4 : position + 6], "big")
        name = data[position + 6] + 1
        at = position + 6 + name + name % 2
        size = int.from_bytes(data[at : at + 4], "big")
        yield number, data[at + 4 : at + 4 + size]
        position = at + 4 + size + size % 2


def datasets(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield record, number and bytes of IPTC's datasets."""
    position = 0
    while data[position : position + 1] == b"\x1c" and position + 5 <= len(data):
        size = int.from_bytes(data[position + 3 : position + 5], "big")
        yield data[position + 1], data[position + 2], data[position + 5 : position + 5 + size]
        position += 5 + size
