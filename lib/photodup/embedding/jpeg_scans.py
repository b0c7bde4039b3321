"""The decoding cost of a JPEG, from its markers alone. Copied next to Triton's preprocessing model.

Each scan of a progressive JPEG visits every block again, even without data, so a file of a few hundred kilobytes can
take hours. A limit on pixels alone is not enough.
"""

import re
from dataclasses import dataclass

# Encoders write 1 (baseline), 3 (one per colour) or 6 to 20 (progressive) scans. More than 100 is an attack.
MAX_SCANS = 100

# The largest photograph that is read (250 megapixels) in the 10 scans of a usual progressive file: some ten seconds.
MAX_SCANNED_PIXELS = 2_500_000_000

# Segments (comments, Exif, colour profile, tables) that are read. A photograph has fewer than 300.
MAX_SEGMENTS = 10_000

# Decodes in about a second or less: decoders take 100 to 500 million pixels a second and scan.
_BOUNDED_SCANNED_PIXELS = 150_000_000
# Limits before the first scan, which Pillow reads in Python. Exif can point to its own bytes many times.
_BOUNDED_SEGMENTS, _BOUNDED_HEADER_BYTES, _BOUNDED_EXIF = 300, 4_000_000, 1

_SOI, _EOI, _SOS, _APP1 = 0xD8, 0xD9, 0xDA, 0xE1
# SOF0 to SOF15: DHT (C4), JPG (C8) and DAC (CC) lie in the same range and hold no size.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_ALONE = frozenset({0x01, _SOI, *range(0xD0, 0xD8)})  # markers without a length
# In a scan's data 0xFF is followed by 0x00 or a restart marker; anything else ends the scan, as in libjpeg.
_NEXT_MARKER = re.compile(rb"\xff([^\x00\xff\xd0-\xd7])")


@dataclass(frozen=True, slots=True)
class Layout:
    """The markers of a JPEG.

    Attributes:
        width, height: of the frame, in pixels; 0 if there is none.
        scans: how often the decoder visits the picture.
        n_segments: up to the end or the first exceeded limit.
        header_bytes: up to the first scan.
        n_exif: APP1 segments that hold Exif.
        is_strict: the header's segments follow each other without a gap.
    """

    width: int
    height: int
    scans: int
    n_segments: int
    header_bytes: int
    n_exif: int
    is_strict: bool

    @property
    def problem(self) -> str | None:
        """Why this JPEG must not be decoded, as a clause; None if it may."""
        remedy = "open it in an image editor and save it again"
        if self.scans > MAX_SCANS:
            return f"a JPEG with more than {MAX_SCANS} scans, which could take hours to decode: {remedy}"
        if self.width * self.height * self.scans > MAX_SCANNED_PIXELS:
            return (
                f"a JPEG of {self.width} × {self.height} pixels in {self.scans} scans, which takes too long to "
                f"decode: {remedy}"
            )
        if self.n_segments > MAX_SEGMENTS:
            return f"a JPEG with more than {MAX_SEGMENTS:,} segments: {remedy}"
        return None

    @property
    def is_bounded(self) -> bool:
        """True where decoding takes about a second of one core at most."""
        return (
            self.problem is None
            and self.is_strict
            and 0 < self.width * self.height * max(1, self.scans) <= _BOUNDED_SCANNED_PIXELS
            and self.n_segments <= _BOUNDED_SEGMENTS
            and self.header_bytes <= _BOUNDED_HEADER_BYTES
            and self.n_exif <= _BOUNDED_EXIF
        )


def is_jpeg(data: bytes) -> bool:
    return bytes(data[:3]) == b"\xff\xd8\xff"


def read_layout(data: bytes) -> Layout:
    """Walk through the markers of a JPEG; takes milliseconds for 100 MB. Never raises.

    It follows libjpeg's path or goes further, so `scans` is never too small.
    """
    width = height = scans = n_segments = n_exif = header_bytes = 0
    is_strict, position, end = True, 2, len(data)
    while position < end and scans <= MAX_SCANS and n_segments <= MAX_SEGMENTS:
        if (
            scans == 0
            and data[position] == 0xFF
            and position + 1 < end
            and data[position + 1] not in (0, 0xFF)
        ):
            marker, position = data[position + 1], position + 2
        else:
            match = _NEXT_MARKER.search(data, position)
            if scans == 0:
                is_strict = False
            if match is None:
                break
            marker, position = match[1][0], match.end()
        if marker == _EOI:
            break
        n_segments += 1
        if marker in _ALONE:
            continue
        length = int.from_bytes(data[position : position + 2], "big")
        if marker in _FRAMES and length >= 7:
            frame_height = int.from_bytes(data[position + 3 : position + 5], "big")
            frame_width = int.from_bytes(data[position + 5 : position + 7], "big")
            if frame_width * frame_height >= width * height:
                width, height = frame_width, frame_height
        elif marker == _APP1:
            n_exif += bytes(data[position + 2 : position + 6]) == b"Exif"
        elif marker == _SOS:
            header_bytes = header_bytes or position
            scans += 1
        position += max(length, 2)
    return Layout(width, height, scans, n_segments, header_bytes or position, n_exif, is_strict)
