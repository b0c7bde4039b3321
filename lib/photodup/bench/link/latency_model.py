"""Two rival models of a request's latency on a wide-area link, and a third between them.

bandwidth-only   T = (new + 1) · RTT + bytes/rate + server
rounds           T = (new + rounds(bytes, window)) · RTT + bytes/rate + server

A sender may have `window` segments unacknowledged and doubles that number once per round trip (slow start,
RFC 5681), so a payload needs a whole number of round trips before its last byte arrives, whatever the rate.
`new` is 1 when the connection is opened first. On a connection whose window has already grown past the
payload, `rounds` is 1 and both models agree. (The claim under test has no `new` term; it is granted one here,
so that it cannot lose by a handshake.)

`rounds` ignores that a full pipe sends without waiting: where rate · RTT is less than the payload it counts
both the rounds and the bytes. `pipe-limited` counts each only once.
"""

import math

from photodup.bench.link.tcp import MSS_BYTES
from photodup.core.errors import PhotodupError

INITCWND = 10
CONNECTIONS = ("new", "warm", "idle")
MODELS = ("bandwidth-only", "rounds", "pipe-limited")


def segments(payload_bytes: int) -> int:
    """Return the TCP segments of a payload (at least one)."""
    return max(1, math.ceil(payload_bytes / MSS_BYTES))


def rounds(payload_bytes: int, initcwnd: int = INITCWND) -> int:
    """Return the round trips until a payload is answered: flights of a window that doubles (slow start).

    No loss, no rate limit. 602,112 bytes are 416 segments: flights of 10, 20, 40, 80, 160, 106, so 6 rounds.
    """
    if initcwnd < 1:
        raise PhotodupError(f"A window of {initcwnd} segments carries nothing: use 1 or more.")
    segments_left, window, count = segments(payload_bytes), initcwnd, 0
    while segments_left > 0:
        segments_left, window, count = segments_left - window, 2 * window, count + 1
    return count


def round_trips(payload_bytes: int, connection: str, initcwnd: int = INITCWND, restarts: bool = True) -> int:
    """Return `new + rounds` for a connection: `new`, `warm` (window grown), `idle` (reset, if it `restarts`).

    Linux restarts from the initial window after an idle retransmission timeout, unless
    `tcp_slow_start_after_idle` is 0 or the congestion control sets its own rate (BBR): then pass
    `restarts=False`.
    """
    if connection not in CONNECTIONS:
        raise PhotodupError(f"Connection {connection!r} is none of {', '.join(CONNECTIONS)}.")
    if connection == "warm" or (connection == "idle" and not restarts):
        return 1
    return rounds(payload_bytes, initcwnd) + (connection == "new")


def serialisation_ms(payload_bytes: int, rate_mbit_s: float) -> float:
    """Return the time of the bytes on the wire, headers included (1500 wire bytes per full segment)."""
    wire = payload_bytes + segments(payload_bytes) * 52
    return wire * 8e-3 / rate_mbit_s


def predict_ms(
    model: str,
    payload_bytes: int,
    rtt_ms: float,
    rate_mbit_s: float,
    server_ms: float = 0.0,
    *,
    connection: str = "new",
    initcwnd: int = INITCWND,
    restarts: bool = True,
) -> float:
    """Predict a latency by one of `MODELS`.

    Args:
        model: `bandwidth-only` (bytes and rate; `initcwnd` and `restarts` play no part), `rounds` (round trips as well), or
            `pipe-limited` (a flight that takes a round trip to send adds no waiting).

    Raises:
        PhotodupError: no such model, or for `rounds` no such connection.
    """
    is_new, sent_ms = connection == "new", serialisation_ms(payload_bytes, rate_mbit_s)
    if model == "bandwidth-only":
        return (1 + is_new) * rtt_ms + sent_ms + server_ms
    if model == "rounds":
        return round_trips(payload_bytes, connection, initcwnd, restarts) * rtt_ms + sent_ms + server_ms
    if model != "pipe-limited":
        raise PhotodupError(f"No latency model {model!r}: choose {', '.join(MODELS)}.")
    segments_left = segments(payload_bytes)
    window = initcwnd if is_new or (connection == "idle" and restarts) else segments_left
    total = rtt_ms if is_new else 0.0
    while segments_left > window:
        flight_ms = serialisation_ms(window * MSS_BYTES, rate_mbit_s)
        if flight_ms >= rtt_ms:  # acknowledgements return before the flight is out
            break
        total, segments_left, window = total + rtt_ms, segments_left - window, window * 2
    return total + rtt_ms + serialisation_ms(segments_left * MSS_BYTES, rate_mbit_s) + server_ms
