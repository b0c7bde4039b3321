"""Log ratios as turns give them, drawn with a stated spread: what simulations of comparisons are made of."""

import math
from dataclasses import dataclass

import numpy as np

from photodup.bench.stats.comparison import Observed, between_visits, noise_of


@dataclass(frozen=True)
class Spread:
    """How log ratios vary.

    Attributes:
        observations: standard deviation of one observation within its visit.
        visits: standard deviation from visit to visit beyond what the observations explain.
        autocorrelation: of successive observations of a visit.
        unevenness: standard deviation of the logarithm of `visits` from comparison to comparison.
    """

    observations: float
    visits: float = 0.0
    autocorrelation: float = 0.0
    unevenness: float = 0.0

    def __str__(self) -> str:
        visits = f"visits {self.visits:.1%}" + (f" × e^{self.unevenness:.0f}z" if self.unevenness else "")
        return f"{self.observations:.0%}, {visits}, autocorrelation {self.autocorrelation:.1f}"

    def draw(self, visits: int, observations: int, generator: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Return normal log ratios around 0, one array [observations] a visit."""
        rho = self.autocorrelation
        noise = generator.normal(size=(visits, observations))
        for i in range(1, observations):
            noise[:, i] = rho * noise[:, i - 1] + math.sqrt(1 - rho**2) * noise[:, i]
        between = self.visits * math.exp(self.unevenness * generator.normal())
        return tuple(generator.normal(0, between, (visits, 1)) + self.observations * noise)


def spread_of(observed: Observed) -> Spread:
    """Return the spread that a comparison was measured with."""
    noise = noise_of([observed])
    return Spread(
        math.sqrt(observed.variance), math.sqrt(between_visits(observed, noise)[0]), noise.autocorrelation
    )
