"""Log ratios as turns give them, drawn with a stated spread: what simulations of comparisons are made of."""

import math
from dataclasses import dataclass

import numpy as np

from photodup.bench.stats.comparison import Observed, noise_of_one


@dataclass(frozen=True)
class Spread:
    """How log ratios vary.

    Attributes:
        observations: standard deviation of one observation within its visit.
        visits: standard deviation from visit to visit beyond what the observations explain.
        autocorrelation: of successive observations of a visit.
    """

    observations: float
    visits: float = 0.0
    autocorrelation: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.observations:.0%}, visits {self.visits:.1%}, autocorrelation {self.autocorrelation:.1f}"
        )

    def draw(self, visits: int, observations: int, generator: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Return normal log ratios around 0, one array [observations] a visit."""
        rho = self.autocorrelation
        noise = generator.normal(size=(visits, observations))
        for i in range(1, observations):
            noise[:, i] = rho * noise[:, i - 1] + math.sqrt(1 - rho**2) * noise[:, i]
        return tuple(generator.normal(0, self.visits, (visits, 1)) + self.observations * noise)


def spread_of(observed: Observed) -> Spread:
    """Return the spread that a comparison was measured with."""
    noise = noise_of_one(observed)
    return Spread(math.sqrt(observed.variance), math.sqrt(noise.between_visits), noise.autocorrelation)
