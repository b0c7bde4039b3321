"""What is asked of a server, and when its measurement may end."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from photodup.bench.stats.point import Looks


@dataclass(frozen=True)
class Stopping:
    """When a point is done: at a planned look that finds it valid, or at the last (then it says what is missing).

    The looks are at the shortest duration, at the longest, and half-way between them in ratio (see
    `photodup.bench.stats.point`).

    Attributes:
        min_duration_s, max_duration_s: the first and the last look, seconds of measured window.
        min_requests: an early look is not taken before so many answers.
        half_width: relative half-width asked of the 95 % intervals of `precise`.
        precise: the figures that must be that precise, names in `photodup.bench.stats.facts.METRICS`.
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
    half_width: float = 0.05
    precise: tuple[str, ...] = Looks.metrics

    def as_config(self) -> dict[str, Any]:
        """Return what identifies a record; the usual precision is left out, as older records do not name it."""
        config = asdict(self)
        for name in ("half_width", "precise"):
            if getattr(self, name) == getattr(Stopping, name):
                del config[name]
        return config

    @property
    def looks(self) -> Looks:
        """The planned looks; one where the shortest and the longest duration are the same."""
        first, last = min(self.min_duration_s, self.max_duration_s), self.max_duration_s
        between = math.sqrt(max(first, 1e-3) * last)
        lengths_s = (first, between, last) if last > 1.5 * first > 0 else (last,)
        return Looks(lengths_s, self.half_width, self.precise)


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
