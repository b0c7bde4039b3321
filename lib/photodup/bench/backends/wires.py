"""What crosses the network for each wire name, made from encoded photographs."""

from collections.abc import Sequence

import numpy as np

from photodup.embedding import imaging
from photodup.errors import PhotodupError

WIRES = ("fp32", "fp16", "uint8", "jpeg", "json")
JPEG_QUALITY = 90


def pixels(photos: Sequence[bytes]) -> np.ndarray:
    """Decode, resize and crop: uint8 [n, 3, 224, 224]."""
    return np.stack([imaging.to_uint8(imaging.decode(photo)) for photo in photos])


def tensor(photos: Sequence[bytes], wire: str) -> np.ndarray:
    """Return the tensor a Triton model takes on this wire.

    fp32 and json [n, 3, 224, 224] float32 normalised, fp16 the same as float16, uint8 raw pixels,
    jpeg [n, 1] of bytes objects.
    """
    if wire == "jpeg":
        return np.array([[photo] for photo in jpegs(photos)], dtype=np.object_)
    if wire == "uint8":
        return pixels(photos)
    if wire in ("fp32", "json", "fp16"):
        normal = imaging.normalize(pixels(photos))
        return normal.astype(np.float16) if wire == "fp16" else normal
    raise PhotodupError(f"There is no wire {wire!r}: the wires are {', '.join(WIRES)}.")


def jpegs(photos: Sequence[bytes], quality: int | None = JPEG_QUALITY) -> list[bytes]:
    """Return what is sent as JPEG: 224-pixel re-encodes, as published; with None the files themselves."""
    return [imaging.client_jpeg(photo, quality) for photo in photos] if quality else list(photos)
