"""The plan of a measurement: its requests, their times, and when it may end."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from photodup.bench.stats.point import HALF_WIDTH
from photodup.core.errors import PhotodupError


@dataclass(frozen=True)
class Stopping:
    """When a measurement ends: at an early look that finds the point valid, or after its longest duration.

    Attributes:
        min_duration_s, max_duration_s: of the measured window, seconds.
        min_requests: answers without which no early look ends the measurement.
        half_width: relative half-width required of the 95 % intervals, above 0.
        warmup_requests: of the first worker, on the connection that will be measured; then one of each of
            the others, all at once. Not counted.
        ramp_s: closed loops with several in flight run this long before the window opens, so that the batch
            sizes a server forms under load are warm too.
        seed: of payload order and arrivals, which have generators of their own.
    """

    min_duration_s: float = 5.0
    min_requests: int = 64
    max_duration_s: float = 60.0
    warmup_requests: int = 3
    ramp_s: float = 0.5
    seed: int = 0
    half_width: float = HALF_WIDTH

    def __post_init__(self) -> None:
        if not (self.max_duration_s > 0 and self.half_width > 0):
            raise PhotodupError("A measurement needs a longest duration and a half-width above 0.")

    def as_config(self) -> dict[str, Any]:
        """Return what identifies a record; the usual half-width is left out, as older records do not name it."""
        config = asdict(self)
        if self.half_width == HALF_WIDTH:
            del config["half_width"]
        return config

    @property
    def early_looks_s(self) -> tuple[float, ...]:
        """After the shortest duration and half-way in ratio to the longest; none where both are nearly the same."""
        first, last = self.min_duration_s, self.max_duration_s
        return (first, math.sqrt(first * last)) if last > 1.5 * first > 0 else ()


Arrivals = Callable[[float, float, int], np.ndarray]  # rate per second, horizon in seconds, seed -> times


def arrivals_s(rate_per_s: float, horizon_s: float, seed: int = 0) -> np.ndarray:
    """Return Poisson arrival times (seconds, ascending, from 0) that cover `horizon_s`."""
    generator = np.random.default_rng([seed, 1])
    expected = rate_per_s * horizon_s
    gaps = generator.exponential(1 / rate_per_s, int(expected + 6 * np.sqrt(expected) + 10))
    times = np.cumsum(gaps)
    return times[times < horizon_s]


def request_order(photos: Sequence[bytes], batch: int, seed: int = 0) -> list[tuple[bytes, ...]]:
    """Return the fixed set of requests of a run: each of up to 256 photographs is used, none twice in a row."""
    count = max(8, min(64, 256 // batch))
    shuffled = random.Random(seed).sample(list(photos), len(photos))
    count = max(count, -(-min(len(photos), 256) // batch))
    return [tuple(shuffled[(i * batch + j) % len(shuffled)] for j in range(batch)) for i in range(count)]
