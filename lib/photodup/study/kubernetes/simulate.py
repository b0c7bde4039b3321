"""Simulate one autoscaled Deployment: load, pods, quota, probes, metrics and the autoscaler, second by second.

Everything that a manifest says is read from the manifest (`manifests`); the autoscaler is `autoscaler.hpa`; what a
pod can do is a measured curve (`curve`). Deterministic: no chance anywhere, so equal inputs give equal
results. Requests are a fluid: queueing by chance inside a second is not in here (see `curve.waiting_s`).
Scaling is by the HorizontalPodAutoscaler, never to zero pods: no manifest here asks for that.

Pods that were created together live alike, so they are simulated as one cohort; that makes 10,000 pods as cheap
as ten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from photodup.errors import PhotodupError
from photodup.study.kubernetes.autoscaler.hpa import Autoscaler, Decision, metric_target
from photodup.study.kubernetes.curve import ServiceCurve
from photodup.study.kubernetes.manifests import ScaledDeployment
from photodup.study.kubernetes.pods import Cluster, Cohort, Kubelet, ticks

if TYPE_CHECKING:
    import pandas as pd


# Per-pod metrics an autoscaler may name (type Pods), and metrics of the whole (types Object and External).
POD_METRICS = ("triton_queue_time_ms", "triton_busy_share", "photodup_requests_in_flight")
OUTSIDE_METRICS = ("photodup_requests_pending", "photodup_latency_ms")


@dataclass(frozen=True)
class Load:
    """What clients send: `rate_per_s(t)` (open loop), or `in_flight` kept up by clients that wait (closed loop).

    `from_s` and `until_s` bound either kind.
    """

    rate_per_s: Callable[[float], float] | None = None
    in_flight: int = 0
    from_s: float = 0.0
    until_s: float = float("inf")


@dataclass(frozen=True)
class SimulatedRun:
    """A simulated run: one row per step, the autoscaler's decisions, and events as `kubectl` would word them."""

    steps: pd.DataFrame
    decisions: list[Decision]
    events: list[tuple[float, str]]

    def rescales(self) -> list[tuple[float, int, int]]:
        """Return (time, from, to) of each change of `replicas`."""
        return [(d.time_s, d.current, d.desired) for d in self.decisions if d.desired != d.current]

    def latency_ms(self, quantile: float) -> float:
        """Return a quantile over *requests* (not over seconds) of the fluid latency; NaN without arrivals."""
        steps = self.steps[self.steps["arrived"] > 0].sort_values("latency_ms")
        if steps.empty:
            return float("nan")
        share = steps["arrived"].cumsum() / steps["arrived"].sum()
        return float(steps["latency_ms"].to_numpy()[np.searchsorted(share.to_numpy(), quantile - 1e-12)])

    @property
    def refused_share(self) -> float:
        """Return the share of requests that met no ready pod or a full one."""
        sent = self.steps["arrived"].sum() + self.steps["unrouted"].sum()
        return float((self.steps["refused"].sum() + self.steps["unrouted"].sum()) / sent) if sent else 0.0

    @property
    def pod_hours(self) -> float:
        return float((self.steps["pods"] * self.steps["dt_s"]).sum() / 3600)


def simulate(
    workload: ScaledDeployment,
    curve: ServiceCurve,
    load: Load,
    *,
    duration_s: float,
    cluster: Cluster | None = None,
    dt_s: float = 1.0,
) -> SimulatedRun:
    """Run `load` against `workload` for `duration_s`, beginning with warm pods.

    Raises:
        PhotodupError: no readiness probe, no known start time, or a metric that is not simulated.
    """
    return Simulation(workload, curve, load, cluster or Cluster(), dt_s).run(duration_s)


def where_seconds_decide(
    workload: ScaledDeployment,
    curve: ServiceCurve,
    load: Load,
    *,
    duration_s: float,
    cluster: Cluster | None = None,
) -> list[tuple[float, float]]:
    """Return (from, until) of each stretch whose count depends on when the autoscaler looks, in seconds.

    The run is simulated with syncs a second earlier and later. A count that only comes that much earlier or later
    does not matter; one that stays different for longer does: no simulation foretells it.
    """
    cluster = cluster or Cluster()
    phases = [max(0.0, cluster.sync_phase_s + shift) for shift in (-1.0, 0.0, 1.0)]
    runs = [
        simulate(workload, curve, load, duration_s=duration_s, cluster=replace(cluster, sync_phase_s=phase))
        for phase in phases
    ]
    counts = np.array([run.steps["replicas"] for run in runs])
    edges = np.flatnonzero(np.diff((counts != counts[1]).any(axis=0), prepend=False, append=False))
    stretches = edges.reshape(-1, 2).astype(float)
    return [(start, end) for start, end in stretches if end - start > 2.0]


class Simulation:
    def __init__(
        self, workload: ScaledDeployment, curve: ServiceCurve, load: Load, cluster: Cluster, dt_s: float
    ) -> None:
        self.workload, self.curve, self.load, self.cluster = workload, curve, load, cluster
        self.dt = dt_s
        self.kubelet = Kubelet(workload, curve, cluster, dt_s)
        requests = workload.requests if workload.scaling_requests is None else workload.scaling_requests
        self.hpa = Autoscaler(workload.hpa, requests, cluster.flags)
        check_metrics(self.hpa.metrics)
        names = {metric_target(metric)[2] for metric in self.hpa.metrics}
        if unknown := set(cluster.unreadable) - names:
            raise PhotodupError(
                f"{min(unknown)!r} cannot be unreadable: the autoscaler reads {', '.join(sorted(names))}."
            )
        if self.hpa.min == 0:
            raise PhotodupError("minReplicas 0 is not simulated: give the autoscaler one pod at least.")
        self.replicas = max(workload.replicas, self.hpa.min)
        self.outside: dict[str, float] = {}
        self.totals = dict.fromkeys(("waited_s", "routed"), 0.0)  # since the last sample
        warm = -3600.0
        pods = Cohort(self.replicas, started_s=warm, container_s=warm, ready_changed_s=warm)
        pods.loaded, pods.started, pods.running, pods.ready = self.kubelet.start_s, True, True, True
        self.cohorts = [pods]
        self.events = self.kubelet.events
        self.refused_creation = 0

    def run(self, duration_s: float) -> SimulatedRun:
        import pandas as pd

        rows, decisions = [], []
        cluster, sync_s = self.cluster, self.cluster.sync_phase_s
        for i in range(round(duration_s / self.dt)):
            now = i * self.dt
            if ticks(now, self.dt, cluster.metrics_resolution_s, cluster.metrics_phase_s):
                self._sample(now)
            if now >= sync_s:
                pods = [c for c in self.cohorts if c.active]
                existing = sum(c.count for c in pods)
                decision = self.hpa.sync(sync_s, self.replicas, pods, self.outside, existing=existing)
                sync_s = max(sync_s, now - self.dt) + cluster.flags.sync_period_s + cluster.sync_takes_s
                decisions.append(decision)
                if decision.desired != self.replicas:
                    self.events.append((now, f"SuccessfulRescale New size: {decision.desired}"))
                    self.replicas = decision.desired
            self._reconcile(now)
            rows.append(self._advance(now))
        return SimulatedRun(pd.DataFrame(rows), decisions, self.events)

    def _sample(self, now: float) -> None:
        """Publish each running pod's mean since the last sample; a container younger than that has none."""
        resolution = self.cluster.metrics_resolution_s
        # The first sample of a run covers less than a full period.
        span = min(resolution, now) or resolution
        for c in self.cohorts:
            if c.container_s is not None and c.container_s <= now - resolution:
                loaded = c.loaded >= self.kubelet.start_s
                c.values = self._readable(
                    pod_values(c, self.curve, span, loaded=loaded, metrics=self.hpa.metrics)
                )
                c.sampled_s, c.window_s = now, resolution
            c.cpu_s = c.queue_s = c.arrivals = c.served = 0.0
        waited_s, routed = self.totals["waited_s"], self.totals["routed"]
        whole = {
            "photodup_requests_pending": sum(c.count * c.in_flight for c in self.cohorts),
            "photodup_latency_ms": 1000 * waited_s / routed if routed else 0.0,  # mean since the last sample
        }
        self.outside = self._readable(whole)
        self.totals = dict.fromkeys(self.totals, 0.0)

    def _readable(self, values: dict[str, float]) -> dict[str, float]:
        return {name: value for name, value in values.items() if name not in self.cluster.unreadable}

    def _reconcile(self, now: float) -> None:
        """Do the ReplicaSet's and the quota's work."""
        self.cohorts = [c for c in self.cohorts if not self._gone(c, now)]
        have = sum(c.count for c in self.cohorts if c.active)
        if have > self.replicas:
            self._remove(now, have - self.replicas)
        elif have < self.replicas:
            wanted = self.replicas - have
            limit = self.workload.admitted()
            room = wanted if limit is None else max(0, limit - sum(c.count for c in self.cohorts))
            if room < wanted and self.refused_creation != self.replicas:
                self.events.append(
                    (now, f"FailedCreate exceeded quota: {have + room} of {self.replicas} pods exist")
                )
                self.refused_creation = self.replicas
            if min(room, wanted):
                self.cohorts.append(Cohort(min(room, wanted), started_s=now))
        self._merge(now)

    def _remove(self, now: float, n: int) -> None:
        """Take pods that are not ready first, then the youngest, as the ReplicaSet controller does."""
        for c in sorted((c for c in self.cohorts if c.active), key=lambda c: (c.ready, -c.started_s)):
            take = min(n, c.count)
            n -= take
            if take:
                c.count -= take
                self.cohorts.append(replace(c, count=take, terminating_s=now, values={}))
        self.cohorts = [c for c in self.cohorts if c.count]

    def _gone(self, c: Cohort, now: float) -> bool:
        if c.terminating_s is None:
            return False
        age = now - c.terminating_s
        return age >= self.workload.grace_s or (age >= self.workload.pre_stop_s and c.in_flight < 1e-6)

    def _merge(self, now: float) -> None:
        """Treat old ready pods as one cohort; the load is spread evenly, so they do not differ for long."""
        settled = [
            c for c in self.cohorts if c.active and c.ready and not c.failures and now - c.started_s > 900
        ]
        if len(settled) < 2:
            return
        total = sum(c.count for c in settled)
        first = settled[0]
        for name in ("in_flight", "cpu_s", "queue_s", "arrivals", "served"):
            setattr(first, name, sum(getattr(c, name) * c.count for c in settled) / total)
        known = set.intersection(*(set(c.values) for c in settled))
        first.values = {k: sum(c.values[k] * c.count for c in settled) / total for k in known}
        first.count = total
        self.cohorts = [c for c in self.cohorts if c is first or all(c is not s for s in settled)]

    def _advance(self, now: float) -> dict[str, float]:
        """Let one step pass: route, serve, load models, answer probes."""
        dt, curve = self.dt, self.curve
        routed = [c for c in self.cohorts if c.active and c.ready]
        ready = sum(c.count for c in routed)
        arrived = served = refused = waiting = 0.0
        on = self.load.from_s <= now < self.load.until_s
        sent = dt * self.load.rate_per_s(now) if on and self.load.rate_per_s else 0.0
        unrouted = 0.0 if ready else sent
        for c in self.cohorts:
            before = c.in_flight
            share = sent / ready if c.active and c.ready and ready else 0.0
            if self.load.in_flight and c.active and c.ready:  # clients that wait keep the pod filled
                c.in_flight = self.load.in_flight / ready if on else 0.0
                done = dt * curve.rate_per_s(c.in_flight)
                share = done
            else:
                c.in_flight = curve.step(before, share, dt)
                over = max(0.0, c.in_flight - self.cluster.max_in_flight)
                c.in_flight -= over
                refused += over * c.count
                done = max(0.0, before + share - over - c.in_flight)
            latency = curve.latency_s(c.in_flight)
            arrived, served = arrived + share * c.count, served + done * c.count
            waiting += share * c.count * latency
            c.cpu_s += dt * self.kubelet.cores(c)
            c.queue_s += share * max(0.0, latency - curve.unloaded_s)
            c.arrivals += share
            c.served += done
            refused += c.count * self.kubelet.live(c, now, latency)
        self.totals["waited_s"] += waiting
        self.totals["routed"] += arrived
        active = [c for c in self.cohorts if c.active]
        return {
            "time_s": now,
            "dt_s": dt,
            "replicas": self.replicas,
            "pods": sum(c.count for c in self.cohorts),
            "ready": sum(c.count for c in active if c.ready),
            "arrived": arrived,
            "served": served,
            "refused": refused,
            "unrouted": unrouted,
            "in_flight": sum(c.count * c.in_flight for c in self.cohorts),
            "latency_ms": 1000 * waiting / arrived if arrived else np.nan,
            "restarts": sum(c.count * c.restarts for c in active),
        }


def check_metrics(metrics: Sequence[dict[str, Any]]) -> None:
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
