"""Write what the run of a GPU found into README.md beside this file: from the records alone.

python tools/gpu_kit/page.py
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "lib")]

from photodup.bench.record.store import load_records  # noqa: E402
from photodup.bench.stats.comparison import Outcome  # noqa: E402
from photodup.bench.stats.sentence import load_of, number, sentence  # noqa: E402
from photodup.study.comparisons.outcomes import read_all  # noqa: E402
from photodup.study.notebook.machine import read_machine  # noqa: E402
from photodup.study.notebook.run import read_run  # noqa: E402
from photodup.study.profiling.profile import fallbacks  # noqa: E402
from tools.readme import write_blocks  # noqa: E402

RUN = ROOT / "results" / "nvidia-h200"
NOTEBOOKS = ROOT / "results" / "nvidia-h200-notebooks"
ENGINES = {
    "pytorch-eager": "PyTorch",
    "pytorch-cuda-graph": "PyTorch, CUDA graph",
    "pytorch-compile": "`torch.compile`",
    "onnx-cuda": "ONNX Runtime",
    "onnx-cuda-graph": "ONNX Runtime, CUDA graph",
}
TENSORS = ("-fp32", "-uint8")  # wires that keep every pixel
PRECISIONS, BATCHES = ("fp32", "tf32", "bf16", "fp16"), (1, 8, 32, 128, 512)


def main() -> None:
    """Fill in the page."""
    print(write_blocks(Path(__file__).with_name("README.md"), blocks()))


def blocks() -> dict[str, str]:
    """Return the generated parts of README.md."""
    by_key = results()
    return {"h200": "\n".join([findings(by_key), "", *table(by_key), "", *compared(), "", by_address()])}


def results(run: Path = RUN) -> dict[str, dict[str, Any]]:
    """Return the results of a run by their keys."""
    return {record["key"]: record["result"] for record in load_records(run) if record["status"] == "ok"}


def machine() -> str:
    """Return the machine in a few words."""
    return str(read_machine(RUN))


def of_bench(by_key: Mapping[str, Any], engine: str, precision: str, batch: int) -> dict[str, Any]:
    """Return what was measured of an engine, or nothing."""
    return by_key.get(f"device {engine} {precision} b{batch}", {})


def requests(by_key: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """Return the points of the FastAPI service by the number of requests in flight."""
    return {p["concurrency"] or 1: p for p in by_key.values() if p.get("server") == "fastapi"}


def findings(by_key: Mapping[str, Any]) -> str:
    """Return the first paragraph."""
    points = requests(by_key)
    single, eight = points[1], points[8]
    rate = lambda engine, precision, batch: number(  # noqa: E731
        of_bench(by_key, f"pytorch-{engine}", precision, batch)["throughput_images_per_s"]
    )
    mean, low, high = (single[f"latency_ms_mean{end}"] for end in ("", "_ci_low", "_ci_high"))
    return (
        f"**A fast GPU waits for everything else.** With one request in flight a photograph took "
        f"{mean:.1f} ms [{low:.1f}, {high:.1f}] "
        f"(mean of {single['n_steady']} requests) through the FastAPI service with PyTorch in FP32: the client spent "
        f"{number(single['prepare_ms_mean'])} ms on decoding, resizing and encoding it, the server "
        f"{number(single['server_compute_infer_ms_mean'])} ms on computing. The GPU was busy for "
        f"{single['gpu_utilization']:.0%} of the time, with eight requests in flight for {eight['gpu_utilization']:.0%} "
        f"({number(eight['throughput_images_per_s'])} images/s), when the service's one Python process used "
        f"{eight['server_cpu_cores']:.1f} cores and the client {eight['client_cpu_cores']:.1f}. The engine alone computes "
        f"{rate('eager', 'fp32', 8)} images/s at a batch of 8. So first shorten what the client and the server do to the "
        f"photograph. Then launch a CUDA graph: without one FP16 gains little on a single image ({rate('eager', 'fp16', 1)} "
        f"against {rate('eager', 'fp32', 1)} images/s), with one it doubles the rate ({rate('cuda-graph', 'fp16', 1)} "
        f"against {rate('cuda-graph', 'fp32', 1)}). All requests came from the same machine."
    )


def table(by_key: Mapping[str, Any]) -> list[str]:
    """Return the engines' table, images/s by batch, and the ceilings under it."""
    lines = ["| engine alone, images/s | precision | " + " | ".join(f"batch {b}" for b in BATCHES) + " |"]
    lines.append("|---|---|" + "---:|" * len(BATCHES))
    for engine, words in ENGINES.items():
        for precision in PRECISIONS:
            lines_of_engine = [of_bench(by_key, engine, precision, batch) for batch in BATCHES]
            cells = [number(x["throughput_images_per_s"]) if x else "" for x in lines_of_engine]
            if any(cells):
                lines.append(f"| {words} | {precision.upper()} | {' | '.join(cells)} |")
    peaks = ", ".join(f"{p.upper()} {number(by_key[f'device ceilings {p}']['tflops'])}" for p in PRECISIONS)
    cosines = ", ".join(
        f"{p.upper()} {by_key[f'device fidelity {p}']['cosine_min']:.6f}" for p in PRECISIONS[1:]
    )
    lines += [
        "",
        f"Measured on {machine()}; weights `random:0`; the median of 20 runs. Largest matrix products, TFLOP/s: {peaks}. "
        f"Smallest cosine of 32 embeddings to FP32's: {cosines}. TensorRT was not there.",
    ]
    return lines


def compared() -> list[str]:
    """Return a sentence for each primary comparison, both sides taking turns; two notebooks may ask the same."""
    lines = ["Both sides took turns, Triton's Python backend with ONNX Runtime on the GPU:", ""]
    by_sides: dict[tuple[str, ...], Outcome] = {}
    for outcome in read_all(read_run(RUN)):
        comparison = outcome.comparison
        if outcome.is_measured and comparison.is_primary:
            by_sides.setdefault((comparison.label_a, comparison.label_b, comparison.load), outcome)
    for outcome in by_sides.values():
        lines.append(f"- {load_of(outcome)}, {outcome.n_visits} visits: {sentence(outcome)}")
    return [
        *lines,
        "",
        "So without a network between, neither gRPC nor a JPEG saves time here: on a GPU, too, decoding costs more than "
        "bytes. `photodup study outcomes nvidia-h200` prints the others.",
    ]


def by_address() -> str:
    """Return what the notebooks found that were told the machine's address, as papermill tells them."""
    by_key = results(NOTEBOOKS)
    profiled, read = by_key["onnx-profile"], by_key["preprocessing"]["rows"]
    one_ms, nodes = median(profiled["batch_ms"]["1"]), profiled["nodes"]
    left = fallbacks(nodes, profiled["wanted"])
    operators = ", ".join(f"{n} × {operator}" for (operator, _), n in left.most_common())
    large = [row for row in read if row["size"] == "12 megapixels"]
    whole, reduced = (
        median(row["decode_ms"] + row["shrink_ms"] for row in large if row["decoder"] == name)
        for name in ("pil", "draft")
    )
    differ = max(row["worst"] for row in by_key["triton-parity"]["rows"] if row["backend"].endswith(TENSORS))
    return (
        "**Notebooks 03 and 04, told the machine's address.** Triton's embeddings of the same pixels "
        f"differ from PyTorch's by {differ:.0e} of their length at most, over HTTP and gRPC. ONNX Runtime leaves "
        f"{left.total()} of {len(nodes)} nodes to the processor ({operators}); a run on one image takes "
        f"{number(one_ms)} ms all the same. Decoding and resizing a "
        f"photograph enlarged to 12 megapixels takes {number(whole)} ms, or {number(reduced)} ms where the JPEG decoder "
        f"shrinks while it reads: as long as {whole / one_ms:.0f} or {reduced / one_ms:.0f} runs of the model (one "
        "photograph). So resize on the client, or let the decoder shrink where the accuracy check allows it."
    )


if __name__ == "__main__":
    main()
