"""E12 to E21: clusters, repeats, unlike comparisons and summary sentences, from the published rows alone.

Assumptions are keyword arguments. The sentence and `stands` are computed, so other rows give another verdict.
"""

import math
from typing import TYPE_CHECKING

from photodup.bench.link.latency_model import rounds
from photodup.study.published.finding import FP32_BYTES, Finding, frame_of, value_of

if TYPE_CHECKING:
    import pandas as pd

NAMES = {"pytorch": "PyTorch", "trt_http": "TensorRT HTTP", "onnx_http": "ONNX HTTP"}


def pods_against_quota(rows: "pd.DataFrame") -> Finding:
    """E12. The quota admits a pod only while the sum of CPU limits stays within it."""
    v = value_of(rows)
    quota, limit = v("k8s_quota_limits"), v("k8s_cpu_limit") / 1000
    admitted, wanted = math.floor(quota / limit), v("step8_second_size")
    load = v("step8_pod_cpu") / v("k8s_cpu_request")
    desired = math.ceil(v("k8s_replicas") * load / (v("k8s_hpa_target") / 100))
    sentence = (
        f"{wanted:.0f} pods of {limit:g} CPU need {wanted * limit:g} CPU of limits where the quota has "
        f"{quota:g}, so at most {admitted} run; 'New size' is the wish, and at {load:.0%} of the request "
        f"the autoscaler's rule already wishes for {desired}."
    )
    table = frame_of(
        "pods, cpu_limits, quota, admitted",
        [(n, n * limit, quota, "yes" if n <= admitted else "no") for n in (2, 4, int(wanted))],
    )
    return Finding("E12", "The cluster scaled to and held 6 pods", wanted <= admitted, sentence, table)


def protective_probe(rows: "pd.DataFrame", *, pods: int = 2, unready: int = 1) -> Finding:
    """E13. On scale-up the autoscaler counts a pod that is not ready as idle.

    That speaks against the probe; what became of the requests was not published, so the claim is left open.
    """
    v = value_of(rows)
    load, target = v("step8_pod_cpu") / v("k8s_cpu_request"), v("k8s_hpa_target") / 100
    all_ready = math.ceil(pods * load / target)
    some = math.ceil(pods * ((pods - unready) * load / pods) / target)
    per_pod = pods / (pods - unready) if pods > unready else math.inf
    sentence = (
        f"With {unready} of {pods} busy pods not ready the wish falls from {all_ready} to {some} pods, and "
        f"each pod left gets {per_pod:g} times its share of the requests. How many requests failed was not printed."
    )
    table = frame_of(
        "ready, desired_pods, load_on_each_ready_pod",
        [(pods, all_ready, 1.0), (pods - unready, some, per_pod)],
    )
    claim = "A readiness probe that fails under CPU saturation is protective"
    harmless = some >= all_ready and per_pod <= 1
    return Finding("E13", claim, True if harmless else None, sentence, table)


def repeat_spread(rows: "pd.DataFrame") -> Finding:
    """E14. An effect must exceed what measurements of its own kind do from one step to the next."""
    v = value_of(rows)
    repeats = {
        "batch 1": [
            ("step6a_a100_onnx_b1", "step7_a100_onnx_http_b1"),
            ("step6a_a100_pytorch_b1", "step7_a100_pytorch_b1"),
            ("step6a_a100_trt_b1", "step7_a100_trt_http_b1"),
        ],
        "batch 32": [
            ("step6a_a100_onnx_b32_throughput", "step7_a100_onnx_http_b32_throughput"),
            ("step6a_a100_pytorch_b32_throughput", "step7_a100_pytorch_b32_throughput"),
        ],
    }
    spread = {k: max(max(v(a) / v(b), v(b) / v(a)) for a, b in pairs) for k, pairs in repeats.items()}
    effects = [
        ("PyTorch over Triton, batch 1", "step6a_a100_onnx_b1", "step6a_a100_pytorch_b1", "batch 1"),
        ("HTTP over gRPC, batch 1", "step7_a100_onnx_grpc_b1", "step7_a100_onnx_http_b1", "batch 1"),
        (
            "gRPC over HTTP, batch 32",
            "step7_a100_onnx_grpc_b32_throughput",
            "step7_a100_onnx_http_b32_throughput",
            "batch 32",
        ),
        ("four GPUs over one", "step6b_c32_throughput", "step6a_rtx4080_onnx_b32_throughput", "batch 32"),
    ]
    table = [(name, v(a) / v(b), kind, spread[kind]) for name, a, b, kind in effects]
    below = [row[0] for row in table if row[1] < row[3]]
    sentence = (
        "From step 6A to step 7 the same measurement on the same kind of GPU moved by up to "
        f"{spread['batch 1']:.1f} times at batch 1 and {spread['batch 32']:.1f} times at batch 32; "
        f"{len(below)} of {len(table)} effects are smaller than that ({'; '.join(below) or 'none'})."
    )
    frame = frame_of("effect, times, repeated_at, repeats_differ_times", table)
    return Finding("E14", "Method: thirty iterations resolve the differences", not below, sentence, frame)


def json_factor(rows: "pd.DataFrame", *, most: float = 0.5) -> Finding:
    """E15. The slow Triton was slow JSON where leaving JSON out takes away most (`most`) of the latency."""
    v = value_of(rows)
    table = []
    for n in (1, 4, 8, 16, 32):
        json_ms, binary_ms, size = (
            v(f"step5a_{k}_b{n}") for k in ("json_encode", "binary_encode", "binary_payload")
        )
        table.append((n, json_ms / n, json_ms / binary_ms, size / binary_ms / 1e6))
    json_rate = v("step5a_json_payload_b32") / (v("step4_json_b32_mean") - v("step5a_json_encode_b32")) / 1e3
    binary_rate = v("step5a_binary_payload_b32") / v("step5a_triton_b32_mean") / 1e3
    before, left = (v(name) / 1000 for name in ("step4_json_b32_mean", "step5a_triton_b32_mean"))
    growth = v("step5a_json_payload_b32") / v("step5a_binary_payload_b32")
    sentence = (
        f"Without JSON {left:.1f} of {before:.1f} s were left, {left / before:.0%}; writing it took "
        f"{v('step5a_json_encode_b32') / 1000:.1f} s. The JSON run moved {json_rate:.1f} MB/s and the binary one "
        f"{binary_rate:.1f}, so the path differed too. JSON costs {table[0][1]:.0f} ms of CPU per image and "
        f"{growth:.1f} times the bytes; the factor {table[0][2]:,.0f} divides by {table[0][3]:.0f} GB/s, one copy "
        "within the cache."
    )
    frame = frame_of("batch, json_ms_per_image, printed_factor, binary_gb_per_s", table)
    claim = "The slow Triton was slow JSON"
    return Finding("E15", claim, 1 - left / before >= most, sentence, frame)


def laptop_against_gpu(
    rows: "pd.DataFrame",
    *,
    laptop_watts: float = 30.0,
    usd_per_kwh: float = 0.25,
    laptop_usd: float = 0.0,
    years: float = 3.0,
) -> Finding:
    """E16. Two networks, two loads, and a machine without a price."""
    v = value_of(rows)
    hourly = laptop_watts / 1000 * usd_per_kwh + laptop_usd / (years * 8766)
    laptop = hourly / 3600 / v("step8_throughput") * 1000
    gpu = v("offer_a100_price") / 3600 / v("step7_a100_pytorch_c16_throughput") * 1000
    sentence = (
        f"The latency ratio {v('step8_p50') / v('step7_a100_pytorch_b1'):.0f} sets a loaded local cluster "
        "against one request at a time over the internet, and the throughput is a third workload; at "
        f"{laptop_watts:g} W and {usd_per_kwh:g} USD per kWh the laptop's 1,000 images cost {laptop:.5f} "
        f"USD against {gpu:.5f}."
    )
    table = frame_of(
        "side, network, in_flight, usd_per_1000_images",
        [
            ("laptop cluster", "loopback", "not stated", laptop),
            ("A100", "internet", "1 (latency), 16 (throughput)", gpu),
        ],
    )
    claim = "Method: the cluster on a laptop and the A100 are compared under one load, both with their price"
    return Finding("E16", claim, laptop == 0, sentence, table)


def payload_is_a_crop(
    rows: "pd.DataFrame", *, jpeg_224_bytes: int = 15_100, original_bytes: int = 121_000
) -> Finding:
    """E17. The defaults are means of ten 640×480 photos: their 224-pixel crop at quality 90, and as they are.

    The study does not say what its JPEG holds, so its size is neither wrong nor a photograph's.
    """
    v = value_of(rows)
    printed = v("wire_fp32_payload") / v("wire_jpeg_payload")
    table = [
        ("fp32 tensor", FP32_BYTES, 1.0),
        ("uint8 tensor", FP32_BYTES // 4, 4.0),
        ("photograph as it is", original_bytes, FP32_BYTES / original_bytes),
        ("224-pixel JPEG", jpeg_224_bytes, FP32_BYTES / jpeg_224_bytes),
        ("224-pixel JPEG in base64", jpeg_224_bytes * 4 // 3, FP32_BYTES / (jpeg_224_bytes * 4 / 3)),
    ]
    sentence = (
        f"The printed sizes differ {printed:.0f} times. Ten photographs of 640×480 are {table[4][1] / 1000:.0f} KB in "
        f"base64 after being cut to 224 pixels, and {table[2][1] / 1000:.0f} KB as they are, {table[2][2]:.1f} times "
        "smaller than the tensor. So the client had resized and compressed again, or its photographs were small; the "
        "text does not say."
    )
    frame = frame_of("wire, bytes_per_image, smaller_than_fp32", table)
    stands = True if original_bytes <= 1.5 * v("wire_jpeg_payload") else None
    return Finding("E17", "PyTorch wins because it is sent 10 KB an image", stands, sentence, frame)


def connection_policy(
    rows: "pd.DataFrame", *, rtt_ms: float = 25.0, rate_mb_per_s: float = 26.0, tolerance: float = 0.10
) -> Finding:
    """E18. A client that connects for each request against one that keeps its connection."""
    v = value_of(rows)
    server = v("step6a_a100_onnx_gpu_compute") + v("step6a_a100_server_overhead")
    table, ratios = [], {}
    for policy in ("new", "kept, window restarted", "kept, window open"):
        times = []
        for size in (int(v("wire_jpeg_payload") * 4 / 3), FP32_BYTES):
            trips = 1 if policy.endswith("open") else rounds(size) + (policy == "new")
            times.append(trips * rtt_ms + size / rate_mb_per_s / 1000 + server)
        ratios[policy] = times[1] / times[0]
        table.append((policy, *times, ratios[policy]))
    spread = max(ratios.values()) / min(ratios.values())
    published = v("step6a_a100_onnx_b1") / v("step6a_a100_pytorch_b1")
    sentence = (
        f"At {rtt_ms:g} ms the same two payloads are {min(ratios.values()):.1f} to "
        f"{max(ratios.values()):.1f} times apart depending on the connection alone; {published:.1f} was "
        "published without saying which each client used."
    )
    frame = frame_of("connection, jpeg_ms, fp32_ms, ratio", table)
    return Finding(
        "E18", "Method: the comparison isolates the payload", spread - 1 <= tolerance, sentence, frame
    )


def batch_scaling(rows: "pd.DataFrame") -> Finding:
    """E19. The printed factor is the growth of latency: 1 would be perfect, the batch size no gain at all."""
    v = value_of(rows)
    one = v("step5a_cpu_b1_latency")
    table = [
        (
            n,
            v(f"step5a_cpu_b{n}_latency"),
            v(f"step5a_cpu_b{n}_latency") / one,
            n * one / v(f"step5a_cpu_b{n}_latency"),
        )
        for n in (1, 4, 8, 16, 32)
    ]
    sentence = (
        f"A batch of 32 takes {table[-1][2]:.1f} times as long as one image, so batching gains "
        f"{table[-1][3]:.2f} times the throughput; the printed 'efficiency' is an image's cost in the "
        f"batch, {table[-1][2] / 32:.0%} of its cost alone, and a smaller number would have been better."
    )
    frame = frame_of("batch, latency_ms, latency_growth, throughput_gain", table)
    return Finding(
        "E19", "Batching on the CPU scales 19.5× (60 % efficient)", table[-1][3] >= 19, sentence, frame
    )


def fastest_compute(rows: "pd.DataFrame") -> Finding:
    """E20. The summary's best number against all rows of its kind."""
    compute = rows[(rows["quantity"] == "gpu_compute_ms") & ~rows["how_measured"].str.contains("estimate")]
    best = compute["value"].idxmin()
    claimed = float(rows.at["step7_rtx4090_trt_grpc_gpu_compute", "value"])
    sentence = (
        f"The summary calls {claimed:g} ms on an RTX 4090 the fastest; step {compute.at[best, 'step']} has "
        f"{compute.at[best, 'value']:g} ms on an {compute.at[best, 'hardware']}."
    )
    table = compute.sort_values("value").head(4)[["step", "hardware", "backend", "value"]]
    frame = table.rename(columns={"value": "gpu_compute_ms"}).reset_index(drop=True)
    stands = bool(compute.at[best, "value"] >= claimed)
    return Finding("E20", "2.7 ms is the fastest GPU compute of the study", stands, sentence, frame)


def same_ordering(rows: "pd.DataFrame") -> Finding:
    """E21. One ordering per GPU and quantity."""
    v = value_of(rows)
    table = []
    for kind, sign in (("b1", 1), ("b32_throughput", -1), ("c16_throughput", -1)):
        for gpu in ("a100", "rtx4090"):
            order = sorted(NAMES, key=lambda name: sign * v(f"step7_{gpu}_{name}_{kind}"))
            table.append((kind, gpu, " > ".join(NAMES[name] for name in order)))
    expected = " > ".join(NAMES.values())
    agree = sum(row[2] == expected for row in table)
    gap = v("step7_rtx4090_onnx_http_b1") / v("step7_rtx4090_trt_http_b1") - 1
    sentence = (
        f"The sentence names no quantity. Its ordering holds in {agree} of {len(table)} cases: for one image on both "
        f"GPUs, where on the RTX 4090 the last two are {gap:.1%} apart, but not for all batches or loads."
    )
    frame = frame_of("quantity, gpu, best_to_worst", table)
    claim = "Both GPUs order the backends alike: PyTorch, TensorRT HTTP, ONNX HTTP"
    single = all(row[2] == expected for row in table if row[0] == "b1")
    stands = True if agree == len(table) else None if single else False
    return Finding("E21", claim, stands, sentence, frame)
