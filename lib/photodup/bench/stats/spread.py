"""Log ratios of visits, drawn with a stated spread: what simulations of comparisons are made of."""

import math
from dataclasses import dataclass

import numpy as np

from photodup.bench.stats.comparison import Observed


@dataclass(frozen=True)
class Spread:
    """How log ratios vary.

    Attributes:
        visits: standard deviation of a visit's mean.
        unevenness: standard deviation of the logarithm of `visits` from comparison to comparison.
    """

    visits: float
    unevenness: float = 0.0

    def __str__(self) -> str:
        return f"visits {self.visits:.1%}" + (f" × e^{self.unevenness:.0f}z" if self.unevenness else "")

    def draw(self, visits: int, generator: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Return normal log ratios around 0, one array with one number a visit."""
        size = self.visits * math.exp(self.unevenness * generator.normal())
        return tuple(generator.normal(0, size, (visits, 1)))


def spread_of(observed: Observed) -> Spread:
    """Return the spread that a comparison was measured with."""
    return Spread(math.sqrt(observed.variance))
