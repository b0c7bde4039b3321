"""What this processor can compute in: a reduced precision without its instructions is slow, or wrong.

BF16 without instructions of its own is emulated and slower than FP32. INT8 without VNNI adds pairs of products
in 16 bits on x86, which overflow: the embeddings would be wrong, not only slow.
"""

import platform
from functools import cache
from pathlib import Path

from photodup.errors import PhotodupError

# Any one of these flags of /proc/cpuinfo will do; the last of each are ARM's.
INSTRUCTIONS: dict[str, tuple[str, ...]] = {
    "bf16": ("avx512_bf16", "amx_bf16", "bf16"),
    "int8": ("avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm"),
    "fp16": ("avx512_fp16", "amx_fp16"),
}
_FASTEST_FIRST = ("int8", "bf16", "fp32")


@cache
def processor_flags() -> frozenset[str]:
    """Return the instruction sets of this processor; Apple's are known, other systems tell nothing."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        apple = platform.system() == "Darwin" and platform.machine() == "arm64"
        return frozenset({"asimddp"} if apple else ())
    flags = (line.partition(":")[2] for line in lines if line.lower().startswith(("flags", "features")))
    return frozenset(next(flags, "").split())


def check_processor(precision: str, flags: frozenset[str] | None = None) -> None:
    """Refuse a precision that this processor has no instructions for.

    Args:
        flags: instruction sets; default this processor's.

    Raises:
        PhotodupError: the sentence names the instructions and the next best precision.
    """
    if can_compute(precision, flags):
        return
    needed = INSTRUCTIONS[precision]
    next_best = next(p for p in _FASTEST_FIRST if p != precision and can_compute(p, flags))
    raise PhotodupError(
        f"This processor has none of the instructions for {precision} ({', '.join(needed)}): use {next_best}."
    )


def can_compute(precision: str, flags: frozenset[str] | None = None) -> bool:
    """Tell whether the processor has instructions for a precision; FP32 needs none of its own."""
    flags = processor_flags() if flags is None else flags
    return precision not in INSTRUCTIONS or bool(flags & set(INSTRUCTIONS[precision]))
