"""Files made to hurt whoever opens them, built in code; small ones that stand for the class of their attack."""

import functools
import struct

import numpy as np
from PIL import Image
from support.images import png

from photodup.embedding.imaging import encode


def grain(width: int, height: int, seed: int = 0) -> Image.Image:
    """A picture that compresses badly enough to be like a photograph, and cheaply made."""
    tile = np.random.default_rng(seed).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    repeated = np.tile(tile, (height // 64 + 1, width // 64 + 1, 1))
    return Image.fromarray(np.ascontiguousarray(repeated[:height, :width]))


@functools.cache
def many_scans(times: int = 2000, width: int = 6000, height: int = 4000) -> bytes:
    """A progressive JPEG whose last scan is there `times` more times: each is decoded over the whole picture."""
    plain = encode(Image.new("RGB", (width, height), "grey"), "JPEG", progressive=True, quality=50)
    last = plain.rindex(b"\xff\xda")
    scan = plain[last : plain.rindex(b"\xff\xd9")]
    return plain[:last] + scan * (times + 1) + b"\xff\xd9"


@functools.cache
def scans_in_tiff(times: int = 2000) -> bytes:
    """The same inside a TIFF of one JPEG-compressed strip, where no walk over a JPEG's markers finds it."""
    jpeg = many_scans(times, 4096, 4096)
    entries = [
        (256, 4, 4096), (257, 4, 4096), (258, 3, 8), (259, 3, 7), (262, 3, 6), (273, 4, 8), (277, 3, 3),
        (278, 4, 4096), (279, 4, len(jpeg)), (284, 3, 1), (530, 3, 2 | 2 << 16),
    ]  # fmt: skip
    at = 8 + len(jpeg) + len(jpeg) % 2
    bits = at + 2 + 12 * len(entries) + 4
    directory = struct.pack("<H", len(entries))
    for tag, kind, value in entries:
        count = {258: 3, 530: 2}.get(tag, 1)
        directory += struct.pack("<HHII", tag, kind, count, bits if tag == 258 else value)
    body = jpeg + b"\0" * (len(jpeg) % 2)
    return b"II*\0" + struct.pack("<I", at) + body + directory + bytes(4) + struct.pack("<HHH", 8, 8, 8)


@functools.cache
def flat_png(width: int = 7000, height: int = 7000) -> bytes:
    """49 megapixels in 140 KB: a second to decode."""
    return png(width, height, (b"\0" + b"\x80" * (3 * width)) * height)


@functools.cache
def endless_comment(n_blocks: int = 12_000_000) -> bytes:
    """A GIF of one pixel and a comment in blocks of one byte, each read and joined in Python: some ten seconds."""
    end = b"\0,\0\0\0\0\1\0\1\0\0\2\2D\1\0;"
    return b"GIF89a\1\0\1\0\0\0\0!\xfe" + b"\1x" * n_blocks + end


@functools.cache
def overlapping_tiff(n_entries: int = 60_000) -> bytes:
    """A TIFF of 0.7 MB whose entries all point to the same bytes: read one after the other, they take 21 GB."""
    count = 350_000
    entries = b"".join(struct.pack("<HHII", 40_000 + i % 20_000, 7, count, 8) for i in range(n_entries))
    return b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", n_entries) + entries + bytes(4)
