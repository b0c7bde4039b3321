"""What the real way to a server costs by payload and kind of connection: the published experiment, without the model.

Any of our servers can stand for a byte sink: Triton reads the whole body of a request for a model that it does not have
before it says so, and the FastAPI service that of a body that is no JSON. Both answer within a millisecond or so; how long
they take is measured with the smallest request and told beside the rows, so that it can be taken off.
"""

import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Self
from urllib.parse import urlsplit

from photodup.bench.link.ladder import LARGE_BYTES, WARM_UP_SENDS, WARM_UP_SENDS_LARGE
from photodup.bench.link.link import MAX_RATE_MBIT_S, LinkSpec
from photodup.bench.link.tcp import request_info, tcp_info
from photodup.errors import PhotodupError

SINKS = {"triton": "/v2/models/photodup_no_such_model/infer", "fastapi": "/embed/base64"}
"""Server -> where it reads a body of any size and answers with an error at once."""

HANDSHAKES = 10
SMALL_BYTES = 64


@dataclass
class HttpSink:
    """One HTTP/1.1 connection to such a server.

    Args:
        url: `http://host:port`.
        server: one of `SINKS`.

    Raises:
        PhotodupError: no address of plain HTTP.
    """

    url: str
    server: str
    timeout_s: float = 60.0
    _socket: socket.socket | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme != "http" or not parts.hostname:
            raise PhotodupError(
                f"{self.url}: the way to a server is measured over plain HTTP, http://host:port."
            )
        self._address = (parts.hostname, parts.port or 80)

    def connect(self) -> Self:
        """Open the connection."""
        self._socket = socket.create_connection(self._address, self.timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self

    def send(self, payload: bytes) -> None:
        """Send a body and wait for the whole answer.

        Raises:
            OSError, PhotodupError: the server closed the connection, or did not answer in HTTP.
        """
        host, port = self._address
        head = (
            f"POST {SINKS[self.server]} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(payload)}\r\n\r\n"
        ).encode()
        if len(payload) < 1e5:
            self._socket.sendall(head + payload)
        else:
            self._socket.sendall(head)
            self._socket.sendall(payload)
        self._receive()

    def _receive(self) -> None:
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self._some()
        head, _, body = answer.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").lower().split("\r\n")
        length = next((int(li.split(":")[1]) for li in lines if li.startswith("content-length:")), None)
        if not lines[0].startswith("http/1.1 4") or length is None:
            raise PhotodupError(f"{self.url} does not read a body and refuse it: it said {lines[0]!r}.")
        while len(body) < length:
            body += self._some()
        if "connection: close" in lines:
            raise PhotodupError(
                f"{self.url} closes a connection after each answer: only new ones can be measured."
            )

    def _some(self) -> bytes:
        part = self._socket.recv(65_536)
        if not part:
            raise PhotodupError(f"{self.url} closed the connection before it had answered.")
        return part

    def info(self) -> dict[str, int]:
        """Return the kernel's view of the connection; nothing where there is none to be had (macOS)."""
        try:
            return tcp_info(self._socket)
        except PhotodupError:
            return {}

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __enter__(self) -> Self:
        return self.connect()

    def __exit__(self, *_: object) -> None:
        self.close()


def measure_path(
    url: str,
    server: str,
    payloads_bytes: Sequence[int],
    *,
    n: int = 5,
    n_large: int = 3,
    idle_s: float = 1.0,
    connections: Sequence[str] = ("new", "warm", "idle"),
) -> dict[str, Any]:
    """Measure handshakes, then every payload on every kind of connection: above 1 MB or idle `n_large` times, else `n`.

    Returns:
        `rtt_ms` (the shortest handshake), `rtt_median_ms`, `turnaround_ms` (what the server adds to the smallest
        request), `rate_mbit_s` (what one warm connection carried of the largest payload; None where none is above
        1 MB) and `rows`, as of `ladder.measure_ladder`. A row that failed has no number and says why.

    Raises:
        OSError: nobody accepts a connection.
    """
    handshakes = [_timed(lambda: HttpSink(url, server).connect().close()) for _ in range(HANDSHAKES)]
    rtt_ms = min(handshakes)
    with HttpSink(url, server) as small:
        small.send(bytes(SMALL_BYTES))
        smallest = min(_timed(lambda: small.send(bytes(SMALL_BYTES))) for _ in range(HANDSHAKES))
    rows = []
    for size in payloads_bytes:
        times = n_large if size > LARGE_BYTES else n
        if "new" in connections:
            rows.append(_row(size, "new", lambda size=size, times=times: _on_new(url, server, size, times)))
        for kind, wait_s, wanted in (("warm", 0.0, times), ("idle", idle_s, n_large)):
            if kind in connections:
                rows.append(
                    _row(
                        size,
                        kind,
                        lambda size=size, wait_s=wait_s, wanted=wanted: _on_kept(
                            url, server, size, wanted, wait_s
                        ),
                    )
                )
    found = {
        "server": server,
        "rtt_ms": round(rtt_ms, 3),
        "rtt_median_ms": round(median(handshakes), 3),
        "turnaround_ms": round(max(0.0, smallest - rtt_ms), 3),
        "rows": rows,
    }
    return found | {"rate_mbit_s": _rate(found)}


def twin(found: dict[str, Any], **fields: Any) -> LinkSpec:
    """Return an emulated link like a measured way: its round trip, and the rate that one connection carried.

    A rate above what the emulated link can hold, or one that nobody measured, becomes the highest it can.
    """
    rate = found.get("rate_mbit_s") or MAX_RATE_MBIT_S
    return LinkSpec(
        rtt_ms=max(0.2, found["rtt_ms"]), rate_mbit_s=max(1.0, min(rate, MAX_RATE_MBIT_S)), **fields
    )


def _rate(found: dict[str, Any]) -> float | None:
    warm = [r for r in found["rows"] if r["connection"] == "warm" and r["valid"]]
    large = max(warm, key=lambda r: r["payload_bytes"], default=None)
    if large is None or large["payload_bytes"] <= LARGE_BYTES:
        return None
    carried_ms = large["latency_ms_p50"] - found["rtt_ms"] - found["turnaround_ms"]
    return round(large["payload_bytes"] * 8e-3 / carried_ms, 1) if carried_ms > 0 else None


def _row(size: int, kind: str, measure: Callable[[], tuple[list[float], dict[str, float]]]) -> dict[str, Any]:
    row: dict[str, Any] = {"link": "network", "payload_bytes": size, "connection": kind}
    try:
        samples, info = measure()
    except (OSError, PhotodupError) as error:
        why = str(error) or type(error).__name__
        return row | {"latency_ms_p50": None, "n_requests": 0, "valid": False, "invalid_because": why}
    return row | {
        "latency_ms_p50": median(samples),
        "samples_ms": [round(sample, 3) for sample in samples],
        "n_requests": len(samples),
        "valid": True,
        "invalid_because": "",
        **info,
    }


def _on_new(url: str, server: str, size: int, times: int) -> tuple[list[float], dict[str, float]]:
    samples, info, payload = [], {}, bytes(size)
    for _ in range(times):
        sink = HttpSink(url, server)
        try:
            samples.append(_timed(lambda sink=sink: sink.connect().send(payload)))
            info = _during({}, sink.info())
        finally:
            sink.close()
    return samples, info


def _on_kept(
    url: str, server: str, size: int, times: int, wait_s: float
) -> tuple[list[float], dict[str, float]]:
    samples, info, payload = [], {}, bytes(size)
    with HttpSink(url, server) as sink:
        for _ in range(WARM_UP_SENDS_LARGE if size > LARGE_BYTES else WARM_UP_SENDS):
            sink.send(payload)
        for _ in range(times):
            time.sleep(wait_s)
            before = sink.info()
            samples.append(_timed(lambda: sink.send(payload)))
            info = _during(before, sink.info())
            if wait_s and before:
                info["idle_ms"] = before["last_data_sent_ms"]
    return samples, info


def _during(before: dict[str, int], after: dict[str, int]) -> dict[str, float]:
    return request_info(before, after) if after else {}


def _timed(request: Callable[[], object]) -> float:
    started = time.perf_counter()
    request()
    return (time.perf_counter() - started) * 1000
