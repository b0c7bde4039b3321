"""Time a graph under ONNX Runtime's OpenVINO provider. Run as a file by a Python that has it; prints JSON.

The vendor compiler's story on a CPU: building costs seconds, a cache saves some of them, one switch changes
the precision, and an engine for a single shape has to be built again for the next one. This file imports
nothing of photodup, since that Python has only NumPy and ONNX Runtime.
"""

import argparse
import json
import re
import sys
import time
from pathlib import Path

import numpy as np


def main() -> None:
    """Build the session, time every batch size or answer the requests; one JSON object on stdout."""
    parser = argparse.ArgumentParser()
    parser.add_argument("graph", type=Path)
    parser.add_argument("--precision", default="", help="what the CPU computes in: FP32 or BF16")
    parser.add_argument("--cache", default="", help="folder of the compiled-model cache")
    parser.add_argument(
        "--provider", choices=["openvino", "cpu"], default="openvino", help="cpu: ONNX Runtime's own"
    )
    parser.add_argument("--batches", type=int, nargs="*", default=[])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--requests", type=int, nargs="*", default=[], help="their batch sizes, in order")
    parser.add_argument(
        "--engines", choices=["one", "per-size"], default="one", help="what answers --requests"
    )
    chosen = parser.parse_args()

    import onnxruntime as ort

    ort.set_default_logger_severity(3)
    result = {"version": ort.__version__}
    if chosen.requests:
        result |= _answer(chosen)
    else:
        start = time.perf_counter()
        session = _open(chosen)
        result |= {"build_s": time.perf_counter() - start, "memory_mb": _memory_mb()}
        result["batches"] = [_time(session, batch, chosen.repeats) for batch in chosen.batches]
    print(json.dumps(result))


def _open(chosen, sizes: str = ""):
    """Build a session; `sizes` fixes (`4`) or bounds (`1..8`) the batch that the engine is compiled for."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 3
    if chosen.provider == "cpu":
        return ort.InferenceSession(str(chosen.graph), options, providers=["CPUExecutionProvider"])
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL  # OpenVINO does
    settings = {"device_type": "CPU"}
    if chosen.precision:
        # The provider's own `precision` knows FP32 alone on a CPU; the compiler takes the hint as JSON.
        hint = {"FP32": "f32", "BF16": "bf16"}[chosen.precision]
        settings["load_config"] = json.dumps({"CPU": {"INFERENCE_PRECISION_HINT": hint}})
    if chosen.cache:
        settings["cache_dir"] = chosen.cache
    if sizes:
        settings["reshape_input"] = f"image[{sizes},3,224,224]"
    session = ort.InferenceSession(
        str(chosen.graph), options, providers=[("OpenVINOExecutionProvider", settings)]
    )
    if session.get_providers()[0] != "OpenVINOExecutionProvider":
        sys.exit("the OpenVINO provider did not load; ONNX Runtime fell back to its own")
    return session


def _answer(chosen) -> dict:
    """Answer requests of changing batch size as a server would, and say which of them had to wait for a build.

    `one`: an engine for 1 to the largest size, built and warmed for every size before the first request.
    `per-size`: an engine for one size each, built when a request first asks for it.
    """
    engines, rows = {}, []
    start = time.perf_counter()
    if chosen.engines == "one":
        engines = dict.fromkeys(chosen.requests, _open(chosen, f"1..{max(chosen.requests)}"))
        for size in sorted(engines):
            engines[size].run(["embedding"], {"image": np.zeros((size, 3, 224, 224), np.float32)})
    start_s = time.perf_counter() - start
    for size in chosen.requests:
        image = np.random.default_rng(0).standard_normal((size, 3, 224, 224), np.float32)
        start = time.perf_counter()
        built = size not in engines
        if built:
            engines[size] = _open(chosen, str(size))
        answer = engines[size].run(["embedding"], {"image": image})[0]
        latency_ms = (time.perf_counter() - start) * 1000
        if len(answer) != size:
            sys.exit(f"{len(answer)} embeddings for {size} images")
        rows.append({"batch": size, "built": built, "latency_ms": latency_ms, "memory_mb": _memory_mb()})
    return {"start_s": start_s, "requests": rows}


def _memory_mb() -> float:
    """Return what this process has in memory now, in 10⁶ bytes."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) * 1024 / 1e6


def _time(session, batch: int, repeats: int) -> dict:
    image = np.random.default_rng(0).standard_normal((batch, 3, 224, 224), np.float32)
    start = time.perf_counter()
    session.run(["embedding"], {"image": image})
    first_ms = (time.perf_counter() - start) * 1000
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        session.run(["embedding"], {"image": image})
        times.append((time.perf_counter() - start) * 1000)
    return {"batch": batch, "first_ms": first_ms, "latencies_ms": times, "memory_mb": _memory_mb()}


if __name__ == "__main__":
    main()
