"""From visits to what the statistics need: one comparison's observations, and one side's figures over all its visits."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from photodup.bench import Columns
from photodup.bench.pairs.alternate import Visit
from photodup.bench.pairs.declared import Pair, Side
from photodup.bench.stats.comparison import Comparison, Observed
from photodup.bench.stats.figures import figures_of_windows, interval
from photodup.bench.stats.metrics import SMALLEST_EFFECT, Load, metric_named
from photodup.core.errors import PhotodupError

JUMP_S = 1.0  # of the wall clock against the monotonic one: the machine slept, or its clock was set


def comparison_of(
    pair: Pair, observed: Observed | str, nulls: Sequence[str] = (), notes: Sequence[str] = ()
) -> Comparison:
    """Return a declared comparison with its observations, or with the reason why it has none."""
    return Comparison(
        pair.name,
        pair.notebook,
        pair.load.usual_metric,
        pair.load_name,
        _label(pair.a, pair.b),
        _label(pair.b, pair.a),
        observed,
        is_primary=pair.is_primary,
        is_null=pair.is_null,
        nulls=tuple(nulls),
        requests=pair.load,
        link=pair.link,
        notes=tuple(notes),
    )


def _label(side: Side, other: Side) -> str:
    """Return a side's label, with the payload or protocol that sets it apart from the other side."""
    backend, other_backend = side.backend, other.backend
    payload = " with a JPEG" if backend.wire == "jpeg" != other_backend.wire else ""
    is_told = "HTTP" in side.label or backend.protocol != "http" or other_backend.protocol == "http"
    return side.label + payload + ("" if is_told else " by HTTP")


def with_observations(comparison: Comparison, visits: Sequence[Visit]) -> Comparison:
    """Return a comparison with the observations of its visits; unchanged without visits."""
    if not visits:
        return comparison
    shares = [share for visit in visits if (share := _carried_over(visit)) is not None]
    return replace(
        comparison,
        observed=observed(visits, comparison.requests, comparison.metric),
        seconds=sum(visit.seconds for visit in visits),
        carried_over=float(np.median(shares)) if shares else None,
        notes=(*comparison.notes, *notes_on_visits(visits)),
    )


def _carried_over(visit: Visit) -> float | None:
    """Return the larger share of the two sides: one of them alone may spin."""
    return max((share for share in visit.carried_over or () if share is not None), default=None)


def notes_on_visits(visits: Sequence[Visit]) -> list[str]:
    """Return what a reader must know of visits of two sides, one sentence each."""
    sentences = []
    if failed := sum(sum(visit.n_failed) for visit in visits):
        last = next((error for visit in reversed(visits) for error in visit.errors if error), "")
        sentences.append(f"{failed} requests failed, the last with: {last.rstrip('.')}.")
    if jumped := [v.clock_jump_s for v in visits if v.clock_jump_s > JUMP_S]:
        sentences.append(f"The machine slept or its clock was set by {max(jumped):.0f} s during a visit.")
    if any(not visit.is_interleaved for visit in visits):
        sentences.append(
            "The sides were measured one after the other: both settings could not be served at once."
        )
    ratios = [
        (visit.alone[1] / visit.alone[0]) / (float(np.median(b)) / float(np.median(a)))
        for visit in visits
        if visit.alone and visit.alone[0] and visit.alone[1]
        if len(a := visit.latencies(0)) and len(b := visit.latencies(1))
    ]
    if len(ratios) > 1:
        value, low, high = interval(ratios)
        if low is not None and high is not None and (low > 1 + SMALLEST_EFFECT or high < 1 - SMALLEST_EFFECT):
            sentences.append(
                f"With each side alone, the ratio of medians is {value - 1:+.1%} of the one in turns."
            )
    return sentences


def observed(visits: Sequence[Visit], load: Load, metric: str) -> Observed | str:
    """Return what the visits of two sides observed; without an observation, a sentence with the reason.

    Args:
        metric: the median latency with one request in flight, the throughput with several, or any percentile.

    Raises:
        PhotodupError: a figure that turns do not give.
    """
    facts = metric_named(metric)
    for visit in visits:
        for side in (0, 1):
            if visit.n_failed[side] and not visit.n_requests[side]:
                return f"a side answered nothing: {visit.errors[side]}"
    visits = [visit for visit in visits if len(visit.log_ratios(1))]
    if not visits:
        return "no block of turns was measured."
    if metric == load.usual_metric:
        values = [[visit.values()[side] or math.nan for visit in visits] for side in (0, 1)]
        ratios = tuple(visit.log_ratios(1) for visit in visits)
    elif facts.percentile is None:
        raise PhotodupError(f"Turns under this load do not give the {facts.label}: name a percentile.")
    else:
        fewest = min(sum(v.n_requests[side] for v in visits) for side in (0, 1))
        if fewest < facts.min_answers:
            return f"{fewest} answers of a side are too few for the {facts.label}: {facts.min_answers} are needed."
        values = [
            [float(np.percentile(v.latencies(side), facts.percentile)) for v in visits] for side in (0, 1)
        ]
        ratios = tuple(np.log([b / a]) for a, b in zip(*values, strict=True))
    a, b = (math.exp(float(np.mean(np.log(of_side)))) for of_side in values)
    return Observed(ratios, a, b)


def figures(visits: Sequence[tuple[Visit, int]]) -> Columns:
    """Return a side's figures over all its visits, as `figures_of_windows` names them.

    Args:
        visits: each with the index of the side in it.
    """
    windows = [
        {
            "latency_ms_mean": float(latency_ms.mean()),
            "latency_ms_p50": float(np.median(latency_ms)),
            "throughput_images_per_s": visit.throughput(latency_ms),
            "raw": {"latency_ms": latency_ms},
        }
        for visit, side in visits
        if len(latency_ms := visit.latencies(side))
    ]
    return figures_of_windows(windows)
