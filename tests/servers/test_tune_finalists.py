"""The last step of `photodup tune` with real services: both finalists are up at once and take turns."""

import contextlib
from dataclasses import replace

import pytest
from support.paths import ROOT

from photodup.bench.pairs.alternate import Visit, VisitPlan
from photodup.bench.stats.facts import Load
from photodup.serving.endpoints import from_ports
from photodup.study.notebook.run import Run
from photodup.tune.serving import trial
from photodup.tune.serving.candidates import Setting

SETTINGS = [Setting("fastapi", "onnx", "fp32", "jpeg", 1, 2, wait_us) for wait_us in (5_000, 100_000)]


@pytest.fixture
def visit(tmp_path):
    def visit() -> Visit:
        run = Run("t", tmp_path, from_ports("127.0.0.1", 1, 0, 0, 0), None)
        plan = VisitPlan(blocks=2, block_s=0.3, alone_s=0)
        record = trial.measure_finalists(run, SETTINGS, Load("single_stream"), plan, 1)
        return Visit.of_record(record, record["raw"])

    return visit


def test_each_setting_is_a_process_of_its_own(random_onnx, monkeypatch, visit, figure):
    monkeypatch.setenv("MODEL_PRETRAINED", random_onnx)
    seen = visit()
    assert seen.n_failed == [0, 0] and min(seen.n_requests) > 0 and len(seen.log_ratios[0]) == 2
    figure(min(seen.n_requests) >= 12, seen.n_requests)


def test_the_slower_setting_is_found(launch, monkeypatch, visit):
    """A service that computes for as long as the setting would wait stands in for each."""

    @contextlib.contextmanager
    def served(run, setting):
        program = (str(ROOT / "tests" / "support" / "slow_encoder.py"),)
        server = launch(program=program, SLOW_MS=setting.wait_us / 1000, MAX_WAIT_S=60)
        server.wait()
        backends = {setting.backend.name: server.url}
        yield replace(run, endpoints=run.endpoints.model_copy(update={"backends": backends}))

    monkeypatch.setattr(trial, "served", served)
    assert all(ratio > 0.5 for ratio in visit().log_ratios[0])
