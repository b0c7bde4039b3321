"""Measure once for each precision: the device's ceilings, and how far embeddings move.

Ceilings are matrix products by precision, and a copy within the device's memory. A maker's peak rate is a product of
clock and units that no program reaches. The share of what the same libraries reach on large square matrices says how much
of the device the network leaves unused.
"""

import copy
import statistics
from functools import partial
from typing import Any

import numpy as np

from photodup.embedding.fidelity import compare
from photodup.selfbench.device.engines import arithmetic, check_precision, dtype_of, times_ms

THRESHOLD = 0.9  # for counting flipped decisions; the similarities' change does not depend on it
GEMM_SIZES = {"cuda": (2048, 4096, 8192), "cpu": (512, 1024, 2048)}
COPY_MB = {"cuda": 4096, "cpu": 256}


def gemm(precision: str, device: str, *, repeats: int = 10) -> dict[str, Any]:
    """Multiply square matrices of random numbers and return the best rate over the sizes.

    Returns:
        `tflops` (2 n³ over the median time, at the best size), `best_size`, `tflops_by_size`, `repeats`.

    Raises:
        NotHere: the device does not compute in this precision.
    """
    import torch

    check_precision(precision, device)
    kind = "cuda" if device.startswith("cuda") else "cpu"
    by_size = {}
    with arithmetic(precision), torch.inference_mode():
        for n in GEMM_SIZES[kind]:
            # Random numbers: on zeros the same kernels run faster, since fewer transistors switch.
            a, b = (torch.randn(n, n, device=device).to(dtype_of(precision)) for _ in range(2))
            out = torch.empty_like(a)
            times = times_ms(partial(torch.mm, a, b, out=out), repeats, device)
            by_size[n] = 2 * n**3 / statistics.median(times) / 1e9  # FLOP/ms ÷ 1e9 = TFLOP/s
    best = max(by_size, key=by_size.__getitem__)
    return {
        "tflops": by_size[best],
        "best_size": best,
        "tflops_by_size": {str(n): value for n, value in by_size.items()},
        "repeats": repeats,
    }


def copy_rate(device: str, *, repeats: int = 10) -> dict[str, Any]:
    """Copy a buffer within the device's memory, half of a free device's at most, and return the rate.

    Returns:
        `gb_per_s` (bytes read and bytes written), `buffer_mb`, `repeats`.
    """
    import torch

    check_precision("fp32", device)
    kind = "cuda" if device.startswith("cuda") else "cpu"
    megabytes = COPY_MB[kind]
    if kind == "cuda":
        megabytes = min(megabytes, int(torch.cuda.mem_get_info()[0] / 1e6 / 4))
    source = torch.ones(megabytes * 250_000, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    times = times_ms(lambda: target.copy_(source), repeats, device)
    # MB/ms = GB/s
    return {"gb_per_s": 2 * megabytes / statistics.median(times), "buffer_mb": megabytes, "repeats": repeats}


def embed(visual: Any, images: np.ndarray, precision: str, device: str, *, batch: int = 32) -> np.ndarray:
    """Embed on the device in one precision.

    Args:
        visual: the image tower in float32; copied, not changed.
        images: float32 [n, 3, 224, 224], normalised.

    Returns:
        float32 [n, dim] of length 1.

    Raises:
        NotHere: the device does not compute in this precision.
    """
    import torch

    check_precision(precision, device)
    network = copy.deepcopy(visual).to(device=device, dtype=dtype_of(precision)).eval()
    parts = []
    with arithmetic(precision), torch.inference_mode():
        for first in range(0, len(images), batch):
            some = torch.from_numpy(images[first : first + batch]).to(device).to(dtype_of(precision))
            parts.append(torch.nn.functional.normalize(network(some).float(), dim=-1).cpu().numpy())
    return np.concatenate(parts)


def fidelity(
    visual: Any, images: np.ndarray, precision: str, device: str, simulated: Any = None
) -> dict[str, Any]:
    """Compare a precision of the device with its float32; float32 on a GPU with the CPU's float32.

    Args:
        simulated: precision -> float32 [n, dim], the same photographs with that precision's rounding simulated on the
            CPU, or None where nobody simulated it; a callable, since it takes a while.

    Returns:
        What `fidelity.compare` returns, with `against`; and the same under `simulated` for the device against the
        simulation.

    Raises:
        NotHere: the device does not compute in this precision.
    """
    ours = embed(visual, images, precision, device)
    against, on = ("cpu fp32", "cpu") if precision == "fp32" else (f"{device} fp32", device)
    found = {"against": against, **compare(embed(visual, images, "fp32", on), ours, THRESHOLD)}
    expected = simulated(precision) if simulated else None
    if expected is not None:
        found["simulated"] = compare(expected, ours, THRESHOLD)
    return found
