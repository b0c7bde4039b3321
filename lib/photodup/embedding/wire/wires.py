"""Tensors and JPEGs for each wire, made from encoded photographs."""

from collections.abc import Sequence

import numpy as np

from photodup.embedding import imaging

JPEG_QUALITY = 90


def pixels(photos: Sequence[bytes]) -> np.ndarray:
    """Decode, resize and crop: uint8 [n, 3, 224, 224]."""
    return np.stack([imaging.to_uint8(imaging.decode(photo)) for photo in photos])


def in_type(pixels: np.ndarray, wire: str) -> np.ndarray:
    """Return pixels in a wire's type: uint8 unchanged, otherwise normalised float32 or float16."""
    if wire == "uint8":
        return pixels
    normal = imaging.normalize(pixels)
    return normal.astype(np.float16) if wire == "fp16" else normal


def tensor(photos: Sequence[bytes], wire: str) -> np.ndarray:
    """Return the input tensor of a Triton model on a wire.

    fp32 and json [n, 3, 224, 224] float32 normalised, fp16 the same as float16, uint8 raw pixels,
    jpeg [n, 1] of bytes objects.
    """
    return encoded_tensor(jpegs(photos)) if wire == "jpeg" else in_type(pixels(photos), wire)


def encoded_tensor(jpegs: Sequence[bytes]) -> np.ndarray:
    """Return encoded images as a tensor [n, 1] of bytes objects."""
    array = np.empty((len(jpegs), 1), np.object_)
    array[:, 0] = jpegs
    return array


def named(array: np.ndarray) -> dict[str, np.ndarray]:
    """Return a tensor under our models' input name."""
    return {"encoded" if array.dtype == np.object_ else "image": array}


def jpegs(photos: Sequence[bytes], quality: int | None = JPEG_QUALITY) -> list[bytes]:
    """Return 224-pixel JPEGs, as in the published study; with `quality` None the files themselves."""
    return [imaging.client_jpeg(photo, quality) for photo in photos] if quality else list(photos)
