"""An interval for each figure of a steady part.

Means and throughput: Student's t over the means of blocks. Percentiles: t over the blocks' shares of answers at or
below the percentile, turned back into latencies by the order statistics (Woodruff 1952 on batch means). Every
interval holds its figure by construction.
"""

import math

import numpy as np

from photodup.bench.judge.facts import METRICS, Figure
from photodup.bench.judge.steady import MIN_BLOCKS, Steady, standard_error


def figures_of(steady: Steady, *, batch: int = 1, confidence: float = 0.95) -> dict[str, Figure]:
    """Return the figures that a steady part carries, by metric.

    Args:
        batch: images per request; throughput is counted in images.
        confidence: of each interval, 0 to 1.

    Returns:
        Metric name → figure. A percentile that the sample is too small for is left out; below `MIN_BLOCKS`
        blocks there is none at all.
    """
    if steady.n_blocks < MIN_BLOCKS:
        return {}
    facts = {"n_answers": steady.n_answers, "n_effective": steady.n_effective, "confidence": confidence}
    found = {}
    for metric in METRICS.values():
        if steady.n_answers < metric.min_answers or steady.n_effective < metric.min_effective:
            continue
        if metric.quantity == "throughput":
            bounds = _throughput(steady, batch, confidence)
        elif metric.percentile is None:
            middle = float(np.mean(steady.block_latency_ms))
            half = half_width(steady.block_latency_ms, confidence)
            bounds = (middle, max(middle - half, float(steady.latency_ms.min())), middle + half)
        else:
            bounds = _percentile(steady, metric.percentile / 100, confidence)
        if bounds is not None:
            found[metric.name] = Figure(metric.name, *bounds, **facts)
    return found


def percentile_bounds(
    steady: Steady, percentile: float, confidence: float = 0.95
) -> tuple[float, float, float]:
    """Return one percentile of latency (0 to 100) and its interval, ms: value, low, high."""
    return _percentile(steady, percentile / 100, confidence)


def half_width(block_means: np.ndarray, confidence: float = 0.95) -> float:
    """Return how far the interval of a mean of block means reaches to a side, in their unit."""
    from scipy.special import (
        stdtrit,
    )  # Student's t quantile; scipy.stats takes a hundred times as long to say it

    error, freedom = standard_error(block_means)
    return float(stdtrit(freedom, 0.5 + confidence / 2)) * error


def _throughput(steady: Steady, batch: int, confidence: float) -> tuple[float, float, float] | None:
    """Blocks hold equal counts, so the mean duration is what varies; its interval is turned over."""
    mean = float(np.mean(steady.block_duration_s))
    if mean <= 0:
        return None  # the clock did not move between two waves: no rate can be told
    half = half_width(steady.block_duration_s, confidence)
    images = steady.block_answers * batch
    low = images / (mean + half)
    return images / mean, low, images / max(mean - half, mean / 100)


def _percentile(steady: Steady, share: float, confidence: float) -> tuple[float, float, float]:
    ordered = np.sort(steady.latency_ms)
    n = len(ordered)
    value = float(np.quantile(ordered, share))
    below = (steady.latency_ms <= value).reshape(steady.n_blocks, -1).mean(axis=1)
    half = half_width(below, confidence)
    low = ordered[max(math.floor(n * (share - half)), 0)]
    high = ordered[min(math.ceil(n * (share + half)), n - 1)]
    return value, min(float(low), value), max(float(high), value)
