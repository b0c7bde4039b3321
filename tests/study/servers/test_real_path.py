"""The way to real servers, measured with real TCP: over loopback, and over an emulated link to a far Triton."""

import socket
from pathlib import Path

import pytest
from support.figures import measure_figure
from support.http_server import accepting
from support.link import needs_link

from photodup.bench.link import emulate as link_module
from photodup.bench.link.emulate import Link, LinkError, LinkSpec
from photodup.bench.link.payload_latency import measure_path
from photodup.bench.load.plan import WindowPlan
from photodup.bench.record.store import RunStore
from photodup.bench.stats.metrics import Load
from photodup.core.errors import PhotodupError
from photodup.serving.endpoints import DEPLOYED, Endpoints, from_ports
from photodup.study import remote_latency
from photodup.study.notebook.gaps import NotMeasured
from photodup.study.notebook.run import Run

PAYLOADS = [10_000, 602_112]
FEW = {"n": 3, "n_large": 2, "idle_s": 0.1}


def by_kind(found, size=602_112):
    return {row["connection"]: row for row in found["rows"] if row["payload_bytes"] == size}


@needs_link
def test_slow_start_shows_on_the_way_to_a_far_triton_and_models_agree(tiny_triton, figure) -> None:
    """Triton must have read the whole body before it answers, or 602 KB would take no longer than 10 KB."""
    with Link(LinkSpec(rtt_ms=25, rate_mbit_s=210)) as link, link.client_namespace():
        found = measure_path(link.url(tiny_triton.http_url), "triton", PAYLOADS, **FEW)
    large, small = by_kind(found), by_kind(found, 10_000)
    assert found["rtt_ms"] > 24
    assert large["new"]["latency_ms_p50"] > 140  # a handshake and slow start: 6 round trips and the bytes
    figure(found["rtt_ms"] < 30 and found["turnaround_ms"] < 15, found)
    figure(all(row["valid"] for row in found["rows"]), found)
    figure(small["new"]["latency_ms_p50"] < 90 and large["warm"]["latency_ms_p50"] < 90, found)
    table = remote_latency.real_and_predicted(found).set_index(["payload_bytes", "connection"])
    figure(table.rounds[602_112, "new"] == pytest.approx(large["new"]["latency_ms_p50"], rel=0.25), table)
    said = remote_latency.path_in_words(found, table)
    assert "counting round trips is off by" in said


def test_the_service_reads_a_body_before_it_refuses_it(random_service, figure) -> None:
    found = measure_path(random_service.url, "fastapi", PAYLOADS, **FEW)
    assert all(row["valid"] for row in found["rows"]), found["rows"]
    assert found["rate_mbit_s"] is None  # no payload above 1 MB
    figure(found["rtt_ms"] < 20, found)


def test_a_server_that_hangs_up_gives_rows_that_say_so(tmp_path: Path) -> None:
    def answer_and_close(connection: socket.socket) -> None:  # a small request is answered, a payload is not
        while b"Content-Length: 64\r\n" in connection.recv(65_536):
            connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    with accepting(answer_and_close) as url:
        found = measure_path(url, "triton", [10_000], **FEW)
    assert not any(row["valid"] for row in found["rows"])
    assert all(row["invalid_because"] for row in found["rows"])
    table = remote_latency.real_and_predicted(found)
    assert table.real_ms.isna().all()
    assert "no point was measured" in remote_latency.path_in_words(found, table)


def test_an_answer_that_is_none_of_ours_is_named() -> None:
    with pytest.raises(PhotodupError, match="write http://host:port"):
        measure_path("https://example.org", "triton", PAYLOADS)


def test_a_run_measures_its_own_way_once(tmp_path: Path, tiny_triton) -> None:
    ports = (0, tiny_triton.http_port, tiny_triton.grpc_port, tiny_triton.metrics_port)
    run = Run("here", tmp_path, from_ports("127.0.0.1", *ports), RunStore(tmp_path))
    found = remote_latency.measure_real_path(run, PAYLOADS, **FEW)
    again = remote_latency.measure_real_path(run, PAYLOADS, **FEW)
    assert again["rows"] == found["rows"] and found["server"] == "triton"
    table = remote_latency.real_and_predicted(found)
    assert len(table) == 6 and table.real_ms.notna().any()


def test_without_an_http_server_the_gap_says_so(tmp_path: Path) -> None:
    only_grpc = Endpoints(name="far", backends={"triton-onnx-fp32-grpc-fp32": "gpu:8004"})
    with pytest.raises(NotMeasured, match="far has neither Triton over HTTP nor FastAPI"):
        remote_latency.measure_real_path(Run("far", tmp_path, only_grpc, RunStore(tmp_path)), PAYLOADS)


# ---- figures over an emulated link


HOW = {"plan": WindowPlan(0.2, 1, warmup_requests=1), "visits": 1, "is_checked": False}
LOAD = Load("single_stream", span="prepared")


def open_here(path: Path, server) -> Run:
    ports = (0, server.http_port, server.grpc_port, server.metrics_port)
    return Run("here", path, from_ports("127.0.0.1", *ports, gpu="none", models=DEPLOYED[:4]), RunStore(path))


@needs_link
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_figure_crosses_the_link_and_is_counted_by_the_server(protocol, tmp_path, tiny_triton, figure):
    run, backend = open_here(tmp_path, tiny_triton), f"triton-onnx-fp32-{protocol}-jpeg"
    near = measure_figure(run, backend, LOAD, **HOW)
    for _ in range(5):  # a busy machine makes the link late: such a window fails, and is measured again
        far = measure_figure(run, backend, LOAD, **HOW, link="us-east")
        if " ms late " not in far["because"]:
            break
    assert (near["link"], near["rtt_ms"], near["initcwnd"]) == ("loopback", 0, None)
    assert (far["link"], far["rtt_ms"], far["rate_mbit_s"], far["initcwnd"]) == ("us-east", 25, 210, 10)
    assert (far["congestion"], far["slow_start_after_idle"], far["loss"]) == ("cubic", True, 0)
    assert (far["device"], far["label"], far["n_visits"]) == ("cpu", "", 1)
    assert far["latency_ms_p50"] >= 25  # no less than the round trip
    figure(far["latency_ms_p50"] >= 25 + 0.9 * far["server_request_ms_mean"], far)
    assert far["server_requests"] > 0
    again = measure_figure(run, backend, LOAD, **HOW, link="us-east")
    assert again["latency_ms_p50"] == far["latency_ms_p50"]  # its own record, not loopback's


def test_without_the_right_a_figure_has_the_links_own_sentence(monkeypatch, tmp_path, tiny_triton):
    def refuse(*_, **__):
        raise LinkError("The emulated link needs root or CAP_NET_ADMIN")

    monkeypatch.setattr(link_module.Link, "__enter__", refuse)
    run, backend = open_here(tmp_path, tiny_triton), "triton-onnx-fp32-http-jpeg"
    point = measure_figure(run, backend, LOAD, **HOW, link="us-east")
    assert point["status"] == "failed" and "CAP_NET_ADMIN" in point["because"]
    assert point["link"] == "us-east" and point["rtt_ms"] == 25 and point["rate_mbit_s"] == 210
