"""What the real way to a server costs by payload and kind of connection: the published experiment, without the model.

Any of our servers can stand for a byte sink: Triton reads the whole body of a request for a model that it does not have
before it says so, and the FastAPI service that of a body that is no JSON. Both answer within a millisecond or so; how long
they take is measured with the smallest request and told beside the rows, so that it can be taken off.
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

from photodup.bench.backends.http_connection import HttpConnection, HttpError
from photodup.bench.link.handshakes import HANDSHAKES, timed_ms
from photodup.bench.link.ladder import LARGE_BYTES, WARM_UP_SENDS, WARM_UP_SENDS_LARGE
from photodup.bench.link.tcp import request_info, tcp_info
from photodup.core.errors import PhotodupError

SINKS = {"triton": "/v2/models/photodup_no_such_model/infer", "fastapi": "/embed/base64"}
"""Server -> where it reads a body of any size and answers with an error at once."""

SMALL_BYTES = 64


def _send(connection: HttpConnection, server: str, payload: bytes) -> None:
    """Send a body and wait for the whole answer, a refusal.

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


def _info(connection: HttpConnection) -> dict[str, int]:
    """Return the kernel's view of the connection; nothing where there is none to be had (macOS)."""
    try:
        return tcp_info(connection.socket) if connection.socket else {}
    except PhotodupError:
        return {}


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
        PhotodupError: no address of plain HTTP.
    """
    connect = partial(HttpConnection, url)
    handshakes = []
    for _ in range(HANDSHAKES):
        with contextlib.closing(connect()) as connection:
            handshakes.append(timed_ms(connection.connect))
    rtt_ms = min(handshakes)
    with contextlib.closing(connect()) as small:
        _send(small, server, bytes(SMALL_BYTES))
        smallest = min(timed_ms(partial(_send, small, server, bytes(SMALL_BYTES))) for _ in range(HANDSHAKES))
    rows = []
    for size in payloads_bytes:
        times = n_large if size > LARGE_BYTES else n
        for kind, wait_s, n_samples in (("new", 0.0, times), ("warm", 0.0, times), ("idle", idle_s, n_large)):
            if kind in connections:
                rows.append(_row(connect, server, size, kind, n_samples, wait_s))
    path = {
        "server": server,
        "rtt_ms": round(rtt_ms, 3),
        "rtt_median_ms": round(median(handshakes), 3),
        "turnaround_ms": round(max(0.0, smallest - rtt_ms), 3),
        "rows": rows,
    }
    return path | {"rate_mbit_s": _rate(path)}


def _rate(path: dict[str, Any]) -> float | None:
    warm = [r for r in path["rows"] if r["connection"] == "warm" and r["valid"]]
    large = max(warm, key=lambda r: r["payload_bytes"], default=None)
    if large is None or large["payload_bytes"] <= LARGE_BYTES:
        return None
    carried_ms = large["latency_ms_p50"] - path["rtt_ms"] - path["turnaround_ms"]
    return round(large["payload_bytes"] * 8e-3 / carried_ms, 1) if carried_ms > 0 else None


def _row(
    connect: Callable[[], HttpConnection], server: str, size: int, kind: str, times: int, wait_s: float
) -> dict[str, Any]:
    row: dict[str, Any] = {"link": "network", "payload_bytes": size, "connection": kind}
    try:
        samples, info = _samples(connect, server, bytes(size), kind, times, wait_s)
    except (OSError, PhotodupError) as error:
        reason = str(error) or type(error).__name__
        return row | {"latency_ms_p50": None, "n_requests": 0, "valid": False, "invalid_because": reason}
    return row | {
        "latency_ms_p50": median(samples),
        "samples_ms": [round(sample, 3) for sample in samples],
        "n_requests": len(samples),
        "valid": True,
        "invalid_because": "",
        **info,
    }


def _samples(
    connect: Callable[[], HttpConnection], server: str, payload: bytes, kind: str, times: int, wait_s: float
) -> tuple[list[float], dict[str, float]]:
    """Send `times` payloads, each on a connection of its own (`new`) or all on a warm one."""
    samples, info = [], {}
    warm_up = WARM_UP_SENDS_LARGE if len(payload) > LARGE_BYTES else WARM_UP_SENDS
    with contextlib.closing(connect()) as connection:
        for _ in range(0 if kind == "new" else warm_up):
            _send(connection, server, payload)
        for _ in range(times):
            if kind == "new":
                connection.close()
            time.sleep(wait_s)
            before = _info(connection)
            samples.append(timed_ms(partial(_send, connection, server, payload)))
            after = _info(connection)
            info = request_info(before, after) if after else {}
            if wait_s and before:
                info["idle_ms"] = before["last_data_sent_ms"]
    return samples, info
