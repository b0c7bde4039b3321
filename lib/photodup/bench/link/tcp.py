"""The kernel's `tcp_info` of a connection, and a plain server where only the network is of interest.

A request's record carries `request_info(before, after)`: what the connection looked like when the request
ended, and what happened on it meanwhile. Field order: `struct tcp_info` in Linux' include/uapi/linux/tcp.h;
it only ever grows at the end, so fields that an older kernel does not return are absent from the result.
"""

import contextlib
import socket
import socketserver
import struct
import threading
import time
from typing import Self

from photodup.core.errors import PhotodupError

MSS_BYTES = 1448  # 1500 − 20 (IPv4) − 20 (TCP) − 12 (timestamps)
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33  # Linux; not in the socket module
_REPLY = b"k"
_LENGTH = struct.Struct("!Q")

_FIELDS = {  # name -> (type, offset in struct tcp_info)
    "rto_us": ("I", 8),
    "snd_mss": ("I", 16),
    "last_data_sent_ms": ("I", 44),
    "rtt_us": ("I", 68),
    "snd_cwnd": ("I", 80),
    "total_retrans": ("I", 100),
    "min_rtt_us": ("I", 148),
    "busy_us": ("Q", 168),
    "rwnd_limited_us": ("Q", 176),
    "sndbuf_limited_us": ("Q", 184),
}


def tcp_info(connection: socket.socket) -> dict[str, int]:
    """Return the kernel's `tcp_info` of a connection (Linux); windows in segments of `snd_mss`.

    Raises:
        PhotodupError: not a TCP socket, or not Linux.
    """
    try:
        raw = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232)
    except (AttributeError, OSError) as error:
        raise PhotodupError(f"TCP_INFO needs a TCP socket on Linux: {error}.") from None
    available = {
        name: place for name, place in _FIELDS.items() if place[1] + struct.calcsize(place[0]) <= len(raw)
    }
    return {name: struct.unpack_from(kind, raw, at)[0] for name, (kind, at) in available.items()}


def request_info(before: dict[str, int], after: dict[str, int]) -> dict[str, float]:
    """Return the columns that a request adds to its record: state at its end, and what happened during it.

    Limited times come in steps of a kernel tick. Linux counts a sender whose buffer is too small as limited by its
    window while it is in slow start, so `tcp_sndbuf_limited_ms` 0 does not rule the buffer out.
    """

    def growth_of(name: str) -> int:
        return after.get(name, 0) - before.get(name, 0)

    return {
        "tcp_cwnd_before": before.get("snd_cwnd", 0),
        "tcp_cwnd": after["snd_cwnd"],
        "tcp_rto_ms": before.get("rto_us", after["rto_us"]) / 1000,
        "tcp_rtt_ms": after["rtt_us"] / 1000,
        "tcp_min_rtt_ms": after.get("min_rtt_us", 0) / 1000,
        "tcp_retransmits": growth_of("total_retrans"),
        "tcp_busy_ms": growth_of("busy_us") / 1000,
        "tcp_rwnd_limited_ms": growth_of("rwnd_limited_us") / 1000,
        "tcp_sndbuf_limited_ms": growth_of("sndbuf_limited_us") / 1000,
    }


class _Sink(socketserver.StreamRequestHandler):
    disable_nagle_algorithm = True

    def handle(self) -> None:
        buffer = memoryview(bytearray(1 << 20))
        with contextlib.suppress(OSError):
            while len(head := self.connection.recv(_LENGTH.size, socket.MSG_WAITALL)) == _LENGTH.size:
                (left,) = _LENGTH.unpack(head)
                while left > 0 and (n := self.connection.recv_into(buffer[: min(left, len(buffer))])):
                    left -= n
                if left:
                    return
                self.connection.sendall(_REPLY)


class ByteSink(socketserver.ThreadingTCPServer):
    """A server on 127.0.0.1 that reads a length and as many bytes, then answers one byte: it takes no time.

    Args:
        rcvbuf_bytes: size of its receive buffer; default the system's.
    """

    daemon_threads, request_queue_size = True, 256

    def __init__(self, rcvbuf_bytes: int | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Sink)
        if rcvbuf_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, rcvbuf_bytes)
        self.port: int = self.socket.getsockname()[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.1,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


def send_to_sink(connection: socket.socket, payload: bytes) -> float:
    """Send `payload` to a `ByteSink`, wait for its answer, and return the time taken, ms."""
    started = time.perf_counter()
    connection.sendall(
        _LENGTH.pack(len(payload)) + payload if len(payload) < 1e5 else _LENGTH.pack(len(payload))
    )
    if len(payload) >= 1e5:
        connection.sendall(payload)
    if connection.recv(1) != _REPLY:
        raise PhotodupError("The byte sink closed the connection before it had everything.")
    return (time.perf_counter() - started) * 1000
