"""E1 to E11: what was really timed. Transport, compute, batching and scaling, from the published rows alone.

Assumptions are keyword arguments. The sentence and `stands` are computed, so other rows give another verdict.
"""

import math
from typing import TYPE_CHECKING

from photodup.bench.link.latency_model import rounds
from photodup.study.published import roofline
from photodup.study.published.finding import FP32_BYTES, Finding, frame_of, value_of

if TYPE_CHECKING:
    import pandas as pd

BATCHES = (1, 4, 8, 16, 32)
LEVELS = (1, 4, 8, 16, 32, 64, 128)


def bandwidth_or_round_trips(
    rows: "pd.DataFrame",
    *,
    rtt_ms: float = 25.0,
    initial_window: int = 10,
    jpeg_bytes: int = 10_000,
    new_connection: bool = True,
) -> Finding:
    """E1. The rates are what the study's own 16 connections, and its single one, carried; so is the server time.

    It stands when a rate comes nearest to both tensor rows, falls when round trips do, and is open between them.
    """
    v = value_of(rows)
    link = v("step7_a100_onnx_http_c16_throughput") * FP32_BYTES
    server = v("step6a_a100_onnx_gpu_compute") + v("step6a_a100_server_overhead")
    one = {
        step: v(f"step{step}_b32_throughput") * FP32_BYTES for step in ("6a_a100_onnx", "7_a100_onnx_http")
    }
    table, nearest = [], []
    for row_id, size, step in (
        ("step6a_a100_onnx_b1", FP32_BYTES, "6a_a100_onnx"),
        ("step6a_a100_pytorch_b1", jpeg_bytes * 4 // 3, "6a_a100_onnx"),
        ("step7_a100_onnx_http_b1", FP32_BYTES, "7_a100_onnx_http"),
    ):
        by_link, by_one = (rtt_ms + size / rate * 1000 + server for rate in (link, one[step]))
        by_rounds = (rounds(size, initial_window) + new_connection) * rtt_ms + server
        table.append((row_id, size, v(row_id), by_link, by_one, by_rounds))
        if size == FP32_BYTES:
            laws = {"the link's rate": by_link, "one connection's rate": by_one, "round trips": by_rounds}
            misses = {law: abs(math.log(ms / v(row_id))) for law, ms in laws.items()}
            nearest.append(min(misses, key=misses.__getitem__))
    first, last = table[0], table[-1]
    sentence = (
        f"The link carried {link / 1e6:.1f} MB/s over sixteen connections, at which the tensor takes "
        f"{FP32_BYTES / link * 1000:.0f} ms, not {v('step6a_transfer_claim'):.0f} or more. At {rtt_ms:g} "
        f"ms of round trip the link's rate predicts {first[3]:.0f} ms and the round trips {first[5]:.0f} "
        f"ms where step 6A measured {first[2]:.1f}. In step 7 one connection carried only "
        f"{one['7_a100_onnx_http'] / 1e6:.1f} MB/s, which alone would give {last[4]:.0f} of its "
        f"{last[2]:.1f} ms. Nearest come {nearest[0]} in step 6A and {nearest[1]} in step 7; the rows do not say "
        "by what one connection was limited."
    )
    columns = "row, bytes, published_ms, link_rate_gives_ms, one_connection_gives_ms, round_trips_give_ms"
    trips = [law == "round trips" for law in nearest]
    stands = None if any(trips) and not all(trips) else not any(trips)
    return Finding(
        "E1",
        "Bandwidth is the bottleneck of one tensor, not connection overhead",
        stands,
        sentence,
        frame_of(columns, table),
    )


def inherent_slowness(rows: "pd.DataFrame", *, plausible_share: float = 0.05) -> Finding:
    """E2. A claim about MatMul needs a measurement in which MatMul takes a visible share of the device."""
    import numpy as np

    v = value_of(rows)
    bytes_ = np.array([n * FP32_BYTES for n in BATCHES], float)
    latency = np.array([v(f"step5a_triton_b{n}_mean") for n in BATCHES])
    slope, intercept = np.polyfit(bytes_, latency, 1)
    explained = np.corrcoef(bytes_, latency)[0, 1] ** 2
    shares = [
        roofline.share_of_peak(n / v(f"step5a_triton_b{n}_mean") * 1000, "RTX A4000", "fp32") for n in BATCHES
    ]
    tflops = roofline.achieved_tflops(32 / latency[-1] * 1000)
    sentence = (
        f"Batch 32 ran at {tflops:.3f} TFLOP/s, {shares[-1]:.2%} of the GPU's FP32 peak, and the latency "
        f"is {intercept:.0f} ms plus the bytes at {1e-3 / slope:.2f} MB/s (R² {explained:.3f}): the path "
        "was timed."
    )
    frame = frame_of(
        "batch, payload_bytes, latency_ms, fitted_ms, share_of_fp32_peak",
        [
            (n, int(b), t, intercept + slope * b, s)
            for n, b, t, s in zip(BATCHES, bytes_, latency, shares, strict=True)
        ],
    )
    claim = "ONNX Runtime is inherently 5.2× slower than PyTorch at batch 32"
    return Finding("E2", claim, bool(shares[-1] >= plausible_share), sentence, frame)


def compute_advantage(rows: "pd.DataFrame") -> Finding:
    """E3. GPU time must be divided by GPU time."""
    v = value_of(rows)
    gpu, low = v("step6a_a100_onnx_gpu_compute"), v("est_pytorch_gpu_compute")
    high = float(rows.at["est_pytorch_gpu_compute", "value_high"])
    client = v("step6a_a100_pytorch_b1")
    frame = frame_of(
        "numerator, ms, divided_by_gpu_ms, ratio",
        [
            ("PyTorch GPU time, estimate (low)", low, gpu, low / gpu),
            ("PyTorch GPU time, estimate (high)", high, gpu, high / gpu),
            ("PyTorch latency at the client", client, gpu, client / gpu),
        ],
    )
    sentence = (
        f"GPU against GPU the estimate gives {low / gpu:.1f} to {high / gpu:.1f}; {client / gpu:.1f} comes "
        "out when PyTorch's client latency is divided by Triton's GPU time, and PyTorch's GPU time was "
        "never measured."
    )
    return Finding("E3", "Triton computes 12.8× faster", low / gpu <= 12.8 <= high / gpu, sentence, frame)


def architecture_decides(rows: "pd.DataFrame") -> Finding:
    """E4. The same GPU, the same two engines, two steps."""
    v = value_of(rows)
    pairs = [
        ("6A", v("step6a_a100_onnx_gpu_compute"), v("step6a_a100_trt_gpu_compute")),
        ("7", v("step7_a100_onnx_grpc_gpu_compute"), v("step7_a100_trt_grpc_gpu_compute")),
        ("7 over HTTP", v("step7_a100_onnx_http_gpu_compute"), v("step7_a100_trt_http_gpu_compute")),
    ]
    table = [(step, onnx, trt, "ONNX" if onnx < trt else "TensorRT") for step, onnx, trt in pairs]
    polluted = pairs[2][2] / pairs[1][2]
    sentence = (
        f"On the A100, {table[0][3]} wins in step 6A ({pairs[0][1]:g} against {pairs[0][2]:g} ms) and "
        f"{table[1][3]} in step 7 ({pairs[1][1]:g} against {pairs[1][2]:g} ms); the same engine read "
        f"{polluted:.0f} times higher over HTTP, because the counter's mean includes engine builds."
    )
    frame = frame_of("step, onnx_gpu_ms, trt_gpu_ms, winner", table)
    stands = len({row[3] for row in table[:2]}) == 1 and polluted < 2
    return Finding("E4", "ONNX wins on the A100, TensorRT on consumer GPUs", stands, sentence, frame)


def multi_gpu_scaling(rows: "pd.DataFrame") -> Finding:
    """E5. Numerator and denominator must be the same workload; capacity from the study's own counters."""
    four, one = rows.loc["step6b_c32_throughput"], rows.loc["step6a_rtx4080_onnx_b32_throughput"]
    v = value_of(rows)
    same = all(four[c] == one[c] for c in ("scenario", "batch", "concurrency"))
    mean_batch = v("step6b_requests") / v("step6b_executions")
    capacity = mean_batch / v("step6b_gpu_compute") * 1000 * float(four["gpus"])
    mbit = four["value"] * FP32_BYTES * 8 / 1e6
    other = v("step7_a100_onnx_http_c16_throughput") * FP32_BYTES * 8 / 1e6
    sentence = (
        f"The ratio {four['value'] / one['value']:.2f} divides batch {four['batch']:g} at concurrency "
        f"{four['concurrency']:g} by batch {one['batch']:g} at concurrency {one['concurrency']:g}; by the "
        f"study's counters four GPUs can do {capacity:.0f} images/s and were "
        f"{four['value'] / capacity:.0%} busy, while the client sent {mbit:.0f} Mb/s, next to {other:.0f} "
        "Mb/s to the single A100."
    )
    frame = frame_of(
        "gpus, scenario, batch, concurrency, images_per_s, mbit_per_s",
        [
            (
                int(r["gpus"]),
                r["scenario"],
                r["batch"],
                r["concurrency"],
                r["value"],
                r["value"] * FP32_BYTES * 8e-6,
            )
            for r in (one, four)
        ],
    )
    return Finding("E5", "Four GPUs scale to 1.8× (45 %)", same, sentence, frame)


def littles_law(rows: "pd.DataFrame", *, tolerance: float = 0.25) -> Finding:
    """E6. In a closed loop, mean latency is requests in flight over throughput, whatever the server does."""
    v = value_of(rows)
    table = []
    for n in LEVELS:
        mean, median = n / v(f"step6b_c{n}_throughput") * 1000, v(f"step6b_c{n}_p50")
        table.append((n, v(f"step6b_c{n}_throughput"), median, mean, mean / median))
    per_level = v("step6b_requests") / len(LEVELS)
    off = [row for row in table if abs(row[4] - 1) > tolerance]
    sentence = (
        f"{len(off)} of {len(table)} levels have a mean latency more than {tolerance:.0%} away from the "
        f"median, up to {max(r[4] for r in table):.1f} times it: a heavy tail, or fewer requests in flight "
        f"than stated. About {per_level:.0f} requests per level are {per_level / LEVELS[-1]:.1f} rounds at "
        f"concurrency {LEVELS[-1]}, and {v('step6b_requests') / v('step6b_executions'):.2f} images per "
        "execution is all the batching there was."
    )
    frame = frame_of("concurrency, images_per_s, p50_ms, mean_by_littles_law_ms, mean_over_p50", table)
    return Finding(
        "E6",
        "Method: throughput and latency against concurrency are a steady state",
        not off,
        sentence,
        frame,
    )


def queue_delay(rows: "pd.DataFrame", *, delay_ms: float | None = None, tolerance_ms: float = 1.5) -> Finding:
    """E7. A lone request waits the whole configured delay when preferred batch sizes are set.

    The study prints the number and does not say where it comes from, so the number stands; the check says what it is.
    """
    v = value_of(rows)
    delay = v("queue_delay_step5a") if delay_ms is None else delay_ms
    overheads = {
        "6A, overhead as printed": v("step6a_a100_server_overhead"),
        "6B, queue as printed": v("step6b_queue"),
    }
    for engine in ("onnx", "trt"):
        parts = v(f"step5b_{engine}_gpu_compute") + v(f"step5b_{engine}_compute_input")
        overheads[f"5B {engine}, request less compute and input"] = (
            v(f"step5b_{engine}_server_request") - parts
        )
    near = [name for name, ms in overheads.items() if abs(ms - delay) <= tolerance_ms]
    sentence = (
        f"{len(near)} of {len(overheads)} reported overheads lie within {tolerance_ms:g} ms of the "
        f"{delay:g} ms that the configuration tells the batcher to wait: the overhead is there, and it is a setting."
    )
    frame = frame_of(
        "where, overhead_ms, minus_delay_ms", [(n, ms, ms - delay) for n, ms in overheads.items()]
    )
    printed = overheads["6A, overhead as printed"]
    claim = f"The server adds {printed:.1f} ms to a request"
    return Finding("E7", claim, "6A, overhead as printed" in near, sentence, frame)


def cuda_graphs(rows: "pd.DataFrame") -> Finding:
    """E8. Documentation, not arithmetic: the setting exists for another engine."""
    frame = frame_of(
        "setting, read_by, engine_of_the_model",
        [("optimization.cuda.graphs", "TensorRT engine plans only", "onnxruntime")],
    )
    sentence = (
        "Triton's model configuration documents the setting as recognised by the TensorRT backend only, "
        "so it did nothing for an ONNX model (triton-inference-server/common, protobuf/model_config.proto)."
    )
    return Finding("E8", "CUDA graphs were enabled for the ONNX model", None, sentence, frame)


def concurrency_tie(rows: "pd.DataFrame", *, tolerance: float = 0.05) -> Finding:
    """E9. Two backends may tie on two different walls."""
    import numpy as np

    v = value_of(rows)
    slope = np.polyfit(BATCHES, [v(f"step5a_pytorch_b{n}_mean") for n in BATCHES], 1)[0]
    pytorch, triton = v("step5a_pytorch_concurrent"), v("step5a_triton_concurrent")
    wall = 1000 / slope
    uplink = triton * FP32_BYTES * 8 / 1e6
    explained = abs(pytorch / wall - 1) <= tolerance
    sentence = (
        f"PyTorch's own batches cost {slope:.1f} ms per image, a ceiling of {wall:.1f} images/s where "
        f"{pytorch:g} was measured; Triton's {triton:g} images/s are {uplink:.0f} Mb/s of tensors. "
        + (
            "Two walls, not batching, explain the tie."
            if explained
            else "The ceiling does not explain the tie."
        )
    )
    frame = frame_of(
        "backend, images_per_s, mbit_per_s_of_fp32, ceiling_from_own_batches",
        [("PyTorch", pytorch, "", wall), ("Triton ONNX", triton, uplink, "")],
    )
    return Finding("E9", "Equal throughput proves dynamic batching", not explained, sentence, frame)


def fastapi_scales(rows: "pd.DataFrame") -> Finding:
    """E10. What doubling the clients gave; the text names no gain that would count as scaling well."""
    v = value_of(rows)
    before, after = v("step7_rtx4090_pytorch_c8_throughput"), v("step7_rtx4090_pytorch_c16_throughput")
    best = roofline.load_model_throughput().query("device == 'RTX 4090'")["throughput_images_per_s"].max()
    sentence = (
        f"Twice the clients gave {after / before:.2f} times the throughput, and {after:g} images/s are "
        f"{after / best:.1%} of what this GPU does with the model alone ({best:,.0f}). "
        "The text names no gain that would count as scaling well."
    )
    frame = frame_of(
        "concurrency, images_per_s, of_model_alone", [(8, before, before / best), (16, after, after / best)]
    )
    return Finding("E10", "FastAPI with JPEG scales well under concurrency", None, sentence, frame)


def latency_follows_gpu(rows: "pd.DataFrame", *, tolerance: float = 0.25) -> Finding:
    """E11. If latency followed the GPU, GPU time would have the same ratio."""
    v = value_of(rows)
    client = v("step7_rtx4090_pytorch_b1") / v("step7_a100_pytorch_b1")
    table = [("PyTorch latency at the client", client)]
    for name in ("trt_grpc", "onnx_grpc"):
        quotient = v(f"step7_rtx4090_{name}_gpu_compute") / v(f"step7_a100_{name}_gpu_compute")
        table.append((f"GPU time, {name.replace('_', ' over ')}", quotient))
    stands = all(abs(ratio / client - 1) <= tolerance for _, ratio in table[1:])
    sentence = (
        f"The latency ratio is {client:.2f}, the GPU-time ratios {table[1][1]:.2f} and {table[2][1]:.2f}: "
        + (
            "they agree."
            if stands
            else "the GPUs do not account for the latency, so something between them does."
        )
    )
    frame = frame_of("quantity, rtx4090_over_a100", table)
    return Finding("E11", "PyTorch latency scales with GPU speed", stands, sentence, frame)
