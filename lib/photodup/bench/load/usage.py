"""A server's use of processor, memory and GPU during a window.

The server reports it on its metrics page, which is read once a second: Triton for the GPUs, the FastAPI service for the GPUs
and its own process. On this machine the server's process is also observed directly, with all that it started (Triton's
Python backend computes in processes of its own).

| column | what |
|---|---|
| `server_cpu_cores` | cores that the server kept busy |
| `server_memory_mib` | on this machine the proportional set size at the end, elsewhere the largest resident set size |
| `gpu_utilization` | mean over GPUs and time, 0 to 1 |
| `gpu_memory_mib` | sum over GPUs, the most seen: of all that runs there, not of one backend |
| `gpu_memory_before_mib` | the same before the first request of the window |
| `gpu_power_w` | sum over GPUs, mean over time |

What a server does not report is absent, never zero.
"""

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from statistics import fmean
from typing import Any
from urllib.parse import urlsplit

import psutil

from photodup.bench.backends.http_connection import MOST_METADATA_BYTES, HttpConnection
from photodup.core.addresses import is_loopback
from photodup.core.errors import PhotodupError

EVERY_S = 1.0
_GAUGES = {
    "nv_gpu_utilization": "gpu_utilization",
    "photodup_gpu_utilization_ratio": "gpu_utilization",
    "nv_gpu_memory_used_bytes": "gpu_memory_bytes",
    "photodup_gpu_memory_used_bytes": "gpu_memory_bytes",
    "nv_gpu_power_usage": "gpu_power_w",
    "photodup_gpu_power_watts": "gpu_power_w",
    "process_cpu_seconds_total": "cpu_s",
    "process_resident_memory_bytes": "memory_bytes",
}
"""Name on a page -> what it is here."""

Gauges = dict[str, list[float]]  # one value for each GPU, or one


def gauges(page: str) -> Gauges:
    """Return the values of `_GAUGES` on a metrics page. No full parser, since it runs while requests are timed."""
    values: Gauges = {}
    for line in page.splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name in _GAUGES:
            with contextlib.suppress(ValueError):
                values.setdefault(_GAUGES[name], []).append(float(line.rpartition("}")[2].split()[-1]))
    return values


def metrics_page(url: str, headers: Mapping[str, str]) -> str:
    """Return a server's metrics page; raises `OSError` or `PhotodupError` where there is none."""
    base = url.removesuffix("/metrics")
    connection = HttpConnection(base, timeout_s=5.0, most_bytes=MOST_METADATA_BYTES)
    with contextlib.closing(connection):
        return connection.request(connection.head("GET", "/metrics", 0, headers))[1].decode()


@contextlib.contextmanager
def usage(url: str, headers: Mapping[str, str] = {}) -> Iterator[dict[str, float]]:
    """Watch a server for the length of a block; the mapping yielded holds the columns afterwards.

    Args:
        url: the server's metrics page.
        headers: that it asks for.
    """
    columns: dict[str, float] = {}
    readings: list[tuple[float, Gauges]] = []
    over = threading.Event()

    def sample() -> None:
        """Read at once, every second, and when it is over."""
        is_last = False
        while not is_last:
            is_last = over.is_set()
            # `counters_error` says why
            with contextlib.suppress(OSError, PhotodupError, UnicodeDecodeError):
                readings.append((time.perf_counter(), gauges(metrics_page(url, headers))))
            over.wait(EVERY_S)

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        with local_usage(url) as by_system:
            yield columns
    finally:
        over.set()
        thread.join()
        columns |= columns_of(readings) | by_system


def columns_of(readings: Sequence[tuple[float, Mapping[str, list[float]]]]) -> dict[str, float]:
    """Return the columns of several readings of one page, each with its time in seconds."""

    def over_time(name: str, aggregate: Any) -> list[float]:
        return [aggregate(page[name]) for _, page in readings if page.get(name)]

    columns: dict[str, float] = {}
    for name, column, aggregate, summed, per in (
        ("gpu_utilization", "gpu_utilization", fmean, fmean, 1.0),
        ("gpu_power_w", "gpu_power_w", sum, fmean, 1.0),
        ("gpu_memory_bytes", "gpu_memory_mib", sum, max, 2.0**20),
        ("gpu_memory_bytes", "gpu_memory_before_mib", sum, itemgetter(0), 2.0**20),
        ("memory_bytes", "server_memory_mib", sum, max, 2.0**20),
    ):
        if values := over_time(name, aggregate):
            columns[column] = summed(values) / per
    cpu_readings = [(at, page["cpu_s"][0]) for at, page in readings if page.get("cpu_s")]
    if len(cpu_readings) > 1:  # a counter: two readings, and the time between them
        (first, before), (last, after) = cpu_readings[0], cpu_readings[-1]
        columns["server_cpu_cores"] = max(0.0, (after - before) / (last - first))
    return columns


@contextlib.contextmanager
def local_usage(url: str) -> Iterator[dict[str, float]]:
    """Watch the process that listens at a loopback address, and all it started; no columns if it cannot be seen."""
    columns: dict[str, float] = {}
    before: tuple[int, float, float] | None = None
    with contextlib.suppress(psutil.Error):
        if pid := listening_pid(url):
            before = pid, cpu_s(pid), time.perf_counter()
    try:
        yield columns
    finally:
        with contextlib.suppress(psutil.Error):
            if before:
                pid, before_s, began = before
                cores = (cpu_s(pid) - before_s) / (time.perf_counter() - began)
                columns |= {"server_cpu_cores": max(0.0, cores), "server_memory_mib": memory_mib(pid)}


def listening_pid(url: str) -> int | None:
    """Return the id of the process that listens at a loopback address; None for another machine or a hidden process."""
    parts = urlsplit(url if "//" in url else f"//{url}")  # gRPC's have no scheme
    with contextlib.suppress(psutil.Error, OSError):  # macOS asks for root
        for connection in psutil.net_connections(kind="tcp") if is_loopback(url) else ():
            is_there = connection.status == psutil.CONN_LISTEN and connection.laddr.port == parts.port
            if is_there and connection.pid:
                return connection.pid
    return None


def process_tree(pid: int) -> list[psutil.Process]:
    """Return a process and all that it started and that still run."""
    whole = psutil.Process(pid)
    return [whole, *whole.children(recursive=True)]


def server_pids(url: str, model: str = "") -> tuple[int, ...]:
    """Return the processes that compute for a server at a loopback address; none where they cannot be seen.

    Args:
        model: of Triton: only the processes of its Python backend that run this model. Triton's own is shared by all.
    """
    pid = listening_pid(url)
    pids = []
    with contextlib.suppress(psutil.Error):
        for process in process_tree(pid) if pid else ():
            with contextlib.suppress(psutil.Error):
                if not model or f"/{model}/" in " ".join(process.cmdline()):
                    pids.append(process.pid)
    return tuple(pids)


def processor_time(pids: Sequence[int]) -> float:
    """Return the processor time that these processes have used so far, seconds; an ended one counts no more."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            times = psutil.Process(pid).cpu_times()
            total += times.user + times.system
    return total


def cpu_s(pid: int) -> float:
    """Return the processor time of a process and all it started, ended ones included, in seconds."""
    whole = process_tree(pid)
    total = processor_time([process.pid for process in whole])
    ended = whole[0].cpu_times()
    return total + getattr(ended, "children_user", 0.0) + getattr(ended, "children_system", 0.0)


def memory_mib(pid: int) -> float:
    """Return the proportional set size of a process and all it started; outside Linux the unique set size."""
    total_bytes = 0
    for process in process_tree(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            memory = process.memory_full_info()
            total_bytes += getattr(memory, "pss", memory.uss)  # pss: Linux only
    return total_bytes / 2**20
