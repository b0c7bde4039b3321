"""How pods live: created, started, probed, restarted. One object stands for pods created at the same moment."""

from __future__ import annotations

from dataclasses import dataclass, field

from photodup.errors import PhotodupError
from photodup.study.kubernetes.autoscaler.replicas import ControllerFlags, PodView
from photodup.study.kubernetes.curve import ServiceCurve
from photodup.study.kubernetes.manifests import Probe, ScaledDeployment


@dataclass(frozen=True)
class Cluster:
    """What no manifest says: the machine and the delays around the autoscaler, in seconds.

    Attributes:
        pod_start_s: from creation to a running container: scheduling, image already there. Add the time a new
            node takes where pods bring nodes.
        start_s: from a running container to a server that would answer /readyz; the Deployment's annotation
            by default.
        metrics_resolution_s: how often metrics-server (or Prometheus) samples; 60 in old installations.
        sync_takes_s: what one sync takes. The controller waits its period after a sync, so two are 15.05 s apart.
        unreadable: metrics, by name, that the autoscaler gets no answer for.
        max_in_flight: requests a pod holds before it answers 503.
        probes_share_inference: a probe waits behind the requests, as in a server that computes in its
            event loop.
    """

    pod_start_s: float = 2.0
    start_s: float | None = None
    metrics_resolution_s: float = 15.0
    metrics_phase_s: float = 7.0
    sync_phase_s: float = 4.0
    sync_takes_s: float = 0.05
    unreadable: tuple[str, ...] = ()
    max_in_flight: float = 256.0
    probes_share_inference: bool = False
    flags: ControllerFlags = field(default_factory=ControllerFlags)


@dataclass
class Cohort(PodView):
    """Pods created at the same moment: what the controller knows of them, and what it does not.

    They stay `running` while a failed container waits to be restarted, as in Kubernetes.
    """

    running: bool = False
    ready: bool = False
    schedulable: bool = True
    container_s: float | None = None  # when the container last started
    loaded: float = 0.0  # seconds of start-up work done
    started: bool = False  # the startup probe has passed
    in_flight: float = 0.0
    failures: int = 0  # of the readiness probe, in a row
    deaths: int = 0  # of the liveness probe, in a row
    restarts: int = 0
    terminating_s: float | None = None
    cpu_s: float = 0.0  # since the last sample
    queue_s: float = 0.0  # waiting of the arrivals since the last sample, summed
    arrivals: float = 0.0
    served: float = 0.0

    @property
    def active(self) -> bool:
        return self.terminating_s is None


class Kubelet:
    """Moves cohorts through their life by the workload's probes and the cluster's delays.

    Raises:
        PhotodupError: no readiness probe, or a start time that nobody states.
    """

    def __init__(
        self, workload: ScaledDeployment, curve: ServiceCurve, cluster: Cluster, dt_s: float
    ) -> None:
        if workload.readiness is None:
            raise PhotodupError(f"{workload.name} has no readinessProbe: give it one before simulating.")
        start_s = cluster.start_s if cluster.start_s is not None else workload.start_s
        if start_s is None:
            raise PhotodupError(f"{workload.name} says nowhere how long it starts: give start_s.")
        self.workload, self.curve, self.cluster, self.dt = workload, curve, cluster, dt_s
        self.readiness, self.start_s = workload.readiness, start_s
        self.events: list[tuple[float, str]] = []

    def cores(self, c: Cohort) -> float:
        """Return the CPU one pod of the cohort wants now, its limit at most."""
        limit = self.workload.limits.get("cpu", float("inf"))
        if c.container_s is None:
            return 0.0
        return min(
            limit, self.curve.cpu_cores[-1] if c.loaded < self.start_s else self.curve.cores(c.in_flight)
        )

    def live(self, c: Cohort, now: float, latency_s: float) -> float:
        """Move a cohort through its life; return the requests in flight that a restart lost, per pod."""
        if not c.active or not c.schedulable:
            return 0.0
        if c.container_s is None:
            backoff = min(300.0, 10.0 * 2 ** (c.restarts - 1)) if c.restarts else 0.0
            if (
                now + self.dt >= c.ready_changed_s + backoff
                and now + self.dt >= c.started_s + self.cluster.pod_start_s
            ):
                c.container_s, c.running = now + self.dt, True
            return 0.0
        age = now + self.dt - c.container_s
        c.loaded += self.dt
        up = c.loaded >= self.start_s
        answer_s = latency_s if up and self.cluster.probes_share_inference else 0.0
        if not c.started:
            guard = self.workload.startup
            if guard is None or (up and self._probed(guard, age)):
                c.started = True
            elif age > guard.budget_s:
                return self._restart(c, now)
        if not c.started:
            return 0.0
        if self._probed(self.readiness, age):
            ok = up and answer_s <= self.readiness.timeout_s
            c.failures = 0 if ok else c.failures + 1
            if ok != c.ready and (ok or c.failures >= self.readiness.failure_threshold):
                c.ready, c.ready_changed_s = ok, now + self.dt
        live = self.workload.liveness
        if live is not None and self._probed(live, age):
            c.deaths = 0 if up and answer_s <= live.timeout_s else c.deaths + 1
            if c.deaths >= live.failure_threshold:
                return self._restart(c, now)
        return 0.0

    def _restart(self, c: Cohort, now: float) -> float:
        lost, c.in_flight = c.in_flight, 0.0
        c.container_s, c.loaded, c.started, c.ready = None, 0.0, False, False
        c.failures = c.deaths = 0
        c.ready_changed_s, c.restarts, c.values = now, c.restarts + 1, {}
        self.events.append((now, f"Killing {c.count} pods failed their probe and are restarted"))
        return lost

    def _probed(self, probe: Probe, age_s: float) -> bool:
        """Say whether a probe runs in the step that ends at this age of the container."""
        return ticks(age_s, self.dt, probe.period_s, probe.initial_delay_s)


def ticks(now: float, dt: float, period: float, phase: float) -> bool:
    """Say whether what happens every `period` from `phase` on happens in the step that ends at `now`."""
    since = now - phase
    return since >= 0 and since // period > (since - dt) // period
