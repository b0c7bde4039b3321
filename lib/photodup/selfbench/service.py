"""What the FastAPI service costs on top of the model: both in one run, taking turns.

    python -m photodup.selfbench.service

Two ratios, so that the machine's speed cancels out:

- latency: p50 of one 224-pixel JPEG over loopback ÷ p50 of the same work in process;
- throughput: 8 single-image requests in flight ÷ the same 8 images as one batch in process.

"The same work" is decode, resize, normalise and infer. Client, service and in-process model share the
machine; on few cores the client's own work (about 1 ms a request) is in the numbers, against the service.
"""

import contextlib
import os
import statistics
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from photodup.bench.anyurl.payloads import made_up_images
from photodup.bench.backends.adapter import Adapter
from photodup.bench.backends.adapters import adapter, cosine_to_reference
from photodup.bench.load.counters import read, total
from photodup.errors import PhotodupError
from photodup.settings import set_variables, variable

LATENCY_GOAL, INT8_OVER_MS = 1.10, 3.0
THROUGHPUT_GOAL = 0.95
IN_FLIGHT = 8
CHOICES = (("pytorch", "fp32"), ("openvino", "bf16"), ("openvino", "int8"))
WEIGHTS = "random:0"  # no timing depends on the values


def run(
    *,
    engine: str = "pytorch",
    precision: str = "fp32",
    rounds: int = 10,
    calls: int = 8,
    url: str | None = None,
) -> dict:
    """Measure both ratios.

    Args:
        engine, precision: of the service and in process.
        rounds: times that both are measured; for throughput the one that goes first changes.
        calls: in each round, pairs of single calls for latency and batches of 8 for throughput.
        url: a service with the weights `random:0` and batching on; by default one is started.

    Returns:
        `latency_ms_p50` and `throughput_images_per_s` of `service` and `in_process`, the two ratios, and
        whether each goal is met.
    """
    from photodup.embedding.engines.encoder import load_model
    from photodup.serving.service.start import ServiceProcess

    model = load_model(WEIGHTS, engine=engine, precision=precision)
    photos = made_up_images(IN_FLIGHT).items
    with contextlib.ExitStack() as stack:
        if url is None:
            settings = {"MODEL_PRETRAINED": WEIGHTS, "ENGINE": engine, "PRECISION": precision}
            url = stack.enter_context(ServiceProcess(settings=settings)).url
        system = adapter("fastapi-pytorch-fp32-http-jpeg", url, jpeg_quality=None)
        requests = [system.prepare([photo]) for photo in photos]
        reference = np.concatenate([_embed(model, [photo]) for photo in photos])
        if cosine_to_reference(system, photos, reference) < 0.9999:
            raise PhotodupError(f"This service runs other weights than {WEIGHTS}: start it with those.")
        worker = system.open()
        stack.callback(worker.close)
        latency: dict[str, list[float]] = {"service": [], "in_process": []}
        rates: dict[str, list[float]] = {"service": [], "in_process": []}
        executions = images = 0.0
        for number in range(-1, rounds):  # round -1 warms every path and is thrown away
            # In turns call by call: whoever computes for seconds on end is treated differently by the kernel's
            # scheduler than whoever pauses, and the ratio would be the scheduler's.
            found: dict[str, list[float]] = {"service": [], "in_process": []}
            for call in range(calls):
                index = call % IN_FLIGHT
                started = time.perf_counter()
                worker.decode(worker.request(requests[index]))
                between = time.perf_counter()
                _embed(model, [photos[index]])
                found["service"].append((between - started) * 1000)
                found["in_process"].append((time.perf_counter() - between) * 1000)
            before = _counters(url)
            turns = [("service", lambda: _service_rate(system, requests, calls))]
            turns.append(("in_process", lambda: _model_rate(model, photos, calls)))
            for side, measure in turns if number % 2 else turns[::-1]:
                rate = measure()
                if number >= 0:
                    rates[side].append(rate)
                    latency[side] += found[side]
            if number >= 0:
                after = _counters(url)
                executions, images = executions + after[0] - before[0], images + after[1] - before[1]
    p50 = {side: statistics.median(values) for side, values in latency.items()}
    per_s = {side: statistics.median(values) for side, values in rates.items()}
    result: dict[str, Any] = {
        "engine": engine,
        "precision": precision,
        "latency_ms_p50_service": p50["service"],
        "latency_ms_p50_in_process": p50["in_process"],
        "latency_ratio": p50["service"] / p50["in_process"],
        "throughput_images_per_s_service": per_s["service"],
        "throughput_images_per_s_in_process": per_s["in_process"],
        "throughput_ratio": per_s["service"] / per_s["in_process"],
        "images_per_execution": images / executions,
        "n_requests": len(latency["service"]),
        "n_rounds": rounds,
        "cores": os.cpu_count(),
    }
    over_ms = p50["service"] - p50["in_process"]
    fast = precision == "int8"  # a tenth of so little is less than a request can cost
    result["latency_goal"] = f"at most {INT8_OVER_MS:g} ms over" if fast else f"<= {LATENCY_GOAL}"
    result["latency_goal_met"] = over_ms <= INT8_OVER_MS if fast else result["latency_ratio"] <= LATENCY_GOAL
    result["throughput_goal_met"] = result["throughput_ratio"] >= THROUGHPUT_GOAL
    return result


def lines(result: dict) -> list[str]:
    """Return one line for each ratio."""
    met = {goal: "met" if result[f"{goal}_goal_met"] else "missed" for goal in ("latency", "throughput")}
    what = f"{result['engine']} {result['precision']}"
    return [
        f"service ({what}) p50 for one 224-px JPEG on loopback ÷ in process: {result['latency_ratio']:.3f} "
        f"({result['latency_ms_p50_service']:.1f} / {result['latency_ms_p50_in_process']:.1f} ms, "
        f"goal {result['latency_goal']}: {met['latency']})",
        f"service ({what}) throughput, {IN_FLIGHT} single-image requests in flight ÷ in-process batch {IN_FLIGHT}: "
        f"{result['throughput_ratio']:.3f} ({result['throughput_images_per_s_service']:.2f} / "
        f"{result['throughput_images_per_s_in_process']:.2f} images/s, "
        f"{result['images_per_execution']:.1f} images per execution, "
        f"goal >= {THROUGHPUT_GOAL}: {met['throughput']})",
    ]


def _counters(url: str) -> tuple[float, float]:
    """Return executions and images so far."""
    page = read(url)
    return total(page, "photodup_executions") or 0.0, total(page, "photodup_inferences") or 0.0


def _embed(model: Any, photos: Sequence[bytes]) -> np.ndarray:
    from photodup.embedding.imaging import decode, to_uint8

    return model.embed_pixels(np.stack([to_uint8(decode(photo)) for photo in photos]))


def _service_rate(system: Adapter, requests: Sequence[Any], batches: int) -> float:
    """Images per second of 8 clients that each send one image after the other."""
    barrier = threading.Barrier(IN_FLIGHT + 1)

    def client(request: Any) -> None:
        with contextlib.closing(system.open()) as worker:
            worker.decode(worker.request(request))  # opens the connection
            barrier.wait()
            for _ in range(batches):
                worker.decode(worker.request(request))

    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        clients = [pool.submit(client, request) for request in requests]
        barrier.wait()
        started = time.perf_counter()
        for finished in clients:
            finished.result()
        return IN_FLIGHT * batches / (time.perf_counter() - started)


def _model_rate(model: Any, photos: Sequence[bytes], batches: int) -> float:
    started = time.perf_counter()
    for _ in range(batches):
        _embed(model, photos)
    return len(photos) * batches / (time.perf_counter() - started)


def main() -> None:
    """Measure and print the ratios of three engines; what cannot be computed here is told."""
    # Idle threads of the model in process would spin on the cores that the service needs for its answer.
    if not variable("OMP_WAIT_POLICY"):
        set_variables(OMP_WAIT_POLICY="PASSIVE")
    for engine, precision in CHOICES:
        try:
            print("\n".join(lines(run(engine=engine, precision=precision))), flush=True)
        except PhotodupError as error:
            print(f"service ({engine} {precision}): {error}", flush=True)


if __name__ == "__main__":
    main()
