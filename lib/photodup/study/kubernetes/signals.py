"""What an autoscaler can see of a simulated Deployment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from photodup.errors import PhotodupError
from photodup.study.kubernetes.autoscaler.hpa import metric_target
from photodup.study.kubernetes.curve import ServiceCurve
from photodup.study.kubernetes.pods import Cohort

# Per-pod metrics an autoscaler may name (type Pods), and metrics of the whole (types Object and External).
POD_METRICS = ("triton_queue_time_ms", "triton_busy_share", "photodup_requests_in_flight")
OUTSIDE_METRICS = ("photodup_requests_pending", "photodup_latency_ms")


def check(metrics: Sequence[dict[str, Any]]) -> None:
    """Raise PhotodupError at a metric that is not simulated."""
    for metric in metrics:
        kind, _, name = metric_target(metric)
        known = {"Pods": POD_METRICS, "Object": OUTSIDE_METRICS, "External": OUTSIDE_METRICS}.get(kind)
        if name not in (known or ("cpu",)) and not (kind == "ContainerResource" and name.endswith("/cpu")):
            names = ", ".join(("cpu", *POD_METRICS, *OUTSIDE_METRICS))
            raise PhotodupError(f"Metric {name!r} of type {kind} is not simulated: use {names}.")


def pod_values(
    c: Cohort, curve: ServiceCurve, span_s: float, *, loaded: bool, metrics: Sequence[dict[str, Any]]
) -> dict[str, float]:
    """Return one pod's sample over the last `span_s` seconds.

    The kubelet sees the CPU of a container that still loads its model. The server's own metrics do not exist before
    it has loaded: such a pod is missing, which is not the same as zero.
    """
    values = {"cpu": c.cpu_s / span_s}
    for kind, _, name in map(metric_target, metrics):
        if kind == "ContainerResource":
            values[name] = values["cpu"]  # the pod is simulated as one container
    if loaded:
        values |= {
            "triton_queue_time_ms": 1000 * c.queue_s / c.arrivals if c.arrivals else 0.0,
            "triton_busy_share": c.served / span_s / curve.capacity_per_s,
            "photodup_requests_in_flight": c.in_flight,
        }
    return values


def outside_values(pending: float, waited_s: float, routed: float) -> dict[str, float]:
    """Return the metrics of the whole: requests pending now, and the mean latency since the last sample."""
    return {
        "photodup_requests_pending": pending,
        "photodup_latency_ms": 1000 * waited_s / routed if routed else 0.0,
    }
