"""What the FastAPI service costs on top of the model: both in one run, taking turns.

Two ratios, so that the machine's speed cancels out:

- latency: p50 of one 224-pixel JPEG over loopback ÷ p50 of the same work in process;
- throughput: 8 single-image requests in flight ÷ the same 8 images as one batch in process.

"The same work" is decode, resize, normalise and infer. Client, service and in-process model share the
machine; on few cores the client's own work (about 1 ms a request) is in the numbers, against the service.
"""

import contextlib
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
from photodup.bench.load.counters import fastapi_window, read
from photodup.embedding.wire.wires import pixels
from photodup.errors import PhotodupError
from photodup.settings import set_variables, variable

LATENCY_GOAL, INT8_OVER_MS = 1.10, 3.0
THROUGHPUT_GOAL = 0.95
IN_FLIGHT = 8
ROUNDS = 10  # times that both are measured; for throughput the one that goes first changes
CALLS = 8  # in each round: pairs of single calls for latency, and batches of 8 for throughput
CHOICES = (("pytorch", "fp32"), ("openvino", "bf16"), ("openvino", "int8"))
WEIGHTS = "random:0"  # no timing depends on the values


def run(engine: str, precision: str) -> list[str]:
    """Measure both ratios with an engine in a precision; return one line for each, with its goal."""
    from photodup.embedding.engines.encoder import load_model
    from photodup.serving.service.start import ServiceProcess

    model = load_model(WEIGHTS, engine=engine, precision=precision)
    photos = made_up_images(IN_FLIGHT).items
    with contextlib.ExitStack() as stack:
        settings = {"MODEL_PRETRAINED": WEIGHTS, "ENGINE": engine, "PRECISION": precision}
        url = stack.enter_context(ServiceProcess(settings=settings)).url
        system = adapter("fastapi-pytorch-fp32-http-jpeg", url, jpeg_quality=None)
        requests = [system.prepare([photo]) for photo in photos]
        reference = np.concatenate([model.embed_pixels(pixels([photo])) for photo in photos])
        if cosine_to_reference(system, photos, reference) < 0.9999:
            raise PhotodupError(f"This service runs other weights than {WEIGHTS}: start it with those.")
        worker = system.open()
        stack.callback(worker.close)
        latency: dict[str, list[float]] = {"service": [], "in_process": []}
        rates: dict[str, list[float]] = {"service": [], "in_process": []}
        executions = images = 0.0
        for number in range(-1, ROUNDS):  # round -1 warms every path and is thrown away
            # In turns call by call: whoever computes for seconds on end is treated differently by the kernel's
            # scheduler than whoever pauses, and the ratio would be the scheduler's.
            found: dict[str, list[float]] = {"service": [], "in_process": []}
            for call in range(CALLS):
                index = call % IN_FLIGHT
                started = time.perf_counter()
                worker.decode(worker.request(requests[index]))
                between = time.perf_counter()
                model.embed_pixels(pixels([photos[index]]))
                found["service"].append((between - started) * 1000)
                found["in_process"].append((time.perf_counter() - between) * 1000)
            before = read(url)
            turns = [("service", lambda: _service_rate(system, requests, CALLS))]
            turns.append(("in_process", lambda: _model_rate(model, photos, CALLS)))
            for side, measure in turns if number % 2 else turns[::-1]:
                rate = measure()
                if number >= 0:
                    rates[side].append(rate)
                    latency[side] += found[side]
            if number >= 0:
                counted = fastapi_window(before, read(url))
                executions += counted["server_executions"] or 0.0
                images += counted["server_inferences"] or 0.0
    p50 = {side: statistics.median(values) for side, values in latency.items()}
    per_s = {side: statistics.median(values) for side, values in rates.items()}
    slower, share = p50["service"] / p50["in_process"], per_s["service"] / per_s["in_process"]
    near, goal = slower <= LATENCY_GOAL, f"<= {LATENCY_GOAL}"
    if precision == "int8":  # a tenth of so little is less than a request can cost
        near, goal = p50["service"] - p50["in_process"] <= INT8_OVER_MS, f"at most {INT8_OVER_MS:g} ms over"
    what, said = f"service ({engine} {precision})", ("missed", "met")
    return [
        f"{what} p50 for one 224-px JPEG on loopback ÷ in process: {slower:.3f} "
        f"({p50['service']:.1f} / {p50['in_process']:.1f} ms, goal {goal}: {said[near]})",
        f"{what} throughput, {IN_FLIGHT} single-image requests in flight ÷ in-process batch {IN_FLIGHT}: "
        f"{share:.3f} ({per_s['service']:.2f} / {per_s['in_process']:.2f} images/s, "
        f"{images / executions:.1f} images per execution, "
        f"goal >= {THROUGHPUT_GOAL}: {said[share >= THROUGHPUT_GOAL]})",
    ]


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
        model.embed_pixels(pixels(photos))
    return len(photos) * batches / (time.perf_counter() - started)


def main() -> None:
    """Measure and print the ratios of three engines; what cannot be computed here is told."""
    # Idle threads of the model in process would spin on the cores that the service needs for its answer.
    if not variable("OMP_WAIT_POLICY"):
        set_variables(OMP_WAIT_POLICY="PASSIVE")
    for engine, precision in CHOICES:
        try:
            print("\n".join(run(engine, precision)), flush=True)
        except PhotodupError as error:
            print(f"service ({engine} {precision}): {error}", flush=True)
