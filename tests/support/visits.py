"""Visits as `photodup.bench.pairs.alternate` makes them, records of them with planted figures, and a run for records."""

import numpy as np

from photodup.bench.pairs.alternate import Visit
from photodup.bench.record.record import RunStore
from photodup.serving.endpoints import from_ports
from photodup.study.comparisons.measure import visit_config, visit_key
from photodup.study.notebook.run import Run


def planted_visit(values: list[float], seed: int = 0, *, n_blocks: int = 5, n_answers: int = 40) -> Visit:
    """Return a visit in which each side's figure is as planted, and each observation within half a per cent of it.

    Args:
        n_answers: of each side in each block; their latencies lie around the side's figure.
    """
    random = np.random.default_rng(seed)
    n, blocks = len(values), np.repeat(np.arange(n_blocks), n_answers)
    middles = np.array(values) * np.exp(random.normal(0, 0.005, (n_blocks, n)))
    answers = middles[blocks] * random.normal(1, 0.05, (len(blocks), n))
    return Visit(
        log_ratios=np.log(middles[:, 1:] / middles[:, :1]).T.tolist(), values=list(values),
        n_requests=[len(blocks)] * n, n_failed=[0] * n, errors=[""] * n, alone=None, carried_over=None,
        kernel_ms_p50=2.0, kernel_spread=0.01, seed=seed, seconds=40.0, clock_jump_s=0.0,
        side=np.tile(np.arange(n, dtype=float), len(blocks)), block=np.repeat(blocks, n).astype(float),
        latency_ms=answers.ravel(),
    )  # fmt: skip


def plant_visits(directory, pair, ratio, *, value_a=10.0, visits=4, blocks=8):
    """Record visits of a comparison in which b is `ratio` times a."""
    with RunStore(directory) as store:
        for number in range(1, visits + 1):
            made = planted_visit([value_a, value_a * ratio], number, n_blocks=blocks).as_record()
            config = visit_config(pair, number)
            store.measure_or_load(visit_key(pair), lambda made=made: made, config=config, kind="visit")


def opened(directory, measure=True) -> Run:
    """Return a run with its records in a folder, of servers that nobody asks."""
    return Run(
        "made-up", directory, from_ports("127.0.0.1", 1, 0, 0, 0), RunStore(directory, measure=measure)
    )
