"""What one pod can do: a measured service-time curve, and the waiting that chance adds to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from photodup.bench.load.usage import local_server
from photodup.errors import PhotodupError


@dataclass(frozen=True)
class ServiceCurve:
    """Throughput of one pod by requests in flight, as a closed loop measures it.

    Between the measured points it is linear, before the first it is proportional, after the last it is flat:
    what is sent beyond waits. `cpu_cores` is the CPU time the pod took per second at the same points.

    Args:
        in_flight: requests in flight, ascending, the first usually 1.
        throughput_per_s: images per second at each; made non-decreasing (a measured dip is noise or thrashing,
            and either way more waiting does not serve faster).
        cpu_cores: cores at each.
    """

    in_flight: tuple[float, ...]
    throughput_per_s: tuple[float, ...]
    cpu_cores: tuple[float, ...]

    def __post_init__(self) -> None:
        n, x, cpu = self.in_flight, self.throughput_per_s, self.cpu_cores
        if not (len(n) == len(x) == len(cpu) > 0) or list(n) != sorted(set(n)) or min(*n, *x) <= 0:
            raise PhotodupError(
                "A service curve needs ascending concurrencies with a throughput and CPU each."
            )
        object.__setattr__(self, "throughput_per_s", tuple(np.maximum.accumulate(x).tolist()))

    @classmethod
    def from_points(cls, points: list[Mapping[str, Any]], *, cpu_cores: float) -> ServiceCurve:
        """Make a curve of closed-loop points (see `bench.load.measure`).

        The busiest point is taken to use all of `cpu_cores`, the pod's limit (published: 1988m of 2000m), and
        the others the same share of it as they measured: the load generator on the same machine takes CPU that
        a pod of its own would have. A point without `server_cpu_cores` counts as busy.

        Raises:
            PhotodupError: none of the points was measured.
        """
        usable = sorted(
            (p for p in points if p.get("throughput_images_per_s")), key=lambda p: p["concurrency"]
        )
        if not usable:
            reason = next((p.get("error") or p.get("invalid_because") for p in points), "there are none")
            raise PhotodupError(f"No point of the service curve was measured: {reason}.")
        used = [p.get("server_cpu_cores") for p in usable]
        most = max((u for u in used if u), default=1.0)
        return cls(
            tuple(float(p["concurrency"]) for p in usable),
            tuple(float(p["throughput_images_per_s"]) for p in usable),
            tuple(cpu_cores * (u or most) / most for u in used),
        )

    @property
    def capacity_per_s(self) -> float:
        """Return the most images per second that one pod serves."""
        return self.throughput_per_s[-1]

    @property
    def unloaded_s(self) -> float:
        """Return the latency of a lone request, in seconds."""
        return self.in_flight[0] / self.throughput_per_s[0]

    def rate_per_s(self, in_flight: float) -> float:
        return float(np.interp(in_flight, (0.0, *self.in_flight), (0.0, *self.throughput_per_s)))

    def cores(self, in_flight: float) -> float:
        """Return the CPU in use; below one request in flight the pod is idle part of the time."""
        return float(np.interp(in_flight, (0.0, *self.in_flight), (0.0, *self.cpu_cores)))

    def latency_s(self, in_flight: float) -> float:
        """Return the mean time in the pod by Little's law."""
        if in_flight <= self.in_flight[0]:
            return self.unloaded_s
        return in_flight / self.rate_per_s(in_flight)

    def step(self, in_flight: float, arrivals: float, dt_s: float) -> float:
        """Return the requests in flight after `dt_s` in which `arrivals` came; stable for any step.

        The implicit step n' + dt·X(n') = n + arrivals has one solution, because X does not decrease.
        """
        n = np.array((0.0, *self.in_flight))
        done = dt_s * np.array((0.0, *self.throughput_per_s))
        total = in_flight + arrivals
        if total >= n[-1] + done[-1]:
            return float(total - done[-1])
        return float(np.interp(total, n + done, n))


@lru_cache(maxsize=256)
def waiting_s(utilisation: float, service_s: float, quantile: float, n: int = 400_000) -> float:
    """Return a quantile of the wait in one pod with Poisson arrivals and a constant service time (M/D/1).

    Requests that are spread over pods at random, as kube-proxy does it, give each pod a queue of its own:
    many pods do not pool their waiting. Simulated by Lindley's recursion with a fixed seed.

    Raises:
        PhotodupError: a utilisation of 1 or more has no steady state.
    """
    if not 0 <= utilisation < 1:
        raise PhotodupError(f"At utilisation {utilisation:.2f} the queue grows for ever: add pods.")
    if utilisation == 0:
        return 0.0
    gaps = np.random.default_rng(0).exponential(service_s / utilisation, n)
    walk = np.concatenate([[0.0], np.cumsum(service_s - gaps)])
    return float(np.quantile(walk - np.minimum.accumulate(walk), quantile))


def cpu_probe(url: str) -> Callable[[], Any]:
    """Return a probe for `bench.load.measure`: column `server_cpu_cores` of the local server at `url`.

    A server on another machine, or one that hides, leaves the column out.
    """

    @contextmanager
    def window() -> Iterator[dict[str, Any]]:
        found: dict[str, Any] = {}
        server, since = local_server(url), time.perf_counter()
        yield found
        used = server.columns(time.perf_counter() - since) if server else {}
        found |= {name: round(cores, 3) for name, cores in used.items() if name == "server_cpu_cores"}

    return window


def measure_start(weights: str, *, repeats: int = 3) -> dict[str, Any]:
    """Start the FastAPI service on this machine `repeats` times; return seconds until /readyz, `start_s` each.

    What a pod does after its container runs: import, weights, first batch. The page cache is warm, as on a node
    that already runs a pod of this image.
    """
    from photodup.serving.service.start import ServiceProcess

    taken = []
    for _ in range(repeats):
        with ServiceProcess(settings={"MODEL_PRETRAINED": weights}) as service:
            taken.append(round(service.ready_s, 2))
    return {"start_s": taken}
