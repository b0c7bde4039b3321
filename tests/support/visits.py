"""Records of comparisons with a known answer."""

import math

import numpy as np

from photodup.bench.pairs.alternate import Visit
from photodup.bench.record.record import RunStore
from photodup.study.comparisons.measure import visit_config, visit_key


def plant_visits(directory, pair, ratio, *, value_a=10.0, visits=4, blocks=8):
    """Record visits of a comparison in which b is `ratio` times a."""
    draw, values, nothing = np.random.default_rng(1), [value_a, value_a * ratio], np.empty(0)
    with RunStore(directory) as store:
        for number in range(1, visits + 1):
            ratios = [list(draw.normal(math.log(ratio), 0.01, blocks))]
            facts = (ratios, values, [99, 99], [0, 0], ["", ""], None, None, 3.0, 0.01, 1, 40.0, 0.0)
            record = Visit(*facts, nothing, nothing, nothing).as_record()
            config = visit_config(pair, number)
            store.measure_or_load(visit_key(pair), lambda record=record: record, config=config, kind="visit")
