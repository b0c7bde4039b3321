"""The encoder's interface, the engines with their precisions, digests, and the processor's instructions.

BF16 without its instructions is emulated and slower than FP32. INT8 without VNNI adds products in 16 bits on x86, which
overflow: its embeddings would be wrong.
"""

import hashlib
import platform
from functools import cache
from pathlib import Path
from typing import Protocol

import numpy as np

from photodup.core.errors import PhotodupError
from photodup.embedding.backends import PRECISIONS
from photodup.embedding.imaging import IMAGE_SIZE

SUPPORTED: dict[str, tuple[str, ...]] = {
    "pytorch": ("fp32", "tf32", "bf16", "fp16"),
    "onnx": ("fp32", "tf32", "int8"),
    "openvino": ("fp32", "bf16", "int8"),
}
"""Precisions of each engine in this process: PyTorch, ONNX Runtime (CPU or CUDA), OpenVINO (CPU)."""


class ImageModel(Protocol):
    """An encoder in this process.

    Attributes:
        name: the architecture.
        pretrained: where the weights come from, as `MODEL_PRETRAINED` takes it.
        dim: length of an embedding.
        is_random: random weights: fit for timings, never for decisions.
        engine: what runs the graph, one of `SUPPORTED`, or `triton`.
        precision: how it computes, one of `PRECISIONS`.
        source_digest: hex of weights and options, the same at every precision.
    """

    name: str
    pretrained: str
    dim: int
    is_random: bool
    engine: str
    precision: str

    @property
    def source_digest(self) -> str: ...

    @property
    def digest(self) -> str:
        """Hex of weights, options and precision: embeddings are comparable if their digests are equal."""

    def embed(self, images: np.ndarray) -> np.ndarray:
        """Map normalised float32 [n, 3, 224, 224] to float32 [n, dim] of length 1. Blocks; thread-safe."""

    def embed_pixels(self, pixels: np.ndarray) -> np.ndarray:
        """Do the same from uint8 [n, 3, 224, 224], a quarter of the bytes to transfer."""


def check_choice(engine: str, precision: str) -> None:
    """Refuse an unknown engine or precision, and a pair that `SUPPORTED` lacks.

    Raises:
        PhotodupError: names the choices.
    """
    if engine not in SUPPORTED:
        raise PhotodupError(
            f"There is no engine {engine!r} (ENGINE): use one of {', '.join(SUPPORTED)}; only the service takes triton."
        )
    if precision not in PRECISIONS:
        raise PhotodupError(
            f"There is no precision {precision!r} (PRECISION): use one of {', '.join(PRECISIONS)}."
        )
    if precision not in SUPPORTED[engine]:
        engines = [name for name, precisions in SUPPORTED.items() if precision in precisions]
        raise PhotodupError(
            f"The engine {engine} does not compute in {precision} here: use {', '.join(SUPPORTED[engine])}, or "
            f"{precision} with {' or '.join(engines)}."
        )


def digest_at(precision: str, source_digest: str, file_sha256: str = "") -> str:
    """Return the digest of embeddings in `precision`; at FP32 it is that of the weights.

    Args:
        file_sha256: of an INT8 file, since each calibration gives other embeddings.
    """
    if precision == "fp32":
        return source_digest
    return hashlib.sha256(f"{source_digest}-{precision}-{file_sha256}".encode()).hexdigest()


def check_images(images: np.ndarray, dtype: type = np.float32) -> None:
    """Refuse arrays that are not [n, 3, 224, 224] of `dtype`.

    Raises:
        ValueError: names the array's type and shape.
    """
    if images.ndim != 4 or images.shape[1:] != (3, IMAGE_SIZE, IMAGE_SIZE) or images.dtype != dtype:
        expected = f"{np.dtype(dtype)} [n, 3, {IMAGE_SIZE}, {IMAGE_SIZE}]"
        raise ValueError(f"images must be {expected}, not {images.dtype} {images.shape}")


# Flags of /proc/cpuinfo, any of which is enough; ARM's come last.
INSTRUCTIONS: dict[str, tuple[str, ...]] = {
    "bf16": ("avx512_bf16", "amx_bf16", "bf16"),
    "int8": ("avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm"),
    "fp16": ("avx512_fp16", "amx_fp16"),
}
FASTEST_FIRST = ("int8", "bf16", "fp32")


@cache
def cpuinfo(*names: str) -> str:
    """Return the first entry of /proc/cpuinfo with one of these names; empty on other systems."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.lower().startswith(names)), "")


def processor_flags() -> frozenset[str]:
    """Return this processor's instruction sets, on Linux and Apple silicon; empty elsewhere."""
    apple = platform.system() == "Darwin" and platform.machine() == "arm64"
    return frozenset({"asimddp"} if apple else cpuinfo("flags", "features").split())


def check_processor(precision: str) -> None:
    """Refuse a precision for which this processor has no instructions.

    Raises:
        PhotodupError: names the instructions and the next best precision.
    """
    if can_compute(precision):
        return
    instructions = INSTRUCTIONS[precision]
    next_best = next(p for p in FASTEST_FIRST if p != precision and can_compute(p))
    raise PhotodupError(
        f"This processor has none of the instructions for {precision} ({', '.join(instructions)}): use {next_best}."
    )


def can_compute(precision: str) -> bool:
    """Tell whether the processor has the instructions for a precision."""
    return precision not in INSTRUCTIONS or bool(processor_flags() & set(INSTRUCTIONS[precision]))
