"""Calibrate an emulated link: RTT from TCP handshakes, rate from one bulk transfer."""

import socket
from dataclasses import dataclass

from photodup.bench.link.emulate import Link, LinkSpec
from photodup.bench.link.packets import MTU
from photodup.bench.link.tcp import MSS_BYTES, SO_SNDBUFFORCE, ByteSink, send_to_sink


@dataclass(frozen=True)
class Calibration:
    """The requested and the measured properties of a link. Rates count IP bytes.

    `measured_rtt_ms` is the shortest handshake; `late_ms_p99` is how late packets were delivered.
    """

    rtt_ms: float
    rate_mbit_s: float
    measured_rtt_ms: float
    measured_rate_mbit_s: float
    late_ms_p99: float


def calibrate(rtt_ms: float, rate_mbit_s: float, *, seconds: float = 0.5) -> Calibration:
    """Measure what a link of this RTT and rate really does. Takes about 30 RTT + `seconds` + 1 s.

    The transfer must be limited by the link alone: the first window fills the pipe, the receiver's buffer is
    ample, and the sender's holds more than the pipe but less than pipe and queue, so nothing overflows. The
    rate is that of a transfer of `seconds`, less one round trip.
    """
    bdp_bytes = int(rtt_ms * rate_mbit_s * 125)
    spec = LinkSpec(
        rtt_ms=rtt_ms,
        rate_mbit_s=rate_mbit_s,
        initcwnd=max(10, int(1.2 * bdp_bytes / MSS_BYTES)),
        queue_ms=max(20.0, 2 * rtt_ms),
    )
    with Link(spec) as link, ByteSink(2 * bdp_bytes + 2**20) as sink, link.connect(sink.port) as connection:
        connection.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, int(1.2 * bdp_bytes) + 2**16)
        link.report(reset=True)
        send_to_sink(connection, bytes(2 * bdp_bytes))  # opens the windows
        n_bytes = bdp_bytes + int(seconds * rate_mbit_s * 125_000)
        carried_s = (send_to_sink(connection, bytes(n_bytes)) - link.round_trip.floor_ms) / 1000
        late_ms = max(direction["late_ms_p99"] for direction in link.report().values())
    rate = n_bytes * 8e-6 / carried_s * MTU / MSS_BYTES
    return Calibration(rtt_ms, rate_mbit_s, link.round_trip.floor_ms, rate, late_ms)
