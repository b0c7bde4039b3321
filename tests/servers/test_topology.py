"""Emulated devices in two arrangements: every device works, alone or in a batch, and nothing is left running."""

import os
import shutil

import numpy as np
import psutil
import pytest
from PIL import Image
from support.triton import needs_triton

from photodup.bench.backends.adapters import adapter
from photodup.bench.load import counters
from photodup.bench.load.counters import account_of
from photodup.bench.load.load import measure
from photodup.bench.load.plan import Stopping
from photodup.bench.stats.facts import Load
from photodup.core.errors import PhotodupError
from photodup.embedding.imaging import to_jpeg
from photodup.study.scaling import topology
from photodup.study.scaling.topology import SERVICE, DevicePool, balancer

BACKEND = "triton-emulated-4080-fp32-http-uint8"
MODEL = "emulated_4080_uint8"
HAS_NGINX = bool(shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin"))
needs_nginx = pytest.mark.skipif(not HAS_NGINX, reason="nginx is not installed")


@pytest.fixture(scope="module")
def photo() -> bytes:
    noise = np.random.default_rng(0).integers(0, 256, (300, 300, 3), dtype=np.uint8)
    return to_jpeg(Image.fromarray(noise), 90)


@pytest.fixture(scope="module")
def pool():
    with DevicePool((MODEL,), 3, compute_ms=40.0) as made:
        yield made


def point_of(pool: DevicePool, photo: bytes, arrangement: str, devices: int, *, batching: bool) -> dict:
    backend = SERVICE if arrangement == "services" else BACKEND
    address = pool.arrange(arrangement, devices, batching=batching)
    stopping = Stopping(min_duration_s=0.6, min_requests=1, max_duration_s=1.5, ramp_s=0.2)
    load = Load("closed_loop", concurrency=6, span="prepared")
    return measure(adapter(backend, address), [photo], load, stopping, probe=pool.probe(account_of(backend)))


@needs_triton()
@needs_nginx
@pytest.mark.parametrize("arrangement", topology.ARRANGEMENTS)
def test_devices_share_the_load_and_each_runs_one_request_at_a_time(pool, photo, arrangement, figure) -> None:
    one, three = (point_of(pool, photo, arrangement, k, batching=False) for k in (1, 3))
    for point in (one, three):
        assert point["server_batch_mean"] == 1  # nothing is batched
        # The counters are read a little before and after the requests, so a busy machine moves these two.
        figure(point["server_compute_infer_ms_mean"] >= 39.9, point)
    figure(one["server_requests"] <= one["duration_s"] / 0.04 + 2, one)  # one at a time, and at either edge
    figure(three["throughput_images_per_s"] > 1.5 * one["throughput_images_per_s"], (one, three))


@needs_triton()
def test_batching_is_a_choice(pool, photo) -> None:
    assert point_of(pool, photo, "instances", 1, batching=True)["server_batch_mean"] > 1.5


@needs_triton()
@needs_nginx
def test_every_server_behind_nginx_is_counted(pool, photo) -> None:
    pool.arrange("servers", 3, batching=False)
    assert len({server.http_port for server in pool._used}) == 3
    before = [account(pool, server) for server in pool._used]
    point = point_of(pool, photo, "servers", 3, batching=False)
    grown = [account(pool, server) - was for server, was in zip(pool._used, before, strict=True)]
    assert min(grown) > 0  # least_conn reaches all of them
    assert sum(grown) >= point["server_requests"] > max(grown) * 1.2


def account(pool: DevicePool, server) -> float:
    return counters.total(counters.read(server.metrics_url), "nv_inference_request_success", model=MODEL) or 0


@needs_triton()
@needs_nginx
def test_nothing_is_left_after_an_exception() -> None:
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(ZeroDivisionError), DevicePool((MODEL,), 2) as made:
        made.arrange("servers", 2, batching=True)
        assert {p.name() for p in psutil.Process().children(recursive=True)} >= {"nginx", "tritonserver"}
        _ = 1 / 0
    left = {p for p in set(psutil.Process().children(recursive=True)) - before if p.is_running()}
    assert not [p for p in left if p.status() != psutil.STATUS_ZOMBIE]


def test_wrong_numbers_and_a_missing_nginx_are_refused_before_anything_starts(monkeypatch) -> None:
    with DevicePool((MODEL,), 2) as made:
        for arrangement, devices in (("instances", 3), ("servers", 0), ("stacked", 1)):
            with pytest.raises(PhotodupError, match="choose 1 to 2 as instances, servers, services"):
                made.arrange(arrangement, devices, batching=True)
        assert made._servers == []
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(PhotodupError, match="apt-get install nginx"), balancer([1]):
        pass
