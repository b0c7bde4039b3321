"""What each explanation of the slow tensors leaves unexplained on the published rows, all hosts and both steps.

Each explanation has one free number, which is fitted to a host's two sizes together (one image and 32 in one
request), so that neither can be explained at the other's cost. Errors are relative: the two sizes count alike.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from photodup.bench.link.latency_model import predict_ms, serialisation_ms
from photodup.study.published.published import FP32_BYTES, value_of

if TYPE_CHECKING:
    import pandas as pd

PRINTED_RTT_MS = (10.0, 60.0)  # the study printed 20 to 30 ms: half and twice of it are allowed

# Host and backend -> the row of one image (ms) and of 32 in one request (images/s). The protocol says what is kept:
# a gRPC channel always, an HTTP client as its program has it.
ROWS = {
    "A100, step 6A, ONNX over HTTP": ("step6a_a100_onnx_b1", "step6a_a100_onnx_b32_throughput"),
    "RTX 4080, step 6A, ONNX over HTTP": ("step6a_rtx4080_onnx_b1", "step6a_rtx4080_onnx_b32_throughput"),
    "RTX 4080, step 6A, TensorRT over HTTP": ("step6a_rtx4080_trt_b1", "step6a_rtx4080_trt_b32_throughput"),
} | {
    f"{gpu}, step 7, {engine} over {protocol}": (
        f"step7_{key}_{short}_{protocol.lower()}_b1",
        f"step7_{key}_{short}_{protocol.lower()}_b32_throughput",
    )
    for gpu, key in (("A100", "a100"), ("RTX 4090", "rtx4090"))
    for engine, short in (("ONNX", "onnx"), ("TensorRT", "trt"))
    for protocol in ("HTTP", "gRPC")
}


@dataclass(frozen=True)
class Explanation:
    """A law with one free number: `free` says which, `between` where it is sought, in its unit."""

    name: str
    free: str
    between: tuple[float, float]
    predict: Callable[[int, float], float]


def explanations(*, rtt_ms: float = 25.0, link_mbit_s: float = 210.0) -> tuple[Explanation, ...]:
    """Return the four explanations.

    Args:
        rtt_ms: round trip where it is not what is free; the study printed 20 to 30 ms.
        link_mbit_s: what the study's sixteen connections carried together.
    """

    def rounds_ms(size: int, rtt: float) -> float:
        return predict_ms("pipe-limited", size, rtt, link_mbit_s)

    def rate_ms(n_round_trips: int) -> Callable[[int, float], float]:
        return lambda size, rate: n_round_trips * rtt_ms + serialisation_ms(size, rate)

    def kept_open_ms(size: int, rtt: float) -> float:
        return rtt + serialisation_ms(size, link_mbit_s)

    return (
        Explanation("round trips, new connection", "ms of round trip", PRINTED_RTT_MS, rounds_ms),
        Explanation("window open, kept connection", "ms of round trip", PRINTED_RTT_MS, kept_open_ms),
        Explanation("one connection's rate, new", "Mbit/s", (5, 1000), rate_ms(2)),
        Explanation("one connection's rate, kept", "Mbit/s", (5, 1000), rate_ms(1)),
    )


def left_over(
    rows: "pd.DataFrame", *, server_ms: float, rtt_ms: float = 25.0, link_mbit_s: float = 210.0
) -> "pd.DataFrame":
    """Return one row per host and explanation.

    Columns: `host`, `explanation`, `fitted` (the free number), `unit`, `one_off` and `batch_off`: prediction ÷
    published − 1 for one image and for 32. The worse of both decides what an explanation leaves over: `worst_off`.

    Args:
        server_ms: what the server takes of each request; the same for both sizes, as nothing else was printed.
    """
    import pandas as pd

    v, found = value_of(rows), []
    for host, (one, batch) in ROWS.items():
        seen = {FP32_BYTES: v(one), 32 * FP32_BYTES: 32_000 / v(batch)}
        for law in explanations(rtt_ms=rtt_ms, link_mbit_s=link_mbit_s):
            tried = np.geomspace(*law.between, 2000)
            misses = [
                sum(math.log((law.predict(size, x) + server_ms) / ms) ** 2 for size, ms in seen.items())
                for x in tried
            ]
            best = float(tried[int(np.argmin(misses))])
            off = [(law.predict(size, best) + server_ms) / ms - 1 for size, ms in seen.items()]
            found.append((host, law.name, best, law.free, *off, max(map(abs, off))))
    columns = ["host", "explanation", "fitted", "unit", "one_off", "batch_off", "worst_off"]
    return pd.DataFrame(found, columns=columns)
