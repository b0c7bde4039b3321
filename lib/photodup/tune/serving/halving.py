"""Successive halving: many short trials, then longer ones of those that did well.

Jamieson and Talwalkar, *Non-stochastic Best Arm Identification and Hyperparameter Optimization*, AISTATS 2016.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from photodup.errors import PhotodupError

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True)
class Trial(Generic[T]):
    """One trial: who, in which rung (from 0), and the score; higher is better, 0 is useless."""

    who: T
    rung: int
    score: float


def halve(
    field: Sequence[T],
    measure: Callable[[T, int], float],
    *,
    rungs: int = 3,
    keep: int = 2,
    share: float = 1 / 3,
) -> tuple[list[T], list[Trial[T]]]:
    """Return the last `keep` of a field, best first, and every trial that was made.

    Args:
        field: who takes part; none twice.
        measure: the score of one in a rung; later rungs should measure longer.
        rungs: how often the field is cut.
        share: of the field that goes on to the next rung, above 0 and below 1. Who scored 0 never goes on.

    Raises:
        PhotodupError: nobody takes part, or the numbers make no sense.
    """
    if not field or rungs < 1 or keep < 1 or not 0 < share < 1:
        raise PhotodupError(
            "A search needs settings to try, a rung, one to keep and a share between 0 and 1."
        )
    left, trials = list(dict.fromkeys(field)), []
    for rung in range(rungs):
        seen = [Trial(who, rung, measure(who, rung)) for who in left]
        trials += seen
        ranked = sorted((t for t in seen if t.score > 0), key=lambda t: -t.score)
        size = keep if rung == rungs - 1 else max(keep, math.ceil(share * len(left)))
        left = [t.who for t in ranked[:size]]
        if not left:
            break
    return left, trials
