"""The rented machine that is none: reachable at its address alone, controlled with its key alone, answering notebooks."""

import os
import re
import socket
from pathlib import Path

import httpx
import pytest
from support.command import one_sentence
from support.link import needs_link
from support.paths import link_checkout
from support.rented import PORTS, rented_machine
from support.triton import needs_triton, render_tiny

from photodup.core.errors import PhotodupError
from photodup.serving.check import check_all, render_check, round_trip_ms
from photodup.serving.endpoints import load_endpoints, save_endpoints
from photodup.serving.triton import control, control_key
from photodup.serving.triton.config import set_batching
from photodup.study.report.facts import notebook_answers
from photodup.study.runner.execute import run_study

MODEL = "openclip_vit_b32"


@pytest.fixture(scope="module")
def repository(tmp_path_factory, tiny_exports) -> Path:
    models = [MODEL, f"{MODEL}_uint8", f"{MODEL}_jpeg", f"{MODEL}_openvino", f"{MODEL}_fp16"]
    return render_tiny(tmp_path_factory.mktemp("rented"), tiny_exports, models)


def tiny(repository: Path, tiny_onnx: str, **options: object):
    return rented_machine(repository=repository, service_env={"MODEL_PRETRAINED": tiny_onnx}, **options)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch, demo_dir) -> Path:
    link_checkout(tmp_path, demo_dir)
    monkeypatch.setenv("PHOTODUP_ROOT", str(tmp_path))
    monkeypatch.delenv(control_key.VARIABLE, raising=False)
    monkeypatch.setattr(control_key, "_of_endpoints", {})
    return tmp_path


@needs_triton()
@needs_link
def test_it_is_reached_over_its_link_at_its_address_alone(elsewhere, repository, tiny_onnx, tmp_path, figure):
    with tiny(repository, tiny_onnx) as machine:
        checks = check_all(machine.endpoints)  # which uses their key
        control_key._of_endpoints.clear()
        assert all(check.is_ready for check in checks), render_check(checks)
        assert {check.url for check in checks} & {f"http://{machine.address}:8002", f"{machine.address}:8004"}
        assert not machine.address.startswith("127.")
        handshake = round_trip_ms(f"http://{machine.address}:8003")
        shortest = machine.way.round_trip.floor_ms
        assert handshake > 24 and shortest > 24
        figure(handshake < 40 and shortest < 30, (handshake, shortest))
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", PORTS["grpc"]), 1).close()

        # The key of its endpoints file opens its control; nobody else's does.
        grpc = f"{machine.address}:{PORTS['grpc']}"
        with pytest.raises(PhotodupError, match="no key is given for it"):
            control.load_triton_model(grpc, MODEL)
        save_endpoints(machine.endpoints, file := tmp_path / "build" / "rented.yaml")
        assert file.stat().st_mode & 0o077 == 0 and machine.key not in repr(machine)
        load_endpoints(file).use_control_key()
        control.load_triton_model(grpc, MODEL)
    with pytest.raises(httpx.HTTPError):  # gone with the block; a network may accept what nobody answers
        httpx.get(f"http://{machine.address}:{PORTS['http']}/v2/health/ready", timeout=3).raise_for_status()


@needs_triton()
@needs_link
def test_without_control_what_is_deployed_is_measured_and_the_rest_refused(elsewhere, repository, tiny_onnx):
    with tiny(repository, tiny_onnx, without=["control", "metrics"]) as machine:
        assert machine.endpoints.metrics == {} and machine.endpoints.triton_control_key is None
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"http://{machine.address}:{PORTS['metrics']}/metrics")
        grpc = f"{machine.address}:{PORTS['grpc']}"
        with control.temporary_config(grpc, MODEL, lambda config: set_batching(config, "default")):
            pass  # as it is deployed: nothing is to be changed
        with (
            pytest.raises(PhotodupError, match="its control needs a key"),
            control.temporary_config(grpc, MODEL, lambda config: set_batching(config, "published")),
        ):
            pass


@needs_triton()
@needs_link
@pytest.mark.long
def test_a_notebook_decides_over_the_address_and_says_what_it_cannot_have_there(
    elsewhere, repository, tiny_onnx, tiny_exports, monkeypatch, figure
) -> None:
    # The graph behind the tensor wire, so that its answers are right; the study sets this variable, too.
    monkeypatch.setenv("MODEL_PRETRAINED", f"onnx:{tiny_exports['fp32']}")
    with tiny(repository, tiny_onnx, without=["fastapi"]) as machine:
        monkeypatch.setenv(control_key.VARIABLE, machine.key)
        line = f"{machine.address}:0,{PORTS['http']},{PORTS['grpc']},{PORTS['metrics']}"
        (outcome,) = run_study("far", only=["03"], endpoints=line)
    assert outcome.status == "passed", outcome.error
    row = next(row for row in notebook_answers("far") if row.stem.startswith("03"))
    assert row.state == "decided", row.answer
    # The far server's batcher was really set: its own counters say so, and a busy machine adds to the 10 ms.
    waited = re.search(r"lone request\D*([\d.]+) ms", row.answer)
    assert waited and float(waited[1]) >= 9, row.answer
    figure(float(waited[1]) <= 20, row.answer)
    text = (elsewhere / "results" / "far" / "notebooks" / "03_set_up_triton.ipynb").read_text()
    assert "the model repository of another machine cannot be written from here" in text
    assert not (elsewhere / "build" / "endpoints-far.yaml").exists()  # no servers were started here


def test_a_word_it_does_not_know_is_named_before_anything_starts(tmp_path) -> None:
    with (
        one_sentence("A machine without gpu: it can lack control"),
        rented_machine(repository=tmp_path, without=["gpu"]),
    ):
        pass
    nothing = rented_machine(repository=tmp_path, without=["fastapi", "triton"])
    with pytest.raises(PhotodupError, match="answers nothing"), nothing:
        pass
    assert os.environ.get(control_key.VARIABLE) is None
