"""Emulated devices in two arrangements: every device works, alone, and nothing is left running."""

import os
import shutil

import numpy as np
import psutil
import pytest
from PIL import Image
from support.triton import needs_triton
from support.visits import opened

from photodup.bench.load import counters
from photodup.bench.load.plan import WindowPlan
from photodup.bench.stats.facts import Load
from photodup.core.errors import PhotodupError
from photodup.embedding.imaging import to_jpeg
from photodup.study import topology
from photodup.study.notebook import weights
from photodup.study.notebook.points import measure_figures
from photodup.study.topology import DevicePool, balancer

BACKEND = "triton-emulated-4080-fp32-http-uint8"
HAS_NGINX = bool(shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin"))
needs_nginx = pytest.mark.skipif(not HAS_NGINX, reason="nginx is not installed")
LOAD, PLAN = Load("closed_loop", concurrency=6, span="prepared"), WindowPlan(0.6, 1, ramp_s=0.2)


@pytest.fixture(autouse=True)
def photos(monkeypatch) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (300, 300, 3), dtype=np.uint8)
    monkeypatch.setattr(weights, "payload_photos", lambda n: [to_jpeg(Image.fromarray(noise), 90)] * n)


@pytest.fixture(scope="module")
def pool():
    with DevicePool(BACKEND, compute_ms=40.0) as made:
        yield made


@needs_triton()
@needs_nginx
@pytest.mark.parametrize("arrangement", topology.ARRANGEMENTS)
def test_devices_share_the_load_and_each_runs_one_request_at_a_time(
    pool, tmp_path, arrangement, figure
) -> None:
    run, specs = opened(tmp_path), [pool.spec(arrangement, k, LOAD) for k in (1, 3)]
    with run.store:
        one, three = measure_figures(run, specs, PLAN, visits=1).to_dict("records")
    for row, devices in ((one, 1), (three, 3)):
        assert row["status"] == "ok"
        assert (row["arrangement"], row["devices"], row["device"]) == (arrangement, devices, "4080")
        figure(row["latency_ms_p50"] >= 39.9, row)
    figure(one["n_requests"] <= one["duration_s"] / 0.04 + 2, one)  # one at a time, and at either edge
    figure(three["throughput_images_per_s"] > 1.5 * one["throughput_images_per_s"], (one, three))


@needs_triton()
@needs_nginx
def test_every_server_behind_nginx_answers(pool, tmp_path) -> None:
    def requests(server) -> float:
        return (
            counters.total(
                counters.read_counters(server.metrics_url), "nv_inference_request_success", model=pool.model
            )
            or 0
        )

    servers = pool._started(3)
    assert len({server.http_port for server in servers}) == 3
    before, run = [requests(server) for server in servers], opened(tmp_path)
    with run.store:
        (row,) = measure_figures(run, [pool.spec("servers", 3, LOAD)], PLAN, visits=1).to_dict("records")
    grown = [requests(server) - was for server, was in zip(servers, before, strict=True)]
    assert min(grown) > 0  # least_conn reaches all of them
    assert sum(grown) >= row["n_requests"] > max(grown) * 1.2


@needs_triton()
@needs_nginx
def test_nothing_is_left_after_an_exception() -> None:
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(ZeroDivisionError), DevicePool(BACKEND) as made, made.arranged("servers", 2):
        assert {p.name() for p in psutil.Process().children(recursive=True)} >= {"nginx", "tritonserver"}
        _ = 1 / 0
    left = {p for p in set(psutil.Process().children(recursive=True)) - before if p.is_running()}
    assert not [p for p in left if p.status() != psutil.STATUS_ZOMBIE]


def test_a_missing_nginx_is_named(monkeypatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(PhotodupError, match="apt-get install nginx"), balancer([1]):
        pass
