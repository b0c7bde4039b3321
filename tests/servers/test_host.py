"""A machine named by hand: its backends are those of the models that its Triton has loaded."""

import socket

import pytest
from support.triton import TINY_MODELS, needs_triton

from photodup.embedding.backends import parse_backend
from photodup.serving.check import check, ready_models
from photodup.serving.endpoints import from_ports
from photodup.serving.process.ports import claim_ports
from photodup.study.notebook.run import open_run


@needs_triton()
def test_what_is_loaded_is_what_is_listed(tiny_triton):
    server = tiny_triton
    ports = (0, server.http_port, server.grpc_port, server.metrics_port)

    assert ready_models(server.http_url) == sorted(TINY_MODELS)
    listed = from_ports("127.0.0.1", *ports, models=TINY_MODELS)
    assert {row["finding"] for row in check(listed, timeout_s=60)} == {"ready"}
    engines = {parse_backend(name).engine for name in listed.backends}
    assert engines == {"onnx", "openvino"}, "and no trt, which a machine with a GPU might have"
    with_gpu = from_ports("127.0.0.1", *ports, models=["emulated_a100", "emulated_a100_jpeg"])
    assert sorted(with_gpu.backends) == sorted(
        f"triton-emulated-a100-fp32-{p}-{w}" for p in ("http", "grpc") for w in ("fp32", "jpeg")
    )


@needs_triton()
def test_a_run_by_host_asks_but_not_when_it_only_reads(monkeypatch, tmp_path, tiny_triton):
    server = tiny_triton
    monkeypatch.setenv("PHOTODUP_ROOT", str(tmp_path))
    asked = {"host": "127.0.0.1", "triton_http_port": server.http_port, "triton_grpc_port": server.grpc_port}

    assert "triton-openvino-fp32-http-fp32" in open_run(**asked).endpoints.backends
    monkeypatch.setenv("PHOTODUP_MEASURE", "0")
    assert "triton-openvino-fp32-http-fp32" not in open_run(**asked).endpoints.backends


def test_nobody_there_is_no_answer_rather_than_no_models():
    port = claim_ports("127.0.0.1", {"nobody": 0})["nobody"]
    assert ready_models(f"http://127.0.0.1:{port}", timeout_s=1) is None
    with socket.create_server(("127.0.0.1", 0)) as mute:  # accepts, and never answers
        assert ready_models(f"http://127.0.0.1:{mute.getsockname()[1]}", timeout_s=0.3) is None


@pytest.mark.parametrize(
    ("host", "here"), [("127.0.0.1", True), ("localhost", True), ("192.0.2.7", False), ("gpu.example", False)]
)
def test_only_servers_on_this_machine_are_here(monkeypatch, tmp_path, host, here):
    monkeypatch.setenv("PHOTODUP_ROOT", str(tmp_path))
    monkeypatch.setenv("PHOTODUP_MEASURE", "0")
    assert open_run(host=host).is_here is here


def test_points_of_a_machine_elsewhere_carry_the_measured_way_to_it(monkeypatch, tmp_path, figure):
    """Called loopback, they would be judged as what a client beside the server sees."""
    from photodup.bench.link.way import LOOPBACK
    from photodup.bench.stats.facts import Load
    from photodup.study.notebook.points import measure_point

    monkeypatch.setenv("PHOTODUP_ROOT", str(tmp_path))
    assert open_run("here", host="127.0.0.1").measure_way() == LOOPBACK
    with socket.create_server(("127.0.0.2", 0), backlog=64) as listener:  # another address, real TCP
        run = open_run("elsewhere", host="127.0.0.2", pytorch_port=listener.getsockname()[1])
        way = run.measure_way()
        assert way.rtt_ms >= 0 and way.link == "network"
        figure(way.rtt_ms < 5, way)
    assert way == run.measure_way() == open_run("elsewhere", host="127.0.0.2").measure_way(), "asked once"
    point = measure_point(run, "triton-trt-fp16-grpc-fp16", Load("single_stream"))
    assert (point["link"], point["rtt_ms"]) == ("network", way.rtt_ms)
    nobody = open_run("nobody", host="127.0.0.3", pytorch_port=9).measure_way()
    assert (nobody.link, nobody.rtt_ms) == ("network", None)
