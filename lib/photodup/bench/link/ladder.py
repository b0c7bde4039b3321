"""Request latency over an emulated link with a server that takes no time: what the network alone costs.

One row is one payload on one kind of connection: its median, every sample, and what TCP_INFO said about the last
request. A request during which the link was late says nothing about the link; it is repeated and counted in
`n_dropped`, and a row that cannot get its requests this way is marked not valid.
"""

import contextlib
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median
from typing import Any

from photodup.bench.link.handshakes import timed_ms
from photodup.bench.link.link import Link, LinkSpec
from photodup.bench.link.tcp import ByteSink, request_info, send_to_sink, tcp_info
from photodup.bench.link.way import emulated

LARGE_BYTES = 1_000_000
WARM_UP_SENDS = 4  # slow start doubles the window only as far as it is used: one request is not enough
WARM_UP_SENDS_LARGE = 2
ATTEMPTS = 3  # per wanted request


class _Row:
    """Samples of one row, and whether the link was on time during each."""

    def __init__(self, link: Link, payload_bytes: int, connection: str, n_samples: int) -> None:
        self.link, self.payload_bytes, self.connection, self.n_samples = (
            link,
            payload_bytes,
            connection,
            n_samples,
        )
        self.samples: list[float] = []
        self.dropped: list[tuple[str, float]] = []
        self.info: dict[str, float] = {}

    @property
    def open(self) -> bool:
        attempts = len(self.samples) + len(self.dropped)
        return len(self.samples) < self.n_samples and attempts < ATTEMPTS * self.n_samples

    def take(self, request: Callable[[], tuple[float, dict[str, float]]]) -> None:
        self.link.report(reset=True)
        latency_ms, info = request()
        if reason := self.link.invalid_because():
            self.dropped.append((reason, latency_ms))
        else:
            self.samples.append(latency_ms)
            self.info = info

    def result(self) -> dict[str, Any]:
        valid = len(self.samples) >= self.n_samples
        samples = self.samples or [latency_ms for _, latency_ms in self.dropped]
        return {
            **emulated(self.link.spec).columns(),
            "payload_bytes": self.payload_bytes,
            "connection": self.connection,
            "latency_ms_p50": median(samples),
            "samples_ms": [round(sample, 3) for sample in samples],
            "n_requests": len(samples),
            "n_dropped": len(self.dropped),
            "valid": valid,
            "invalid_because": "" if valid else self.dropped[-1][0],
            "rtt_floor_ms": round(self.link.round_trip.floor_ms, 3),
            "rtt_median_ms": round(self.link.round_trip.median_ms, 3),
            **self.info,
        }


def measure_ladder(
    spec: LinkSpec,
    payloads_bytes: Sequence[int],
    *,
    n: int = 5,
    n_large: int = 3,
    idle_s: float = 1.0,
    connections: Sequence[str] = ("new", "warm", "idle"),
    sndbuf_bytes: int | None = None,
) -> dict[str, Any]:
    """Measure every payload on every kind of connection: above 1 MB or idle `n_large` times, otherwise `n`.

    `idle` requests take turns on one connection per payload, so that all of them share each pause of `idle_s`.
    `sndbuf_bytes` limits the sender's buffer (the kernel doubles it for its own overhead).
    """
    with Link(spec) as link, ByteSink() as sink, contextlib.ExitStack() as stack:

        def connect() -> socket.socket:
            client = link.connect(sink.port)
            if sndbuf_bytes:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, sndbuf_bytes)
            return client

        def on_new(payload: bytes) -> tuple[float, dict[str, float]]:
            started = time.perf_counter()
            with connect() as client:
                send_to_sink(client, payload)
                latency_ms = (time.perf_counter() - started) * 1000
                return latency_ms, request_info({}, tcp_info(client))

        def on_warm(client: socket.socket, payload: bytes) -> tuple[float, dict[str, float]]:
            before = tcp_info(client)
            latency_ms = send_to_sink(client, payload)
            idle = {"idle_ms": before["last_data_sent_ms"]}
            return latency_ms, request_info(before, tcp_info(client)) | idle

        rows: list[_Row] = []
        warm_connections = {size: stack.enter_context(connect()) for size in payloads_bytes}
        for size in payloads_bytes:
            payload, times = bytes(size), n_large if size > LARGE_BYTES else n
            if "new" in connections:
                rows.append(row := _Row(link, size, "new", times))
                while row.open:
                    row.take(partial(on_new, payload))
            for _ in range(WARM_UP_SENDS_LARGE if size > LARGE_BYTES else WARM_UP_SENDS):
                send_to_sink(warm_connections[size], payload)
            if "warm" in connections:
                rows.append(row := _Row(link, size, "warm", times))
                while row.open:
                    row.take(partial(on_warm, warm_connections[size], payload))
        idle = [_Row(link, size, "idle", n_large) for size in payloads_bytes if "idle" in connections]
        while any(row.open for row in idle):
            time.sleep(idle_s)
            for row in [row for row in idle if row.open]:
                size = row.payload_bytes
                row.take(partial(on_warm, warm_connections[size], bytes(size)))
        results = [row.result() for row in (*rows, *idle)]
        return {"rows": results, "link": spec.label, "engine": link.engine}


def measure_parallel(
    spec: LinkSpec, payload_bytes: int, *, requests: int, connections: int, repeats: int = 3
) -> dict[str, Any]:
    """Send `requests` payloads over `connections` warm connections at once; the time until all are answered."""
    payload = bytes(payload_bytes)
    with Link(spec) as link, ByteSink() as sink, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(link.connect(sink.port)) for _ in range(connections)]
        pool = stack.enter_context(ThreadPoolExecutor(connections))

        def share(index: int) -> None:
            for _ in range(index, requests, connections):
                send_to_sink(clients[index], payload)

        def all_of_them() -> tuple[float, dict[str, float]]:
            return timed_ms(lambda: list(pool.map(share, range(connections)))), {}

        all_of_them()  # opens the windows
        row = _Row(link, payload_bytes, "warm", repeats)
        while row.open:
            row.take(all_of_them)
        row_of_all = row.result()
    goodput = requests * payload_bytes * 8e-3 / row_of_all["latency_ms_p50"]
    return row_of_all | {"requests": requests, "connections": connections, "goodput_mbit_s": goodput}
