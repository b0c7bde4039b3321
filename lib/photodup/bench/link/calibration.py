"""Calibrate an emulated link: RTT from TCP handshakes, rate from one bulk transfer."""

import contextlib
import socket
import threading
import time
from dataclasses import dataclass

from photodup.bench.link.handshakes import TOLERANCE_MS
from photodup.bench.link.link import Link, LinkSpec
from photodup.bench.link.packets import MTU
from photodup.bench.link.tcp import MSS_BYTES

RATE_TOLERANCE = 0.05
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33  # Linux; not in the socket module


@dataclass(frozen=True)
class Calibration:
    """One checked corner of the link. Rates count IP bytes, as the request does.

    `measured_rtt_ms` is the shortest of the handshakes.
    """

    rtt_ms: float
    rate_mbit_s: float
    measured_rtt_ms: float
    measured_rate_mbit_s: float
    late_ms_p99: float

    @property
    def rtt_error_ms(self) -> float:
        return self.measured_rtt_ms - self.rtt_ms

    @property
    def rate_error(self) -> float:
        return self.measured_rate_mbit_s / self.rate_mbit_s - 1

    @property
    def holds(self) -> bool:
        return abs(self.rtt_error_ms) <= TOLERANCE_MS and abs(self.rate_error) <= RATE_TOLERANCE


def calibrate(rtt_ms: float, rate_mbit_s: float, *, seconds: float = 0.5) -> Calibration:
    """Measure what a link of this RTT and rate really does. Takes about 30 RTT + `seconds` + 1 s.

    The transfer must be limited by the link alone: the first window fills the pipe, the receiver's buffer is
    ample, and the sender's holds more than the pipe but less than pipe and queue, so nothing overflows. The
    rate is the slope of the last `seconds` of arrivals.
    """
    pipe = rtt_ms * rate_mbit_s * 125
    spec = LinkSpec(
        rtt_ms=rtt_ms,
        rate_mbit_s=rate_mbit_s,
        initcwnd=max(10, int(1.2 * pipe / MSS_BYTES)),
        queue_ms=max(20.0, 2 * rtt_ms),
    )
    with Link(spec) as link:
        link.report(reset=True)
        rate = _bulk_rate_mbit_s(link, int(pipe), 10 * rtt_ms / 1000 + seconds, seconds)
        late_ms = max(direction["late_ms_p99"] for direction in link.report().values())
    return Calibration(rtt_ms, rate_mbit_s, link.round_trip.floor_ms, rate, late_ms)


def _bulk_rate_mbit_s(link: Link, pipe_bytes: int, total_s: float, last_s: float) -> float:
    arrivals: list[tuple[float, int]] = []

    def receive(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        buffer, total = bytearray(1 << 20), 0
        with connection, contextlib.suppress(ConnectionResetError):
            while got := connection.recv_into(buffer):
                total += got
                arrivals.append((time.perf_counter(), total))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 2 * pipe_bytes + (1 << 20))
        receiver = threading.Thread(target=receive, args=(listener,))
        receiver.start()
        block = bytes(1 << 16)
        with link.connect(listener.getsockname()[1]) as connection, contextlib.suppress(TimeoutError):
            connection.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, int(1.2 * pipe_bytes) + (1 << 16))
            started = time.perf_counter()
            connection.settimeout(1.0)
            while time.perf_counter() - started < total_s:
                connection.send(block)
            stopped = time.perf_counter()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # forget the rest
        receiver.join()
    inside = [(at, total) for at, total in arrivals if stopped - last_s <= at <= stopped]
    (start, first), (end, last) = inside[0], inside[-1]
    return (last - first) * 8e-6 / (end - start) * MTU / MSS_BYTES
