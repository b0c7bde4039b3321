"""Where an ONNX Runtime session spends its time, and on which provider each node really runs.

ONNX Runtime writes the trace. It silently moves a node that the wanted provider cannot run to the CPU, and the copies
around it can cost more than the node: `fallbacks` counts such nodes.
"""

import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from photodup.embedding.engines.onnx_runtime import CPU, open_session
from photodup.embedding.imaging import IMAGE_SIZE


def profile(path: Path, *, runs: int = 20, providers: Sequence[str] = CPU) -> dict[str, Any]:
    """Run a model on one image under ONNX Runtime's operator profiler.

    Args:
        runs: counted runs; three more before them are not.
        providers: in order of preference; the first is the one wanted.

    Returns:
        `nodes` (`name`, `op`, `provider`, `ms`: mean per run), `run_ms` (each profiled run), `wanted` (the provider).
    """
    with tempfile.TemporaryDirectory() as folder:
        session = open_session(path, providers=providers, profile_prefix=f"{folder}/profile")
        image = _images(1)
        for _ in range(3 + runs):
            session.run(None, image)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    marks = sorted((e for e in events if e["name"] == "model_run"), key=lambda e: e["ts"])[-runs:]
    begin = marks[0]["ts"]
    ms_by_node: dict[tuple[str, str, str], float] = {}
    for event in events:
        if event["cat"] == "Node" and event["name"].endswith("_kernel_time") and event["ts"] >= begin:
            args = event["args"]
            key = (event["name"].removesuffix("_kernel_time"), args["op_name"], args["provider"])
            ms_by_node[key] = ms_by_node.get(key, 0.0) + event["dur"] / 1e3 / runs
    nodes = [{"name": n, "op": o, "provider": p, "ms": ms} for (n, o, p), ms in ms_by_node.items()]
    return {"wanted": providers[0], "nodes": nodes, "run_ms": [mark["dur"] / 1e3 for mark in marks]}


def fallbacks(nodes: Iterable[Mapping[str, Any]], preferred: str) -> Counter[tuple[str, str]]:
    """Count the nodes that do not run on the preferred provider, by operator and provider."""
    return Counter((n["op"], n["provider"]) for n in nodes if n["provider"] != preferred)


def creation_s(path: Path, n: int = 3, **options: Any) -> list[float]:
    """Return how long opening a session takes, `n` times in a row, seconds.

    The file is in the page cache from the second on, so this is reading, optimising and packing weights, not disk.
    """
    times = []
    for _ in range(n):
        begun = time.perf_counter()
        session = open_session(path, **options)
        times.append(time.perf_counter() - begun)
        del session
    return times


def batch_ms(
    path: Path, batches: Sequence[int], *, min_s: float = 1.0, **options: Any
) -> dict[int, list[float]]:
    """Return the duration of each run per batch size, ms: one session, blocks in a seeded random order."""
    import random

    session = open_session(path, **options)
    inputs = {n: _images(n) for n in batches}
    times: dict[int, list[float]] = {n: [] for n in batches}
    for n in random.Random(0).sample(list(batches), len(batches)):
        session.run(None, inputs[n])  # the first run of a size lays out its memory
        until = time.perf_counter() + min_s
        while len(times[n]) < 3 or time.perf_counter() < until:
            begun = time.perf_counter()
            session.run(None, inputs[n])
            times[n].append((time.perf_counter() - begun) * 1e3)
    return times


def _images(n: int) -> dict[str, np.ndarray]:
    """Return noise in place of n images: timing does not depend on what they show."""
    return {"image": np.random.default_rng(0).standard_normal((n, 3, IMAGE_SIZE, IMAGE_SIZE), np.float32)}
