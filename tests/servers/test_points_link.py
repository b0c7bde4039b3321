"""A point measured through an emulated link really crosses it, over either protocol, and says so."""

from pathlib import Path

import pytest
from support.link import needs_link
from support.triton import needs_triton

from photodup.bench.link import link as link_module
from photodup.bench.link.link import LinkError
from photodup.bench.load.plan import Stopping
from photodup.bench.record.record import RunStore
from photodup.bench.stats.facts import Load
from photodup.serving.endpoints import from_ports
from photodup.study.notebook.points import measure_point
from photodup.study.notebook.run import Run

STOPPING = Stopping(min_duration_s=0.2, min_requests=1, max_duration_s=0.4, warmup_requests=1)
LOAD = Load("single_stream", span="prepared")


def open_here(folder: Path, server) -> Run:
    ports = (0, server.http_port, server.grpc_port, server.metrics_port)
    return Run(
        "here", folder, from_ports("127.0.0.1", *ports, gpu="none", engines=("onnx",)), RunStore(folder)
    )


@needs_triton()
@needs_link
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_point_crosses_the_link_and_is_counted_by_the_server(
    protocol: str, tmp_path: Path, tiny_triton, figure
) -> None:
    run, backend = open_here(tmp_path, tiny_triton), f"triton-onnx-fp32-{protocol}-jpeg"
    near = measure_point(run, backend, LOAD, STOPPING, check=False)
    far = measure_point(run, backend, LOAD, STOPPING, check=False, link="us-east")

    assert (near["link"], near["rtt_ms"], near["initcwnd"]) == ("loopback", 0, None)
    assert (far["link"], far["rtt_ms"], far["rate_mbit_s"], far["initcwnd"]) == ("us-east", 25, 210, 10)
    assert (far["congestion"], far["slow_start_after_idle"], far["loss"]) == ("cubic", True, 0)
    assert (far["device"], far["label"], far["repeat"], far["as_deployed"]) == ("cpu", "", 0, True)
    assert far["latency_ms_p50"] >= 25  # no less than the round trip
    figure(far["latency_ms_p50"] >= 25 + 0.9 * far["server_request_ms_mean"], far)
    assert far["server_requests"] > 0
    again = measure_point(run, backend, LOAD, STOPPING, check=False, link="us-east")
    assert again["latency_ms_p50"] == far["latency_ms_p50"]  # its own record, not loopback's


@needs_triton()
def test_without_the_right_the_point_is_a_gap_with_the_links_own_sentence(
    monkeypatch, tmp_path, tiny_triton
) -> None:
    def refuse(*_, **__):
        raise LinkError("The emulated link needs root or CAP_NET_ADMIN")

    monkeypatch.setattr(link_module.Link, "__enter__", refuse)
    point = measure_point(
        open_here(tmp_path, tiny_triton),
        "triton-onnx-fp32-http-jpeg",
        LOAD,
        STOPPING,
        check=False,
        link="us-east",
    )
    assert not point["valid"]
    assert "CAP_NET_ADMIN" in point["invalid_because"]
    assert point["link"] == "us-east" and point["rtt_ms"] == 25 and point["rate_mbit_s"] == 210
