"""What a device reaches at best, measured: matrix products by precision, and a copy within its memory.

A maker's peak rate is a product of clock and units that no program reaches. The share of what the same libraries
reach on large square matrices says how much of the device the network leaves unused.
"""

import statistics
from functools import partial
from typing import Any

from photodup.selfbench.device_torch import arithmetic, check_precision, cuda_times, dtype_of, wall_times

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
    timer = cuda_times if kind == "cuda" else wall_times
    by_size = {}
    with arithmetic(precision), torch.inference_mode():
        for n in GEMM_SIZES[kind]:
            # Random numbers: on zeros the same kernels run faster, since fewer transistors switch.
            a, b = (torch.randn(n, n, device=device).to(dtype_of(precision)) for _ in range(2))
            out = torch.empty_like(a)
            times = timer(partial(torch.mm, a, b, out=out), repeats)
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
    times = (cuda_times if kind == "cuda" else wall_times)(lambda: target.copy_(source), repeats)
    return {
        "gb_per_s": 2 * megabytes / statistics.median(times),  # MB/ms = GB/s
        "buffer_mb": megabytes,
        "repeats": repeats,
    }
