"""The counters of the FastAPI service on `/metrics`, with the same stages as Triton's.

| here | Triton |
|---|---|
| `photodup_request_stage_seconds{stage="queue"}` | `nv_inference_queue_duration_us` |
| `photodup_request_stage_seconds{stage="compute"}` | `nv_inference_compute_infer_duration_us` |
| `photodup_request_stage_seconds{stage="decode"}` | compute of the decoding step of an ensemble |
| `photodup_inferences_total` (images) | `nv_inference_count` |
| `photodup_executions_total` | `nv_inference_exec_count` |
| `photodup_requests_total{status}` | `nv_inference_request_success`, `_failure` |
| `photodup_gpu_utilization_ratio`, `photodup_gpu_power_watts` | `nv_gpu_utilization`, `nv_gpu_power_usage` |
| `photodup_gpu_memory_used_bytes` | `nv_gpu_memory_used_bytes` |
| `process_cpu_seconds_total`, `process_resident_memory_bytes` | (of the whole machine: `nv_cpu_utilization`) |

GPU and process figures are current values, and absent if not available. Stages are counted per request, so sum divided by
count is the mean of a request; `compute` is the whole execution that it was part of. Counters are cumulative: read them
twice and subtract.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

STAGES = ("receive", "decode", "queue", "compute", "respond")
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class ServiceCounters:
    """Counters of one application, in a registry of its own."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)  # Linux only
        self.gpus = GpuCollector()
        self.registry.register(self.gpus)
        counter = partial(Counter, registry=self.registry)
        stage = Histogram(
            "photodup_request_stage_seconds",
            "Time of a request in a stage: receive (body read and parsed), decode (bytes to pixels), queue, "
            "compute (the execution it was part of), respond (answer encoded)",
            ["stage"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._stages = {name: stage.labels(name) for name in STAGES}
        self._inferences = counter("photodup_inferences", "Images embedded")
        self._executions = counter("photodup_executions", "Executions of the model")
        self._requests = counter("photodup_requests", "Requests for embeddings, by HTTP status", ["status"])
        self.broken_embeddings = counter(
            "photodup_broken_embeddings",
            "Embeddings with NaN, infinities or of length zero, which were not answered with",
        )
        self.in_flight = Gauge(
            "photodup_requests_in_flight", "Requests for embeddings now being served", registry=self.registry
        )

    def observe_stage(self, name: str, seconds: float) -> None:
        self._stages[name].observe(seconds)

    def count_request(self, status: int) -> None:
        self._requests.labels(str(status)).inc()

    def count_execution(self, images: int) -> None:
        self._inferences.inc(images)
        self._executions.inc()

    def page(self) -> bytes:
        """Return the Prometheus text page."""
        return generate_latest(self.registry)


# Name on the page -> description, and how to read it.
_GAUGES: dict[str, tuple[str, Callable[[Any, Any], float]]] = {
    "photodup_gpu_memory_used_bytes": (
        "Memory in use on the GPU, by all that runs on it",
        lambda nvml, gpu: float(nvml.nvmlDeviceGetMemoryInfo(gpu).used),
    ),
    "photodup_gpu_utilization_ratio": (
        "Share of the last moments in which any kernel ran, 0 to 1",
        lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
    ),
    "photodup_gpu_power_watts": (
        "Power that the GPU draws",
        lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
    ),
}


class GpuCollector(Collector):
    """GPU memory, utilisation and power by the GPU's UUID, read from NVIDIA's management library at each scrape.

    Without the package `nvidia-ml-py` (extra `gpu`), a driver or a device the page has no such lines: unknown figures are
    absent, never zero. Not run here on a GPU: this project's own machine has none.
    """

    def __init__(self) -> None:
        try:
            import pynvml

            self._nvml: Any = pynvml
            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
            self._devices: list[Any] = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
        except Exception:  # no package, driver, device or permission: no GPU here
            self._devices = []

    def names(self) -> list[str]:
        """Return the model of each GPU, by its driver's name."""
        return [self._nvml.nvmlDeviceGetName(device) for device in self._devices]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield one metric family for each figure."""
        if not self._devices:
            return
        uuids = [self._nvml.nvmlDeviceGetUUID(device) for device in self._devices]
        for name, (text, read) in _GAUGES.items():
            family = GaugeMetricFamily(name, text, labels=["gpu"])
            for uuid, device in zip(uuids, self._devices, strict=True):
                with contextlib.suppress(Exception):  # slices (MIG) tell no utilisation, some cards no power
                    family.add_metric([uuid], read(self._nvml, device))
            yield family
