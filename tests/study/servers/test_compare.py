"""A notebook measures what its run lacks: with real servers, once, and never into a run of another machine."""

import json
import re

import pytest
import yaml
from support.triton import needs_triton

from photodup.bench.pairs.declared import declarations
from photodup.bench.record.store import load_records
from photodup.study.comparisons.compare import compare
from photodup.study.notebook.run import open_run

HTTP, GRPC = (f"triton-onnx-fp32-{protocol}-fp32" for protocol in ("http", "grpc"))
SIDES = {"http": {"label": "HTTP", "backend": HTTP}, "grpc": {"label": "gRPC", "backend": GRPC}}
SIDES["trt"] = {"label": "TensorRT", "backend": "triton-trt-fp16-http-fp32"}
ANSWERED = {"loads": ["one", "two"], "primary": ["one"], "quick": ["one"]}
PAIRS = [
    {"name": "protocol", "a": "http", "b": "grpc", **ANSWERED},
    {"name": "engine", "a": "http", "b": "trt", "loads": ["one"]},
]
DATA = {
    "sides": SIDES,
    "loads": {"one": {"scenario": "single_stream"}, "two": {"scenario": "closed_loop", "concurrency": 2}},
    "comparisons": {"08": PAIRS},
}

pytestmark = needs_triton()


@pytest.fixture
def declared(tmp_path, monkeypatch, tiny_exports):
    monkeypatch.setenv("PHOTODUP_ROOT", str(tmp_path))
    monkeypatch.setenv("MODEL_PRETRAINED", f"onnx:{tiny_exports['fp32']}")  # whose answers are right
    (tmp_path / "comparisons.yaml").write_text(yaml.safe_dump(DATA))
    return declarations(tmp_path / "comparisons.yaml")


def test_what_is_missing_is_measured_once_and_its_cost_is_said_before(declared, tiny_triton, capsys):
    line = f"127.0.0.1:0,{tiny_triton.http_port},{tiny_triton.grpc_port}"
    run = open_run("mine", line, price_per_hour=90.0)
    small = {"visits": 3, "visit_s": 0.2, "declared": declared}
    quick = compare(run, "08", explore=False, **small)
    announced = re.search(
        r"3 visits are missing: about (\d+) seconds and ([\d.]+) USD", capsys.readouterr().out
    )
    assert int(announced[1]) >= 1 and float(announced[2]) == pytest.approx(int(announced[1]) / 40, abs=0.02)
    assert quick["protocol, one"].n_visits == 3 and not quick["protocol, two"].is_measured
    assert "has no triton-trt-fp16-http-fp32" in quick.sentence("engine, one")
    compared = compare(run, "08", **small)
    assert "3 visits are missing" in capsys.readouterr().out
    assert compared["protocol, two"].n_visits == 3
    assert compared["protocol, one"].columns() == quick["protocol, one"].columns()
    grpc = compared.side_figures.set_index(["side", "load"]).loc["grpc", "two"]
    low, high = grpc.throughput_images_per_s_ci_low, grpc.throughput_images_per_s_ci_high
    assert grpc.n_visits == 3 and low < grpc.throughput_images_per_s < high
    before = len([*load_records(run.directory)])
    assert compare(run, "08", **small).sentences() == compared.sentences() and not capsys.readouterr().out
    assert len([*load_records(run.directory)]) == before == 6 + 1, "the visits and the reference embeddings"
    # The records alone answer where no server does, and no visit of another machine is mixed in.
    environment = json.loads((run.directory / "environment.json").read_text())
    (run.directory / "environment.json").write_text(json.dumps(environment | {"cpu": "another"}))
    more = compare(run, "08", visits=4, visit_s=0.2, declared=declared)
    assert "was measured on another machine: name a RUN of your own" in capsys.readouterr().out
    assert more.sentences() == compared.sentences()


def test_where_no_server_answers_the_cell_says_how_to_start_one(declared, capsys, monkeypatch):
    monkeypatch.setenv("PHOTODUP_MEASURE", "0")
    nothing = open_run("nobody", "127.0.0.1:9,9,9,9")
    monkeypatch.setenv("PHOTODUP_MEASURE", "1")
    compared = compare(nothing, "08", visits=3, visit_s=0.2, declared=declared)
    out = capsys.readouterr().out
    assert out.startswith("Nothing answers: FastAPI (127.0.0.1:9)") and "photodup serve --embedded" in out
    assert not compared.measured()
