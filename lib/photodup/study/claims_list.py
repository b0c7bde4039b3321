"""The published claims, in our words: top findings, what each step taught, advice, success criteria."""

import math
import re
from typing import TYPE_CHECKING, Any

from photodup.bench import latency_model
from photodup.study.claims import Claim
from photodup.study.predicates import (
    CONTRADICTED,
    INCONCLUSIVE,
    NOT_MEASURED,
    REPRODUCED,
    Outcome,
    Predicate,
    bound,
    ratio,
    remote,
    select,
)

if TYPE_CHECKING:
    import pandas as pd

PYTORCH = r"pytorch-http-(base64|jpeg)"
ONNX_HTTP, ONNX_GRPC, ONNX_JSON = "triton-onnx-http-fp32", "triton-onnx-grpc-fp32", "triton-onnx-http-json"
ONNX_JPEG = "triton-onnx-http-jpeg"
TRT_HTTP, TRT_GRPC = "triton-trt-http-fp32", "triton-trt-grpc-fp32"
TRITON_TENSOR = r"triton-(onnx|trt)-(http|grpc)-fp32"
P50, MEAN, RATE = "latency_ms_p50", "latency_ms_mean", "throughput_images_per_s"
GPU = "server_compute_infer_ms_mean"  # both servers report their stages over the measured window
LONE: dict[str, Any] = {"batch": 1, "concurrency": 1}
EXEC, DEEP, PLAN, SETUP = "executive-summary", "technical-deep-dive", "plan", "triton-setup"
REPORT = "step-5a-report"


def about(value: float, factor: float = 1.5) -> dict[str, float]:
    """Bounds for "about this much": within `factor` either way."""
    return {"at_least": value / factor, "at_most": value * factor}


def any_label(label: object) -> bool:
    """For claims about configurations that only labelled points have."""
    return True


def outside_server(backend: str, *, at_least: float) -> Predicate:
    """Share of a remote client's latency that the server's own counters do not account for."""

    def predicate(points: "pd.DataFrame", noise_floor: float) -> Outcome:
        found = select(points, backend, link=remote, **LONE)
        if not {MEAN, "server_request_ms_mean"} <= set(found.columns):
            return Outcome(NOT_MEASURED, because="no remote point carries the server's counters")
        found = found.dropna(subset=[MEAN, "server_request_ms_mean"])
        if not len(found):
            return Outcome(NOT_MEASURED, because="no remote point carries the server's counters")
        shares = (1 - found["server_request_ms_mean"] / found[MEAN]) * 100
        low, high = shares.min(), shares.max()
        verdict = REPRODUCED if low >= at_least else CONTRADICTED if high < at_least else INCONCLUSIVE
        return Outcome(verdict, shares.mean(), low, high, f"{len(found)} remote points with server counters")

    return predicate


def peak_at(backend: str, concurrency: int) -> Predicate:
    """Claim that throughput peaks at this many requests in flight, and falls beyond it past the noise "
    "floor."""

    def predicate(points: "pd.DataFrame", noise_floor: float) -> Outcome:
        found = select(points, backend, scenario="closed_loop", batch=1)
        found = found.dropna(subset=[RATE]) if RATE in found else found.iloc[0:0]
        curve = found.groupby("concurrency")[RATE].mean() if len(found) else None
        if curve is None or concurrency not in curve.index or not (curve.index > concurrency).any():
            needed = f"needs closed loops at {concurrency} in flight and above"
            return Outcome(NOT_MEASURED, because=needed)
        best = float(curve.idxmax())
        others = curve.drop(index=concurrency).max() / curve[concurrency]
        clear = abs(math.log(others)) > noise_floor
        verdict = INCONCLUSIVE if not clear else REPRODUCED if others < 1 else CONTRADICTED
        because = f"best level elsewhere ÷ level {concurrency}: {others:.2f}, over {len(curve)} levels"
        return Outcome(verdict, best, best, best, because)

    return predicate


def bytes_explain(*, better_by: float = 2.0, up_to_bytes: int = 1_000_000) -> Predicate:
    """Fit bytes-only and round-trip models to remote single requests; effect is their ratio of misfits.

    Below 1/`better_by` the bytes explain the latencies, above `better_by` the round trips do. Latencies without a
    server (`network-only`) are used where the run has them; otherwise the server's own time is taken from its
    counters. To be fair to the bytes, they may have a round trip and a rate of their own for new and for warm
    connections, where the round trips share one of each. Larger payloads than a tensor are left out: any link
    becomes a question of bandwidth in the end.
    """

    def predicate(points: "pd.DataFrame", noise_floor: float) -> Outcome:
        needed = ["payload_bytes", P50, "connection"]
        found = select(points, "network-only", link=remote)
        found = found if len(found) else select(points, ".*", link=remote, **LONE)
        if not set(needed) <= set(found.columns):
            return Outcome(NOT_MEASURED, because="no remote point carries payload, latency and connection")
        found = found.dropna(subset=needed)
        found = found[found["connection"].isin(("new", "warm")) & (found["payload_bytes"] <= up_to_bytes)]
        if len(found) < 4 or found["payload_bytes"].nunique() < 3:
            return Outcome(NOT_MEASURED, because="needs four remote points with three payload sizes")
        rows = [_latency_row(point) for _, point in found.iterrows()]
        kinds = [[row for row in rows if row["connection"] == kind] for kind in ("new", "warm")]
        bytes_alone = [latency_model.fit(kind, "bandwidth-only") for kind in kinds if len(kind) > 1]
        squares = [residual**2 for fit in bytes_alone for residual in fit.residuals_ms]
        misfits = math.sqrt(sum(squares) / len(squares)), latency_model.fit(rows, "rounds").rmse_ms
        effect = misfits[0] / misfits[1] if misfits[1] > 0 else math.inf
        verdict = (
            REPRODUCED if effect < 1 / better_by else CONTRADICTED if effect > better_by else INCONCLUSIVE
        )
        because = f"misfit {misfits[0]:.1f} ms with bytes alone, {misfits[1]:.1f} ms with round trips"
        return Outcome(verdict, effect, effect, effect, because)

    return predicate


def _latency_row(point: "pd.Series") -> dict[str, Any]:
    server_ms = point.get("server_request_ms_mean")
    window = re.search(r"-iw(\d+)", str(point["link"]))
    return {
        "payload_bytes": point["payload_bytes"],
        "latency_ms": point[P50],
        "connection": point["connection"],
        "server_ms": 0.0 if server_ms is None or server_ms != server_ms else server_ms,
        "initcwnd": int(window[1]) if window else latency_model.INITCWND,
    }


def protocol_claims(*, emulated: bool = False) -> list[Claim]:
    """The claims about gRPC, on the real ONNX engine or on the emulated GPUs, where compute does not hide them."""
    suffix, where = ("-emulated", " (emulated GPU)") if emulated else ("", "")
    engine = "emulated-[a-z0-9-]+" if emulated else "onnx"
    http, grpc = f"triton-{engine}-http-fp32", f"triton-{engine}-grpc-fp32"
    return [
        Claim(
            f"grpc-slower-single{suffix}",
            f"A single image takes longer over gRPC than over HTTP{where}.",
            f"{EXEC}; {DEEP} §10",
            ("step7_a100_onnx_grpc_b1", "step7_a100_onnx_http_b1"),
            ratio(grpc, http, P50, same_engine=True, at_least=1, **LONE),
            "step7_a100_onnx_grpc_b1 / step7_a100_onnx_http_b1",
            "4 % at 30 iterations is below what the same measurement did between two steps.",
        ),
        Claim(
            f"grpc-faster-batch-32{suffix}",
            f"In batches of 32, gRPC moves more images than HTTP{where}.",
            f"{DEEP} §10",
            ("step7_a100_onnx_grpc_b32_throughput", "step7_a100_onnx_http_b32_throughput"),
            ratio(grpc, http, RATE, same_engine=True, at_least=1, batch=32, concurrency=1),
            "step7_a100_onnx_grpc_b32_throughput / step7_a100_onnx_http_b32_throughput",
            "On the RTX 4090 the same ratio is 1.02; header framing is nothing beside 19 MB.",
        ),
        Claim(
            f"http-scales-better{suffix}",
            f"With 16 requests in flight HTTP moves more images than gRPC{where}.",
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
        ),
        Claim(
            f"shared-channel-contends{suffix}",
            f"gRPC's loss under concurrency is the client's one shared channel: with a channel each it is gone{where}.",
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
        ),
    ]


CLAIMS: list[Claim] = [
    # Top findings
    Claim(
        "json-encoding",
        "Writing a tensor as JSON takes about a thousand times as long as writing it in binary.",
        f"{EXEC}, finding 1; {REPORT}",
        ("step5a_json_encode_b32", "step5a_binary_encode_b32"),
        ratio(ONNX_JSON, ONNX_HTTP, ("encode_ms_p50", "encode_ms_mean", "encode_ms"), at_least=500),
        "step5a_json_encode_b32 / step5a_binary_encode_b32",
        "The denominator may be a pointer handed over, not bytes written.",
    ),
    Claim(
        "json-bottleneck",
        "Sending binary instead of JSON makes a batch of 32 clearly faster.",
        f"{REPORT}, results; {DEEP} §6",
        ("step4_json_b32_mean", "step5a_triton_b32_mean"),
        ratio(ONNX_JSON, ONNX_HTTP, MEAN, at_least=1, batch=32, concurrency=1),
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
        outside_server(TRITON_TENSOR, at_least=90),
        "step6a_a100_network / step6a_a100_onnx_b1 * 100",
        "The share depends on how slow the server is: a CPU needs a longer link for the same share.",
        unit="%",
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
        ratio(ONNX_HTTP, PYTORCH, P50, at_least=1, link=remote, **LONE),
        "step6a_a100_onnx_b1 / step6a_a100_pytorch_b1",
        "Payload and server were changed together, and possibly the connection policy.",
    ),
    Claim(
        "payload-not-server",
        "The payload decides, not the server: given the same JPEG, the two servers are about equally fast "
        "remotely.",
        f"{EXEC}, finding 5 (implied, never tested there)",
        (),
        ratio(ONNX_JPEG, PYTORCH, P50, **about(1.0, 1.25), link=remote, **LONE),
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
        ratio("local-pytorch", "local-onnx", RATE, **about(5.2), batch=32, concurrency=1),
        "step5a_triton_b32_mean / step5a_pytorch_b32_mean",
        "Transport: the published latency is linear in bytes.",
    ),
    Claim(
        "gap-widens-with-batch",
        "Over the network, Triton with tensors falls behind PyTorch at a batch of 32.",
        f"{REPORT}, findings",
        ("step5a_triton_b32_mean", "step5a_pytorch_b32_mean"),
        ratio(ONNX_HTTP, PYTORCH, MEAN, at_least=1, batch=32, concurrency=1, link=remote),
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
            "local-onnx",
            "local-onnx",
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
        "Triton answers a batch of 32 within two seconds.",
        f"{REPORT}, success criteria",
        ("step5a_triton_b32_mean",),
        bound(ONNX_HTTP, MEAN, at_most=2000, batch=32, concurrency=1),
        "step5a_triton_b32_mean",
        "The bound says nothing about the server when the bytes alone take longer.",
        unit="ms",
    ),
    Claim(
        "within-30-percent",
        "Triton stays within 30 % of PyTorch at a batch of 32.",
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
        bound(r"(triton-onnx-.*-fp32|local-onnx)", "cosine_min", at_least=0.999),
        "",
        "Cosine forgives a common factor; the export notebook also checks the largest difference.",
        unit="cosine",
    ),
    Claim(
        "cold-start",
        "The two servers' first answers take about equally long.",
        f"{REPORT}, comparison; {SETUP}, trade-offs",
        ("step5a_triton_cold", "step5a_pytorch_cold"),
        ratio(ONNX_HTTP, PYTORCH, ("first_answer_s", "cold_start_ms"), **about(1.135, 1.25)),
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
        bound(r"triton-trt-.*|.*-fp16", "cosine_min", at_least=0.999),
        "fp16_cosine",
        "A cosine near 1 can still flip decisions near a threshold.",
        unit="cosine",
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
            r"triton-(onnx|emulated-.*)-http-fp32",
            r"triton-(onnx|emulated-.*)-http-fp32",
            RATE,
            **about(1.8, 1.25),
            scenario="closed_loop",
            batch=1,
            label=any_label,
            numerator_where={"instances": 4},
            denominator_where={"instances": 1},
        ),
        "step6b_c32_throughput / step6a_rtx4080_onnx_b32_throughput",
        "Numerator and denominator were different workloads, and the uplink was full.",
    ),
    Claim(
        "saturates-at-32",
        "Throughput peaks at 32 requests in flight and falls beyond.",
        f"{DEEP} §9",
        ("step6b_c32_throughput", "step6b_c64_throughput"),
        peak_at(r"triton-(onnx|emulated-.*)-http-fp32", 32),
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
    *protocol_claims(emulated=True),
    Claim(
        "pytorch-leads-all",
        "Remotely, every Triton variant with tensors is 2.7 to 3.4 times slower than PyTorch for one image.",
        f"{EXEC}, key numbers; {DEEP} §10",
        ("step7_a100_trt_http_b1", "step7_a100_pytorch_b1"),
        ratio(TRITON_TENSOR, PYTORCH, P50, at_least=2, at_most=4.5, link=remote, **LONE),
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
        bound(".*", "pods_ready_max", at_least=6),
        "step8_second_size",
        "The event prints the wish; the quota admits four.",
        unit="pods",
    ),
    Claim(
        "reacts-in-30-seconds",
        "The autoscaler reacts within about 30 seconds.",
        f"{DEEP} §11",
        ("step8_reaction",),
        bound(".*", "hpa_reaction_s", at_most=45),
        "step8_reaction",
        "A sum of sampling, metrics and sync periods, not a property of the autoscaler.",
        unit="s",
    ),
]
