"""One run of MLCommons LoadGen. Importing this skips the file that imports it where LoadGen has no wheel."""

import time

import numpy as np
import pytest

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
