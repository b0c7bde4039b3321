"""The plan of a window: its requests, their times, and when it ends."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from photodup.bench import Item
from photodup.bench.stats.metrics import Load
from photodup.core.errors import PhotodupError

MOST_TIMES = 10
# Instances that began together are in step: the rate of their first four waves reads 3 to 9% high.
RAMP_WAVES, RAMP_TIMES = 4, 2
START_S = 1.0  # until a load begins: about


@dataclass(frozen=True)
class WindowPlan:
    """One window: when it opens and when it ends.

    Attributes:
        seconds: its length.
        min_answers: a window goes on until so many came, and two waves; in an open loop, until so many are expected.
        longest_s: longest length; default `MOST_TIMES` × `seconds`.
        warmup_requests: of the first worker, on the connection that will be measured; then one of each of
            the others, all at once. Not counted.
        ramp_s: closed loops with several in flight run this long, and for `RAMP_WAVES` waves or `RAMP_TIMES` the window's
            length, before it opens: the batch sizes a server forms under load are then warm too, and its instances out of
            step. 0: no ramp.
        seed: of payload order and arrivals, which have generators of their own.
    """

    seconds: float = 2.0
    min_answers: int = 10
    warmup_requests: int = 3
    ramp_s: float = 0.5
    seed: int = 0
    longest_s: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.seconds < math.inf:
            raise PhotodupError("A window needs a length in seconds, above 0.")
        if not self.longest_s:
            object.__setattr__(self, "longest_s", MOST_TIMES * self.seconds)

    def length_s(self, load: Load) -> float:
        """Return how long a window is open at least, seconds: of an open loop, how long requests arrive."""
        return min(max(self.seconds, self.min_answers / (load.offered_per_s or math.inf)), self.longest_s)

    def expected_s(self, load: Load, answer_s: float) -> float:
        """Return about how long a window takes whose answers come so many seconds after each other, with start and ramp."""
        wave_s = load.wave * answer_s
        ramp_s = max(self.ramp_s, min(RAMP_WAVES * wave_s, RAMP_TIMES * self.seconds))
        open_s = max(self.length_s(load), min(max(self.min_answers * answer_s, 2 * wave_s), self.longest_s))
        return START_S + ramp_s + open_s + 2 * wave_s  # one wave warms up, one is in flight at the end


def arrivals_s(rate_per_s: float, horizon_s: float, seed: int = 0) -> np.ndarray:
    """Return Poisson arrival times (seconds, ascending, from 0) that cover `horizon_s`."""
    generator = np.random.default_rng([seed, 1])
    expected = rate_per_s * horizon_s
    gaps = generator.exponential(1 / rate_per_s, int(expected + 6 * np.sqrt(expected) + 10))
    times = np.cumsum(gaps)
    return times[times < horizon_s]


Arrivals = Callable[[float, float, int], np.ndarray]
ARRIVALS: dict[str, Arrivals] = {
    "poisson": arrivals_s,
    "uniform": lambda rate_per_s, horizon_s, seed: np.arange(0, horizon_s, 1 / rate_per_s),
}
"""Name → function of the rate per second, the horizon in seconds and a seed: times in seconds, ascending, from 0."""


def draw_requests(photos: Sequence[Item], batch: int, seed: int = 0) -> list[tuple[Item, ...]]:
    """Return the fixed set of requests of a run: each of up to 256 photographs is used, none twice in a row."""
    shuffled = random.Random(seed).sample(list(photos), len(photos))
    count = max(8, min(64, 256 // batch), -(-min(len(photos), 256) // batch))
    return [tuple(shuffled[(i * batch + j) % len(shuffled)] for j in range(batch)) for i in range(count)]
