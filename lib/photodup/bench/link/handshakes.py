"""The round trip of a link from TCP handshakes: the least of many, since whatever disturbs one only adds to it."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

HANDSHAKES = 10
PAUSE_S = 0.02
TOLERANCE_MS = 1.0
RETRY_S = 8.0


@dataclass(frozen=True)
class RoundTrip:
    """The round trip of a link by its handshakes. All times in ms.

    Attributes:
        asked_ms: what the link was asked to be.
        floor_ms: the shortest handshake: what the link is, and what models of it should use.
        median_ms: the middle one: the floor and whatever else the machine was doing.
        n: how many handshakes there were.
    """

    asked_ms: float
    floor_ms: float
    median_ms: float
    n: int

    @property
    def error_ms(self) -> float:
        """The floor minus the round trip requested; above 0 the link is slower."""
        return self.floor_ms - self.asked_ms


def round_trip(
    handshake: Callable[[], object], asked_ms: float, *, retry_s: float = RETRY_S, pause_s: float = PAUSE_S
) -> RoundTrip:
    """Time at least `HANDSHAKES`, `pause_s` apart; go on for up to `retry_s` while the floor is too high.

    A busy machine delays single handshakes, so that more of them find the floor. A floor that stays above
    `asked_ms` is no error: the link is as slow as that. One that is too low is not waited for.
    """
    samples: list[float] = []
    deadline = time.monotonic() + retry_s
    while len(samples) < HANDSHAKES or (
        min(samples) > asked_ms + TOLERANCE_MS and time.monotonic() < deadline
    ):
        if samples:
            time.sleep(pause_s)
        samples.append(timed_ms(handshake))
    return RoundTrip(asked_ms, min(samples), median(samples), len(samples))


def timed_ms(call: Callable[[], object]) -> float:
    """Return how long a call takes, ms."""
    started = time.perf_counter()
    call()
    return (time.perf_counter() - started) * 1000
