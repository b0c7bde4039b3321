"""The emulated accelerator's wait and embeddings, which identify their image.

Tests check answers with it, and it is copied next to the Triton model: NumPy and the standard library only.
"""

import contextlib
import ctypes
import time

import numpy as np

DIM = 512
_WORDS = DIM * 147  # 3 × 224 × 224 values are 512 × 147 pairs: words of 8, 4 or 2 bytes for fp32, fp16, uint8
_MIX = np.uint64(0x9E3779B97F4A7C15)
SPIN_S = 150e-6


def emulated_embedding(images: np.ndarray) -> np.ndarray:
    """Return a meaningless embedding of each image that depends on every input byte.

    Args:
        images: [n, 3, 224, 224], float32, float16 or uint8. Each type gives another vector.

    Returns:
        float32 [n, 512], length 1.
    """
    n = len(images)
    words = np.ascontiguousarray(images).reshape(n, -1).view(f"u{2 * images.dtype.itemsize}")
    sums = words.reshape(n, DIM, _WORDS // DIM).sum(axis=2, dtype=np.uint64)
    mixed = (sums + np.arange(1, DIM + 1, dtype=np.uint64)) * _MIX
    values = (mixed >> np.uint64(40)).astype(np.float64) / 2**23 - 1
    return (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float32)


def wait_until(deadline_s: float) -> None:
    """Return at `deadline_s` of `time.perf_counter()`, at most a few microseconds late on an idle core.

    Only the last 0.15 ms spin: a longer spin would take cores from the server.
    """
    if (remaining := deadline_s - time.perf_counter() - SPIN_S) > 0:
        time.sleep(remaining)
    while time.perf_counter() < deadline_s:
        pass


def sharpen_sleep() -> None:
    """Let this thread's sleeps end on time: Linux delays them by up to 50 µs."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(29, 1000, 0, 0, 0)  # PR_SET_TIMERSLACK, nanoseconds
