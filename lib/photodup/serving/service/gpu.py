"""GPU memory, utilisation and power where the service runs, read from NVIDIA's management library at each scrape.

The package is `nvidia-ml-py` (extra `gpu`). Without it, a driver or a device there are no such lines on the page:
what is not known is absent, never zero. Not run here on a GPU: this project's own machine has none.
"""

from collections.abc import Iterator
from typing import Any

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

_GAUGES = {
    "photodup_gpu_memory_used_bytes": "Memory in use on the GPU, by all that runs on it",
    "photodup_gpu_utilization_ratio": "Share of the last moments in which any kernel ran, 0 to 1",
    "photodup_gpu_power_watts": "Power that the GPU draws",
}


class GpuCollector(Collector):
    """Lines for each GPU, labelled with its UUID; none where there is no GPU.

    Args:
        nvml: the module `pynvml`, or what answers like it; None imports it.
    """

    def __init__(self, nvml: Any = None) -> None:
        self._nvml, self._devices = nvml, []
        try:
            if self._nvml is None:
                import pynvml

                self._nvml = pynvml
            self._nvml.nvmlInit()
            count = self._nvml.nvmlDeviceGetCount()
            self._devices = [self._nvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
        except Exception:  # no package, no driver, no device, no right: all mean "no GPU here"
            self._devices = []

    def describe(self) -> Iterator[Any]:
        """Return nothing: the registry need not ask the driver when it is made."""
        return iter(())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield one family a figure."""
        if not self._devices:
            return
        families = {name: GaugeMetricFamily(name, text, labels=["gpu"]) for name, text in _GAUGES.items()}
        for device in self._devices:
            for name, value in self._read(device).items():
                families[name].add_metric([self._uuid(device)], value)
        yield from families.values()

    def _read(self, device: Any) -> dict[str, float]:
        nvml, found = self._nvml, {}
        readings = {
            "photodup_gpu_memory_used_bytes": lambda: float(nvml.nvmlDeviceGetMemoryInfo(device).used),
            "photodup_gpu_utilization_ratio": lambda: nvml.nvmlDeviceGetUtilizationRates(device).gpu / 100,
            "photodup_gpu_power_watts": lambda: nvml.nvmlDeviceGetPowerUsage(device) / 1000,
        }
        for name, read in readings.items():
            try:
                found[name] = read()
            except Exception:  # a GPU in slices (MIG) tells no utilisation, some cards no power
                continue
        return found

    def _uuid(self, device: Any) -> str:
        uuid = self._nvml.nvmlDeviceGetUUID(device)
        return uuid.decode() if isinstance(uuid, bytes) else str(uuid)
