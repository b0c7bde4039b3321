"""Compare the decoders of `decoders.py`: time per image, and how far pixels and embeddings move."""

import random
import time
from collections.abc import Callable, Sequence

import numpy as np

from photodup.embedding import imaging
from photodup.serving.triton.decoders import DECODERS

Embed = Callable[[np.ndarray], np.ndarray]


def compare_decoders(
    photos: Sequence[bytes],
    embed: Embed | None = None,
    *,
    decoders: Sequence[str] = tuple(DECODERS),
    repeats: int = 5,
    max_pixels: int = 100_000_000,
    seed: int = 0,
) -> list[dict]:
    """Decode and resize every photo with every decoder, interleaved in random order, on one core.

    Args:
        photos: Encoded images; real photographs of the sizes that will be served.
        embed: float32 [n, 3, 224, 224] -> unit vectors [n, d], such as `ImageModel.embed`; None leaves the
            cosines out.
        repeats: Times each photo is decoded; the fastest counts, as the work is the same each time.

    Returns:
        A row per decoder: `decoder`, `n_photos`, `preprocess_ms_p50` and `_mean` (decode, resize, crop),
        `images_per_s_per_core`, `pixel_difference_max` and `_mean` (0–255, against `pil`), `cosine_min` and
        `_mean` (of embeddings, against `pil`).
    """
    order = [(name, index) for name in decoders for index in range(len(photos))] * repeats
    random.Random(seed).shuffle(order)
    fastest: dict[tuple[str, int], float] = {}
    for name, index in order:
        started = time.perf_counter()
        imaging.to_uint8(DECODERS[name](photos[index], max_pixels))
        took = time.perf_counter() - started
        fastest[name, index] = min(took, fastest.get((name, index), np.inf))
    reference = _pixels("pil", photos, max_pixels)
    vectors = _embed(embed, reference)
    rows = []
    for name in decoders:
        times = np.array([fastest[name, index] for index in range(len(photos))]) * 1000
        pixels = _pixels(name, photos, max_pixels)
        difference = np.abs(pixels.astype(np.int16) - reference)
        row = {
            "decoder": name,
            "n_photos": len(photos),
            "preprocess_ms_p50": float(np.median(times)),
            "preprocess_ms_mean": float(times.mean()),
            "images_per_s_per_core": float(1000 / times.mean()),
            "pixel_difference_max": int(difference.max()),
            "pixel_difference_mean": float(difference.mean()),
        }
        if vectors is not None:
            cosine = (_embed(embed, pixels) * vectors).sum(axis=1)
            row |= {"cosine_min": float(cosine.min()), "cosine_mean": float(cosine.mean())}
        rows.append(row)
    return rows


def _pixels(name: str, photos: Sequence[bytes], max_pixels: int) -> np.ndarray:
    return np.stack([imaging.to_uint8(DECODERS[name](photo, max_pixels)) for photo in photos])


def _embed(embed: Embed | None, pixels: np.ndarray) -> np.ndarray | None:
    if embed is None:
        return None
    return np.concatenate([embed(imaging.normalize(pixels[i : i + 8])) for i in range(0, len(pixels), 8)])
