"""The published claims, in our words: top findings, what each step taught, advice, success criteria."""

from dataclasses import replace
from typing import Any

from photodup.study.claims.claims import Claim
from photodup.study.claims.claims_notes import NOTES
from photodup.study.claims.claims_special import (
    GPU,
    LONE,
    MEAN,
    P50,
    RATE,
    bytes_explain,
    outside_server,
    peak_at,
)
from photodup.study.claims.predicates import bound, ratio, remote

PYTORCH = r"fastapi-pytorch-fp32-http-(base64|jpeg)"
ONNX_HTTP, ONNX_GRPC, ONNX_JSON = (
    f"triton-onnx-fp32-{end}" for end in ("http-fp32", "grpc-fp32", "http-json")
)
ONNX_JPEG = "triton-onnx-fp32-http-jpeg"
TRT_HTTP, TRT_GRPC = "triton-trt-fp16-http-fp32", "triton-trt-fp16-grpc-fp32"
TRITON_TENSOR = r"triton-(onnx-fp32|trt-fp16)-(http|grpc)-fp32"
EITHER = "triton-(onnx-fp32|trt-fp16|emulated-[a-z0-9-]+-fp32)"  # engines whose compute, real or emulated, is Triton's
DEVICES: dict[str, Any] = {
    "arrangement": "instances",
    "batching": False,
    "scenario": "closed_loop",
    "batch": 1,
}
EXEC, DEEP, PLAN, SETUP = "executive-summary", "technical-deep-dive", "plan", "triton-setup"
REPORT = "step-5a-report"


def about(value: float, factor: float = 1.5) -> dict[str, float]:
    """Bounds for "about this much": within `factor` either way."""
    return {"at_least": value / factor, "at_most": value * factor}


def protocol_claims() -> list[Claim]:
    """The claims about gRPC, for the real ONNX engine and for emulated GPUs, where compute does not hide them."""
    http, grpc = f"{EITHER}-http-fp32", f"{EITHER}-grpc-fp32"
    each = {"by": ("link", "engine")}
    return [
        Claim(
            "grpc-slower-single",
            "A single image takes longer over gRPC than over HTTP.",
            f"{EXEC}; {DEEP} §10",
            ("step7_a100_onnx_grpc_b1", "step7_a100_onnx_http_b1"),
            ratio(grpc, http, P50, same_engine=True, at_least=1, **LONE),
            "step7_a100_onnx_grpc_b1 / step7_a100_onnx_http_b1",
            "4 % at 30 iterations is below what the same measurement did between two steps.",
            **each,
        ),
        Claim(
            "grpc-faster-batch-32",
            "In batches of 32, gRPC moves more images than HTTP.",
            f"{DEEP} §10",
            ("step7_a100_onnx_grpc_b32_throughput", "step7_a100_onnx_http_b32_throughput"),
            ratio(grpc, http, RATE, same_engine=True, at_least=1, batch=32, concurrency=1),
            "step7_a100_onnx_grpc_b32_throughput / step7_a100_onnx_http_b32_throughput",
            "On the RTX 4090 the same ratio is 1.02; header framing is nothing beside 19 MB.",
            **each,
        ),
        Claim(
            "http-scales-better",
            "With 16 requests in flight HTTP moves more images than gRPC.",
            f"{EXEC}; {DEEP} §10",
            ("step7_a100_onnx_http_c16_throughput", "step7_a100_onnx_grpc_c16_throughput"),
            ratio(
                http,
                grpc,
                RATE,
                same_engine=True,
                at_least=1,
                scenario="closed_loop",
                batch=1,
                concurrency=16,
                denominator_where={"channel": "shared"},
            ),
            "step7_a100_onnx_http_c16_throughput / step7_a100_onnx_grpc_c16_throughput",
            "Sixteen connections against one: the published client shared a single channel.",
            **each,
        ),
        Claim(
            "shared-channel-contends",
            "gRPC's loss under concurrency is the client's one shared channel: with a channel each it is gone.",
            f"{DEEP} §10",
            (),
            ratio(
                grpc,
                grpc,
                RATE,
                at_least=1,
                scenario="closed_loop",
                batch=1,
                concurrency=(8, 16),
                numerator_where={"channel": "per-worker"},
                denominator_where={"channel": "shared"},
            ),
            "",
            "Python's lock around gRPC limits many channels, too.",
            **each,
        ),
    ]


_BARE: list[Claim] = [
    # Top findings
    Claim(
        "json-encoding",
        "Writing a tensor as JSON takes about a thousand times as long as writing it in binary.",
        f"{EXEC}, finding 1; {REPORT}",
        ("step5a_json_encode_b32", "step5a_binary_encode_b32"),
        ratio("body-json", "body-binary", "encode_ms", at_least=500),
        "step5a_json_encode_b32 / step5a_binary_encode_b32",
        "The denominator may be a pointer handed over, not bytes written.",
    ),
    Claim(
        "json-bottleneck",
        "Sending binary instead of JSON makes a batch of 32 clearly faster.",
        f"{REPORT}, results; {DEEP} §6",
        ("step4_json_b32_mean", "step5a_triton_b32_mean"),
        ratio(ONNX_JSON, ONNX_HTTP, MEAN, at_least=1, batch=32, concurrency=1, span="photo"),
        "step4_json_b32_mean / step5a_triton_b32_mean",
        "The two published measurements used different paths (12 and 3 MB/s).",
    ),
    Claim(
        "gpu-decides-engine",
        "On a data-centre GPU the ONNX engine computes faster than TensorRT.",
        f"{EXEC}, finding 2; {DEEP} §8",
        ("step6a_a100_trt_gpu_compute", "step6a_a100_onnx_gpu_compute"),
        ratio(TRT_HTTP, ONNX_HTTP, GPU, at_least=1, **LONE),
        "step6a_a100_trt_gpu_compute / step6a_a100_onnx_gpu_compute",
        "TensorRT's mean included engine builds; warmed, step 7 has it faster.",
    ),
    Claim(
        "network-dominates",
        "More than nine tenths of a remote client's latency is spent outside the server.",
        f"{EXEC}, finding 3; {DEEP} §8",
        ("step6a_a100_network", "step6a_a100_onnx_b1"),
        outside_server(f"{EITHER}-(http|grpc)-fp32", at_least=90),
        "step6a_a100_network / step6a_a100_onnx_b1 * 100",
        "The share depends on how slow the server is: a CPU needs a longer link for the same share.",
        unit="%",
        by=("link", "engine"),
    ),
    Claim(
        "bytes-are-the-bottleneck",
        "The remote latency of a tensor is its 602 KB at the link's bandwidth.",
        f"{EXEC}, finding 3; {DEEP} §10; {PLAN}, step 7",
        ("step6a_a100_onnx_b1", "step6a_a100_pytorch_b1"),
        bytes_explain(),
        "",
        "Round trips of a growing window give the same order of magnitude and fit the rows better.",
    ),
    Claim(
        "jpeg-beats-tensor-remotely",
        "A remote client gets one image embedded sooner by PyTorch with a JPEG than by Triton with a tensor.",
        f"{EXEC}, finding 5; {DEEP} §8",
        ("step6a_a100_onnx_b1", "step6a_a100_pytorch_b1"),
        ratio(ONNX_HTTP, PYTORCH, P50, at_least=1, rtt_ms=remote, **LONE),
        "step6a_a100_onnx_b1 / step6a_a100_pytorch_b1",
        "Payload and server were changed together, and possibly the connection policy.",
    ),
    Claim(
        "payload-not-server",
        "The payload decides, not the server: given the same JPEG, the two servers are about equally fast "
        "remotely.",
        f"{EXEC}, finding 5 (implied, never tested there)",
        (),
        ratio(ONNX_JPEG, PYTORCH, P50, **about(1.0, 1.25), rtt_ms=remote, **LONE),
        "",
        "Servers also differ in decoding, batching delay and connection handling.",
    ),
    Claim(
        "gpu-advantage",
        "Triton's compute takes a twelfth of PyTorch's.",
        f"{EXEC}, finding 5; {PLAN}, step 6A",
        ("step6a_a100_pytorch_b1", "step6a_a100_onnx_gpu_compute"),
        ratio(PYTORCH, ONNX_HTTP, GPU, **about(12.8), **LONE),
        "step6a_a100_pytorch_b1 / step6a_a100_onnx_gpu_compute",
        "A client's latency was divided by a GPU time.",
    ),
    # Step 4 and 5A
    Claim(
        "onnx-slower-at-32",
        "ONNX Runtime computes a batch of 32 about five times slower than PyTorch.",
        f"{REPORT}, findings; {DEEP} §6",
        ("step5a_triton_b32_mean", "step5a_pytorch_b32_mean"),
        ratio("local-pytorch-fp32", "local-onnx-fp32", RATE, **about(5.2), batch=32, concurrency=1),
        "step5a_triton_b32_mean / step5a_pytorch_b32_mean",
        "Transport: the published latency is linear in bytes.",
    ),
    Claim(
        "gap-widens-with-batch",
        "Over the network, Triton with tensors falls behind PyTorch at a batch of 32.",
        f"{REPORT}, findings",
        ("step5a_triton_b32_mean", "step5a_pytorch_b32_mean"),
        ratio(ONNX_HTTP, PYTORCH, MEAN, at_least=1, batch=32, concurrency=1, rtt_ms=remote),
        "step5a_triton_b32_mean / step5a_pytorch_b32_mean",
        "The tensor grows by 602 KB an image, the JPEG by about 10.",
    ),
    Claim(
        "dynamic-batching-ties",
        "With eight requests in flight Triton's dynamic batching reaches PyTorch's throughput.",
        f"{REPORT}, findings",
        ("step5a_pytorch_concurrent", "step5a_triton_concurrent"),
        ratio(PYTORCH, ONNX_HTTP, RATE, **about(1.0, 1.1), scenario="closed_loop", batch=1, concurrency=8),
        "step5a_pytorch_concurrent / step5a_triton_concurrent",
        "Two different walls: one Python process, and the uplink.",
    ),
    Claim(
        "dynamic-batching-two-to-three",
        "Under concurrent load Triton serves two to three times the images of the PyTorch service.",
        f"{SETUP}, expectations",
        ("ts_expect_triton_throughput", "ts_expect_pytorch_throughput"),
        ratio(
            ONNX_HTTP,
            PYTORCH,
            RATE,
            at_least=2,
            at_most=3,
            scenario="closed_loop",
            batch=1,
            concurrency=(8, 16, 32),
        ),
        "ts_expect_triton_throughput / ts_expect_pytorch_throughput",
        "A PyTorch service that batches across requests has the same advantage.",
    ),
    Claim(
        "pytorch-queues",
        "The PyTorch service works off concurrent requests one by one: 32 in flight take 32 times as long "
        "as one.",
        f"{SETUP}, batching",
        ("ts_example_pytorch_each",),
        ratio(
            PYTORCH,
            PYTORCH,
            P50,
            **about(32, 1.25),
            batch=1,
            numerator_where={"concurrency": 32, "scenario": "closed_loop"},
            denominator_where={"concurrency": 1, "scenario": ("single_stream", "closed_loop")},
        ),
        "32 * ts_example_pytorch_each / ts_example_pytorch_each",
        "Holds for any saturated server without batching; decoding can overlap with compute.",
    ),
    Claim(
        "client-batches-are-best",
        "Batches of 32 made by the client give at least the throughput of 32 single requests in flight.",
        f"{SETUP}, batching advice",
        (),
        ratio(
            f"{PYTORCH}|{ONNX_HTTP}",
            f"{PYTORCH}|{ONNX_HTTP}",
            RATE,
            at_least=1,
            numerator_where={"batch": 32, "concurrency": 1, "scenario": ("offline", "single_stream")},
            denominator_where={"batch": 1, "concurrency": 32, "scenario": "closed_loop"},
        ),
        "",
        "One connection cannot fill a long link; many can.",
    ),
    Claim(
        "cpu-batching-gains",
        "On a CPU, batches of 32 raise the ONNX engine's throughput by two thirds over single images.",
        f"{REPORT}, batch scaling",
        ("step5a_cpu_b32_throughput", "step5a_cpu_b1_throughput"),
        ratio(
            "local-onnx-fp32",
            "local-onnx-fp32",
            RATE,
            **about(1.64, 1.25),
            concurrency=1,
            numerator_where={"batch": 32},
            denominator_where={"batch": 1},
        ),
        "step5a_cpu_b32_throughput / step5a_cpu_b1_throughput",
        "The gain depends on cores and caches; few cores are busy with one image already.",
    ),
    Claim(
        "batch-32-under-two-seconds",
        "Triton can answer a batch of 32 within two seconds (the goal, missed there).",
        f"{REPORT}, success criteria",
        ("step5a_triton_b32_mean",),
        bound(ONNX_HTTP, MEAN, at_most=2000, batch=32, concurrency=1),
        "step5a_triton_b32_mean",
        "The bound says nothing about the server when the bytes alone take longer.",
        unit="ms",
    ),
    Claim(
        "within-30-percent",
        "Triton can stay within 30 % of PyTorch at a batch of 32 (the goal, missed there).",
        f"{REPORT}, success criteria",
        ("step5a_triton_b32_mean", "step5a_pytorch_b32_mean"),
        ratio(ONNX_HTTP, PYTORCH, MEAN, at_most=1.3, batch=32, concurrency=1),
        "step5a_triton_b32_mean / step5a_pytorch_b32_mean",
        "The criterion mixes payload and server.",
    ),
    Claim(
        "onnx-parity",
        "The ONNX model answers like PyTorch, within 0.1 %.",
        f"{SETUP}, success criteria",
        (),
        bound(r"triton-onnx-fp32-(http|grpc)-fp32|local-onnx-fp32", "difference_max", at_most=0.001),
        "",
        "The criterion does not say of what: here it is the length of the difference of two unit vectors.",
        unit="of length",
    ),
    Claim(
        "cold-start",
        "The two servers' first answers take about equally long.",
        f"{REPORT}, comparison; {SETUP}, trade-offs",
        ("step5a_triton_cold", "step5a_pytorch_cold"),
        ratio(ONNX_HTTP, PYTORCH, "first_answer_s", **about(1.135, 1.25), scenario="start"),
        "step5a_triton_cold / step5a_pytorch_cold",
        "What a first answer includes differs: server start, model load, first-shape work.",
    ),
    # Step 5B
    Claim(
        "trt-compute",
        "TensorRT with FP16 computes about six times faster than the ONNX engine.",
        f"{DEEP} §7; {PLAN}, step 5B",
        ("step5b_onnx_gpu_compute", "step5b_trt_gpu_compute"),
        ratio(ONNX_HTTP, TRT_HTTP, GPU, **about(6.6), **LONE),
        "step5b_onnx_gpu_compute / step5b_trt_gpu_compute",
        "The ONNX mean includes start-up, and FP32 is compared with FP16.",
    ),
    Claim(
        "fp16-is-safe",
        "Half precision keeps embeddings within a cosine of 0.999.",
        f"{DEEP} §7",
        ("fp16_cosine",),
        bound(r"triton-trt-.*|rounded-fp16", "cosine_min", at_least=0.999),
        "fp16_cosine",
        "A cosine near 1 can still flip decisions near a threshold.",
        unit="cosine",
        by=("subject",),
    ),
    # Step 6A
    Claim(
        "pytorch-wins-batch-32",
        "PyTorch moves more images than Triton in batches of 32.",
        f"{DEEP} §8 (A100); the RTX 4080 rows say otherwise",
        ("step6a_a100_pytorch_b32_throughput", "step6a_a100_onnx_b32_throughput"),
        ratio(PYTORCH, ONNX_HTTP, RATE, at_least=1, batch=32, concurrency=1),
        "step6a_a100_pytorch_b32_throughput / step6a_a100_onnx_b32_throughput",
        "Sixty times fewer bytes.",
    ),
    Claim(
        "server-overhead",
        "Triton, configured as published, adds about ten milliseconds to a lone request on the server.",
        f"{DEEP} §8",
        ("step6a_a100_server_overhead",),
        bound(ONNX_HTTP, "server_queue_ms_mean", **about(10.7), label="batching-published", **LONE),
        "step6a_a100_server_overhead",
        "The published configuration tells the batcher to wait 10 ms.",
        unit="ms",
    ),
    # Step 6B
    Claim(
        "four-gpus",
        "Four GPUs give 1.8 times the throughput of one.",
        f"{EXEC}, finding 4; {DEEP} §9",
        ("step6b_c32_throughput", "step6a_rtx4080_onnx_b32_throughput"),
        ratio(
            f"{EITHER}-http-(fp32|uint8)",
            f"{EITHER}-http-(fp32|uint8)",
            RATE,
            **about(1.8, 1.25),
            concurrency=32,
            numerator_where={"devices": 4},
            denominator_where={"devices": 1},
            **DEVICES,
        ),
        "step6b_c32_throughput / step6a_rtx4080_onnx_b32_throughput",
        "Numerator and denominator were different workloads, and the uplink was full.",
    ),
    Claim(
        "saturates-at-32",
        "Throughput peaks at 32 requests in flight and falls beyond.",
        f"{DEEP} §9",
        ("step6b_c32_throughput", "step6b_c64_throughput"),
        peak_at(f"{EITHER}-http-(fp32|uint8)", 32, devices=4, arrangement="instances", batching=False),
        "32 * step6b_c32_throughput / step6b_c32_throughput",
        "Levels 64 and 128 had one or two waves of requests: no steady state.",
        unit="in flight",
    ),
    Claim(
        "little-is-batched",
        "Under load the dynamic batcher forms batches of little more than one image.",
        f"{DEEP} §9",
        ("step6b_requests", "step6b_executions"),
        bound(
            ONNX_HTTP, "server_batch_mean", at_most=1.5, scenario="closed_loop", batch=1, concurrency=(16, 32)
        ),
        "step6b_requests / step6b_executions",
        "Requests that arrive slowly over a full uplink never meet in the queue.",
        unit="images",
    ),
    # Step 7
    *protocol_claims(),
    Claim(
        "pytorch-leads-all",
        "Remotely, every Triton variant with tensors is 2.7 to 3.4 times slower than PyTorch for one image.",
        f"{EXEC}, key numbers; {DEEP} §10",
        ("step7_a100_trt_http_b1", "step7_a100_pytorch_b1"),
        ratio(TRITON_TENSOR, PYTORCH, P50, at_least=2, at_most=4.5, rtt_ms=remote, **LONE),
        "step7_a100_onnx_http_b1 / step7_a100_pytorch_b1",
        "The factor is a property of round-trip time and connection policy.",
    ),
    Claim(
        "fastapi-scales",
        "The PyTorch service gains clearly from 16 instead of 8 requests in flight.",
        f"{PLAN}, step 7B",
        ("step7_rtx4090_pytorch_c16_throughput", "step7_rtx4090_pytorch_c8_throughput"),
        ratio(
            PYTORCH,
            PYTORCH,
            RATE,
            at_least=1.5,
            scenario="closed_loop",
            batch=1,
            numerator_where={"concurrency": 16},
            denominator_where={"concurrency": 8},
        ),
        "step7_rtx4090_pytorch_c16_throughput / step7_rtx4090_pytorch_c8_throughput",
        "A gain of 4 % is a server that was full already.",
    ),
    # Step 8
    Claim(
        "six-pods",
        "Under 600 requests the cluster scales from two to six pods and holds them.",
        f"{DEEP} §11",
        ("step8_second_size",),
        bound("simulated-hpa|kind-hpa", "pods_ready_max", at_least=6),
        "step8_second_size",
        "The event prints the wish; the quota admits four.",
        unit="pods",
    ),
    Claim(
        "reacts-in-30-seconds",
        "The autoscaler reacts within about 30 seconds.",
        f"{DEEP} §11",
        ("step8_reaction",),
        bound("simulated-hpa|kind-hpa", "hpa_reaction_s", at_most=45),
        "step8_reaction",
        "A sum of sampling, metrics and sync periods, not a property of the autoscaler.",
        unit="s",
    ),
]

CLAIMS = [replace(claim, needs=NOTES[claim.id][0], but=NOTES[claim.id][1]) for claim in _BARE]
