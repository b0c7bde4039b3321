"""What the published numbers say about the published sentences: arithmetic over the rows, no run needed.

E1 to E21 name the checks. Each returns whether the sentence stands and the numbers that say so; the words are
`results/published/checks.yaml`, a template each. Assumptions are keyword arguments, so another assumption, or other rows,
give another verdict.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from photodup.bench.link.latency_model import rounds
from photodup.study.published import roofline
from photodup.study.published.published import FP32_BYTES, load_measurements, published_dir, value_of

if TYPE_CHECKING:
    import pandas as pd

BATCHES = (1, 4, 8, 16, 32)
LEVELS = (1, 4, 8, 16, 32, 64, 128)
USD_PER_KWH = 0.25  # of a laptop, whose own price is left out
# Means of ten 640×480 photos: their 224-pixel crop at quality 90, and as they are.
CROP_BYTES, ORIGINAL_BYTES = 15_100, 121_000
NAMES = {"pytorch": "PyTorch", "trt_http": "TensorRT HTTP", "onnx_http": "ONNX HTTP"}
Found = tuple[bool | None, dict[str, Any]]  # whether it stands (None: numbers cannot say), and the numbers


@dataclass(frozen=True)
class Finding:
    """One check of the published numbers.

    Attributes:
        claim: what is checked, in one line.
        quote: the study's own words; empty where the check examines the method, and no claim of the study.
        stands: True when the sentence survives, None when numbers cannot say.
        numbers: what the check computed, by name.
        because: the numbers in words.
    """

    claim: str
    quote: str
    stands: bool | None
    numbers: dict[str, Any]
    because: str

    @property
    def verdict(self) -> str:
        """The verdict on the claim, or on the method where the study claimed nothing."""
        if self.stands is None:
            return "numbers cannot say"
        words = ("does not stand", "stands") if self.quote else ("method is in doubt", "method holds")
        return words[self.stands]


def check_words() -> dict[str, dict[str, str]]:
    """Return what `checks.yaml` says of each check: `claim`, `because`, and the quote: `document`, `section`, `text`."""
    return yaml.safe_load((published_dir() / "checks.yaml").read_text(encoding="utf-8"))


def run_all(rows: "pd.DataFrame | None" = None) -> dict[str, Finding]:
    """Return every finding by the check's name, with the default assumptions."""
    rows = load_measurements() if rows is None else rows
    return {name: finding(name, *check(rows)) for name, check in CHECKS.items()}


def finding(name: str, stands: bool | None, numbers: dict[str, Any]) -> Finding:
    """Put a check's numbers into its words."""
    words = check_words()[name]
    claim, because = (words[part].format(**numbers) for part in ("claim", "because"))
    return Finding(claim, words.get("text", ""), None if stands is None else bool(stands), numbers, because)


def bandwidth_or_round_trips(rows: "pd.DataFrame", *, rtt_ms: float = 25.0) -> Found:
    """E1. Rates are what the study's own 16 connections, and its single one, carried; so is the server's time.

    It stands when a rate comes nearest to both tensor rows, falls when round trips do, and is open between them.
    """
    v = value_of(rows)
    link = v("step7_a100_onnx_http_c16_throughput") * FP32_BYTES
    server = v("step6a_a100_onnx_gpu_compute") + v("step6a_a100_server_overhead")
    trips = (rounds(FP32_BYTES) + 1) * rtt_ms + server  # on a new connection
    by_link = rtt_ms + FP32_BYTES / link * 1000 + server
    published = [v("step6a_a100_onnx_b1"), v("step7_a100_onnx_http_b1")]
    alone = [v(f"step{step}_b32_throughput") * FP32_BYTES for step in ("6a_a100_onnx", "7_a100_onnx_http")]
    by_one = [rtt_ms + FP32_BYTES / rate * 1000 + server for rate in alone]
    nearest = []
    for ms, one in zip(published, by_one, strict=True):
        laws = {"the link's rate": by_link, "one connection's rate": one, "round trips": trips}
        nearest.append(min(laws, key=lambda law: abs(math.log(ms / laws[law]))))
    fits = [law == "round trips" for law in nearest]
    return None if any(fits) and not all(fits) else not any(fits), {
        "link_mb_per_s": link / 1e6,
        "transfer_ms": FP32_BYTES / link * 1000,
        "claimed_ms": v("step6a_transfer_claim"),
        "rtt_ms": rtt_ms,
        "published_ms": published,
        "link_rate_gives_ms": by_link,
        "one_connection_gives_ms": by_one,
        "round_trips_give_ms": trips,
        "one_mb_per_s": alone[1] / 1e6,
        "nearest": nearest,
    }


def inherent_slowness(rows: "pd.DataFrame", *, plausible_share: float = 0.05) -> Found:
    """E2. A claim about MatMul needs a measurement in which MatMul takes a visible share of the device."""
    v = value_of(rows)
    size = np.array(BATCHES, float) * FP32_BYTES
    latency = np.array([v(f"step5a_triton_b{n}_mean") for n in BATCHES])
    slope, intercept = np.polyfit(size, latency, 1)
    rate = 32 / latency[-1] * 1000
    share = roofline.share_of_peak(rate, "RTX A4000", "fp32")
    return share >= plausible_share, {
        "tflops": roofline.achieved_tflops(rate),
        "share": share,
        "intercept_ms": intercept,
        "mb_per_s": 1e-3 / slope,
        "r2": np.corrcoef(size, latency)[0, 1] ** 2,
    }


def compute_advantage(rows: "pd.DataFrame") -> Found:
    """E3. GPU time must be divided by GPU time."""
    v = value_of(rows)
    gpu = v("step6a_a100_onnx_gpu_compute")
    low, high = rows.loc["est_pytorch_gpu_compute", ["value", "value_high"]].astype(float) / gpu
    return low <= 12.8 <= high, {"low": low, "high": high, "mixed": v("step6a_a100_pytorch_b1") / gpu}


def architecture_decides(rows: "pd.DataFrame") -> Found:
    """E4. The same GPU, the same two engines, two steps."""
    v = value_of(rows)
    steps = ("step6a_a100_{}_gpu_compute", "step7_a100_{}_grpc_gpu_compute")
    onnx, trt = ([v(step.format(engine)) for step in steps] for engine in ("onnx", "trt"))
    winners = ["ONNX" if a < b else "TensorRT" for a, b in zip(onnx, trt, strict=True)]
    polluted = v("step7_a100_trt_http_gpu_compute") / trt[1]
    stands = len(set(winners)) == 1 and polluted < 2
    return stands, {"onnx_ms": onnx, "trt_ms": trt, "winners": winners, "polluted": polluted}


def multi_gpu_scaling(rows: "pd.DataFrame") -> Found:
    """E5. Numerator and denominator must be the same workload; capacity from the study's own counters."""
    v = value_of(rows)
    four, one = rows.loc["step6b_c32_throughput"], rows.loc["step6a_rtx4080_onnx_b32_throughput"]
    mean_batch = v("step6b_requests") / v("step6b_executions")
    capacity = mean_batch / v("step6b_gpu_compute") * 1000 * float(four["gpus"])
    mbit = FP32_BYTES * 8e-6
    return all(four[c] == one[c] for c in ("scenario", "batch", "concurrency")), {
        "ratio": four["value"] / one["value"],
        "four": four,
        "one": one,
        "capacity": capacity,
        "busy": four["value"] / capacity,
        "mbit_per_s": four["value"] * mbit,
        "other_mbit_per_s": v("step7_a100_onnx_http_c16_throughput") * mbit,
    }


def littles_law(rows: "pd.DataFrame", *, tolerance: float = 0.25) -> Found:
    """E6. In a closed loop, mean latency is requests in flight over throughput, whatever the server does."""
    v = value_of(rows)
    medians = [v(f"step6b_c{n}_p50") for n in LEVELS]
    means = [n / v(f"step6b_c{n}_throughput") * 1000 for n in LEVELS]
    over = [mean / median for mean, median in zip(means, medians, strict=True)]
    n_off = sum(abs(ratio - 1) > tolerance for ratio in over)
    per_level = v("step6b_requests") / len(LEVELS)
    return not n_off, {
        "concurrency": LEVELS,
        "median_ms": medians,
        "mean_ms": means,
        "most": max(over),
        "n_off": n_off,
        "n": len(LEVELS),
        "tolerance": tolerance,
        "per_level": per_level,
        "waves": per_level / LEVELS[-1],
        "last": LEVELS[-1],
        "batch": v("step6b_requests") / v("step6b_executions"),
    }


def queue_delay(rows: "pd.DataFrame", *, delay_ms: float | None = None, tolerance_ms: float = 1.5) -> Found:
    """E7. A lone request waits the whole configured delay when preferred batch sizes are set.

    The study prints the number and does not say where it comes from, so the number stands; the check says what it is.
    """
    v = value_of(rows)
    delay = v("queue_delay_step5a") if delay_ms is None else delay_ms
    printed = v("step6a_a100_server_overhead")
    overheads = [printed, v("step6b_queue")]
    for engine in ("onnx", "trt"):
        parts = v(f"step5b_{engine}_gpu_compute") + v(f"step5b_{engine}_compute_input")
        overheads.append(v(f"step5b_{engine}_server_request") - parts)
    near = [abs(ms - delay) <= tolerance_ms for ms in overheads]
    return near[0], {
        "n_near": sum(near),
        "n": len(near),
        "tolerance_ms": tolerance_ms,
        "delay_ms": delay,
        "printed": printed,
    }


def cuda_graphs(rows: "pd.DataFrame") -> Found:
    """E8. Documentation, not arithmetic: the setting exists for another engine."""
    return None, {}


def concurrency_tie(rows: "pd.DataFrame", *, tolerance: float = 0.05) -> Found:
    """E9. Two backends may tie on two different walls."""
    v = value_of(rows)
    slope = np.polyfit(BATCHES, [v(f"step5a_pytorch_b{n}_mean") for n in BATCHES], 1)[0]
    pytorch, triton = v("step5a_pytorch_concurrent"), v("step5a_triton_concurrent")
    numbers = {"ms_per_image": slope, "wall": 1000 / slope, "pytorch": pytorch, "triton": triton}
    return abs(pytorch * slope / 1000 - 1) > tolerance, numbers | {
        "mbit_per_s": triton * FP32_BYTES * 8 / 1e6
    }


def fastapi_scales(rows: "pd.DataFrame") -> Found:
    """E10. What doubling the clients gave; the text names no gain that would count as scaling well."""
    v = value_of(rows)
    before, after = v("step7_rtx4090_pytorch_c8_throughput"), v("step7_rtx4090_pytorch_c16_throughput")
    best = roofline.load_model_throughput().query("device == 'RTX 4090'")["throughput_images_per_s"].max()
    return None, {"gain": after / before, "after": after, "share": after / best, "best": best}


def latency_follows_gpu(rows: "pd.DataFrame", *, tolerance: float = 0.25) -> Found:
    """E11. If latency followed the GPU, GPU time would have the same ratio."""
    v = value_of(rows)
    client = v("step7_rtx4090_pytorch_b1") / v("step7_a100_pytorch_b1")
    gpu = [
        v(f"step7_rtx4090_{n}_gpu_compute") / v(f"step7_a100_{n}_gpu_compute")
        for n in ("trt_grpc", "onnx_grpc")
    ]
    return all(abs(ratio / client - 1) <= tolerance for ratio in gpu), {"client": client, "gpu": gpu}


def pods_against_quota(rows: "pd.DataFrame") -> Found:
    """E12. The quota admits a pod only while the sum of CPU limits stays within it."""
    v = value_of(rows)
    quota, limit, wanted = v("k8s_quota_limits"), v("k8s_cpu_limit") / 1000, v("step8_second_size")
    admitted, load = math.floor(quota / limit), v("step8_pod_cpu") / v("k8s_cpu_request")
    return wanted <= admitted, {
        "wanted": wanted,
        "limit": limit,
        "needed": wanted * limit,
        "quota": quota,
        "admitted": admitted,
        "load": load,
        "desired": math.ceil(v("k8s_replicas") * load / (v("k8s_hpa_target") / 100)),
    }


def protective_probe(rows: "pd.DataFrame", *, pods: int = 2, unready: int = 1) -> Found:
    """E13. On scale-up the autoscaler counts a pod that is not ready as idle.

    That speaks against the probe; what became of the requests was not published, so the claim is left open.
    """
    v = value_of(rows)
    load, target = v("step8_pod_cpu") / v("k8s_cpu_request"), v("k8s_hpa_target") / 100
    all_ready = math.ceil(pods * load / target)
    some = math.ceil((pods - unready) * load / target)
    per_pod = pods / (pods - unready) if pods > unready else math.inf
    numbers = {"pods": pods, "unready": unready, "all_ready": all_ready, "some": some, "per_pod": per_pod}
    return True if some >= all_ready and per_pod <= 1 else None, numbers


def repeat_spread(rows: "pd.DataFrame") -> Found:
    """E14. An effect must exceed what measurements of its own kind do from one step to the next."""
    v = value_of(rows)
    engines = (("onnx", "onnx_http"), ("pytorch", "pytorch"), ("trt", "trt_http"))

    def apart(suffix: str, of: Sequence[tuple[str, str]]) -> float:
        ratios = [v(f"step6a_a100_{a}_{suffix}") / v(f"step7_a100_{b}_{suffix}") for a, b in of]
        return max(max(ratio, 1 / ratio) for ratio in ratios)

    one, batch = apart("b1", engines), apart("b32_throughput", engines[:2])
    effects = [
        ("PyTorch over Triton, batch 1", "step6a_a100_onnx_b1", "step6a_a100_pytorch_b1", one),
        ("HTTP over gRPC, batch 1", "step7_a100_onnx_grpc_b1", "step7_a100_onnx_http_b1", one),
        (
            "gRPC over HTTP, batch 32",
            "step7_a100_onnx_grpc_b32_throughput",
            "step7_a100_onnx_http_b32_throughput",
            batch,
        ),
        ("four GPUs over one", "step6b_c32_throughput", "step6a_rtx4080_onnx_b32_throughput", batch),
    ]
    below = [name for name, a, b, spread in effects if v(a) / v(b) < spread]
    numbers = {"one": one, "batch": batch, "n_below": len(below), "n": len(effects)}
    return not below, numbers | {"below": "; ".join(below) or "none"}


def json_factor(rows: "pd.DataFrame", *, most: float = 0.5) -> Found:
    """E15. The slow Triton was slow JSON where leaving JSON out takes away most (`most`) of the latency."""
    v = value_of(rows)
    before, left = v("step4_json_b32_mean"), v("step5a_triton_b32_mean")
    encode, one = v("step5a_json_encode_b32"), v("step5a_binary_encode_b1")
    return 1 - left / before >= most, {
        "before_s": before / 1000,
        "left_s": left / 1000,
        "left": left / before,
        "encode_s": encode / 1000,
        "json_mb_per_s": v("step5a_json_payload_b32") / (before - encode) / 1e3,
        "binary_mb_per_s": v("step5a_binary_payload_b32") / left / 1e3,
        "json_ms": v("step5a_json_encode_b1"),
        "growth": v("step5a_json_payload_b32") / v("step5a_binary_payload_b32"),
        "factor": v("step5a_json_encode_b1") / one,
        "gb_per_s": v("step5a_binary_payload_b1") / one / 1e6,
    }


def laptop_against_gpu(rows: "pd.DataFrame", *, laptop_watts: float = 30.0) -> Found:
    """E16. Two networks, two loads, and a machine without a price."""
    v = value_of(rows)
    laptop = laptop_watts / 1000 * USD_PER_KWH / 3600 / v("step8_throughput") * 1000
    gpu = v("offer_a100_price") / 3600 / v("step7_a100_pytorch_c16_throughput") * 1000
    ratio = v("step8_p50") / v("step7_a100_pytorch_b1")
    given = {"watts": laptop_watts, "usd_per_kwh": USD_PER_KWH}
    return laptop == 0, given | {"ratio": ratio, "laptop_usd": laptop, "gpu_usd": gpu}


def payload_is_a_crop(rows: "pd.DataFrame") -> Found:
    """E17. The study does not say what its JPEG holds, so its size is neither wrong nor a photograph's."""
    v = value_of(rows)
    return True if 1.5 * v("wire_jpeg_payload") >= ORIGINAL_BYTES else None, {
        "printed": v("wire_fp32_payload") / v("wire_jpeg_payload"),
        "crop_kb": CROP_BYTES * 4 // 3 / 1000,
        "original_kb": ORIGINAL_BYTES / 1000,
        "smaller": FP32_BYTES / ORIGINAL_BYTES,
    }


def connection_policy(
    rows: "pd.DataFrame", *, rtt_ms: float = 25.0, rate_mb_per_s: float = 26.0, tolerance: float = 0.10
) -> Found:
    """E18. A client that connects for each request against one that keeps its connection."""
    v = value_of(rows)
    server = v("step6a_a100_onnx_gpu_compute") + v("step6a_a100_server_overhead")
    ratios = []
    for is_new, is_open in ((True, False), (False, False), (False, True)):
        jpeg, tensor = (
            (1 if is_open else rounds(size) + is_new) * rtt_ms + size / rate_mb_per_s / 1000 + server
            for size in (int(v("wire_jpeg_payload") * 4 / 3), FP32_BYTES)
        )
        ratios.append(tensor / jpeg)
    low, high = min(ratios), max(ratios)
    published = v("step6a_a100_onnx_b1") / v("step6a_a100_pytorch_b1")
    return high / low - 1 <= tolerance, {"rtt_ms": rtt_ms, "low": low, "high": high, "published": published}


def batch_scaling(rows: "pd.DataFrame") -> Found:
    """E19. The printed factor is the growth of latency: 1 would be perfect, the batch size no gain at all."""
    v = value_of(rows)
    growth = [v(f"step5a_cpu_b{n}_latency") / v("step5a_cpu_b1_latency") for n in BATCHES]
    gains = [n / times for n, times in zip(BATCHES, growth, strict=True)]
    return gains[-1] >= 19, {"growth": growth[-1], "gains": gains, "gain": gains[-1], "cost": growth[-1] / 32}


def fastest_compute(rows: "pd.DataFrame") -> Found:
    """E20. The summary's best number against all rows of its kind."""
    compute = rows[(rows["quantity"] == "gpu_compute_ms") & ~rows["how_measured"].str.contains("estimate")]
    best = compute.loc[compute["value"].idxmin()]
    claimed = float(rows.at["step7_rtx4090_trt_grpc_gpu_compute", "value"])
    return best["value"] >= claimed, {"claimed": claimed, "best": best}


def same_ordering(rows: "pd.DataFrame") -> Found:
    """E21. One ordering per GPU and quantity."""
    v = value_of(rows)
    agree = {
        (kind, gpu): sorted(NAMES, key=lambda name: sign * v(f"step7_{gpu}_{name}_{kind}")) == list(NAMES)
        for kind, sign in (("b1", 1), ("b32_throughput", -1), ("c16_throughput", -1))
        for gpu in ("a100", "rtx4090")
    }
    gap = v("step7_rtx4090_onnx_http_b1") / v("step7_rtx4090_trt_http_b1") - 1
    single = all(same for (kind, _), same in agree.items() if kind == "b1")
    stands = True if all(agree.values()) else None if single else False
    return stands, {"n_agree": sum(agree.values()), "n": len(agree), "gap": gap}


_IN_ORDER: tuple[Callable[..., Found], ...] = (
    *(bandwidth_or_round_trips, inherent_slowness, compute_advantage, architecture_decides),
    *(multi_gpu_scaling, littles_law, queue_delay, cuda_graphs, concurrency_tie, fastapi_scales),
    *(latency_follows_gpu, pods_against_quota, protective_probe, repeat_spread, json_factor),
    *(laptop_against_gpu, payload_is_a_crop, connection_policy, batch_scaling, fastest_compute),
    same_ordering,
)
CHECKS = {f"E{number}": check for number, check in enumerate(_IN_ORDER, start=1)}
