"""Which signal should scale a Deployment? Each gets the same budget of pod hours, and what it buys is compared.

A signal with a generous target runs more pods and answers faster, so targets chosen by hand compare nothing. Here the
target of each is searched until the run costs what was asked for; only then latencies stand side by side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from photodup.errors import PhotodupError
from photodup.study.kubernetes.curve import ServiceCurve
from photodup.study.kubernetes.manifests import ScaledDeployment
from photodup.study.kubernetes.simulate import Load, SimulatedRun, simulate

STEPS = 10  # of the search for a target


@dataclass(frozen=True)
class Signal:
    """A metric whose target is free: `least` to `most` in `unit`, searched on a logarithmic scale.

    `kind`, `metric_name` and `aim` are the type, the metric and the target's type of the entry in `spec.metrics`.
    """

    name: str
    unit: str
    least: float
    most: float
    kind: str
    metric_name: str
    aim: str = "AverageValue"

    def metric(self, target: float) -> dict[str, Any]:
        """Return the entry for `spec.metrics` with this target."""
        if self.kind == "Resource":
            per_cent = {"type": self.aim, "averageUtilization": max(1, round(target))}
            return {"type": self.kind, "resource": {"name": self.metric_name, "target": per_cent}}
        field = {"AverageValue": "averageValue", "Value": "value"}[self.aim]
        aim = {"type": self.aim, field: f"{max(1, round(target * 1000))}m"}
        return {"type": self.kind, self.kind.lower(): {"metric": {"name": self.metric_name}, "target": aim}}


SIGNALS = (
    Signal("CPU", "% of request", 5, 800, "Resource", "cpu", "Utilization"),
    Signal("queue time", "ms", 0.5, 20_000, "Pods", "triton_queue_time_ms"),
    # Latency over its objective, whatever the number of pods.
    Signal("SLO", "ms", 5, 60_000, "External", "photodup_latency_ms", "Value"),
    Signal("requests pending", "per pod", 0.05, 200, "External", "photodup_requests_pending"),
)


def compare_signals(
    workload: ScaledDeployment,
    curve: ServiceCurve,
    load: Load,
    *,
    pod_hours: float,
    duration_s: float,
    signals: tuple[Signal, ...] = SIGNALS,
    **how: Any,
) -> list[dict[str, Any]]:
    """Return one row per signal at the target whose run comes nearest to `pod_hours`.

    Rows are not rounded: `signal`, `target`, `unit`, `pod_hours`, `pods_peak`, `latency_ms_p50`, `latency_ms_p99`,
    `refused_share` and `rescales`. The cluster and the step of time are given as `simulate` takes them.

    Raises:
        PhotodupError: the budget is below what minReplicas cost, or above maxReplicas.
    """
    hours = duration_s / 3600
    least, most = int(workload.hpa["minReplicas"]) * hours, workload.max_replicas * hours
    if not least <= pod_hours <= most:
        raise PhotodupError(
            f"{pod_hours:g} pod hours cannot be had: minReplicas cost {least:g}, maxReplicas {most:g}."
        )
    rows = []
    for signal in signals:
        tried: list[tuple[float, float, SimulatedRun]] = []
        low, high = math.log(signal.least), math.log(signal.most)
        for _ in range(STEPS):
            target = math.exp((low + high) / 2)
            made = replace(workload, hpa={**workload.hpa, "metrics": [signal.metric(target)]})
            outcome = simulate(made, curve, load, duration_s=duration_s, **how)
            tried.append((abs(outcome.pod_hours - pod_hours), target, outcome))
            if outcome.pod_hours > pod_hours:
                low = math.log(target)  # too dear: aim higher
            else:
                high = math.log(target)
        _, target, outcome = min(tried, key=lambda row: row[0])
        rows.append(
            {
                "signal": signal.name,
                "target": target,
                "unit": signal.unit,
                "pod_hours": outcome.pod_hours,
                "pods_peak": int(outcome.steps["pods"].max()),
                "latency_ms_p50": outcome.latency_ms(0.5),
                "latency_ms_p99": outcome.latency_ms(0.99),
                "refused_share": outcome.refused_share,
                "rescales": len(outcome.rescales()),
            }
        )
    return rows
