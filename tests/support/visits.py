"""Visits as `photodup.bench.pairs.alternate` makes them, records of them with planted figures, and a run for records."""

import numpy as np

from photodup.bench.pairs.alternate import Visit
from photodup.bench.record.store import RunStore
from photodup.serving.endpoints import from_ports
from photodup.study.comparisons.measure import visit_config, visit_key
from photodup.study.notebook.run import Run


def planted_visit(
    values: list[float], seed: int = 0, *, in_flight: int = 1, halves: int = 10, n_answers: int = 40
) -> Visit:
    """Return a visit in which each side's figure is as planted, and each observation within half a per cent of it.

    Args:
        n_answers: of each side in each half; their latencies lie around the side's figure.
    """
    random = np.random.default_rng(seed)
    n, half = len(values), np.repeat(np.arange(halves), n_answers)
    middles = np.array(values) * np.exp(random.normal(0, 0.005, (halves, n)))
    if in_flight > 1:
        middles = in_flight * 1000 / middles
    answers = middles[half] * random.normal(1, 0.05, (len(half), n))
    return Visit(
        in_flight=in_flight, images=1, n_failed=[0] * n, errors=[""] * n, alone=None, carried_over=None,
        seed=seed, seconds=40.0, clock_jump_s=0.0,
        side=np.tile(np.arange(n, dtype=float), len(half)), half=np.repeat(half, n).astype(float),
        latency_ms=answers.ravel(), at_s=np.arange(answers.size) * 0.01,
    )  # fmt: skip


def plant_visits(directory, pair, ratio, *, value_a=10.0, visits=4, halves=10):
    """Record visits of a comparison in which b is `ratio` times a."""
    with RunStore(directory) as store:
        for number in range(1, visits + 1):
            values, in_flight = [value_a, value_a * ratio], pair.load.concurrency
            made = planted_visit(values, number, in_flight=in_flight, halves=halves).as_record()
            config = visit_config(pair, number)
            store.measure_or_load(visit_key(pair), lambda made=made: made, config=config, kind="visit")


def opened(directory, measure=True) -> Run:
    """Return a run with its records in a folder, of servers that nobody asks."""
    return Run(
        "made-up", directory, from_ports("127.0.0.1", 1, 0, 0, 0), RunStore(directory, measure=measure)
    )
