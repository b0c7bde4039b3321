"""One figure for one load that was measured in several rounds, and which rounds count."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np

from photodup.bench.stats.facts import metric_named
from photodup.errors import PhotodupError

T = TypeVar("T")


def that_count(rounds: Iterable[T], is_steady: Callable[[T], bool], needed: int) -> list[T]:
    """Return the steady ones of rounds that have figures, or all of them where fewer than needed are steady."""
    rounds = list(rounds)
    steady = [one for one in rounds if is_steady(one)]
    return steady if len(steady) >= needed else rounds


def pooled(values: Iterable[float], confidence: float = 0.95) -> tuple[float, float, float]:
    """Return one figure for one load measured in several rounds: geometric mean, low, high (t over rounds).

    Raises:
        PhotodupError: fewer than two values, or one that is not positive.
    """
    from scipy.special import stdtrit

    logs = np.array(list(values), float)
    if len(logs) < 2 or not (logs > 0).all():
        raise PhotodupError("Pooling needs two or more figures above 0, one from each round.")
    logs = np.log(logs)
    reach = float(stdtrit(len(logs) - 1, 0.5 + confidence / 2) * logs.std(ddof=1) / math.sqrt(len(logs)))
    return math.exp(logs.mean()), math.exp(logs.mean() - reach), math.exp(logs.mean() + reach)


def pooled_p99(rounds: Sequence[np.ndarray]) -> tuple[float, float, float] | None:
    """Return the 99th percentile of all answers of the rounds together, low and high, ms; None where they are too few.

    The 95 % interval comes from redrawing whole rounds.

    Args:
        rounds: latencies of each, ms; at least four rounds are needed.
    """
    from scipy.stats import bootstrap

    if len(rounds) < 4 or sum(map(len, rounds)) < metric_named("latency_ms_p99").min_answers:
        return None

    def p99(chosen: Sequence[float]) -> float:
        return float(np.percentile(np.concatenate([rounds[int(i)] for i in chosen]), 99))

    drawn = bootstrap(
        (np.arange(len(rounds)),), p99, n_resamples=500, vectorized=False, method="percentile", rng=0
    ).confidence_interval
    return p99(range(len(rounds))), float(drawn.low), float(drawn.high)
