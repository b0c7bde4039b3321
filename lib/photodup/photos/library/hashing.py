"""What is known about a photograph from its bytes alone: content hash, perceptual hash, size, EXIF."""

import hashlib
import json
from dataclasses import asdict, dataclass
from datetime import datetime

from PIL import Image

from photodup.embedding import imaging
from photodup.photos.library.metadata import count_fields

# Both sides of the image the perceptual hash starts from stay at least this long. The hash looks at
# 32 × 32 pixels, so decoding a JPEG at 1/8 loses nothing it would see; `MAX_DRAFT_DISTANCE` is the price.
DRAFT_SIZE = 256

# Bits (of 64) by which the hash of a scaled decode may differ from that of a full decode. Tested.
MAX_DRAFT_DISTANCE = 4

# A picture whose 32 × 32 greys span fewer levels than this has no structure to hash: the bits would be
# rounding noise, and every blank picture would look like a copy of every other.
_MIN_GREY_SPAN = 3

_EXIF_IFD, _GPS_IFD = 0x8769, 0x8825
_ORIENTATION, _MAKE, _MODEL, _DATETIME = 0x0112, 0x010F, 0x0110, 0x0132
_DATETIME_ORIGINAL, _OFFSET_ORIGINAL = 0x9003, 0x9011


@dataclass(frozen=True, slots=True)
class PhotoFacts:
    """Facts that depend on a file's bytes and on nothing else, so files with equal MD5 share them.

    `width` and `height` (pixels) are those of the upright image. `phash` is 16 hex digits, or None for a
    blank picture. `taken_at` is local time in ISO 8601, with the UTC offset where the camera wrote one.
    """

    md5: str
    size_bytes: int
    format: str
    width: int
    height: int
    phash: str | None
    taken_at: str | None
    camera: str | None
    exif_fields: int


def read_facts(data: bytes, *, max_pixels: int = imaging.MAX_PIXELS) -> PhotoFacts:
    """Hash and describe one encoded image; JPEGs are decoded at reduced scale.

    Raises:
        photodup.embedding.imaging.ImageError: not readable as an image; `.reason` says why.
    """
    # Only JPEG is scaled by its decoder. pillow-heif would answer with the embedded thumbnail instead, which
    # is another picture as far as anybody can prove.
    draft_size = DRAFT_SIZE if data[:2] == b"\xff\xd8" else None
    small = imaging.decode(data, max_pixels=max_pixels, draft_size=draft_size)
    width, height = small.size
    # decode() has accepted the bytes; the header is parsed once more for what decode() does not return.
    with imaging._open(data) as header:
        image_format = header.format or "unknown"
        try:
            exif = header.getexif()
            details, position = exif.get_ifd(_EXIF_IFD), exif.get_ifd(_GPS_IFD)
        except Exception:  # Broken EXIF must not cost the photograph.
            exif, details, position = {}, {}, {}
        if draft_size:
            width, height = header.size
            if exif.get(_ORIENTATION) in (5, 6, 7, 8):
                width, height = height, width
    return PhotoFacts(
        md5=md5(data),
        size_bytes=len(data),
        format=image_format,
        width=width,
        height=height,
        phash=perceptual_hash(small),
        taken_at=_taken_at(exif, details),
        camera=_camera(exif),
        exif_fields=count_fields(exif, details, position),
    )


def packed_facts(data: bytes, *, max_pixels: int) -> bytes:
    """Do what `read_facts` does in a worker of a `decode_pool`."""
    return json.dumps(asdict(read_facts(data, max_pixels=max_pixels))).encode()


def unpack_facts(packed: bytes) -> PhotoFacts:
    """Undo `packed_facts`."""
    return PhotoFacts(**json.loads(packed))


def md5(data: bytes) -> str:
    """Return the content hash, 32 hex digits. It finds equal files; it is no defence against forgery."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def perceptual_hash(image: Image.Image) -> str | None:
    """Return the 64-bit DCT hash of `imagehash.phash` as 16 hex digits, or None for a blank picture."""
    import imagehash

    grey = image.convert("L").resize((32, 32), Image.Resampling.LANCZOS)
    darkest, lightest = grey.getextrema()
    if lightest - darkest < _MIN_GREY_SPAN:
        return None
    return str(imagehash.phash(grey))


def hamming(first: str, second: str) -> int:
    """Count the bits in which two perceptual hashes differ (0..64)."""
    return (int(first, 16) ^ int(second, 16)).bit_count()


def _taken_at(exif: dict, details: dict) -> str | None:
    for value in (details.get(_DATETIME_ORIGINAL), exif.get(_DATETIME)):
        try:
            taken = datetime.strptime(str(value).strip("\0 "), "%Y:%m:%d %H:%M:%S").isoformat()
        except ValueError:  # Absent, or "0000:00:00 00:00:00" from a camera whose clock was never set.
            continue
        offset = str(details.get(_OFFSET_ORIGINAL, "")).strip("\0 ")
        return taken + offset if _is_offset(offset) else taken
    return None


def _is_offset(text: str) -> bool:
    try:
        return len(text) == 6 and text[0] in "+-" and datetime.strptime(text, "%z") is not None
    except ValueError:
        return False


def _camera(exif: dict) -> str | None:
    make, model = (str(exif.get(tag, "")).strip("\0 ") for tag in (_MAKE, _MODEL))
    # "Canon" + "Canon EOS 5D" would read twice.
    return (model if model.startswith(make) else f"{make} {model}").strip() or None
