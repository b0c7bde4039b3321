"""From visits to what the statistics need: one comparison's observations, and one side's figures over all its visits."""

import math
from collections.abc import Sequence

import numpy as np

from photodup.bench.pairs.alternate import Visit
from photodup.bench.stats.comparison import Observed, percentile_ratio
from photodup.bench.stats.facts import METRICS, Load, metric_named
from photodup.errors import PhotodupError

TAIL = "latency_ms_p99"
_REDRAWN = 400


def observed(visits: Sequence[Visit], load: Load, metric: str, other: int = 1) -> Observed | str:
    """Return the observations of one side against the first, or the sentence why there are none.

    Args:
        metric: the median latency with one request in flight, the throughput with several, or any percentile.
        other: index of the side.

    Raises:
        PhotodupError: a figure that turns do not give.
    """
    known = metric_named(metric)
    for visit in visits:
        for side in (0, other):
            if visit.n_failed[side] and not visit.n_requests[side]:
                return f"a side answered nothing: {visit.errors[side]}"
    visits = [visit for visit in visits if visit.log_ratios[other - 1]]
    if not visits:
        return "no block of turns was measured."
    ratios = tuple(np.array(visit.log_ratios[other - 1], float) for visit in visits)
    if metric == usual_metric(load):
        a, b = (
            math.exp(np.mean([math.log(v.values[side] or math.nan) for v in visits])) for side in (0, other)
        )
        return Observed(ratios, a, b)
    if known.percentile is None:
        raise PhotodupError(f"Turns under this load do not give the {known.words}: name a percentile.")
    fewest = min(sum(v.n_requests[side] for v in visits) for side in (0, other))
    if fewest < known.min_answers:
        return (
            f"{fewest} answers of a side are too few for the {known.words}: {known.min_answers} are needed."
        )
    blocks = [list(zip(v.blocks_of(0), v.blocks_of(other), strict=True)) for v in visits]
    a, b, effect, error = percentile_ratio([pair for visit in blocks for pair in visit], known.percentile)
    return Observed(ratios, a, b, effect, error)


def usual_metric(load: Load) -> str:
    """Return the figure that turns compare directly: median latency with one in flight, throughput with several."""
    return "latency_ms_p50" if load.concurrency == 1 else "throughput_images_per_s"


def figures(visits: Sequence[tuple[Visit, int]], load: Load) -> dict[str, tuple[float, float, float]]:
    """Return a side's figures over all its visits: value, low, high; a figure without enough answers is left out.

    The interval (95 %, t over visits) is between visits: of this machine, in this run. The 99th percentile pools all
    answers and redraws whole blocks.

    Args:
        visits: each with the index of the side in it.
    """
    blocks = [block for visit, side in visits for block in visit.blocks_of(side) if len(block)]
    answers = [one for visit, side in visits if len(one := visit.latency_ms[visit.side == side])]
    found: dict[str, tuple[float, float, float]] = {}
    for metric in METRICS.values():
        if metric.percentile is None or metric.name == TAIL or len(answers) < 2:
            continue
        if min(map(len, answers)) >= min(metric.min_answers, 20):
            found[metric.name] = between([float(np.percentile(one, metric.percentile)) for one in answers])
    if len(answers) > 1:
        found["latency_ms_mean"] = between([float(one.mean()) for one in answers])
        rates = [load.batch * 1000 / float(one.mean()) for one in answers]
        if load.concurrency != 1:
            rates = [value for visit, side in visits if (value := visit.values[side])]
        found["throughput_images_per_s"] = between(rates)
    if sum(map(len, blocks)) >= METRICS[TAIL].min_answers:
        draw = np.random.default_rng(0)
        redrawn = [
            float(
                np.percentile(
                    np.concatenate([blocks[i] for i in draw.integers(0, len(blocks), len(blocks))]), 99
                )
            )
            for _ in range(_REDRAWN)
        ]
        low, high = np.percentile(redrawn, [2.5, 97.5])
        found[TAIL] = (float(np.percentile(np.concatenate(blocks), 99)), float(low), float(high))
    return found


def between(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the geometric mean of one figure a visit, with its 95 % interval: value, low, high."""
    from scipy.special import stdtrit

    logs = np.log(np.array(values, float))
    reach = float(stdtrit(len(logs) - 1, 0.975) * logs.std(ddof=1) / math.sqrt(len(logs)))
    middle = float(logs.mean())
    return math.exp(middle), math.exp(middle - reach), math.exp(middle + reach)
