"""How much of a measurement is the measuring: the load generator against a bare socket and against wrk.

All numbers come from one run against the same null server, so the machine cancels out of the ratios.
"""

import re
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from photodup.bench.backends.http_connection import HttpConnection
from photodup.bench.backends.server_adapters import OverHttp
from photodup.bench.load.load import Load, Stopping, measure
from photodup.embedding.backends import parse_backend
from photodup.embedding.wire.http import Post
from photodup.selfbench import null_server

PAYLOAD_BYTES = 15_000
CONCURRENCY = 16
ROUNDS = 5


def run(*, seconds: float = 1.0) -> dict[str, Any]:
    """Measure and return the ratios.

    Returns:
        `added_latency_ms` (median over rounds of the generator's median minus the bare socket's, concurrency
        1), `generator_per_s` and `wrk_per_s` (concurrency 16, 15 KB), `share_of_wrk`; wrk's are None
        where it is not installed.
    """
    payload = np.random.default_rng(0).bytes(PAYLOAD_BYTES)
    photos = [payload[i:] + payload[:i] for i in range(8)]
    bare, ours, rates, wrk = [], [], [], []
    with null_server.running() as url:
        for _ in range(ROUNDS):  # interleaved: what else the machine does hits all alike
            bare.append(_bare_socket_ms(url, photos[0], seconds))
            one = measure(only_sent(url), photos, Load("single_stream"), Stopping(seconds, 100, seconds))
            ours.append(one["latency_ms_p50"])
            many = Load("closed_loop", concurrency=CONCURRENCY)
            point = measure(only_sent(url), photos, many, Stopping(seconds, 100, seconds))
            rates.append(point["throughput_images_per_s"])
            wrk.append(_wrk_per_s(url, seconds))
    added = statistics.median(a - b for a, b in zip(ours, bare, strict=True))
    rate = statistics.median(rates)
    found = [rate for rate in wrk if rate is not None]
    fastest = statistics.median(found) if found else None
    return {
        "added_latency_ms": added,
        "generator_per_s": rate,
        "wrk_per_s": fastest,
        "share_of_wrk": rate / fastest if fastest else None,
    }


def only_sent(url: str, **options: Any) -> OverHttp:
    """Return an adapter that sends bytes as they are and does not read the answer: only the generator is left."""
    backend = parse_backend("fastapi-pytorch-fp32-http-jpeg")
    return OverHttp(backend, Post("/embed"), partial(HttpConnection, url, **options), backend.columns())


def _bare_socket_ms(url: str, body: bytes, seconds: float) -> float:
    """Median latency of the least that a client can do."""
    host, port = url.rsplit("/", 1)[1].split(":")
    message = b"POST /embed HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    with socket.create_connection((host, int(port))) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(message)
        time.sleep(0.1)
        expected = len(connection.recv(1 << 16))
        latencies, stop = [], time.perf_counter() + seconds
        while time.perf_counter() < stop:
            sent = time.perf_counter()
            connection.sendall(message)
            left = expected
            while left > 0:
                left -= len(connection.recv(1 << 16))
            latencies.append(time.perf_counter() - sent)
    return statistics.median(latencies) * 1000


def _wrk_per_s(url: str, seconds: float) -> float | None:
    if shutil.which("wrk") is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "post.lua"
        script.write_text(f'wrk.method = "POST"\nwrk.body = string.rep("x", {PAYLOAD_BYTES})\n')
        duration = f"-d{max(1, round(seconds))}s"
        command = ["wrk", "-t1", f"-c{CONCURRENCY}", duration, "-s", str(script), f"{url}/embed"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return float(re.findall(r"Requests/sec:\s*([\d.]+)", said)[0])


def main() -> None:
    """Measure and print the ratios."""
    result = run()
    rate, fastest = result["generator_per_s"], result["wrk_per_s"]
    print(f"generator − bare socket, 1 in flight: {result['added_latency_ms']:.3f} ms (goal ≤ 0.3)")
    print(f"generator, {CONCURRENCY} in flight, 15 KB: {rate:,.0f} requests/s (goal ≥ 1,500)")
    if fastest:
        print(f"generator ÷ wrk on the same server: {rate / fastest:.2f} (goal ≥ 0.25)")
    else:
        print("generator ÷ wrk: not run here, wrk is not installed (apt-get install wrk)")
