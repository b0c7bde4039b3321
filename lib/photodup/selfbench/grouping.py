"""How long grouping takes and what it finds, against the number of photographs.

Each size runs in a process of its own, so that peak memory is that size's. The vectors are synthetic
(no library of a million photographs is at hand): scenes of a low-rank mixture, so that unrelated
pictures have the cosine of real ones (about 0.5), with near-duplicates planted in a fifth of the rows.
"""

import resource
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from photodup.selfbench.rows import Row, row
from photodup.study.precision.compiler import alone

GOALS = {100_000: {"seconds": 30.0}, 1_000_000: {"seconds": 600.0, "peak_memory_gb": 6.0}}
MIN_RECALL = 0.99
SIZES = (10_000, 100_000, 1_000_000)
INCREMENT = 1000


def synthetic_library(n: int, dim: int = 512, seed: int = 0, block: int = 50_000) -> np.ndarray:
    """Return float32[n, dim] unit vectors: every fifth row is a near-duplicate of one not far before it.

    The cosine of a duplicate with its original spreads over about 0.85 to 1, around any threshold in use.
    """
    rng = np.random.default_rng(seed)
    common = rng.normal(size=dim).astype(np.float32)
    scenes = rng.normal(size=(max(16, min(n // 50, 5000)), dim)).astype(np.float32)
    vectors = np.empty((n, dim), np.float32)
    for start in range(0, n, block):
        rows = vectors[start : start + block]
        rows[:] = rng.standard_normal(rows.shape, np.float32)
        rows *= 0.7
        rows += scenes[rng.integers(len(scenes), size=len(rows))]
        rows += common
        copies = np.arange(5, len(rows), 5)
        originals = copies - rng.integers(1, 5, size=len(copies))
        noise = rng.standard_normal((len(copies), dim), np.float32)
        strength = rng.uniform(0.02, 0.9, size=(len(copies), 1)).astype(np.float32)
        rows[copies] = rows[originals] + strength * noise
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return vectors


def measure(n: int) -> dict:
    """Group `n` rows, then add `INCREMENT` more; return what it took. Call in a fresh process."""
    from photodup.photos.groups.stars import stars
    from photodup.photos.search.neighbours import NeighbourIndex

    vectors = synthetic_library(n + INCREMENT)
    started = time.perf_counter()
    index = NeighbourIndex(vectors.shape[1], 0.9)
    pairs = index.add(vectors[:n])
    groups = stars(pairs, n)
    seconds = time.perf_counter() - started
    peak = peak_memory_gb()
    started = time.perf_counter()
    index.add(vectors[n:])
    return {
        "rows": n,
        "seconds": seconds,
        "peak_memory_gb": peak,
        "method": pairs.method,
        "recall": pairs.recall,
        "pairs": len(pairs),
        "largest_group": max((1 + len(group.members) for group in groups), default=0),
        "seconds_to_add_1000": time.perf_counter() - started,
    }


def peak_memory_gb() -> float:
    """Return the most memory that this process has had.

    On Linux not `ru_maxrss`: a process starts with its parent's, and the parent may be a large notebook.
    """
    status = Path("/proc/self/status")
    if status.exists():
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024 / 1e9
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e9 if sys.platform == "darwin" else peak * 1024 / 1e9


def run(sizes: Sequence[int]) -> list[dict]:
    """Measure each size in its own process; peak memory includes the vectors themselves."""
    return [alone(measure, size) for size in sizes]


def rows() -> Iterator[Row]:
    """Yield time, memory and recall of each size, and what a thousand more take."""
    for found in run(SIZES):
        what, goals = f"grouping {found['rows']:,} vectors", GOALS.get(found["rows"], {})
        method = f"{found['method']}, {found['pairs']:,} pairs, largest group {found['largest_group']}"
        yield row(what, found["seconds"], "s", most=goals.get("seconds"), because=method)
        yield row(f"{what}: a thousand more", found["seconds_to_add_1000"], "s")
        yield row(f"{what}: peak memory", found["peak_memory_gb"], "GB", most=goals.get("peak_memory_gb"))
        yield row(f"{what}: recall of pairs", found["recall"], least=MIN_RECALL)
