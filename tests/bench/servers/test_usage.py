"""What a server uses is in each of its points: its own processor and memory, and a GPU's where there is one."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import httpx
import psutil
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from support.command import running
from support.figures import measure_figure
from support.service import until

from photodup.bench.load import usage
from photodup.bench.load.plan import WindowPlan
from photodup.bench.record import environment
from photodup.bench.record.store import RunStore
from photodup.bench.stats.metrics import Load
from photodup.serving.endpoints import DEPLOYED, from_ports
from photodup.serving.service.counters import GpuCollector
from photodup.serving.triton.control import nothing_loaded
from photodup.study.model_memory import memory, memory_by_model
from photodup.study.notebook.run import Run

SHORT = {"plan": WindowPlan(1.2, 1, warmup_requests=1), "visits": 1, "is_checked": False}
LOAD = Load("closed_loop", concurrency=2, span="prepared")
TWO_GPUS = """# HELP nv_gpu_utilization GPU utilization rate [0.0 - 1.0)
nv_gpu_utilization{gpu_uuid="x"} 0.5
nv_gpu_utilization{gpu_uuid="y"} 0.7
nv_gpu_memory_used_bytes{gpu_uuid="x"} 1048576
nv_gpu_memory_used_bytes{gpu_uuid="y"} 2097152
nv_gpu_power_usage{gpu_uuid="x"} 100
nv_gpu_power_usage{gpu_uuid="y"} 50
nv_inference_count{model="a b",version="1"} 7
"""


def test_gpus_are_added_up_and_averaged_over_the_window() -> None:
    first = usage.gauges(TWO_GPUS)
    second = usage.gauges(TWO_GPUS.replace("0.5", "0.9").replace("2097152", "1048576"))
    found = usage.columns_of([(0.0, first), (1.0, second)])
    assert found == {
        "gpu_utilization": pytest.approx((0.6 + 0.8) / 2),
        "gpu_memory_mib": 3.0,  # the most seen
        "gpu_memory_before_mib": 3.0,
        "gpu_power_w": 150.0,
    }


def test_what_no_page_says_is_no_column() -> None:
    assert usage.columns_of([]) == {}
    assert usage.columns_of([(0.0, usage.gauges("# HELP x\nx 1\nnv_gpu_utilization broken\n"))]) == {}


def test_a_counter_of_processor_time_needs_two_readings() -> None:
    page = "process_cpu_seconds_total {}\nprocess_resident_memory_bytes 1048576\n"
    pages = [(at, usage.gauges(page.format(spent))) for at, spent in ((10.0, 3.0), (12.0, 6.0))]
    assert usage.columns_of(pages) == {"server_cpu_cores": 1.5, "server_memory_mib": 1.0}
    assert usage.columns_of(pages[:1]) == {"server_memory_mib": 1.0}


def test_memory_and_processor_time_count_children_too(figure) -> None:
    code = "import subprocess, sys, time; x = bytearray(50 << 20); "
    child = f"{code} print('up', flush=True); sum(range(10**7)); time.sleep(60)"
    parent = f"{code} subprocess.Popen([sys.executable, '-c', {child!r}]).wait()"
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdout.readline() == b"up\n"
        used_mib = usage.memory_mib(process.pid)
        assert used_mib > 100  # two processes fill 50 MiB each
        figure(used_mib < 200, used_mib)
        before = usage.cpu_s(process.pid)
        until(lambda: usage.cpu_s(process.pid) > before)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def test_a_point_of_the_service_says_what_the_service_used(tmp_path: Path, random_service, figure) -> None:
    page = httpx.get(f"{random_service.url}/metrics").text
    assert ("photodup_gpu_" in page) == bool(environment.describe()["gpus"])
    host, port = random_service.url.removeprefix("http://").split(":")
    run = Run("here", tmp_path, from_ports(host, int(port), 0, 0, 0), RunStore(tmp_path))
    point = measure_figure(run, "fastapi-pytorch-fp32-http-jpeg", LOAD, **SHORT)
    assert point["server_cpu_cores"] > 0 and point["server_memory_mib"] > 0
    figure(0.05 < point["server_cpu_cores"] < os.cpu_count() + 0.5, point)
    # Its share of shared pages falls with every other process that has them: between its own pages and all of them.
    own_mib = psutil.Process(random_service.process.pid).memory_full_info().uss / 2**20
    figure(0.6 * own_mib < point["server_memory_mib"] < 1.4 * random_service.rss_mb(), point)
    assert "gpu_utilization" not in point or environment.describe()["gpus"]


def test_a_server_elsewhere_tells_by_its_page_alone(random_service, monkeypatch, figure) -> None:
    monkeypatch.setattr(usage, "is_loopback", lambda url: False)
    with usage.usage(f"{random_service.url}/metrics") as seen:
        time.sleep(1.1)
    assert seen["server_cpu_cores"] >= 0
    assert seen["server_memory_mib"] > 0
    figure(seen["server_memory_mib"] == pytest.approx(random_service.rss_mb(), rel=0.2), seen)


def test_a_page_that_is_not_there_spoils_nothing() -> None:
    with usage.usage("http://127.0.0.1:9/metrics") as seen:
        pass
    assert seen == {}


def test_a_point_of_triton_counts_the_processes_that_compute(tmp_path: Path, tiny_triton, figure) -> None:
    ports = (0, tiny_triton.http_port, tiny_triton.grpc_port, tiny_triton.metrics_port)
    run = Run("here", tmp_path, from_ports("127.0.0.1", *ports, models=DEPLOYED[:4]), RunStore(tmp_path))
    point = measure_figure(run, "triton-onnx-fp32-http-jpeg", LOAD, **SHORT)
    assert point["server_cpu_cores"] > 0 and point["server_memory_mib"] > 0
    figure(point["server_cpu_cores"] > 0.05, point)
    # Triton and the Python processes of its models
    figure(point["server_memory_mib"] > 100, point)


def test_memory_is_told_with_one_model_loaded_at_a_time(tmp_path: Path, tiny_triton, figure) -> None:
    ports = (0, tiny_triton.http_port, tiny_triton.grpc_port, tiny_triton.metrics_port)
    run = Run("here", tmp_path, from_ports("127.0.0.1", *ports, models=DEPLOYED[:4]), RunStore(tmp_path))
    names = [f"triton-onnx-fp32-http-{wire}" for wire in ("fp32", "uint8")]
    with nothing_loaded(run.endpoints.triton_grpc):
        refused = measure_figure(run, names[0], LOAD, label="unloaded", **SHORT)
        assert refused["status"] == "missing", "its model is unloaded, so nothing is measured"
    rows = memory_by_model(run, names, WindowPlan(0.3, 1))
    assert [row["backend"] for row in rows] == names
    for row in rows:
        figure(0 < row["server_memory_mib_before"] < row["server_memory_mib_loaded"], row)
        assert row["server_memory_mib"] > 0
        assert row["ready_s"] > 0 and row["first_answer_ms"] > 0 and row["tenth_answer_ms"] > 0
    jpeg = measure_figure(run, "triton-onnx-fp32-http-jpeg", LOAD, label="again", **SHORT)
    assert jpeg["status"] == "ok", "every model is loaded again"


LETS_GO = """
import http.server, threading, time
held = [b"x" * (64 << 20) for _ in range(3)]
def give_back():
    while held:
        time.sleep(1.5)
        held.pop()
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
print(server.server_port, flush=True)
threading.Thread(target=give_back, daemon=True).start()
server.serve_forever()
"""


def test_memory_before_a_load_is_read_when_an_unloaded_models_has_been_given_back() -> None:
    with running([sys.executable, "-u", "-c", LETS_GO]) as server:
        page = f"http://127.0.0.1:{int(server.stdout.readline())}/metrics"
        at_once, later = memory(page, "loaded"), memory(page, "before", is_falling=True)
        assert later["server_memory_mib_before"] < at_once["server_memory_mib_loaded"] - 150


def no_power(device):
    raise RuntimeError("Not Supported")


# NVML's functions for a card that tells no power, as some do. A real one: `-m gpu`.
STAND_IN = SimpleNamespace(
    nvmlInit=lambda: None, nvmlDeviceGetCount=lambda: 1, nvmlDeviceGetHandleByIndex=lambda index: index,
    nvmlDeviceGetMemoryInfo=lambda device: SimpleNamespace(used=3 * 2**20),
    nvmlDeviceGetUtilizationRates=lambda device: SimpleNamespace(gpu=40), nvmlDeviceGetPowerUsage=no_power,
    nvmlDeviceGetUUID=lambda device: "GPU-0", nvmlDeviceGetName=lambda device: "NVIDIA L4",
)  # fmt: skip


def test_the_units_of_the_drivers_library_are_turned_into_those_of_the_page(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", STAND_IN)
    registry = CollectorRegistry()
    registry.register(collector := GpuCollector())
    page = generate_latest(registry).decode()
    assert collector.names() == ["NVIDIA L4"]
    assert 'photodup_gpu_memory_used_bytes{gpu="GPU-0"} 3.145728e+06' in page
    wanted = {"gpu_utilization": 0.4, "gpu_memory_mib": 3.0, "gpu_memory_before_mib": 3.0}
    assert usage.columns_of([(0.0, usage.gauges(page))]) == wanted


@pytest.mark.gpu
def test_a_real_gpu_is_on_the_page() -> None:
    if not environment.describe()["gpus"]:
        pytest.skip("needs an NVIDIA GPU")
    registry = CollectorRegistry()
    registry.register(GpuCollector())
    found = usage.columns_of([(0.0, usage.gauges(generate_latest(registry).decode()))])
    assert found["gpu_memory_mib"] > 0 and 0 <= found["gpu_utilization"] <= 1
