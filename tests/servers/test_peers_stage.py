"""The measuring stage of notebook 13 with real servers: two services with tiny encoders, one of them in a peer's place."""

import json
import sys
from dataclasses import replace

import psutil
import pytest
from support.images import photo
from support.paths import ROOT

from photodup.bench.pairs.alternate import VisitPlan
from photodup.bench.record.record import RunStore
from photodup.core.errors import PhotodupError
from photodup.embedding.imaging import encode
from photodup.study.notebook.run import open_run
from photodup.study.peers import alone, figures, outcomes, peers, stage


@pytest.fixture
def small(monkeypatch, tmp_path, random_onnx, random_model):
    """Short measurements of two servers: ours, and one more of ours that stands in for LitServe."""
    (tmp_path / "peers" / "litserve").mkdir(parents=True)
    (tmp_path / "peers" / "litserve" / "made").write_text("here")
    like_a_peer = replace(
        peers.SERVERS["litserve"],
        ready="/readyz",
        command=lambda port, weights: [sys.executable, "-m", "photodup.serving.service"],
        environment=lambda port, weights: {
            "PYTHONPATH": str(peers.project_root() / "lib"),
            "PORT": str(port),
            "MODEL_PRETRAINED": weights,
        },
    )
    both = {"fastapi": peers.SERVERS["fastapi"], "litserve": like_a_peer}
    for module in (peers, stage, outcomes):
        monkeypatch.setattr(module, "SERVERS", both)
    for module in (stage, outcomes):
        monkeypatch.setattr(module, "fastest", lambda server: server)  # a tiny encoder has one precision
    monkeypatch.setattr(peers, "build_dir", lambda: tmp_path)
    pictures = [encode(photo(240, 230, seed), "JPEG") for seed in range(8)]
    monkeypatch.setattr(stage, "payload_photos", lambda n: pictures)
    monkeypatch.setattr(stage, "PLAN", VisitPlan(3, 0.1, 3, 0.1, 1, 0, 0.1))
    for name, value in {"STARTS": 2, "OVERLOAD_S": 1.0, "RECOVERED": 30, "RATE_SECONDS": 0.5}.items():
        monkeypatch.setattr(alone, name, value)
    monkeypatch.setattr(alone, "PROBE", replace(alone.PROBE, min_duration_s=0.4, max_duration_s=0.4))
    monkeypatch.setenv("MODEL_PRETRAINED", random_onnx)
    run = open_run("made-up")
    store = RunStore(tmp_path / "run")
    yield replace(run, directory=store.directory, store=store)
    store.close()


def test_an_overloaded_server_that_refuses_is_loaded_to_the_end(slow_service, figure):
    payloads = stage.Payloads("images", (encode(photo(60, 60, 1), "JPEG"),), "a picture", "image/jpeg")
    one = peers.Started(peers.SERVERS["fastapi"], slow_service.url, 0.0, slow_service.process.pid)
    seen = alone._overloaded(one, payloads, 40.0)
    assert seen["failed"] > 12 and seen["answered"] > 12 and "503" in seen["error"]
    assert seen["recovered_s"] is not None
    figure(seen["recovered_s"] < 20, seen)


@pytest.fixture
def slow_service(launch, monkeypatch):
    """A service that gives 20 images a second and refuses what would wait for half a second."""
    monkeypatch.setattr(alone, "OVERLOAD_S", 3.0)
    program = (str(ROOT / "tests" / "support" / "slow_encoder.py"),)
    server = launch(program=program, SLOW_MS=50, MAX_WAIT_S=0.5)
    server.wait()
    return server


@pytest.mark.long
def test_all_is_measured_once_and_read_again(small, figure):
    said: list[str] = []
    steps = ("alone", "verify", "rate", "fp32", "many")
    stage.measure_servers(small, steps=steps, visits=2, say=said.append)
    found = outcomes.compared(small, passes=("fp32", "many"))
    assert set(found.alone) == {"fastapi", "litserve"}
    for seen in found.alone.values():
        assert len(seen["first_answer_s"]) == 2 and seen["cosine_min"] > peers.MIN_COSINE
        assert seen["memory_loaded_mib"] > 0
        overload = seen["overload"]
        assert overload["answered"] + overload["failed"] > 0 and overload["recovered_s"] is not None
        figure(seen["memory_loaded_mib"] > 50 and overload["answered"] + overload["failed"] > 20, seen)
    judged = [*found.outcomes.values(), *found.checks]
    assert len(judged) == 6 and len(found.checks) == 3 and all(one.n and one.n_visits == 2 for one in judged)
    figure(all(one.n == 6 for one in judged), judged)  # on a starved machine a turn may have no answer
    rows = found.arms.set_index("server")
    assert (rows[["one", "eight", "thirty-two"]] > 0).all(axis=None) and set(rows.index) == set(found.alone)
    records = sorted(small.store.records_dir.glob("server*.json"))
    assert len(records) == 2 + 2 + 2 + 2 * 3  # alone; verified; rates; two visits under three loads
    asked = outcomes.rates(small)  # on a busy machine no rate may hold; then it says why
    assert len(asked) == 2 and all(one["rate_per_s"] or one["because"] for one in asked.values())
    ok = [path for path in records if json.loads(path.read_text())["status"] == "ok"]
    times, started = [path.stat().st_mtime_ns for path in ok], sum("starting" in line for line in said)
    assert len([path for path in ok if path.name.startswith("servers-")]) == 6
    stage.measure_servers(small, steps=steps, visits=2, say=said.append)  # only what failed again
    assert [path.stat().st_mtime_ns for path in ok] == times
    assert sum("starting" in line for line in said) == started == 2 * 3, "nor was anything started again"


@pytest.mark.long  # what is read of such records is in test_peers.py
def test_a_server_that_dies_is_left_out_and_the_others_go_on(small, monkeypatch):
    measure, begun = stage.measure_visit, []

    def visit(lanes, *what, **more):
        begun.append(len(lanes))
        if len(begun) == 2:  # the peer dies
            psutil.Process(up["litserve"].pid).kill()
        return measure(lanes, *what, **more)

    up: dict[str, peers.Started] = {}
    kept = stage._take_turns
    monkeypatch.setattr(stage, "_take_turns", lambda *what: up.update(what[3]) or kept(*what))
    monkeypatch.setattr(stage, "measure_visit", visit)
    stage.measure_servers(small, steps=("many",), visits=3, say=lambda line: None)
    assert begun == [3, 3, 2, 2], "the second visit is made again without it"
    found = outcomes.compared(small, passes=("many",))
    peer, check = found.outcomes["LitServe, thirty-two"], found.checks[0]
    assert "failed 20 requests in a row" in "".join((*peer.notes, peer.because))
    assert check.n == 9 and check.n_visits == 3 and peer.n_visits <= 1


def test_verify_is_recorded_of_each_server_in_its_own_form(small, monkeypatch):
    """The peer answers at another path than it is asked at: why it could not be checked stands beside our verdicts."""
    dead = replace(stage.SERVERS["litserve"], path="/nowhere")
    for module in (peers, stage, outcomes, figures):
        monkeypatch.setattr(module, "SERVERS", {**stage.SERVERS, "litserve": dead})
    stage.measure_servers(small, steps=("verify",), visits=2, say=lambda line: None)
    found = outcomes.verified(small)
    table = figures.verified(found)
    assert set(table["FastAPI (ours)"][:-1]) == {"right"} and len(table) == 23
    assert table["LitServe"].to_dict()["every check"] == "not checked"
    assert set(table["LitServe"][:-1]) == {"not asked"}
    (line,) = figures.why_wrong(found)
    assert line.startswith("every check: not checked, ") and "answered 404" in line and "(LitServe)" in line


def test_a_server_that_embeds_otherwise_is_not_timed(small):
    weights = stage.choose_weights()
    photos = stage.wires.jpegs(stage.payload_photos(8))
    payloads = stage.Payloads("images", tuple(photos), "pictures", "image/jpeg")
    reference = alone.reference_embeddings(weights, photos)
    with peers.started(stage.SERVERS["litserve"], weights) as one:
        assert alone.check(one, payloads, reference) > peers.MIN_COSINE
        with pytest.raises(PhotodupError, match=r"LitServe embeds otherwise: cosine .* is needed"):
            alone.check(one, payloads, reference[::-1])
