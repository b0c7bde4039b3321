"""Latency of a payload by its size and kind of connection: over an emulated link, or over the network to a server.

One row is one payload on one kind of connection: its median, every sample, and TCP_INFO of the last request.

Over an emulated link a byte sink answers, which takes no time. A request during which the link was late is repeated and
counted in `n_dropped`; a row that stays short of valid requests is marked not valid.

Over the network a server of photodup takes the sink's place: Triton reads the whole body of a request for an unknown model
before it refuses it, and the FastAPI service that of a body that is no JSON. Both answer within about a millisecond; their
time is measured with the smallest request and returned as `turnaround_ms`, so that it can be subtracted.
"""

import contextlib
import math
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

from photodup.bench import Columns
from photodup.bench.backends.http_connection import HttpConnection, HttpError
from photodup.bench.link.emulate import HANDSHAKES, Link, LinkSpec, emulated_path, measure_round_trip, time_ms
from photodup.bench.link.tcp import ByteSink, request_info, send_to_sink, tcp_info
from photodup.core.errors import PhotodupError

KINDS = ("new", "warm", "idle")
LARGE_BYTES = 1_000_000
WARM_UP_SENDS = 4  # slow start doubles the window only as far as it is used: one request is not enough
WARM_UP_SENDS_LARGE = 2
ATTEMPTS = 3  # per wanted request

SINKS = {"triton": "/v2/models/photodup_no_such_model/infer", "fastapi": "/embed/base64"}
"""Server -> where it reads a body of any size and answers with an error at once."""

SMALL_BYTES = 64


@dataclass(frozen=True)
class _Sender:
    """How payloads are sent.

    Attributes:
        connect: opens a connection.
        send: sends a payload on it and waits for the answer.
        columns: of every row.
        socket_of: the socket of a connection, which TCP_INFO is read from.
        link: the emulated one, None over the network.
    """

    connect: Callable[[], Any]
    send: Callable[[Any, bytes], object]
    columns: Mapping[str, Any]
    socket_of: Callable[[Any], Any] = lambda connection: connection
    link: Link | None = None

    def info(self, connection: Any) -> dict[str, int]:
        """Return what the kernel knows of a connection; empty where it does not tell (macOS)."""
        with contextlib.suppress(PhotodupError):
            return tcp_info(self.socket_of(connection))
        return {}


@dataclass
class _Row:
    """Samples of one row, all on one connection that is kept, or each on a new one."""

    sender: _Sender
    payload_bytes: int
    kind: str
    n_samples: int
    connection: Any = None
    samples: list[float] = field(default_factory=list)
    dropped: list[tuple[str, float]] = field(default_factory=list)
    info: dict[str, float] = field(default_factory=dict)
    error: str = ""

    @property
    def is_open(self) -> bool:
        n_tried = len(self.samples) + len(self.dropped)
        return len(self.samples) < self.n_samples and n_tried < ATTEMPTS * self.n_samples and not self.error

    @contextlib.contextmanager
    def _noting_error(self) -> Iterator[None]:
        """Let a request that fails end the row, which then says why."""
        try:
            yield
        except (OSError, PhotodupError) as error:
            self.error = str(error) or type(error).__name__

    def warm_up(self) -> None:
        """Open the connection that is kept, and its window."""
        with self._noting_error():
            self.connection = self.sender.connect()
            for _ in range(WARM_UP_SENDS_LARGE if self.payload_bytes > LARGE_BYTES else WARM_UP_SENDS):
                self.sender.send(self.connection, bytes(self.payload_bytes))

    def fill(self, request_ms: Callable[[], float]) -> None:
        """Take all samples."""
        while self.is_open:
            self.sample(request_ms)

    def sample(self, request_ms: Callable[[], float]) -> None:
        """Take a sample: what a request took, unless the link was late meanwhile."""
        link, latency_ms = self.sender.link, None
        if link:
            link.report(reset=True)
        with self._noting_error():
            latency_ms = request_ms()
        reason = link.invalid_reason() if link else ""
        if latency_ms is not None and reason:
            self.dropped.append((reason, latency_ms))
        elif latency_ms is not None:
            self.samples.append(latency_ms)

    def request_ms(self) -> float:
        """Send the payload once."""
        sender, payload = self.sender, bytes(self.payload_bytes)
        before = sender.info(self.connection) if self.connection else {}
        started = time.perf_counter()
        with contextlib.ExitStack() as stack:
            connection = self.connection or stack.enter_context(contextlib.closing(sender.connect()))
            sender.send(connection, payload)
            latency_ms, after = (time.perf_counter() - started) * 1000, sender.info(connection)
        self.info = request_info(before, after) if after else {}
        if before:
            self.info["idle_ms"] = before["last_data_sent_ms"]
        return latency_ms

    def columns(self) -> Columns:
        is_valid = len(self.samples) >= self.n_samples
        samples = self.samples or [latency_ms for _, latency_ms in self.dropped]
        late = self.dropped[-1][0] if self.dropped else ""
        return {
            **self.sender.columns,
            "payload_bytes": self.payload_bytes,
            "connection": self.kind,
            "latency_ms_p50": median(samples) if samples else None,
            "samples_ms": [round(sample, 3) for sample in samples],
            "n_requests": len(samples),
            "n_dropped": len(self.dropped),
            "valid": is_valid,
            "invalid_because": "" if is_valid else self.error or late,
            **self.info,
        }


def _rows(
    sender: _Sender,
    payloads_bytes: Sequence[int],
    *,
    n: int = 5,
    n_large: int = 3,
    idle_s: float = 1.0,
    connections: Sequence[str] = KINDS,
) -> list[Columns]:
    """Measure every payload on every kind of connection: above 1 MB or idle `n_large` times, otherwise `n`.

    `idle` requests take turns on one connection per payload, so that all of them share each pause of `idle_s`.
    """
    rows: list[_Row] = []
    with contextlib.ExitStack() as stack:
        for size in payloads_bytes:
            times = n_large if size > LARGE_BYTES else n
            new, warm, idle = (_Row(sender, size, k, n_large if k == "idle" else times) for k in KINDS)
            rows += [row for row in (new, warm, idle) if row.kind in connections]
            if new in rows:
                new.fill(new.request_ms)
            warm.warm_up()
            if warm.connection:
                stack.callback(warm.connection.close)
            idle.connection, idle.error = warm.connection, warm.error
            if warm in rows:
                warm.fill(warm.request_ms)
        while idle_rows := [row for row in rows if row.kind == "idle" and row.is_open]:
            time.sleep(idle_s)
            for row in idle_rows:
                row.sample(row.request_ms)
        return [row.columns() for row in rows]


def _over(link: Link, sink: ByteSink, sndbuf_bytes: int | None = None) -> _Sender:
    """Return how payloads are sent over a link; `sndbuf_bytes` limits the sender's buffer, which the kernel doubles."""

    def connect() -> socket.socket:
        client = link.connect(sink.port)
        if sndbuf_bytes:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, sndbuf_bytes)
        return client

    return _Sender(connect, send_to_sink, emulated_path(link.spec).columns(), link=link)


def measure_payloads(
    spec: LinkSpec, payloads_bytes: Sequence[int], *, sndbuf_bytes: int | None = None, **sizes: Any
) -> Columns:
    """Measure every payload on every kind of connection over an emulated link; `sizes` as `_rows` takes them."""
    with Link(spec) as link, ByteSink() as sink:
        return {"rows": _rows(_over(link, sink, sndbuf_bytes), payloads_bytes, **sizes)}


def measure_parallel(
    spec: LinkSpec, payload_bytes: int, *, requests: int, connections: int, repeats: int = 3
) -> Columns:
    """Send `requests` payloads over `connections` warm connections at once; the time until all are answered."""
    payload = bytes(payload_bytes)
    with Link(spec) as link, ByteSink() as sink, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(link.connect(sink.port)) for _ in range(connections)]
        pool = stack.enter_context(ThreadPoolExecutor(connections))

        def send_share(index: int) -> None:
            for _ in range(index, requests, connections):
                send_to_sink(clients[index], payload)

        all_ms = partial(time_ms, lambda: list(pool.map(send_share, range(connections))))
        all_ms()  # opens the windows
        row = _Row(_over(link, sink), payload_bytes, "warm", repeats)
        row.fill(all_ms)
        return row.columns() | {"requests": requests, "connections": connections}


def _send(server: str, connection: HttpConnection, payload: bytes) -> None:
    """Send a body to a server and wait for the whole answer, a refusal.

    Raises:
        OSError, PhotodupError: the server closed the connection, or did not refuse it in HTTP.
    """
    head = connection.head("POST", SINKS[server], len(payload), {"Content-Type": "application/json"})
    try:
        connection.request(head, payload)
    except HttpError as error:
        if not 400 <= error.status < 500:
            raise
    else:
        raise PhotodupError("The server does not read a body and refuse it, but answers it.")
    if connection.socket is None:
        raise PhotodupError(
            "The server closes a connection after each answer: only new ones can be measured."
        )


def measure_path(url: str, server: str, payloads_bytes: Sequence[int], **sizes: Any) -> Columns:
    """Measure handshakes with a server, then every payload on every kind of connection; `sizes` as `_rows` takes them.

    Returns:
        `rtt_ms` (the shortest handshake), `rtt_median_ms`, `turnaround_ms` (what the server adds to the smallest
        request), `rate_mbit_s` (what one warm connection carried of the largest payload; None where none is above
        1 MB) and `rows`. A row that failed has no number and says why.

    Raises:
        OSError: nobody accepts a connection.
        PhotodupError: no address of plain HTTP.
    """
    connect, send = partial(HttpConnection, url), partial(_send, server)

    def shake_hands() -> None:
        with contextlib.closing(connect()) as connection:
            connection.connect()

    handshakes = measure_round_trip(shake_hands, math.inf)
    with contextlib.closing(connect()) as small:
        smallest = [time_ms(partial(send, small, bytes(SMALL_BYTES))) for _ in range(HANDSHAKES + 1)]
    sender = _Sender(connect, send, {"link": "network"}, socket_of=lambda connection: connection.socket)
    path = {
        "server": server,
        "rtt_ms": round(handshakes.floor_ms, 3),
        "rtt_median_ms": round(handshakes.median_ms, 3),
        "turnaround_ms": round(max(0.0, min(smallest[1:]) - handshakes.floor_ms), 3),
        "rows": _rows(sender, payloads_bytes, **sizes),
    }
    return path | {"rate_mbit_s": _rate(path)}


def _rate(path: Mapping[str, Any]) -> float | None:
    warm = [r for r in path["rows"] if r["connection"] == "warm" and r["valid"]]
    large = max(warm, key=lambda r: r["payload_bytes"], default=None)
    if large is None or large["payload_bytes"] <= LARGE_BYTES:
        return None
    carried_ms = large["latency_ms_p50"] - path["rtt_ms"] - path["turnaround_ms"]
    return round(large["payload_bytes"] * 8e-3 / carried_ms, 1) if carried_ms > 0 else None
