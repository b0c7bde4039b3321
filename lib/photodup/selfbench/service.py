"""What the FastAPI service costs on top of the model: both in one run, taking turns.

    python -m photodup.selfbench.service

Two ratios, so that the machine's speed cancels out:

- latency: p50 of one 224-pixel JPEG over loopback ÷ p50 of the same work in process;
- throughput: 8 single-image requests in flight ÷ the same 8 images as one batch in process.

"The same work" is decode, resize, normalise and infer. Client, service and in-process model share the
machine; on few cores the client's own work (about 1 ms a request) is in the numbers, against the service.
"""

import contextlib
import io
import os
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

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
    from photodup.embedding.engines.encoder import load_encoder
    from photodup.serving.service.start import ServiceProcess

    model = load_encoder(WEIGHTS, engine=engine, precision=precision)
    photos = _photos(IN_FLIGHT)
    with contextlib.ExitStack() as stack:
        if url is None:
            settings = {"MODEL_PRETRAINED": WEIGHTS, "ENGINE": engine, "PRECISION": precision}
            url = stack.enter_context(ServiceProcess(settings=settings)).url
        connection = _connection(url)
        stack.callback(connection.close)
        requests = [_multipart(connection, photo) for photo in photos]
        _same_answers(connection, requests, model, photos)
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
                _embedding(connection.request(*requests[index])[1])
                between = time.perf_counter()
                _embed(model, [photos[index]])
                found["service"].append((between - started) * 1000)
                found["in_process"].append((time.perf_counter() - between) * 1000)
            before = _counters(url)
            turns = [("service", lambda: _service_rate(url, photos, calls))]
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
    """Say the result in one line a ratio."""
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


def _photos(n: int) -> list[bytes]:
    """Different 224-pixel JPEGs of 10 to 20 KB: smooth colour and some grain, like photographs."""
    from PIL import Image

    photos = []
    for seed in range(n):
        rng = np.random.default_rng(seed)
        smooth = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).resize((224, 224))
        grain = np.asarray(smooth, np.int16) + rng.integers(-10, 11, (224, 224, 3))
        buffer = io.BytesIO()
        Image.fromarray(np.clip(grain, 0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=90)
        photos.append(buffer.getvalue())
    return photos


def _connection(url: str):
    from photodup.bench.backends.http_connection import HttpConnection

    return HttpConnection(url)


def _multipart(connection, photo: bytes) -> tuple[bytes, bytes]:
    start = b'--b\r\nContent-Disposition: form-data; name="files"; filename="a.jpg"\r\n\r\n'
    body = start + photo + b"\r\n--b--\r\n"
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    return connection.head("POST", "/embed", len(body), headers), body


def _embedding(answer: bytes) -> np.ndarray:
    import json

    return np.asarray(json.loads(answer)["embeddings"], np.float32)


def _same_answers(connection, requests: list, model, photos: list[bytes]) -> None:
    """Correctness before speed."""
    for request, photo in zip(requests, photos, strict=True):
        found = _embedding(connection.request(*request)[1])
        if float((found * _embed(model, [photo])).sum()) < 0.9999:
            raise PhotodupError(f"This service runs other weights than {WEIGHTS}: start it with those.")


def _counters(url: str) -> tuple[float, float]:
    """Return executions and images so far."""
    import httpx

    lines = httpx.get(f"{url}/metrics").text.splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return float(values["photodup_executions_total"]), float(values["photodup_inferences_total"])


def _embed(model, photos: list[bytes]) -> np.ndarray:
    from photodup.embedding.imaging import decode, to_uint8

    return model.embed_pixels(np.stack([to_uint8(decode(photo)) for photo in photos]))


def _service_rate(url: str, photos: list[bytes], batches: int) -> float:
    """Images per second of 8 clients that each send one image after the other."""
    barrier = threading.Barrier(IN_FLIGHT + 1)

    def client(photo: bytes) -> None:
        connection = _connection(url)
        request = _multipart(connection, photo)
        connection.connect()
        barrier.wait()
        for _ in range(batches):
            _embedding(connection.request(*request)[1])
        connection.close()

    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        clients = [pool.submit(client, photo) for photo in photos]
        barrier.wait()
        started = time.perf_counter()
        for finished in clients:
            finished.result()
        return IN_FLIGHT * batches / (time.perf_counter() - started)


def _model_rate(model, photos: list[bytes], batches: int) -> float:
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
