"""MLCommons LoadGen, an independent tool, agrees on Poisson arrivals and on early stopping.

Where LoadGen has no wheel for the platform its tests are skipped; `test_stats.py` then still checks early
stopping against SciPy's binomial distribution, and `test_load.py` the arrivals against the exponential one.
"""

import re
import threading
import time

import numpy as np
import pytest

from photodup.bench.judge import stats
from photodup.bench.load import plan

loadgen = pytest.importorskip("mlperf_loadgen", reason="mlcommons-loadgen has no wheel here")


def run_loadgen(folder, settings):
    """Run LoadGen with a system under test; return its summary and when each query was issued (seconds)."""
    issued = []

    def issue(queries):
        issued.append(time.perf_counter())
        complete(queries)

    sut = loadgen.ConstructSUT(issue, lambda: None)
    library = loadgen.ConstructQSL(1024, 1024, lambda _: None, lambda _: None)
    logs = loadgen.LogSettings()
    logs.enable_trace = False
    output = loadgen.LogOutputSettings()
    output.outdir = str(folder)
    logs.log_output = output
    try:
        loadgen.StartTestWithLogSettings(sut, library, settings, logs, "")
    finally:
        loadgen.DestroyQSL(library)
        loadgen.DestroySUT(sut)
    return (folder / "mlperf_log_summary.txt").read_text(), np.array(issued)


def complete(queries):
    loadgen.QuerySamplesComplete([loadgen.QuerySampleResponse(query.id, 0, 0) for query in queries])


def single_stream(n, percentile):
    settings = loadgen.TestSettings()
    settings.scenario = loadgen.TestScenario.SingleStream
    settings.mode = loadgen.TestMode.PerformanceOnly
    settings.single_stream_target_latency_percentile = percentile / 100
    settings.min_duration_ms = 1
    settings.min_query_count = settings.max_query_count = n
    return settings


@pytest.mark.parametrize(("percentile", "n"), [(90, 64), (90, 100), (90, 1000), (99, 662), (99, 5000)])
def test_early_stopping_drops_as_many_requests_as_loadgen_does(tmp_path, percentile, n):
    summary, issued = run_loadgen(tmp_path, single_stream(n, percentile))
    dropped = re.search(r"Would discard (\d+) highest latency queries", summary)

    assert len(issued) == n and dropped, summary
    assert stats.early_stopping_latency_ms(np.arange(1, n + 1), percentile) == n - int(dropped[1])


@pytest.mark.parametrize(("percentile", "needed"), [(90, 64), (99, 662)])
def test_loadgen_needs_the_same_least_number_of_requests(tmp_path, percentile, needed):
    summary, _ = run_loadgen(tmp_path, single_stream(needed - 1, percentile))

    assert f"Need to process at least {needed} queries" in summary, summary
    assert stats.MIN_COUNT[percentile] == stats.queries_needed(1, percentile) == needed
    assert stats.early_stopping_latency_ms(np.arange(needed - 1), percentile) is None


@pytest.mark.quiet
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
