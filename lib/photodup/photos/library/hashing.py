"""The facts in a photograph's bytes: content hash, perceptual hash, size, EXIF."""

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
from PIL import Image

from photodup.core.safe_open import file_state
from photodup.embedding import imaging
from photodup.embedding.jpeg_scans import is_jpeg
from photodup.photos.library import containers, inventory
from photodup.photos.library.metadata import camera, count_fields, dates, exposure

# Side of the greys from which the perceptual hash is made, pixels.
GREYS = 32

# Shortest side of the image for the perceptual hash: decoding a JPEG at 1/8 then changes at most 4 of its 64 bits (tested).
DRAFT_SIZE = 256

# A picture whose greys span fewer levels is blank. Its bits would be rounding noise, and all blank pictures copies.
_MIN_GREY_SPAN = 3

# The 8 lowest rows of the DCT-II over 32 pixels; twice the cosine is SciPy's scale, and so ImageHash's.
_COSINES = 2 * np.cos(np.pi / 64 * np.outer(np.arange(8), np.arange(1, 64, 2)))

_EXIF_IFD, _GPS_IFD, _ORIENTATION = 0x8769, 0x8825, 0x0112


class Memory(Protocol):
    """Stores texts by key between runs, like `EvidenceStore`."""

    def recall(self, key: str) -> str | None: ...
    def remember(self, key: str, text: str, /) -> None: ...


def digest_of(file: BinaryIO, path: Path, algorithm: str, memory: Memory | None) -> str:
    """Return a hex digest of an open file; read it only if its status changed.

    Args:
        file: open at its beginning.
        path: its path.
        algorithm: hashlib's name.
        memory: stores digests; None always reads the file.
    """
    state = file_state(os.fstat(file.fileno()))
    key = hashlib.sha256(f"{algorithm} {state} ".encode() + os.fsencode(path)).hexdigest()
    if memory and (stored := memory.recall(key)):
        return stored
    digest = hashlib.file_digest(file, algorithm).hexdigest()  # type: ignore[arg-type]
    if memory:
        memory.remember(key, digest)
    return digest


@dataclass(frozen=True, slots=True)
class PhotoFacts:
    """Facts that depend only on a file's bytes, so files with equal MD5 share them.

    `width` and `height` (pixels) are those of the upright image. `phash` is 16 hex digits, or None for a blank picture.
    `greys` are the uint8[32, 32] of which it is made; empty for what cannot be decoded.
    `taken_at` is local time in ISO 8601, with fraction and UTC offset if the camera wrote them. `exposure` is the JSON of
    `metadata.exposure`, `inventory` the text of `inventory.pack`. The order is that of the catalogue's columns.
    """

    md5: str
    size_bytes: int
    format: str
    width: int
    height: int
    phash: str | None
    greys: bytes = field(repr=False, compare=False)  # rounding depends on the scale of decoding
    taken_at: str | None
    camera: str | None
    exif_fields: int
    exposure: str | None
    inventory: str

    @classmethod
    def of_unreadable(cls, data: bytes) -> "PhotoFacts":
        """Return the facts of a file that cannot be decoded: only equal bytes are its copies."""
        return cls(md5(data), len(data), "unreadable", 0, 0, None, b"", None, None, 0, None, inventory="")


@dataclass(frozen=True, slots=True)
class Look:
    """How to decode a picture that an encoder needs too.

    `draft_size` is the shortest side of a JPEG shrunk while decoding; None decodes whole.
    """

    draft_size: int | None = None


def read_facts_and_look(data: bytes, look: Look | None) -> tuple[PhotoFacts, np.ndarray | None]:
    """Return the facts of an encoded image and, from the same decoding, the encoder's uint8 [3, 224, 224].

    Without a look JPEGs are decoded at reduced scale, and the second value is None.

    Raises:
        photodup.embedding.imaging.ImageError: not readable as an image; `.reason` says why.
    """
    image = imaging.decode(data, draft_size=look.draft_size if look else DRAFT_SIZE)
    return _facts(data, image), imaging.to_uint8(image) if look else None


def _facts(data: bytes, decoded: Image.Image) -> PhotoFacts:
    width, height = decoded.size
    # Parse the header again for what `decode` does not return.
    with imaging.open_image(data) as header:
        image_format = header.format or "unknown"
        try:
            exif = header.getexif()
            details, position = exif.get_ifd(_EXIF_IFD), exif.get_ifd(_GPS_IFD)
        except Exception:  # Broken EXIF must not cost the photograph.
            exif, details, position = Image.Exif(), {}, {}
        try:
            contents = inventory.read_inventory(header, data, exif, details, position)
            packed = inventory.pack(contents)
        except Exception:  # nor must other metadata
            contents = inventory.Inventory(parts={md5(data): containers.UNREAD})
            packed = inventory.pack(contents)
        if is_jpeg(data):  # the decoder may have shrunk it
            width, height = header.size
            if exif.get(_ORIENTATION) in (5, 6, 7, 8):
                width, height = height, width
    greys = square_greys(_as_drafted(decoded, width, height) if is_jpeg(data) else decoded)
    return PhotoFacts(
        md5=md5(data),
        size_bytes=len(data),
        format=image_format,
        width=width,
        height=height,
        phash=_hash(greys),
        greys=greys.tobytes(),
        taken_at=next((date for date, _ in dates(exif, details)), contents.taken_at),
        camera=camera(exif),
        exif_fields=count_fields(exif, details, position),
        exposure=exposure(details),
        inventory=packed,
    )


def _as_drafted(decoded: Image.Image, width: int, height: int) -> Image.Image:
    """Return a JPEG at the usual scale of a scan, so that its hash does not depend on the decoded scale.

    A decoder at 1/8 gives the mean of each block of 8 × 8 pixels; so does reducing a larger scale.
    """
    shrinkage = min(width, height) // DRAFT_SIZE
    scale = next((s for s in (8, 4, 2) if shrinkage >= s), 1)
    factor = scale // max(1, round(width / decoded.width))
    return decoded.reduce(factor) if factor > 1 else decoded


def pack_facts(data: bytes, *, look: dict[str, int | None] | None = None) -> bytes:
    """Run `read_facts_and_look` in a worker of a `decode_pool`: return the facts in a line, then the pixels."""
    facts, pixels = read_facts_and_look(data, Look(**look) if look else None)
    line = json.dumps(asdict(facts) | {"greys": facts.greys.hex()})
    return line.encode() + b"\n" + (b"" if pixels is None else pixels.tobytes())


def unpack_facts(packed: bytes, look: Look | None) -> tuple[PhotoFacts, np.ndarray | None]:
    """Undo `pack_facts`."""
    line, _, pixels = packed.partition(b"\n")
    columns = json.loads(line)
    facts = PhotoFacts(**columns | {"greys": bytes.fromhex(columns["greys"])})
    size = imaging.IMAGE_SIZE
    return facts, np.frombuffer(pixels, np.uint8).reshape(3, size, size) if look else None


def md5(data: bytes) -> str:
    """Return the content hash, 32 hex digits, to find equal files (no protection against forgery)."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def perceptual_hash(image: Image.Image) -> str | None:
    """Return a 64-bit perceptual hash as 16 hex digits, or None for a blank picture.

    The bits are those of `imagehash.phash`: which of the 8 × 8 lowest frequencies of the greys lie above their median.
    """
    return _hash(square_greys(image))


def square_greys(image: Image.Image) -> np.ndarray:
    """Return the greys uint8[32, 32] of a picture, whatever its shape."""
    return np.asarray(image.convert("L").resize((GREYS, GREYS), Image.Resampling.LANCZOS))


def _hash(greys: np.ndarray) -> str | None:
    if np.ptp(greys) < _MIN_GREY_SPAN:
        return None
    frequencies = low_frequencies(greys)
    return np.packbits(frequencies > np.median(frequencies)).tobytes().hex()


def low_frequencies(grey: np.ndarray) -> np.ndarray:
    """Return the 8 × 8 lowest coefficients of the DCT-II (not normalised, below 1.05 million) of greys [32, 32].

    Rounded to 1e-9: the zeros of a symmetric picture are noise that differs between processors.
    """
    return (_COSINES @ grey @ _COSINES.T).round(9)


def hamming(first: str, second: str) -> int:
    """Count the bits in which two perceptual hashes differ (0..64)."""
    return (int(first, 16) ^ int(second, 16)).bit_count()
