"""MLCommons LoadGen, an independent tool, sends its requests as our plan does."""

import threading

import numpy as np
import pytest
from support.loadgen import loadgen, run_loadgen

from photodup.bench.load import plan


@pytest.mark.figures
def test_arrivals_are_distributed_as_loadgens(tmp_path):
    from scipy import stats as distributions

    rate, n = 400, 1200
    settings = loadgen.TestSettings()
    settings.scenario = loadgen.TestScenario.Server
    settings.mode = loadgen.TestMode.PerformanceOnly
    settings.server_target_qps = rate
    settings.server_target_latency_ns = 1_000_000_000
    settings.min_duration_ms = 1
    settings.min_query_count = settings.max_query_count = n
    settings.server_coalesce_queries = False
    _, issued = run_loadgen(tmp_path, settings)
    theirs = np.diff(issued)
    ours = np.diff(plan.arrivals_s(rate, n / rate, seed=0))

    assert distributions.ks_2samp(theirs, ours).pvalue > 0.001
    evenly = np.random.default_rng(0).normal(
        1 / rate, 1e-4, n
    )  # a constant-rate generator would be told apart
    assert distributions.ks_2samp(theirs, evenly).pvalue < 1e-6
    assert threading.active_count() < 50
