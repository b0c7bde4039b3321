"""The HorizontalPodAutoscaler's decision, step by step as the controller takes it.

Modelled version: the branch that becomes Kubernetes 1.37, with its defaults (scale to zero and a tolerance of one's
own are on; ContainerResource is stable since 1.30). Source of the rules: Kubernetes' page "Horizontal Pod
Autoscaling" and the controller's package `podautoscaler/horizontal`. Written anew from what they do; the controller's
own test tables are in tests/unit/data/hpa_cases.yaml. What one metric asks for is `replicas`.

Five surprises that the simulator shows:
- The count that is multiplied is the number of *ready* pods, while limits apply to the Deployment's `replicas`,
  which may be more than exist when a quota refuses pods.
- A pod that is not ready, or has no sample taken since it became ready, counts as 0 % when scaling up. So
  starting pods damp the next step.
- `behavior` with only one field changes the others' defaults: from 2 pods, 4 at most without it, 6 with it.
- A scale-up is not delayed by `scaleDown.stabilizationWindowSeconds`, a scale-down is by the largest
  recommendation of that window. The count at the first sync is the first recommendation.
- Zero replicas that the autoscaler did not set itself switch it off.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from photodup.errors import PhotodupError
from photodup.study.kubernetes.autoscaler import replicas
from photodup.study.kubernetes.manifests import quantity

# Without `behavior`: at most so many times the present count, and never less than so many.
SCALE_UP_LIMIT_FACTOR = 2.0
SCALE_UP_LIMIT_MINIMUM = 4.0
_DEFAULT_UP = {
    "stabilizationWindowSeconds": 0,
    "selectPolicy": "Max",
    "policies": [
        {"type": "Pods", "value": 4, "periodSeconds": 15},
        {"type": "Percent", "value": 100, "periodSeconds": 15},
    ],
}
_DEFAULT_DOWN = {"selectPolicy": "Max", "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}]}
_OUTSIDE = ("Object", "External")


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
        requests: what one pod requests, by resource or by `CONTAINER/RESOURCE`, in base units.
    """

    def __init__(
        self, spec: dict[str, Any], requests: dict[str, float], flags: replicas.ControllerFlags | None = None
    ) -> None:
        self.flags = flags or replicas.ControllerFlags()
        self.min, self.max = int(spec.get("minReplicas", 1)), int(spec["maxReplicas"])
        if not 0 <= self.min <= self.max or self.max < 1:
            raise PhotodupError(
                f"minReplicas {self.min} and maxReplicas {self.max} leave no choice: fix them."
            )
        self.metrics, self.requests = spec["metrics"], requests
        for metric in self.metrics:
            if metric["type"] not in ("Resource", "ContainerResource", "Pods", *_OUTSIDE):
                raise PhotodupError(
                    f"Metric type {metric['type']!r} is unknown: use Resource, ContainerResource, Pods, "
                    "Object or External."
                )
        behavior = spec.get("behavior")
        self.has_behavior = behavior is not None
        behavior = behavior or {}
        self.up = {**_DEFAULT_UP, **(behavior.get("scaleUp") or {})}
        window = {"stabilizationWindowSeconds": self.flags.downscale_stabilization_s}
        self.down = {**window, **_DEFAULT_DOWN, **(behavior.get("scaleDown") or {})}
        self.tolerances = self._tolerances()
        self.scaled_to_zero = False
        self.recommendations: list[tuple[float, int]] | None = None
        self.added: list[tuple[float, int]] = []
        self.removed: list[tuple[float, int]] = []

    def sync(
        self,
        now_s: float,
        current: int,
        pods: Sequence[replicas.PodView],
        outside: Mapping[str, float | None] | None = None,
        *,
        existing: int | None = None,
    ) -> Decision:
        """Return the decision at `now_s` for a Deployment whose `replicas` is `current`; remember it.

        Args:
            outside: values of Object and External metrics by name; one that is not there cannot be read.
            existing: pods that exist, when that is not `current`.
        """
        if self.recommendations is None:
            self.recommendations = [(now_s, current)]
        by_itself = self.flags.scale_to_zero and self.scaled_to_zero
        if current == 0 and not (by_itself and (self.min or self._reads_outside())):
            return Decision(now_s, 0, None, None, 0, 0, "scaling disabled at zero")
        ratio, proposal = None, None
        if current > self.max:
            stabilized = desired = self.max
            why = "above maxReplicas"
        elif 0 < current < self.min:
            stabilized = desired = self.min
            why = "below minReplicas"
        else:
            existing = current if existing is None else existing
            seen = now_s, current, pods, outside or {}, existing
            ratio, proposal = self.propose(current, [self.one_metric(m, *seen) for m in self.metrics])
            if proposal is None:
                return Decision(now_s, current, ratio, None, current, current, "no metrics")
            stabilized = (self.stabilize if self.has_behavior else self.stabilize_plainly)(
                now_s, current, proposal
            )
            desired = (self.limit if self.has_behavior else self.limit_plainly)(now_s, current, stabilized)
            if current == 0:
                desired = max(desired, self.min)
            why = _why(current, proposal, stabilized, desired)
        if desired != current:
            self.remember(now_s, current, desired)
            self.scaled_to_zero = desired == 0 == self.min and self._reads_outside()
        return Decision(now_s, current, ratio, proposal, stabilized, desired, why)

    def propose(self, current: int, found: Sequence[replicas.Answer]) -> tuple[float | None, int | None]:
        """Return the usage ratio and count of the metric that asks for most; None when nothing can be said."""
        known = [answer for answer in found if answer is not None]
        if not known:
            return None, None
        ratio, proposal = max(known, key=lambda answer: answer[1])
        if len(known) < len(found) and proposal < current and not self.flags.as_of_1_20:
            return ratio, None  # a metric that cannot be read might have forbidden it
        return ratio, proposal

    def one_metric(
        self,
        metric: dict[str, Any],
        now: float,
        current: int,
        pods: Sequence[replicas.PodView],
        outside: Mapping[str, float | None],
        existing: int,
    ) -> replicas.Answer:
        """Return (usage over target, replicas) of one metric, or None where it cannot be computed."""
        kind, target, name = metric_target(metric)
        if kind in _OUTSIDE:
            value = outside.get(name)
            if value is None:
                return None
            usage = round(value * 1000)
            if "averageValue" in target:
                wanted = _thousandths(target["averageValue"])
                return replicas.per_pod(usage, wanted, existing, self.tolerances)
            return replicas.total(usage, _thousandths(target["value"]), current, pods, self.tolerances)
        is_cpu = kind != "Pods" and name.split("/")[-1] == "cpu"
        groups = replicas.group(pods, name, now, self.flags, is_cpu=is_cpu)
        if "averageUtilization" in target:
            per_cent = int(target["averageUtilization"])
            return replicas.utilization(groups, name, per_cent, current, self.tolerances, self.requests)
        return replicas.plain(groups, name, _thousandths(target["averageValue"]), current, self.tolerances)

    def stabilize_plainly(self, now: float, current: int, proposal: int) -> int:
        """Return the highest recommendation of the window: what happens without `behavior`."""
        cutoff = now - self.flags.downscale_stabilization_s
        recent = [count for at, count in self._recorded() if at >= cutoff]
        self._record(now, proposal, cutoff)
        return max([proposal, *recent])

    def limit_plainly(self, now: float, current: int, desired: int) -> int:
        """Keep within [min, max] and the fixed rate of growth: what happens without `behavior`."""
        fastest = int(max(SCALE_UP_LIMIT_FACTOR * current, SCALE_UP_LIMIT_MINIMUM))
        return self.min if desired < self.min else min(desired, self.max, fastest)

    def stabilize(self, now: float, current: int, proposal: int) -> int:
        """Hold the count between the lowest and highest recommendation of the two windows."""
        up, down = (now - float(rules["stabilizationWindowSeconds"]) for rules in (self.up, self.down))
        low = min([proposal, *(n for at, n in self._recorded() if at > up)])
        high = max([proposal, *(n for at, n in self._recorded() if at > down)])
        self._record(now, proposal, min(up, down))
        if self.flags.as_of_1_20:
            return low if proposal >= current else high
        return min(max(current, low), high)

    def limit(self, now: float, current: int, desired: int) -> int:
        """Apply the rate policies and [min, max]."""
        if desired > current:
            return min(desired, self.max, max(current, self._rate_limit(now, current, self.up, up=True)))
        if desired < current:
            return max(desired, self.min, min(current, self._rate_limit(now, current, self.down, up=False)))
        return desired

    def remember(self, now: float, current: int, desired: int) -> None:
        """Note a rescale. The last one older than the longest period of *its own direction* is overwritten.

        So a scale-up that the longer period of a scale-down policy would still count can be forgotten.
        """
        if not self.has_behavior:
            return
        rules, events = (self.up, self.added) if desired > current else (self.down, self.removed)
        oldest = now - max((policy["periodSeconds"] for policy in rules["policies"]), default=0)
        _overwrite_last(events, (now, abs(desired - current)), lambda at: at < oldest)

    def _record(self, now: float, proposal: int, cutoff: float) -> None:
        _overwrite_last(self._recorded(), (now, proposal), lambda at: at < cutoff)

    def _recorded(self) -> list[tuple[float, int]]:
        if self.recommendations is None:
            self.recommendations = []
        return self.recommendations

    def _rate_limit(self, now: float, current: int, rules: dict[str, Any], *, up: bool) -> int:
        if rules["selectPolicy"] == "Disabled":
            return current
        limits = []
        for policy in rules["policies"]:
            since = now - policy["periodSeconds"]
            added = sum(n for at, n in self.added if at > since)
            removed = sum(n for at, n in self.removed if at > since)
            if self.flags.as_of_1_20:
                added, removed = (added, 0) if up else (0, removed)
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

    def _tolerances(self) -> replicas.Tolerances:
        default = self.flags.tolerance
        if self.flags.as_of_1_20:
            return replicas.Tolerances(default, default, by_distance=True)
        if not self.flags.configurable_tolerance:
            return replicas.Tolerances(default, default)
        down, up = (quantity(rules.get("tolerance", default)) for rules in (self.down, self.up))
        return replicas.Tolerances(down, up)

    def _reads_outside(self) -> bool:
        return any(metric["type"] in _OUTSIDE for metric in self.metrics)


def metric_target(metric: dict[str, Any]) -> tuple[str, dict[str, Any], str]:
    """Return a metric's type, its target and the name its values go by (`CONTAINER/RESOURCE` for a container)."""
    kind = metric["type"]
    body = metric[kind[0].lower() + kind[1:]]
    if kind == "ContainerResource":
        return kind, body["target"], f"{body['container']}/{body['name']}"
    return kind, body["target"], body["name"] if kind == "Resource" else body["metric"]["name"]


def _thousandths(text: Any) -> int:
    return round(quantity(text) * 1000)


def _overwrite_last(rows: list[tuple[float, int]], new: tuple[float, int], is_old) -> None:
    old = [i for i, (at, _) in enumerate(rows) if is_old(at)]
    if old:
        rows[old[-1]] = new
    else:
        rows.append(new)


def _why(current: int, proposal: int, stabilized: int, desired: int) -> str:
    if desired == proposal:
        return "kept" if desired == current else "as the metrics ask"
    return "stabilised" if desired == stabilized else "limited"
