"""The last step of `photodup tune` with real services: two settings of one, of which one waits for others in vain."""

from photodup.bench.pairs.alternate import Visit, VisitPlan
from photodup.bench.stats.facts import Load
from photodup.serving.endpoints import from_ports
from photodup.study.notebook.run import Run
from photodup.tune.serving.candidates import Setting
from photodup.tune.serving.trial import measure_finalists


def test_a_setting_that_waits_in_vain_is_the_slower_one(random_onnx, monkeypatch, tmp_path):
    monkeypatch.setenv("MODEL_PRETRAINED", random_onnx)
    at_once, waiting = (Setting("fastapi", "onnx", "fp32", "jpeg", 1, 2, wait_us) for wait_us in (0, 500_000))
    run = Run("t", tmp_path, from_ports("127.0.0.1", 1, 0, 0, 0), None)
    plan = VisitPlan(blocks=2, block_s=0.5, alone_s=0)
    record = measure_finalists(run, [at_once, waiting], Load("single_stream"), plan, 1)
    visit = Visit.of_record(record, record["raw"])
    assert visit.n_failed == [0, 0] and min(visit.n_requests) >= 12
    assert all(ratio > 0.5 for ratio in visit.log_ratios[0])
