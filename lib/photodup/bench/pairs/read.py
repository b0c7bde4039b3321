"""From visits to what the statistics need: one comparison's observations, and one side's figures over all its visits."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from photodup.bench.pairs.alternate import Visit
from photodup.bench.pairs.declared import Pair, Side
from photodup.bench.stats.comparison import Observed, Question, percentile_ratio, redrawn
from photodup.bench.stats.facts import METRICS, SMALLEST_EFFECT, Load, metric_named
from photodup.core.errors import PhotodupError

TAIL = "latency_ms_p99"
JUMP_S = 1.0  # of the wall clock against the monotonic one: the machine slept, or its clock was set


def question_of(
    pair: Pair, observed: Observed | str, nulls: Sequence[str] = (), notes: Sequence[str] = ()
) -> Question:
    """Return what a declared comparison asks, with what was observed or the sentence why nothing was."""
    return Question(
        pair.name,
        pair.notebook,
        pair.metric,
        pair.load_name,
        _called(pair.a, pair.b),
        _called(pair.b, pair.a),
        observed,
        is_primary=pair.is_primary,
        is_null=pair.is_null,
        nulls=tuple(nulls),
        images=pair.load.batch,
        has_several_in_flight=pair.load.concurrency != 1,
        notes=tuple(notes),
    )


def _called(side: Side, other: Side) -> str:
    """Return a side's label, with the payload or protocol that sets it apart from the other side."""
    mine, its = side.backend, other.backend
    payload = " with a JPEG" if mine.wire == "jpeg" != its.wire else ""
    protocol = " by HTTP" if mine.protocol == "http" != its.protocol and "HTTP" not in side.label else ""
    return side.label + payload + protocol


def answered(question: Question, visits: Sequence[Visit], load: Load) -> Question:
    """Return a question with what visits of its two sides gave; without any visits as it is."""
    if not visits:
        return question
    carried = [share for visit in visits for share in visit.carried_over or () if share is not None]
    return replace(
        question,
        observed=observed(visits, load, question.metric),
        n_failed=sum(sum(visit.n_failed) for visit in visits),
        seconds=sum(visit.seconds for visit in visits),
        carried_over=float(np.median(carried)) if carried else None,
        notes=(*question.notes, *remarks(visits)),
    )


def remarks(visits: Sequence[Visit]) -> list[str]:
    """Return what a reader must know of visits of two sides, one sentence each."""
    found = []
    if failed := sum(sum(visit.n_failed) for visit in visits):
        last = next((error for visit in reversed(visits) for error in visit.errors if error), "")
        found.append(f"{failed} requests failed, the last with: {last.rstrip('.')}.")
    if jumped := [v.clock_jump_s for v in visits if v.clock_jump_s > JUMP_S]:
        found.append(f"The machine slept or its clock was set by {max(jumped):.0f} s during a visit.")
    if any(not visit.is_interleaved for visit in visits):
        found.append(
            "The sides were measured one after the other: both settings could not be served at once."
        )
    ratios = [(v.alone[1] / v.alone[0], v) for v in visits if v.alone and v.alone[0] and v.alone[1]]
    apart = [ratio / math.exp(float(np.mean(v.log_ratios[0]))) for ratio, v in ratios if v.log_ratios[0]]
    if len(apart) > 1:
        _, low, high = between(apart)
        if low > 1 + SMALLEST_EFFECT or high < 1 - SMALLEST_EFFECT:
            alone = float(np.median([ratio for ratio, _ in ratios]))
            found.append(f"Measured one after the other the ratio is {alone:.2f}: taking turns changes it.")
    return found


def observed(visits: Sequence[Visit], load: Load, metric: str) -> Observed | str:
    """Return the observations of visits of two sides, or the sentence why there are none.

    Args:
        metric: the median latency with one request in flight, the throughput with several, or any percentile.

    Raises:
        PhotodupError: a figure that turns do not give.
    """
    known = metric_named(metric)
    for visit in visits:
        for side in (0, 1):
            if visit.n_failed[side] and not visit.n_requests[side]:
                return f"a side answered nothing: {visit.errors[side]}"
    visits = [visit for visit in visits if visit.log_ratios[0]]
    if not visits:
        return "no block of turns was measured."
    ratios = tuple(np.array(visit.log_ratios[0], float) for visit in visits)
    if metric == usual_metric(load):
        a, b = (math.exp(np.mean([math.log(v.values[side] or math.nan) for v in visits])) for side in (0, 1))
        return Observed(ratios, a, b)
    if known.percentile is None:
        raise PhotodupError(f"Turns under this load do not give the {known.words}: name a percentile.")
    fewest = min(sum(v.n_requests[side] for v in visits) for side in (0, 1))
    if fewest < known.min_answers:
        return (
            f"{fewest} answers of a side are too few for the {known.words}: {known.min_answers} are needed."
        )
    blocks = [list(zip(v.blocks_of(0), v.blocks_of(1), strict=True)) for v in visits]
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
        (value,), again = redrawn([(block,) for block in blocks], 99)
        low, high = np.percentile(again, [2.5, 97.5])
        found[TAIL] = (float(value), float(low), float(high))
    return found


def between(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the geometric mean of one figure a visit, with its 95 % interval: value, low, high."""
    from scipy.special import stdtrit

    logs = np.log(np.array(values, float))
    reach = float(stdtrit(len(logs) - 1, 0.975) * logs.std(ddof=1) / math.sqrt(len(logs)))
    middle = float(logs.mean())
    return math.exp(middle), math.exp(middle - reach), math.exp(middle + reach)
