"""The HorizontalPodAutoscaler's decision, step by step as the controller takes it.

Source of the rules: Kubernetes' page "Horizontal Pod Autoscaling" and the controller's packages
`podautoscaler/replica_calculator` and `podautoscaler/horizontal`, as of 1.35. Written anew from what they do.

Four surprises that the simulator shows:
- The count that is multiplied is the number of *ready* pods, while limits apply to the Deployment's `replicas`,
  which may be more than exist when a quota refuses pods.
- A pod that is not ready, or has no sample taken since it became ready, counts as 0 % when scaling up. So
  starting pods damp the next step.
- `behavior` with only one field changes the others' defaults: from 2 pods, 4 at most without it, 6 with it.
- A scale-up is not delayed by `scaleDown.stabilizationWindowSeconds`, a scale-down is by the largest
  recommendation of that window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from photodup.errors import PhotodupError
from photodup.study.kubernetes.manifests import quantity

_DEFAULT_UP = {
    "stabilizationWindowSeconds": 0,
    "selectPolicy": "Max",
    "policies": [
        {"type": "Pods", "value": 4, "periodSeconds": 15},
        {"type": "Percent", "value": 100, "periodSeconds": 15},
    ],
}
_DEFAULT_DOWN = {
    "selectPolicy": "Max",
    "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}],
}


@dataclass(frozen=True)
class ControllerFlags:
    """kube-controller-manager's flags, with its defaults."""

    sync_period_s: float = 15.0
    tolerance: float = 0.1
    cpu_initialization_period_s: float = 300.0
    initial_readiness_delay_s: float = 30.0
    downscale_stabilization_s: float = 300.0


@dataclass(frozen=True)
class PodView:
    """What the controller knows of `count` pods that are alike.

    `values` holds the last sample by metric name (`cpu` in cores), taken at `sampled_s` over the `window_s`
    seconds before. A metric that is not in it has not been sampled.
    """

    count: int = 1
    running: bool = True
    ready: bool = True
    started_s: float = 0.0
    ready_changed_s: float = 0.0
    values: dict[str, float] = field(default_factory=dict)
    sampled_s: float = 0.0
    window_s: float = 15.0


@dataclass(frozen=True)
class Decision:
    """One sync: what the metrics asked for and what became of it."""

    time_s: float
    current: int
    ratio: float | None
    proposal: int | None
    stabilized: int
    desired: int
    why: str


class Autoscaler:
    """One HorizontalPodAutoscaler with the controller's memory of it.

    Args:
        spec: the object's `spec`, as in the manifest.
        requests: what one pod requests, by resource, in base units.
    """

    def __init__(
        self, spec: dict[str, Any], requests: dict[str, float], flags: ControllerFlags | None = None
    ) -> None:
        self.flags = flags or ControllerFlags()
        self.min, self.max = int(spec.get("minReplicas", 1)), int(spec["maxReplicas"])
        if not 1 <= self.min <= self.max:
            raise PhotodupError(
                f"minReplicas {self.min} and maxReplicas {self.max} leave no choice: fix them."
            )
        self.metrics, self.requests = spec["metrics"], requests
        behavior = spec.get("behavior")
        self.has_behavior = behavior is not None
        behavior = behavior or {}
        self.up = {**_DEFAULT_UP, **(behavior.get("scaleUp") or {})}
        self.down = {
            "stabilizationWindowSeconds": self.flags.downscale_stabilization_s,
            **_DEFAULT_DOWN,
            **(behavior.get("scaleDown") or {}),
        }
        self._recommendations: list[tuple[float, int]] = []
        self._added: list[tuple[float, int]] = []
        self._removed: list[tuple[float, int]] = []

    def sync(self, now_s: float, current: int, pods: Sequence[PodView]) -> Decision:
        """Return the decision at `now_s` for a Deployment whose `replicas` is `current`; remember it."""
        ratio, proposal = None, None
        if current > self.max:
            stabilized = desired = self.max
            why = "above maxReplicas"
        elif current < self.min:
            stabilized = desired = self.min
            why = "below minReplicas"
        else:
            ratio, proposal = self._propose(now_s, current, pods)
            if proposal is None:
                return Decision(now_s, current, ratio, None, current, current, "no metrics")
            if not self._recommendations:
                self._recommendations.append((now_s, current))
            if self.has_behavior:
                stabilized = self._stabilize(now_s, current, proposal)
                desired = self._limit(now_s, current, stabilized)
            else:
                stabilized = self._stabilize_without_behavior(now_s, proposal)
                cap = min(self.max, max(2 * current, 4))
                desired = min(max(stabilized, self.min), cap)
            why = _why(current, proposal, stabilized, desired)
        if self.has_behavior and desired != current:
            events = self._added if desired > current else self._removed
            events.append((now_s, abs(desired - current)))
        return Decision(now_s, current, ratio, proposal, stabilized, desired, why)

    def _propose(self, now: float, current: int, pods: Sequence[PodView]) -> tuple[float | None, int | None]:
        """Return the usage ratio and count of the metric that asks for most; None when nothing can be said."""
        found = [self._one_metric(metric, now, current, pods) for metric in self.metrics]
        known = [answer for answer in found if answer is not None]
        if not known:
            return None, None
        ratio, proposal = max(known, key=lambda answer: answer[1])
        if len(known) < len(found) and proposal < current:
            return ratio, None  # a metric that cannot be read might have forbidden it
        return ratio, proposal

    def _one_metric(
        self, metric: dict[str, Any], now: float, current: int, pods: Sequence[PodView]
    ) -> tuple[float, int] | None:
        if metric["type"] == "Resource":
            name, target = metric["resource"]["name"], metric["resource"]["target"]
            if target["type"] == "Utilization":
                each = round(self.requests[name] * 1000)
                return self._replicas(name, each, int(target["averageUtilization"]), now, current, pods, name)
            goal = quantity(target["averageValue"])
            return self._replicas(name, 0, round(goal * 1000), now, current, pods, name)
        if metric["type"] == "Pods":
            name, target = metric["pods"]["metric"]["name"], metric["pods"]["target"]
            return self._replicas(
                name, 0, round(quantity(target["averageValue"]) * 1000), now, current, pods, ""
            )
        raise PhotodupError(f"Metric type {metric['type']!r} is not simulated: use Resource or Pods.")

    def _replicas(
        self,
        name: str,
        request: int,
        target: int,
        now: float,
        current: int,
        pods: Sequence[PodView],
        resource: str,
    ) -> tuple[float, int] | None:
        """Return (usage ratio, replicas) for one metric, or None without a usable sample.

        `request` is in thousandths for a utilisation target (per cent), 0 for a plain one (thousandths).
        """
        ready, unready, missing = 0, 0, 0
        samples: list[tuple[int, int]] = []  # count, value in thousandths
        for pod in pods:
            if not pod.running:
                unready += pod.count
            elif name not in pod.values:
                missing += pod.count
            elif resource == "cpu" and self._sets_aside(pod, now):
                unready += pod.count
            else:
                ready += pod.count
                samples.append((pod.count, round(pod.values[name] * 1000)))
        if not samples:
            return None
        ratio = _ratio(samples, request, target)
        waiting = unready > 0 and ratio > 1.0
        if not waiting and not missing:
            return ratio, current if self._tolerates(ratio) else math.ceil(ratio * ready)
        if missing and ratio < 1.0:
            samples.append((missing, request * max(100, target) // 100 if request else target))
        elif missing and ratio > 1.0:
            samples.append((missing, 0))
        if waiting:
            samples.append((unready, 0))
        again = _ratio(samples, request, target)
        if self._tolerates(again) or (ratio < 1.0 < again) or (again < 1.0 < ratio):
            return ratio, current
        replicas = math.ceil(again * sum(count for count, _ in samples))
        if (again < 1.0 and replicas > current) or (again > 1.0 and replicas < current):
            return ratio, current
        return ratio, replicas

    def _sets_aside(self, pod: PodView, now: float) -> bool:
        """Say whether a running pod's CPU sample is not believed yet."""
        if pod.started_s + self.flags.cpu_initialization_period_s > now:
            return not pod.ready or pod.sampled_s < pod.ready_changed_s + pod.window_s
        never_ready = pod.started_s + self.flags.initial_readiness_delay_s > pod.ready_changed_s
        return not pod.ready and never_ready

    def _tolerates(self, ratio: float) -> bool:
        up = float(self.up.get("tolerance", self.flags.tolerance))
        down = float(self.down.get("tolerance", self.flags.tolerance))
        return 1.0 - down <= ratio <= 1.0 + up

    def _stabilize_without_behavior(self, now: float, proposal: int) -> int:
        window = self.flags.downscale_stabilization_s
        self._forget(now, window)
        self._recommendations.append((now, proposal))
        return max(count for at, count in self._recommendations if at >= now - window)

    def _stabilize(self, now: float, current: int, proposal: int) -> int:
        windows = [float(rules["stabilizationWindowSeconds"]) for rules in (self.up, self.down)]
        low = min([proposal, *(n for at, n in self._recommendations if at > now - windows[0])])
        high = max([proposal, *(n for at, n in self._recommendations if at > now - windows[1])])
        self._forget(now, max(windows))
        self._recommendations.append((now, proposal))
        return min(max(current, low), high)

    def _forget(self, now: float, window: float) -> None:
        self._recommendations = [(at, n) for at, n in self._recommendations if at >= now - window]

    def _limit(self, now: float, current: int, desired: int) -> int:
        """Apply the rate policies and [min, max]."""
        if desired > current:
            return min(desired, self.max, max(current, self._rate_limit(now, current, self.up, up=True)))
        if desired < current:
            return max(desired, self.min, min(current, self._rate_limit(now, current, self.down, up=False)))
        return desired

    def _rate_limit(self, now: float, current: int, rules: dict[str, Any], *, up: bool) -> int:
        if rules["selectPolicy"] == "Disabled":
            return current
        limits = []
        for policy in rules["policies"]:
            since = now - policy["periodSeconds"]
            added = sum(n for at, n in self._added if at > since)
            removed = sum(n for at, n in self._removed if at > since)
            start = current - added + removed
            if policy["type"] == "Pods":
                limits.append(start + policy["value"] if up else start - policy["value"])
            elif up:
                limits.append(math.ceil(start * (1 + policy["value"] / 100)))
            else:
                limits.append(int(start * (1 - policy["value"] / 100)))
        most_change = max if up else min
        least_change = min if up else max
        return (least_change if rules["selectPolicy"] == "Min" else most_change)(limits)


def _ratio(samples: list[tuple[int, int]], request: int, target: int) -> float:
    """Return usage over target; whole per cent (or thousandths) only, as the controller computes it."""
    total, pods = sum(n * value for n, value in samples), sum(n for n, _ in samples)
    return (total * 100 // (request * pods) if request else total // pods) / target


def _why(current: int, proposal: int, stabilized: int, desired: int) -> str:
    if desired == proposal:
        return "kept" if desired == current else "as the metrics ask"
    return "stabilised" if desired == stabilized else "limited"
