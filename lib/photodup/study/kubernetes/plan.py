"""Answer on paper: pods, GPUs, money and tail latency for a demand this laboratory cannot send.

The same simulator, the same manifests, a measured (or published) curve of one pod, a day at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from photodup.study.kubernetes.curve import ServiceCurve, waiting_s
from photodup.study.kubernetes.manifests import ScaledDeployment
from photodup.study.kubernetes.simulate import Cluster, Load, SimulatedRun, simulate

DAY_S = 86_400.0
HOURS_PER_MONTH = 730.0


@dataclass(frozen=True)
class Demand:
    """Images per second over a day: a sine around the mean, and once a spike on top.

    Attributes:
        mean_per_s: mean without the spike.
        swing: height of the sine as a share of the mean; the trough is at 4 h, the peak at 16 h.
        spike: factor on what the cycle gives at that moment.
    """

    mean_per_s: float
    swing: float = 0.6
    spike: float = 10.0
    spike_from_s: float = 14 * 3600.0
    spike_for_s: float = 600.0
    spike_ramp_s: float = 60.0

    def rate_per_s(self, t: float) -> float:
        cycle = self.mean_per_s * (1 + self.swing * math.sin(2 * math.pi * (t / DAY_S - 10 / 24)))
        into = t - self.spike_from_s
        up = min(1.0, max(0.0, into / self.spike_ramp_s))
        down = min(1.0, max(0.0, (self.spike_for_s - into) / self.spike_ramp_s))
        return cycle * (1 + (self.spike - 1) * min(up, down))

    @property
    def peak_per_s(self) -> float:
        return max(self.rate_per_s(t) for t in range(0, int(DAY_S), 30))

    @property
    def trough_per_s(self) -> float:
        return self.mean_per_s * (1 - self.swing)


@dataclass(frozen=True)
class PodType:
    """One way to buy capacity.

    Attributes:
        workload: from the manifests; its autoscaler's bounds are replaced by what the demand needs.
        price_per_hour_usd: of one pod.
        node_start_s: how long the machine under a new pod takes to come up, on top of the pod's own start.
    """

    name: str
    workload: ScaledDeployment
    curve: ServiceCurve
    price_per_hour_usd: float
    node_start_s: float


def size(pod: PodType, demand: Demand, *, floor_share: float, utilisation: float = 0.6) -> ScaledDeployment:
    """Return the pod's workload with bounds for this demand and no quota.

    Args:
        floor_share: minReplicas as a share of what the spike needs; 0 keeps only what the trough needs.
        utilisation: how full a pod is meant to be.
    """
    each = pod.curve.capacity_per_s * utilisation
    most = math.ceil(demand.peak_per_s / each)
    least = max(2, math.ceil(demand.trough_per_s / each), math.ceil(floor_share * most))
    hpa = {**pod.workload.hpa, "minReplicas": least, "maxReplicas": max(most, least)}
    return replace(pod.workload, replicas=least, hpa=hpa, quota=None)


def simulate_day(pod: PodType, demand: Demand, *, floor_share: float, dt_s: float = 5.0) -> SimulatedRun:
    """Simulate one day, beginning at midnight with minReplicas."""
    workload, load = size(pod, demand, floor_share=floor_share), Load(rate_per_s=demand.rate_per_s)
    cluster = Cluster(pod_start_s=2.0 + pod.node_start_s)
    return simulate(workload, pod.curve, load, duration_s=DAY_S, cluster=cluster, dt_s=dt_s)


def summarize(pod: PodType, demand: Demand, outcome: SimulatedRun) -> dict[str, Any]:
    """Return one row of the table: counts, money, and latency.

    `wait_ms_p99_by_chance` is what random arrivals add in the busiest hour outside the spike (M/D/1 in each
    pod, requests spread at random); the other latencies come from the fluid and know no chance.
    """
    steps = outcome.steps
    in_spike = steps["time_s"].between(demand.spike_from_s, demand.spike_from_s + demand.spike_for_s + 900)
    calm = steps[~in_spike & (steps["ready"] > 0)]
    fullness = (calm["arrived"] / calm["dt_s"] / calm["ready"] / pod.curve.capacity_per_s).clip(upper=0.99)
    busiest = round(float(fullness.rolling(720).mean().max()), 2)
    spike = steps[in_spike]
    return {
        "pod": pod.name,
        "mean_per_s": demand.mean_per_s,
        "pods_mean": outcome.pod_hours / 24,
        "pods_peak": int(steps["pods"].max()),
        "gpus_peak": int(steps["pods"].max() * pod.workload.requests.get("nvidia.com/gpu", 0)),
        "usd_per_month": outcome.pod_hours / 24 * HOURS_PER_MONTH * pod.price_per_hour_usd,
        "usd_per_million": outcome.pod_hours * pod.price_per_hour_usd / steps["served"].sum() * 1e6,
        "wait_ms_p99_by_chance": 1000 * waiting_s(busiest, 1 / pod.curve.capacity_per_s, 0.99),
        "latency_ms_p99_calm": SimulatedRun(calm, [], []).latency_ms(0.99),
        "latency_ms_p99_spike": SimulatedRun(spike, [], []).latency_ms(0.99),
        "refused_share_spike": SimulatedRun(spike, [], []).refused_share,
    }
