"""Time a graph under ONNX Runtime's OpenVINO provider. Run as a file by a Python that has it; prints JSON.

The vendor compiler's story on a CPU: building costs seconds, a cache saves some of them, one switch changes
the precision. This file imports nothing of photodup, since that Python has only NumPy and ONNX Runtime.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np


def main() -> None:
    """Build the session and time every batch size; one JSON object on stdout."""
    parser = argparse.ArgumentParser()
    parser.add_argument("graph", type=Path)
    parser.add_argument("--precision", default="", help="what the CPU computes in: FP32 or BF16")
    parser.add_argument("--cache", default="", help="folder of the compiled-model cache")
    parser.add_argument("--batches", type=int, nargs="*", default=[])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--images", type=Path, help=".npy, float32 [n, 3, 224, 224]")
    parser.add_argument("--out", type=Path, help=".npy for the embeddings of --images")
    chosen = parser.parse_args()

    import onnxruntime as ort

    ort.set_default_logger_severity(3)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL  # OpenVINO does
    settings = {"device_type": "CPU"}
    if chosen.precision:
        # The provider's own `precision` knows FP32 alone on a CPU; the compiler takes the hint as JSON.
        hint = {"FP32": "f32", "BF16": "bf16"}[chosen.precision]
        settings["load_config"] = json.dumps({"CPU": {"INFERENCE_PRECISION_HINT": hint}})
    if chosen.cache:
        settings["cache_dir"] = chosen.cache
    start = time.perf_counter()
    session = ort.InferenceSession(
        str(chosen.graph), options, providers=[("OpenVINOExecutionProvider", settings)]
    )
    result = {"build_s": time.perf_counter() - start, "version": ort.__version__}
    if session.get_providers()[0] != "OpenVINOExecutionProvider":
        sys.exit("the OpenVINO provider did not load; ONNX Runtime fell back to its own")
    result["batches"] = [_time(session, batch, chosen.repeats) for batch in chosen.batches]
    if chosen.images:
        images = np.load(chosen.images)
        rows = [session.run(["embedding"], {"image": image[None]})[0] for image in images]
        np.save(chosen.out, np.concatenate(rows))
    print(json.dumps(result))


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
    return {"batch": batch, "first_ms": first_ms, "latencies_ms": times}


if __name__ == "__main__":
    main()
