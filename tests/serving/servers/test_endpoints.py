"""Endpoints files, and what the check says about servers that are wrong in each way we know."""

import socket
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support.command import one_sentence, run_command
from support.figures import measure_figure
from support.triton import TINY_MODELS

from photodup.bench.link.emulate import LOOPBACK
from photodup.bench.stats.metrics import Load
from photodup.core.errors import PhotodupError
from photodup.embedding.backends import parse_backend
from photodup.serving.check import Check, check_all, ready_models, render_check
from photodup.serving.embedded import MODELS
from photodup.serving.endpoints import DEPLOYED, Endpoints, from_ports, load_endpoints, save_endpoints
from photodup.serving.process.ports import claim_ports
from photodup.serving.triton.repository import committed_models
from photodup.study.notebook.run import open_run

REACHED = {"triton-onnx-fp32-http-fp32": "http://h:8000", "triton-trt-fp16-grpc-fp32": "h:8001"}
GOOD = {"name": "box", "backends": REACHED}


def test_the_committed_default_is_what_embedded_servers_offer(root: Path) -> None:
    found = load_endpoints(root / "notebooks/endpoints/embedded.yaml")
    models = {parse_backend(name).triton_model for name in found.backends} - {""}
    assert models == set(MODELS)
    assert found == from_ports(name="embedded", gpu="none", models=MODELS, location="this machine")


def test_every_endpoints_file_loads(root: Path) -> None:
    for path in (root / "notebooks/endpoints").glob("*.yaml"):
        for backend in load_endpoints(path).backends:
            model = parse_backend(backend).triton_model
            assert not model or model in committed_models() or model.startswith("emulated_")


@pytest.mark.parametrize(("change", "message"), [
    ({"name": None}, "name"),
    ({"name": "a/b"}, "name"),
    ({"backends": {}}, "backends"),
    ({"backends": {"triton-onnx-fp32-http-fp32": "h:8000"}}, "is no HTTP address.*use http://host:port"),
    ({"backends": {"triton-onnx-fp32-grpc-fp32": "http://h:8001"}}, "is no gRPC address.*use host:port"),
    ({"backends": {"triton-onnx-fp32-grpc-fp32": "h"}}, "is no gRPC address.*use host:port"),
    ({"backends": {"triton-onnx-fp32-grpc-fp32": "h:99999"}}, "is no gRPC address.*use host:port"),
    ({"backends": {"tritn-onnx-http-fp32": "http://h:1"}}, "names no backend"),
    ({"price_per_hour_usd": -1}, "price_per_hour_usd"),
    ({"backend": {}}, "backend"),
])  # fmt: skip
def test_a_wrong_file_is_refused_by_key(change: dict, message: str, tmp_path: Path) -> None:
    path = tmp_path / "box.yaml"
    path.write_text(yaml.safe_dump(GOOD))
    load_endpoints(path)
    path.write_text(yaml.safe_dump(GOOD | change))
    with pytest.raises(PhotodupError, match=rf"box\.yaml: .*{message}"):
        load_endpoints(path)


def test_no_file_and_no_yaml(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("name: [")
    with pytest.raises(PhotodupError, match=r"No such file.*other\.yaml"):
        load_endpoints(tmp_path / "gone.yaml")
    with pytest.raises(PhotodupError, match="is not YAML"):
        load_endpoints(tmp_path / "other.yaml")
    (tmp_path / "other.yaml").write_text("- a\n")
    with pytest.raises(PhotodupError, match="should be a mapping"):
        load_endpoints(tmp_path / "other.yaml")


DAMAGED = b"\xff\xfe\0|name: [|5: x|null: x|where: x|- x|5||name: !!python/object:os.system x".split(b"|")


@pytest.mark.parametrize("data", [*DAMAGED, b"[" * 100_000])
def test_a_damaged_file_is_one_sentence(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "received.yaml"
    path.write_bytes(data)
    with one_sentence(r"received\.yaml"):
        load_endpoints(path)


@given(
    ports=st.lists(st.integers(0, 65535), min_size=4, max_size=4),
    models=st.lists(st.sampled_from([*DEPLOYED, *MODELS, "emulated_a100"]), unique=True, min_size=1),
)
def test_saving_and_loading_keeps_everything(ports: list[int], models: list[str], tmp_path_factory) -> None:
    if not any(ports[:3]):
        with pytest.raises(PhotodupError, match="h: backends"):
            from_ports("h", *ports, models=models)
        return
    made = from_ports("h.example", *ports, models=models, price_per_hour_usd=0.85)
    path = tmp_path_factory.getbasetemp() / "roundtrip.yaml"
    save_endpoints(made, path)
    assert load_endpoints(path) == made


def _findings(endpoints: Endpoints) -> dict[str, str]:
    return {check.subject: check.finding for check in check_all(endpoints, timeout_s=20)}


def test_a_running_triton_is_ready_and_each_mistake_is_told_apart(tiny_triton) -> None:
    server = tiny_triton
    http, grpc, metrics = server.http_port, server.grpc_port, server.metrics_port
    dead = claim_ports("127.0.0.1", {"nobody": 0})["nobody"]
    right = from_ports("127.0.0.1", 0, http, grpc, metrics, models=TINY_MODELS)
    assert set(_findings(right).values()) == {"ready"}

    def one(name: str, url: str) -> str:
        return _findings(Endpoints(name="x", backends={name: url}))[name]

    host = "http://127.0.0.1"
    assert "No server answers at" in one("triton-onnx-fp32-http-fp32", f"{host}:{dead}")
    assert "No gRPC server answers at" in one("triton-onnx-fp32-grpc-fp32", f"127.0.0.1:{dead}")
    assert "does not speak HTTP: is this the gRPC port" in one("triton-onnx-fp32-http-fp32", f"{host}:{grpc}")
    assert "is Triton's HTTP port, not a gRPC port" in one("triton-onnx-fp32-grpc-fp32", f"127.0.0.1:{http}")
    assert "is Triton's metrics port" in one("triton-onnx-fp32-http-fp32", f"{host}:{metrics}")
    wrong = one("fastapi-pytorch-fp32-http-jpeg", f"{host}:{http}")
    assert "is Triton's HTTP port, not the FastAPI service" in wrong
    missing = one("triton-trt-fp16-http-fp32", f"{host}:{http}")
    assert "no model openclip_vit_b32_trt ready" in missing and "(openclip_vit_b32," in missing
    assert "no model openclip_vit_b32_trt" in one("triton-trt-fp16-grpc-fp32", f"127.0.0.1:{grpc}")
    assert "in the repository but not loaded" in one("triton-emulated-a100-fp32-http-jpeg", f"{host}:{http}")
    assert "Name or service not known" in one("triton-onnx-fp32-http-fp32", "http://nonesuch.invalid:8000")


def test_the_command_exits_1_and_says_which(tmp_path: Path, tiny_triton):
    grpc = tiny_triton.grpc_port
    for http, n_bad in ((tiny_triton.http_port, 0), (grpc, 1)):
        made = from_ports("127.0.0.1", 0, http, grpc, 0, models=["openclip_vit_b32"])
        save_endpoints(made, tmp_path / "made.yaml")
        said = run_command("endpoints", "check", tmp_path / "made.yaml", status=n_bad)
        assert said.count("BAD") == n_bad


def test_the_table_lines_up() -> None:
    checks = [Check("a", "u"), Check("bbb", "uuuu", "gone")]
    assert render_check(checks).splitlines() == ["ok   a    u     ready", "BAD  bbb  uuuu  gone"]


def test_without_the_client_the_check_says_what_to_install(root: Path, monkeypatch: pytest.MonkeyPatch):
    for module in ("tritonclient", "tritonclient.grpc"):
        monkeypatch.setitem(sys.modules, module, None)  # an import of it fails as where it is not installed
    with pytest.raises(PhotodupError, match=r"tritonclient is not installed.*photodup\[triton\]"):
        check_all(load_endpoints(root / "notebooks" / "endpoints" / "embedded.yaml"))


# ---- a machine named by hand


def test_what_is_loaded_is_what_is_listed(tiny_triton):
    server = tiny_triton
    ports = (0, server.http_port, server.grpc_port, server.metrics_port)
    assert ready_models(server.http_url) == sorted(TINY_MODELS)
    listed = from_ports("127.0.0.1", *ports, models=TINY_MODELS)
    assert {check.finding for check in check_all(listed, timeout_s=60)} == {"ready"}
    engines = {parse_backend(name).engine for name in listed.backends}
    assert engines == {"onnx", "openvino"}, "and no trt, which a machine with a GPU might have"
    with_gpu = from_ports("127.0.0.1", *ports, models=["emulated_a100", "emulated_a100_jpeg"])
    assert sorted(with_gpu.backends) == sorted(
        f"triton-emulated-a100-fp32-{p}-{w}" for p in ("http", "grpc") for w in ("fp32", "jpeg")
    )


def test_a_run_by_an_address_line_asks_but_not_when_it_only_reads(monkeypatch, tmp_path, tiny_triton):
    server = tiny_triton
    monkeypatch.setenv("PHOTODUP_ROOT", str(tmp_path))
    asked = {"endpoints": f"127.0.0.1:0,{server.http_port},{server.grpc_port}"}
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
    assert open_run(endpoints=f"{host}:8002,8003,8004,8005").is_here is here


def test_points_of_a_machine_elsewhere_carry_the_measured_way_to_it(monkeypatch, tmp_path, figure):
    """Called loopback, they would be judged as what a client beside the server sees."""
    monkeypatch.setenv("PHOTODUP_ROOT", str(tmp_path))
    assert open_run("here", "127.0.0.1:8002").measure_path() == LOOPBACK
    with socket.create_server(("127.0.0.2", 0), backlog=64) as listener:  # another address, real TCP
        run = open_run("elsewhere", f"127.0.0.2:{listener.getsockname()[1]}")
        way = run.measure_path()
        assert way.rtt_ms >= 0 and way.link == "network"
        figure(way.rtt_ms < 5, way)
    assert way == run.measure_path() == open_run("elsewhere", "127.0.0.2:8002").measure_path(), "asked once"
    figure_of = measure_figure(run, "triton-trt-fp16-grpc-fp16", Load("single_stream"))
    assert (figure_of["link"], figure_of["rtt_ms"]) == ("network", way.rtt_ms)
    nobody = open_run("nobody", "127.0.0.3:9").measure_path()
    assert (nobody.link, nobody.rtt_ms) == ("network", None)
