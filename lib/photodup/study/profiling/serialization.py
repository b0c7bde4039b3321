"""What it costs to turn an image into bytes ready to send, and received bytes back into an array.

One span for every form, so that ratios mean something: encoding begins with the array in hand and ends with
`bytes` in hand; decoding begins with those bytes and ends with an array in memory of its own. Time is CPU time of
the whole process (what a serving machine pays), memory is taken in a pass of its own, because tracing
allocations slows them down many times over.
"""

import json
import time
import tracemalloc
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image

from photodup.embedding.imaging import decode, encode, normalize, to_jpeg
from photodup.embedding.wire.kserve import KserveHttp

BODIES = ("json", "binary")
QUALITIES = (95, 90, 75)


@dataclass(frozen=True)
class ImageForm:
    """One form of a single image on the wire: uint8 [3, h, w] → bytes → normalised float32 [3, h, w]."""

    name: str
    encode: Callable[[np.ndarray], bytes]
    decode: Callable[[bytes, tuple[int, ...]], np.ndarray]


def encode_body(images: np.ndarray, form: str) -> bytes:
    """Return the body of a Triton HTTP request for float32 [n, 3, h, w].

    `json` writes every number as decimal text, as a client does that calls `.tolist()`; `binary` is the same
    request with the array appended as it lies in memory.
    """
    return KserveHttp("model", as_json=form == "json").encode({"image": images}).body


def decode_body(body: bytes, form: str) -> np.ndarray:
    """Read the image tensor back from a body of `encode_body`: float32 in memory of its own."""
    if form == "json":
        tensor = json.loads(body)["inputs"][0]
        return np.asarray(tensor["data"], np.float32).reshape(tensor["shape"])
    # Over HTTP a header gives the length of the JSON head; here the head ends where its JSON object does.
    head, end = json.JSONDecoder().raw_decode(body[:4096].decode("latin-1"))
    return np.frombuffer(body, "<f4", offset=end).reshape(head["inputs"][0]["shape"]).copy()


def wire_forms() -> dict[str, ImageForm]:
    """Return the forms by name, from the plainest to the smallest.

    All begin with the same uint8 pixels and end with the same normalised float32, so that each form includes the
    normalising, on the side that does it.
    """

    def fp32(pixels: np.ndarray) -> bytes:
        return normalize(pixels).tobytes()

    def from_fp32(body: bytes, shape: tuple[int, ...]) -> np.ndarray:
        return np.frombuffer(body, "<f4").reshape(shape).copy()

    forms = [
        ImageForm("fp32", fp32, from_fp32),
        ImageForm(
            "fp32+deflate", lambda p: zlib.compress(fp32(p)), lambda b, s: from_fp32(zlib.decompress(b), s)
        ),
        ImageForm(
            "fp16",
            lambda p: normalize(p).astype(np.float16).tobytes(),
            lambda b, s: np.frombuffer(b, "<f2").reshape(s).astype(np.float32),
        ),
        ImageForm("uint8", np.ndarray.tobytes, lambda b, s: normalize(np.frombuffer(b, np.uint8).reshape(s))),
        ImageForm("PNG", lambda p: encode(_picture(p), "PNG"), _from_picture),
    ]
    forms += [ImageForm(f"JPEG q{q}", _jpeg_encoder(q), _from_picture) for q in QUALITIES]
    return {form.name: form for form in forms}


def cpu_ms(action: Callable[[], object], *, min_s: float = 0.2) -> dict[str, float]:
    """Repeat `action` and return the median `cpu_ms` (this process, all threads), `wall_ms` and `n`.

    One call before them is not counted. Calls shorter than a clock's step are looped inside one measurement.
    """
    begun = time.perf_counter()
    action()
    loops = max(1, int(2e-3 / max(time.perf_counter() - begun, 1e-7)))
    cpu: list[float] = []
    wall: list[float] = []
    until = time.perf_counter() + min_s
    while len(cpu) < 3 or time.perf_counter() < until:
        cpu_before, wall_before = time.process_time(), time.perf_counter()
        for _ in range(loops):
            action()
        wall.append((time.perf_counter() - wall_before) * 1e3 / loops)
        cpu.append((time.process_time() - cpu_before) * 1e3 / loops)
    return {"cpu_ms": float(np.median(cpu)), "wall_ms": float(np.median(wall)), "n": len(cpu) * loops}


def peak_mb(action: Callable[[], object]) -> float:
    """Return the peak memory of one call above what was held before, in MB (10⁶ bytes).

    Sees Python objects and NumPy arrays (`tracemalloc`), not what a C library such as libjpeg takes for itself.
    """
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        action()
        return (tracemalloc.get_traced_memory()[1] - before) / 1e6
    finally:
        tracemalloc.stop()


def _jpeg_encoder(quality: int) -> Callable[[np.ndarray], bytes]:
    return lambda pixels: to_jpeg(_picture(pixels), quality)


def _picture(pixels: np.ndarray) -> Image.Image:
    return Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))


def _from_picture(body: bytes, shape: tuple[int, ...]) -> np.ndarray:
    return normalize(np.asarray(decode(body)).transpose(2, 0, 1))
