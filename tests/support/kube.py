"""A curve of one service, an autoscaler, its pods and a workload for the tests of the cluster."""

from dataclasses import replace

from photodup.study.kubernetes.autoscaler.hpa import Autoscaler
from photodup.study.kubernetes.autoscaler.replicas import PodView
from photodup.study.kubernetes.curve import ServiceCurve
from photodup.study.kubernetes.manifests import Probe, ScaledDeployment
from photodup.study.kubernetes.simulate import Load

ONE = ServiceCurve((1, 2, 4), (10.0, 15.0, 20.0), (1.0, 1.5, 2.0))


def by_cpu(target, low, high):
    metric = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": target}}
    return {"minReplicas": low, "maxReplicas": high, "metrics": [{"type": "Resource", "resource": metric}]}


def scaler(target=60, low=1, high=100, behavior=None, request=1.0, flags=None):
    spec = by_cpu(target, low, high) | ({} if behavior is None else {"behavior": behavior})
    return Autoscaler(spec, {"cpu": request}, flags)


def pods(*cores, ready=None, now=1000.0):
    """Running pods, old enough to be believed; None is a missing sample."""
    ready = ready or [True] * len(cores)
    return [
        PodView(
            ready=is_ready,
            started_s=now - (3600 if is_ready else 100),
            ready_changed_s=now - 3600,
            values={} if used is None else {"cpu": used},
            sampled_s=now - 5,
        )
        for used, is_ready in zip(cores, ready, strict=True)
    ]


def workload(**changes):
    ready = Probe("/readyz", 0, 5, 5, 3)
    spec = by_cpu(60, 2, 6) | {"behavior": {"scaleDown": {"stabilizationWindowSeconds": 180}}}
    made = ScaledDeployment(
        name="photodup", replicas=1, hpa=spec, requests={"cpu": 0.5}, limits={"cpu": 2.0}, quota=None,
        startup=replace(ready, failure_threshold=12), readiness=ready, liveness=Probe("/healthz", 0, 20, 10, 6),
        max_surge=1, start_s=20.0, grace_s=40.0, pre_stop_s=5.0,
    )  # fmt: skip
    return replace(made, **changes)


BURST = Load(in_flight=24, from_s=60.0, until_s=240.0)


def by_metrics(**targets):
    """Return the workload, scaled by metrics of its pods: name -> the average that is wanted."""
    of = {n: {"type": "AverageValue", "averageValue": value} for n, value in targets.items()}
    metrics = [{"metric": {"name": name}, "target": target} for name, target in of.items()]
    made = workload()
    return replace(made, hpa={**made.hpa, "metrics": [{"type": "Pods", "pods": m} for m in metrics]})
