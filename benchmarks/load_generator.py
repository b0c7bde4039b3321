"""How much of a measurement is the measuring: the load generator against a bare socket and against wrk.

All numbers come from one run against the same null server, so the machine cancels out of the ratios.
"""

import random
import re
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import null_server
from benchmarks.rows import LATENCY, RATE, Row, compared, excess, in_turns, ratio, row
from photodup.bench.backends.http_connection import HttpConnection
from photodup.bench.backends.server_adapters import HttpAdapter
from photodup.bench.load.plan import WindowPlan
from photodup.bench.load.window import Load, measure
from photodup.bench.stats.figures import interval
from photodup.core.errors import PhotodupError
from photodup.embedding.backends import parse_backend
from photodup.embedding.wire.http import Post

PAYLOAD_BYTES = 15_000
CONCURRENCY, PROCESSES = 16, 2
ROUNDS = 6
ADDED_GOAL_MS, SHARE_GOAL = 0.3, 0.5
NO_WRK = "wrk is not installed (apt-get install wrk)"


def rows(*, seconds: float = 1.0) -> Iterator[Row]:
    """Measure against a server that does nothing: what one request costs more, and how many a second there are.

    Args:
        seconds: of a turn.
    """
    payload = np.random.default_rng(0).bytes(PAYLOAD_BYTES)
    photos = [payload[i:] + payload[:i] for i in range(8)]
    plan = WindowPlan(seconds)
    with null_server.running() as url:

        def ours(load: Load, figure: str, processes: int = 1) -> float:
            point = measure(only_sent(url), photos, load, plan, processes=processes)
            if point.get("error"):
                raise PhotodupError(point["error"])
            return point[figure]

        def turns(*sides: Callable[[], float]) -> list[list[float]]:
            return in_turns(sides, ROUNDS, random.Random(0))

        bare, wrk = partial(_bare_socket_ms, url, photos[0], seconds), partial(_wrk_per_s, url, seconds)
        added = compared([turns(bare, partial(ours, Load("single_stream"), LATENCY))], metric=LATENCY)
        many = partial(ours, Load("closed_loop", concurrency=CONCURRENCY), RATE, PROCESSES)
        has_wrk = shutil.which("wrk") is not None
        rates = turns(wrk, many) if has_wrk else [[many() for _ in range(ROUNDS)]]
    name = f"load generator, {PROCESSES} processes, {CONCURRENCY} in flight, 15 KB"
    yield row("load generator − a bare socket, one in flight", excess(added), "ms", most=ADDED_GOAL_MS)
    yield row(name, interval(rates[-1]), "requests/s")
    yield row(f"{name} ÷ wrk", ratio(compared([rates])) if has_wrk else NO_WRK, least=SHARE_GOAL)


def only_sent(url: str, **options: Any) -> HttpAdapter:
    """Return an adapter that sends bytes as they are and does not read the answer: only the generator is left."""
    backend = parse_backend("fastapi-pytorch-fp32-http-jpeg")
    return HttpAdapter(backend, Post("/embed"), partial(HttpConnection, url, **options), backend.columns())


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


def _wrk_per_s(url: str, seconds: float) -> float:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "post.lua"
        script.write_text(f'wrk.method = "POST"\nwrk.body = string.rep("x", {PAYLOAD_BYTES})\n')
        duration = f"-d{max(1, round(seconds))}s"
        command = ["wrk", "-t1", f"-c{CONCURRENCY}", duration, "-s", str(script), f"{url}/embed"]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return float(re.findall(r"Requests/sec:\s*([\d.]+)", output)[0])
