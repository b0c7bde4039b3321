"""What every engine gives: the encoder's interface, the names of engines and precisions, and the digests.

`engine` is what runs the graph and `precision` how it computes; any of the one goes with any of the other where
`SUPPORTED` says so, on a processor that has the instructions. BF16 without its own is emulated and slower than FP32;
INT8 without VNNI adds pairs of products in 16 bits on x86, which overflow: the embeddings would be wrong, not only slow.
"""

import hashlib
import platform
from functools import cache
from pathlib import Path
from typing import Protocol

import numpy as np

from photodup.core.errors import PhotodupError
from photodup.embedding.backends import PRECISIONS
from photodup.embedding.imaging import IMAGE_SIZE, View

SUPPORTED: dict[str, tuple[str, ...]] = {
    "pytorch": ("fp32", "tf32", "bf16", "fp16"),
    "compile": ("fp32", "tf32", "bf16", "fp16"),
    "onnx": ("fp32", "tf32", "int8"),
    "openvino": ("fp32", "bf16", "int8"),
    "trt": ("fp32", "tf32", "fp16"),
    "triton": ("fp32", "tf32", "bf16", "fp16", "int8"),
}
"""Precisions of each engine: PyTorch eager, `torch.compile`, ONNX Runtime (CPU or CUDA), OpenVINO (CPU),
ONNX Runtime's TensorRT provider, a Triton (whatever its model computes in)."""
ENGINES = tuple(SUPPORTED)


class ImageModel(Protocol):
    """An encoder in this process.

    Attributes:
        name: the architecture.
        pretrained: where the weights come from, as `MODEL_PRETRAINED` takes it.
        dim: length of an embedding.
        is_random: random weights: fit for timings, never for decisions.
        engine: what runs the graph, one of `ENGINES`.
        precision: how it computes, one of `PRECISIONS`.
        source_digest: hex of weights and options, the same at every precision.
        view: what of a picture it looks at; its `pixels` are what `embed_pixels` takes.
    """

    name: str
    pretrained: str
    dim: int
    is_random: bool
    engine: str
    precision: str

    @property
    def view(self) -> View: ...

    @property
    def source_digest(self) -> str: ...

    @property
    def digest(self) -> str:
        """Hex of weights, options and precision: embeddings are comparable if their digests are equal."""

    def embed(self, images: np.ndarray) -> np.ndarray:
        """Map float32 [n, 3, 224, 224], normalised, to float32 [n, dim] of length 1. Blocks; thread-safe."""

    def embed_pixels(self, pixels: np.ndarray) -> np.ndarray:
        """Do the same from uint8 [n, 3, 224, 224]; normalised where it is computed, a quarter to transfer."""


def check_choice(engine: str, precision: str) -> None:
    """Refuse an engine or a precision that does not exist, and a pair that does not.

    Raises:
        PhotodupError: the sentence names what there is.
    """
    if engine not in SUPPORTED:
        raise PhotodupError(f"There is no engine {engine!r} (ENGINE): use one of {', '.join(ENGINES)}.")
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
    """Return the digest of embeddings computed in `precision`: FP32's is the weights' own.

    Args:
        file_sha256: INT8: of the quantised file, since another calibration gives other embeddings.
    """
    if precision == "fp32":
        return source_digest
    return hashlib.sha256(f"{source_digest}-{precision}-{file_sha256}".encode()).hexdigest()


def check_images(images: np.ndarray, dtype: type = np.float32) -> None:
    """Refuse arrays that are not [n, 3, 224, 224] of `dtype`.

    Raises:
        ValueError: naming what was given.
    """
    if images.ndim != 4 or images.shape[1:] != (3, IMAGE_SIZE, IMAGE_SIZE) or images.dtype != dtype:
        expected = f"{np.dtype(dtype)} [n, 3, {IMAGE_SIZE}, {IMAGE_SIZE}]"
        raise ValueError(f"images must be {expected}, not {images.dtype} {images.shape}")


# Any one of these flags of /proc/cpuinfo will do; the last of each are ARM's.
INSTRUCTIONS: dict[str, tuple[str, ...]] = {
    "bf16": ("avx512_bf16", "amx_bf16", "bf16"),
    "int8": ("avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm"),
    "fp16": ("avx512_fp16", "amx_fp16"),
}
FASTEST_FIRST = ("int8", "bf16", "fp32")


@cache
def cpuinfo(*names: str) -> str:
    """Return what Linux says of this processor under the first of these names; other systems tell nothing."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.lower().startswith(names)), "")


def processor_flags() -> frozenset[str]:
    """Return the instruction sets of this processor; Apple's are known, other systems tell nothing."""
    apple = platform.system() == "Darwin" and platform.machine() == "arm64"
    return frozenset({"asimddp"} if apple else cpuinfo("flags", "features").split())


def check_processor(precision: str, flags: frozenset[str] | None = None) -> None:
    """Refuse a precision that this processor has no instructions for.

    Args:
        flags: instruction sets; default this processor's.

    Raises:
        PhotodupError: the sentence names the instructions and the next best precision.
    """
    if can_compute(precision, flags):
        return
    instructions = INSTRUCTIONS[precision]
    next_best = next(p for p in FASTEST_FIRST if p != precision and can_compute(p, flags))
    raise PhotodupError(
        f"This processor has none of the instructions for {precision} ({', '.join(instructions)}): use {next_best}."
    )


def can_compute(precision: str, flags: frozenset[str] | None = None) -> bool:
    """Tell whether the processor has instructions for a precision; FP32 needs none of its own."""
    flags = processor_flags() if flags is None else flags
    return precision not in INSTRUCTIONS or bool(flags & set(INSTRUCTIONS[precision]))
