"""MLCommons LoadGen, an independent tool, agrees on the least numbers of answers that a percentile needs.

Where LoadGen has no wheel for the platform its tests are skipped; `test_stats.py` then still checks the
numbers against SciPy's binomial distribution, and `test_load.py` the arrivals against the exponential one.
"""

import pytest
from support.loadgen import loadgen, run_loadgen

from photodup.bench.stats.facts import METRICS


def single_stream(n, percentile):
    settings = loadgen.TestSettings()
    settings.scenario = loadgen.TestScenario.SingleStream
    settings.mode = loadgen.TestMode.PerformanceOnly
    settings.single_stream_target_latency_percentile = percentile / 100
    settings.min_duration_ms = 1
    settings.min_query_count = settings.max_query_count = n
    return settings


@pytest.mark.parametrize(("percentile", "needed"), [(90, 64), (99, 662)])
def test_loadgen_needs_the_same_least_number_of_requests(tmp_path, percentile, needed):
    summary, _ = run_loadgen(tmp_path, single_stream(needed - 1, percentile))

    assert f"Need to process at least {needed} queries" in summary, summary
    assert METRICS[f"latency_ms_p{percentile}"].min_answers == needed
