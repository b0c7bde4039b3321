"""Pictures in memory, encoded as the tests ask."""

import struct
import zlib

import numpy as np
from PIL import Image


def read_facts(data: bytes):
    """Return what a scan that embeds nothing writes of a file."""
    from photodup.photos.library.hashing import read_facts_and_look

    return read_facts_and_look(data, None)[0]


def photo(width: int = 320, height: int = 240, seed: int = 0) -> Image.Image:
    """Smooth colour with some texture, like a photograph and unlike noise."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8))
    smooth = np.asarray(small.resize((width, height), Image.Resampling.BICUBIC), dtype=np.int16)
    return Image.fromarray(np.clip(smooth + rng.integers(-12, 13, smooth.shape), 0, 255).astype(np.uint8))


def png(width: int, height: int, rows: bytes = b"", kind: int = 2) -> bytes:
    """Return a PNG of 8 bits a channel whose header may promise other pixels than its rows have."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    data = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + data


def bomb(width: int = 40_000, height: int = 40_000) -> bytes:
    """A PNG whose header promises 1.6 gigapixels."""
    return png(width, height, b"\0" * 10_000_000)


def photographs(n: int, seed: int = 0) -> np.ndarray:
    """Return smooth colours as photographs have, float32 [n, 3, 224, 224]; noise would average to grey."""
    from photodup.embedding.imaging import normalize

    colours = np.random.default_rng(seed).integers(0, 256, (n, 3, 7, 7), dtype=np.uint8)
    return normalize(colours.repeat(32, axis=2).repeat(32, axis=3))
