"""The measurements of notebook 13 with real servers: two services with tiny encoders, one of them in a peer's place."""

import sys
from dataclasses import replace

import psutil
import pytest
import yaml
from support.images import photo
from support.paths import ROOT
from support.visits import opened

from photodup.bench.backends.http_connection import HttpError
from photodup.bench.pairs.alternate import VisitPlan
from photodup.bench.pairs.declared import declarations
from photodup.bench.record.store import load_records
from photodup.core.errors import PhotodupError
from photodup.embedding.imaging import encode
from photodup.study.comparisons import measure
from photodup.study.comparisons.measure import Amount, measure_comparisons
from photodup.study.comparisons.outcomes import read_comparisons
from photodup.study.peers import alone, servers, tables

PAIR = {"name": "LitServe", "a": "fastapi", "b": "litserve", "loads": ["one", "eight"], "primary": ["one"]}
DECLARED = {
    "servers": {
        "fastapi": {"label": "ours", "setup": "as it is"},
        "litserve": {
            "label": "LitServe",
            "setup": "a stand-in",
            "command": f"{sys.executable} -m photodup.serving.service",
            "environment": {"PYTHONPATH": str(ROOT / "lib"), "ENGINE": "onnx"},
        },
    },
    "sides": {"fastapi": {"server": "fastapi", "engine": "onnx"}, "litserve": {"server": "litserve"}},
    "loads": {
        "one": {"scenario": "single_stream", "span": "prepared"},
        "eight": {"scenario": "closed_loop", "concurrency": 8, "span": "prepared"},
    },
    "comparisons": {"13": [PAIR]},
    "nulls": [{"side": "fastapi", "loads": ["one", "eight"]}],
}
SIZES = Amount(
    2, VisitPlan(palindromes=2, block_s=0.1, min_answers=3, min_waves=1, alone_s=0.1, warmup_s=0.05)
)


@pytest.fixture
def declare(monkeypatch, tmp_path, random_onnx, random_model):
    """Return a function that declares two servers and returns their declarations; measurements alone are short."""
    (tmp_path / "peers" / "litserve").mkdir(parents=True)
    (tmp_path / "peers" / "litserve" / "made").write_text("here")
    monkeypatch.setattr(servers, "build_dir", lambda: tmp_path)
    monkeypatch.setattr(servers, "weights_in", lambda form: random_onnx)
    pictures = tuple(encode(photo(240, 230, seed), "JPEG") for seed in range(8))
    pictures = servers.Payloads("images", pictures, "pictures", "image/jpeg")
    for module in (servers, alone):
        monkeypatch.setattr(module, "payloads", lambda: pictures)
    forget = servers.reference.cache_clear
    forget()
    for name, value in {"STARTS": 2, "OVERLOAD_S": 1.0, "RECOVERED_RATIO": 30}.items():
        monkeypatch.setattr(alone, name, value)
    monkeypatch.setattr(alone, "CAPACITY_PLAN", replace(alone.CAPACITY_PLAN, seconds=0.4))
    monkeypatch.setenv("MODEL_PRETRAINED", random_onnx)

    def write():
        path, peer = tmp_path / "peers.yaml", {**DECLARED["servers"]["litserve"]}
        peer["environment"] = {**peer["environment"], "MODEL_PRETRAINED": random_onnx}
        path.write_text(yaml.safe_dump({**DECLARED, "servers": {**DECLARED["servers"], "litserve": peer}}))
        monkeypatch.setattr(servers, "declared", lambda: declarations(path))
        return declarations(path)

    yield write
    forget()


def test_an_overloaded_server_that_refuses_is_loaded_to_the_end(declare, slow_service, figure):
    side = declare().sides["fastapi"]
    server = servers.LiveServer(side, slow_service.url, 0.0, slow_service.process.pid)
    load = alone.overloaded(server, 40.0)
    assert load["failed"] > 12 and load["answered"] > 12 and "503" in load["error"]
    assert load["recovered_s"] is not None
    figure(load["recovered_s"] < 20, load)


@pytest.fixture
def slow_service(launch, declare, monkeypatch):
    """A service that gives 20 images a second and refuses what would wait for half a second."""
    monkeypatch.setattr(alone, "OVERLOAD_S", 3.0)
    program = (str(ROOT / "tests" / "support" / "slow_encoder.py"),)
    server = launch(program=program, SLOW_MS=50, MAX_WAIT_S=0.5)
    server.wait()
    return server


@pytest.mark.long
def test_all_is_measured_once_and_read_again(declare, tmp_path, monkeypatch, figure):
    declared, run, starts = declare(), opened(tmp_path / "run"), []
    begin = servers.started

    def started(side, *more, **others):
        starts.append(side.name)
        return begin(side, *more, **others)

    for module in (servers, alone):
        monkeypatch.setattr(module, "started", started)
    pairs = [*declared.pairs, *declared.nulls]
    for _ in range(2):  # the second time nothing is started
        measure_comparisons(run, pairs, SIZES)
        costs, checks = alone.start_costs(run), alone.verified(run)
        assert len(starts) == 2 * 2 * 2 + 2 * (2 + 1), "two servers for both loads of a visit, and each alone"
    compared = read_comparisons(run, "13", declared=declared)
    judged = [*compared.outcomes.values(), *compared.nulls]
    assert len(judged) == 4 and all(one.n_visits == 2 for one in judged if one.is_measured)
    assert set(compared.side_figures.label) == {"ours", "LitServe"}
    for cost in costs.values():
        assert len(cost["first_answer_s"]) == 2 and cost["cosine_min"] > 0.9999
        load = cost["overload"]
        assert load["answered"] + load["failed"] > 0 and load["recovered_s"] is not None
        figure(cost["memory_loaded_mib"] > 50 and load["answered"] + load["failed"] > 20, cost)
    assert set(tables.verdicts(checks)["ours"][:-1]) == {"right"}


@pytest.mark.long
def test_a_server_that_dies_costs_its_visit_and_is_started_again(declare, tmp_path, monkeypatch):
    declared, run, visits = declare(), opened(tmp_path / "run"), []
    measure_visit = measure.measure_visit

    def visit(sides, *what, **more):
        visits.append(sides)
        if len(visits) == 1:  # the peer dies
            psutil.Process(sides[1].cpu_s.args[0]).kill()
        return measure_visit(sides, *what, **more)

    monkeypatch.setattr(measure, "measure_visit", visit)
    measure_comparisons(run, declared.pairs, SIZES)
    states = [record["status"] for record in load_records(run.directory)]
    assert len(visits) == 4 and sorted(states) == ["failed", "ok", "ok", "ok"]


def test_a_server_that_embeds_otherwise_is_not_timed(declare, tmp_path, monkeypatch):
    side = declare().sides["litserve"]
    with servers.started(side) as server:
        assert server.check() > 0.9999
        nowhere = replace(side, server=replace(side.server, path="/nowhere"))
        with pytest.raises(HttpError, match="404"):
            replace(server, side=nowhere).check()
        turned = servers.reference()[::-1]
        monkeypatch.setattr(servers, "reference", lambda: turned)
        with pytest.raises(PhotodupError, match=r"LitServe embeds otherwise: cosine .* is needed"):
            server.check()
