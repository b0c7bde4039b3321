"""How many replicas one metric asks for: the autoscaler's replica calculator, metric type by metric type.

Source of the rules: the controller's `podautoscaler/replica_calculator` on the branch that becomes Kubernetes
1.37, written anew from what it does. Its own test tables are in tests/unit/data/hpa_cases.yaml.

Values are whole thousandths, as in the controller, so that both round alike. Every function returns (usage over
target, replicas), or None where the controller reports that it cannot compute the metric.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

MOST_REPLICAS = 2**31 - 1  # the controller's counts are 32 bits wide

Answer = tuple[float, int] | None


@dataclass
class PodView:
    """What the controller knows of `count` pods that are alike.

    `values` holds the last sample by metric name (`cpu` in cores, `CONTAINER/cpu` of one container), taken at
    `sampled_s` over the `window_s` seconds before. A metric that is not in it has not been sampled.

    Attributes:
        running: False while the pod is Pending. A pod whose container restarts is still Running.
        ended: deleted, failed or succeeded: the controller looks away.
        requests: by resource, or by `CONTAINER/RESOURCE`, in base units; None for the autoscaler's own.
    """

    count: int = 1
    running: bool = True
    ready: bool = True
    started_s: float = 0.0
    ready_changed_s: float = 0.0
    values: dict[str, float] = field(default_factory=dict)
    sampled_s: float = 0.0
    window_s: float = 15.0
    ended: bool = False
    requests: dict[str, float] | None = None


@dataclass(frozen=True)
class Tolerances:
    """How far usage over target may lie from 1 without a change, by direction.

    `by_distance`: 1.20 compares |1 - ratio|, which in floating point is more than 0.1 at a ratio of exactly 1.1.
    """

    down: float = 0.1
    up: float = 0.1
    by_distance: bool = False

    def hold(self, ratio: float) -> bool:
        if self.by_distance:
            return abs(1.0 - ratio) <= self.up
        return 1.0 - self.down <= ratio <= 1.0 + self.up


@dataclass(frozen=True)
class Groups:
    """Pods by what the controller makes of their sample; ended pods are in none."""

    ready: tuple[PodView, ...]
    unready: tuple[PodView, ...]
    missing: tuple[PodView, ...]


@dataclass(frozen=True)
class ControllerFlags:
    """kube-controller-manager's flags and feature gates, with the defaults of the modelled version.

    Attributes:
        cpu_initialization_period_s, initial_readiness_delay_s: until when a pod's CPU sample is not believed.
        as_of_1_20: the rules that Kubernetes 1.20 has otherwise. A usage at the edge of the tolerance is outside it;
            a metric that cannot be read does not forbid a scale-down; stabilisation looks at the window of one
            direction; a rate counts changes of one direction.
    """

    sync_period_s: float = 15.0
    tolerance: float = 0.1
    cpu_initialization_period_s: float = 300.0
    initial_readiness_delay_s: float = 30.0
    downscale_stabilization_s: float = 300.0
    scale_to_zero: bool = True
    configurable_tolerance: bool = True
    as_of_1_20: bool = False


def group(pods: Sequence[PodView], name: str, now: float, flags: ControllerFlags, *, is_cpu: bool) -> Groups:
    """Sort pods into those whose sample counts, those set aside and those without one."""
    ready, unready, missing = [], [], []
    for pod in pods:
        if pod.ended:
            continue
        if not pod.running:
            unready.append(pod)
        elif name not in pod.values:
            missing.append(pod)
        elif is_cpu and _sets_aside(pod, now, flags):
            unready.append(pod)
        else:
            ready.append(pod)
    return Groups(tuple(ready), tuple(unready), tuple(missing))


def utilization(
    groups: Groups,
    name: str,
    target_percent: int,
    current: int,
    tolerances: Tolerances,
    requests: dict[str, float],
) -> Answer:
    """Return what a target in per cent of the pods' requests asks for; None when a pod requests nothing."""

    def each(pod: PodView) -> int | None:
        request = (requests if pod.requests is None else pod.requests).get(name)
        return None if request is None else round(request * 1000)

    pods = (*groups.ready, *groups.unready, *groups.missing)
    if not groups.ready or any(not each(pod) for pod in pods):
        return None

    def ratio(samples: list[tuple[PodView, int]]) -> float:
        used = sum(pod.count * value for pod, value in samples)
        asked = sum(pod.count * (each(pod) or 0) for pod, _ in samples)
        return used * 100 // asked / target_percent

    def if_missing(pod: PodView) -> int:
        return (each(pod) or 0) * max(100, target_percent) // 100

    return _replicas(groups, name, current, tolerances, ratio, if_missing)


def plain(groups: Groups, name: str, target: int, current: int, tolerances: Tolerances) -> Answer:
    """Return what a target in the metric's own unit, in thousandths per pod, asks for."""
    if not groups.ready:
        return None

    def ratio(samples: list[tuple[PodView, int]]) -> float:
        return sum(pod.count * value for pod, value in samples) // _count(p for p, _ in samples) / target

    return _replicas(groups, name, current, tolerances, ratio, lambda pod: target)


def total(
    usage: int, target: int, current: int, pods: Sequence[PodView], tolerances: Tolerances
) -> tuple[float, int] | None:
    """Return what an Object or External metric with a `Value` target asks for, in thousandths.

    From zero there are no pods to multiply and no tolerance.
    """
    ratio = usage / target
    if current == 0:
        return ratio, min(MOST_REPLICAS, math.ceil(ratio))
    if tolerances.hold(ratio):
        return ratio, current
    if not pods:
        return None
    ready = _count(pod for pod in pods if pod.running and pod.ready)
    return ratio, min(MOST_REPLICAS, math.ceil(ratio * ready))


def per_pod(usage: int, target: int, existing: int, tolerances: Tolerances) -> tuple[float, int]:
    """Return what an Object or External metric with an `AverageValue` target asks for, in thousandths.

    Args:
        existing: pods that exist (the Deployment's status), not those asked for.
    """
    # Without pods the controller divides by zero, in floating point.
    by_zero = math.inf if usage else math.nan
    ratio = usage / (target * existing) if existing else by_zero
    if tolerances.hold(ratio):
        return ratio, existing
    return ratio, min(MOST_REPLICAS, math.ceil(usage / target))


def _replicas(groups, name, current, tolerances, ratio_of, if_missing) -> tuple[float, int]:
    samples = [(pod, round(pod.values[name] * 1000)) for pod in groups.ready]
    ratio = ratio_of(samples)
    waiting = bool(groups.unready) and ratio > 1.0
    if not waiting and not groups.missing:
        return ratio, current if tolerances.hold(ratio) else math.ceil(ratio * _count(groups.ready))
    if ratio < 1.0:
        samples += [(pod, if_missing(pod)) for pod in groups.missing]
    elif ratio > 1.0:
        samples += [(pod, 0) for pod in groups.missing]
    if waiting:
        samples += [(pod, 0) for pod in groups.unready]
    again = ratio_of(samples)
    if tolerances.hold(again) or ratio < 1.0 < again or again < 1.0 < ratio:
        return ratio, current
    replicas = math.ceil(again * _count(pod for pod, _ in samples))
    if (again < 1.0 and replicas > current) or (again > 1.0 and replicas < current):
        return ratio, current
    return ratio, replicas


def _count(pods) -> int:
    return sum(pod.count for pod in pods)


def _sets_aside(pod: PodView, now: float, flags: ControllerFlags) -> bool:
    """Say whether a running pod's CPU sample is not believed yet."""
    if pod.started_s + flags.cpu_initialization_period_s > now:
        return not pod.ready or pod.sampled_s < pod.ready_changed_s + pod.window_s
    never_ready = pod.started_s + flags.initial_readiness_delay_s > pod.ready_changed_s
    return not pod.ready and never_ready
