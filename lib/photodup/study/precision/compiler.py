"""The cost of a batch size that a vendor's compiler has not seen, with and without its cache (notebook 05).

`in_own_process` runs a function in a fresh process, so that its memory can be measured by itself.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")


def in_own_process(function: Callable[..., T], *arguments: object) -> T:
    """Return what a function returns in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def answer_sizes(graph: Path, sizes: Sequence[int], per_size: bool, cache: str = "") -> dict[str, Any]:
    """Answer requests of changing batch size as a server would, and say which of them waited for a build.

    Args:
        sizes: images in each request, in order.
        per_size: one engine for each size, built when a request first asks for it; otherwise one engine for 1 to
            the largest size, built and warmed for every size before the first request.
        cache: OpenVINO's folder of compiled models.

    Returns:
        `start_s` until the first request, and `requests`: `batch`, `built`, `latency_ms`, `memory_mb` (resident).
    """
    import psutil

    process, start = psutil.Process(), time.perf_counter()
    engines: dict[int, Callable[[np.ndarray], Any]] = {}
    if not per_size:
        engines = dict.fromkeys(sizes, _openvino(graph, cache, f"1..{max(sizes)}"))
        for size in sorted(engines):
            engines[size](noise(size))
    start_s, rows = time.perf_counter() - start, []
    for size in sizes:
        image = noise(size)
        begun, built = time.perf_counter(), size not in engines
        if built:
            engines[size] = _openvino(graph, cache, str(size))
        engines[size](image)
        latency_ms = (time.perf_counter() - begun) * 1000
        memory_mb = process.memory_info().rss / 1e6
        rows.append({"batch": size, "built": built, "latency_ms": latency_ms, "memory_mb": memory_mb})
    return {"start_s": start_s, "requests": rows}


def _openvino(graph: Path, cache: str, sizes: str) -> Callable[[np.ndarray], Any]:
    from photodup.embedding.engines.openvino import compile_graph

    request = compile_graph(graph, cache, sizes).create_infer_request()
    return lambda image: request.infer([image], share_inputs=True)


def noise(batch: int) -> np.ndarray:
    """Return noise in place of images, float32 [batch, 3, 224, 224]: timing does not depend on what they show."""
    return np.random.default_rng(0).standard_normal((batch, 3, 224, 224), np.float32)
