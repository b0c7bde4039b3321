"""Render Kubernetes manifests with the real tools, read what scaling depends on, and find contradictions.

Only contradictions that no tool finds are checked: a quota that forbids what the autoscaler asks for, a startup probe that
gives up before the model is loaded.
"""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from photodup.core.errors import PhotodupError
from photodup.core.paths import project_root
from photodup.study.notebook.gaps import NotMeasured

OVERLAYS = {"base": "k8s/base"} | {name: f"k8s/overlays/{name}" for name in ("kind", "gpu", "gpu-keda")}
START_SECONDS = "photodup/start-seconds"
START_MARGIN = 2.0  # a loaded node starts a pod at half speed
_UNITS = {"": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3}
_UNITS |= {unit: 1000.0**power for power, unit in enumerate("MGTPE", start=2)}
_UNITS |= {f"{unit}i": 1024.0**power for power, unit in enumerate("KMGTPE", start=1)}

Manifest = dict[str, Any]
"""One object, as YAML holds it."""


class Violation(NamedTuple):
    """One thing wrong: the rule, the object, and a sentence with the remedy."""

    rule: str
    where: str
    message: str


@dataclass(frozen=True)
class Probe:
    """One probe of a container, Kubernetes' defaults filled in."""

    path: str
    initial_delay_s: float
    period_s: float
    failure_threshold: int

    @property
    def failing_s(self) -> float:
        """Return the seconds of failed probes after which it gives up."""
        return self.period_s * self.failure_threshold


@dataclass(frozen=True)
class ScaledDeployment:
    """What the autoscaler and the scheduler see of one scaled Deployment.

    `requests` and `limits` are of one pod, in base units (cores, bytes, GPUs); `quota` is the namespace's
    ResourceQuota in the same units, empty without one. `hpa` is the HorizontalPodAutoscaler's whole spec. `start_s` is
    the time from container start to ready that the Deployment is annotated with, or None.
    """

    name: str
    hpa: Manifest
    requests: dict[str, float]
    limits: dict[str, float]
    quota: dict[str, float]
    startup: Probe | None
    readiness: Probe | None
    liveness: Probe | None
    max_surge: int
    start_s: float | None

    @property
    def max_replicas(self) -> int:
        return int(self.hpa["maxReplicas"])

    def admitted(self) -> int | None:
        """Return how many of these pods the quota lets exist at once, or None without a quota."""
        return min(self.admitted_by().values(), default=None)

    def admitted_by(self) -> dict[str, int]:
        """Return how many pods each limit of the quota admits, by the quota's own names."""
        # A decimal fraction may be off by its last bit.
        return {name: int(self.quota[name] / need + 1e-9) for name, need in self.quota_needs().items()}

    def quota_needs(self) -> dict[str, float]:
        """Return what one pod takes from each limit of the quota, by the quota's own names."""
        needs = {"pods": 1.0, "count/pods": 1.0} | self.requests  # `cpu` of a quota means requests
        needs |= {f"requests.{name}": amount for name, amount in self.requests.items()}
        needs |= {f"limits.{name}": amount for name, amount in self.limits.items()}
        return {name: needs[name] for name in self.quota if needs.get(name, 0) > 0}


def tool(name: str) -> str:
    """Return the command of `kubectl` or `helm`: from build/tools first, else from PATH.

    Raises:
        NotMeasured: neither has it; a notebook prints that and goes on.
    """
    local = project_root() / "build" / "tools" / name
    if program := shutil.which(str(local)) or shutil.which(name):
        return program
    raise NotMeasured(f"{name} was not found: run k8s/get-tools.sh, or install it and put it on PATH.")


def output_of(*command: str, stdin: str | None = None) -> str:
    """Return what a program prints.

    Raises:
        PhotodupError: it failed; ends with its last words.
    """
    process = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    if process.returncode:
        words = " ".join((process.stderr or process.stdout).split())
        reason = words[-300:] or f"exit status {process.returncode}"
        raise PhotodupError(f"{Path(command[0]).name} {command[1]} failed: {reason}")
    return process.stdout


def kustomize(directory: str | Path) -> list[Manifest]:
    """Return the objects that `kubectl kustomize` makes of a directory (relative to the project root).

    Raises:
        PhotodupError: kustomize refuses it; the message is kustomize's.
    """
    text = output_of(tool("kubectl"), "kustomize", str(project_root() / directory))
    return list(filter(None, yaml.safe_load_all(text)))


def of_kind(objects: Sequence[Manifest], *kinds: str) -> list[Manifest]:
    """Return the objects of some kinds."""
    return [manifest for manifest in objects if manifest["kind"] in kinds]


def read_workload(objects: Sequence[Manifest]) -> ScaledDeployment:
    """Return the one Deployment among these objects that an autoscaler or a ScaledObject scales.

    Raises:
        PhotodupError: no autoscaler, more than one, or one that points nowhere.
    """
    scalers = of_kind(objects, "HorizontalPodAutoscaler", "ScaledObject")
    if len(scalers) != 1:
        raise PhotodupError(f"Expected one HorizontalPodAutoscaler, found {len(scalers)}: name one overlay.")
    hpa = scalers[0]["spec"]
    if "triggers" in hpa:  # KEDA's words for the same bounds
        fewest, largest = hpa.get("minReplicaCount", 0), hpa.get("maxReplicaCount", 100)
        hpa = {**hpa, "minReplicas": fewest, "maxReplicas": largest, "metrics": []}
    name = hpa["scaleTargetRef"]["name"]
    deployment = next((d for d in of_kind(objects, "Deployment") if d["metadata"]["name"] == name), None)
    if deployment is None:
        raise PhotodupError(
            f"The autoscaler's target is Deployment {name!r}, which is not among the objects."
        )
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    surge = deployment["spec"].get("strategy", {}).get("rollingUpdate", {}).get("maxSurge", "25%")
    if isinstance(surge, str):
        surge = math.ceil(hpa["maxReplicas"] * int(surge.removesuffix("%")) / 100)
    start = deployment["metadata"].get("annotations", {}).get(START_SECONDS)
    hard: Manifest = next((quota["spec"]["hard"] for quota in of_kind(objects, "ResourceQuota")), {})
    return ScaledDeployment(
        name=name,
        hpa=hpa,
        requests=_amounts(deployment, "requests"),
        limits=_amounts(deployment, "limits"),
        quota={name: quantity(amount) for name, amount in hard.items()},
        startup=_probe(container.get("startupProbe")),
        readiness=_probe(container.get("readinessProbe")),
        liveness=_probe(container.get("livenessProbe")),
        max_surge=surge,
        start_s=float(start) if start else None,
    )


def quantity(text: str | int | float) -> float:
    """Return a Kubernetes quantity as a number: `500m` is 0.5, `1Gi` is 1073741824.

    Raises:
        PhotodupError: not a quantity.
    """
    match = re.fullmatch(r"((?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)(\w*)", str(text))
    if match is None or match[2] not in _UNITS:
        raise PhotodupError(f"{text!r} is not a Kubernetes quantity: write 500m, 2 or 1Gi.")
    return float(match[1]) * _UNITS[match[2]]


def _amounts(deployment: Manifest, kind: str) -> dict[str, float]:
    """Sum requests or limits over a pod's long-running containers; a missing request is its limit, as in Kubernetes."""
    pod = deployment["spec"]["template"]["spec"]
    sidecars = [c for c in pod.get("initContainers", ()) if c.get("restartPolicy") == "Always"]
    total: dict[str, float] = {}
    for container in (*pod["containers"], *sidecars):
        resources = container.get("resources", {})
        default = resources.get("limits", {}) if kind == "requests" else {}
        for name, amount in {**default, **resources.get(kind, {})}.items():
            total[name] = total.get(name, 0.0) + quantity(amount)
    return total


def _probe(spec: Manifest | None) -> Probe | None:
    if spec is None:
        return None
    defaults = {"initialDelaySeconds": 0, "periodSeconds": 10, "failureThreshold": 3}
    return Probe(spec.get("httpGet", {}).get("path", ""), *({**defaults, **spec}[name] for name in defaults))


def check_manifests(objects: Sequence[Manifest]) -> list[Violation]:
    """Return where these objects contradict each other.

    Args:
        objects: as `kustomize` returns them.
    """
    workload = read_workload(objects)
    return [*_quota(workload), *_probes(workload)]


def _quota(workload: ScaledDeployment) -> Iterator[Violation]:
    """Find each namespace limit that admits fewer pods than the autoscaler may ask for."""
    needs, replicas, surge = workload.quota_needs(), workload.max_replicas, workload.max_surge
    for name, admitted in workload.admitted_by().items():
        rule, pods, cause = "quota-admits-max", replicas, f"maxReplicas {replicas}"
        if admitted >= replicas:
            rule, pods = "quota-admits-surge", replicas + surge
            cause += f" and {surge} surge pods of an update"
        if admitted < pods:
            total, each = _number(workload.quota[name]), needs[name]
            message = f"admits {admitted} pods of {_number(each)} each, not {cause}: raise it from "
            message += f"{total} to {_number(each * pods)}, or lower maxReplicas."
            yield Violation(rule, f"ResourceQuota/{name}", message)
    for name in sorted(set(workload.quota) - set(needs)):
        kind, _, resource = name.partition(".")
        if kind in ("requests", "limits") and resource in ("cpu", "memory"):
            message = f"sets no {resource} in {kind}, but the quota has {name}: every pod would be refused."
            yield Violation("quota-needs-resources", f"Deployment/{workload.name}", message)


def _probes(workload: ScaledDeployment) -> Iterator[Violation]:
    """Find probe settings that restart a pod which only starts slowly or is only busy."""
    where, ready, live = f"Deployment/{workload.name}", workload.readiness, workload.liveness
    if workload.start_s is None:
        message = f"says nowhere how long it starts: annotate {START_SECONDS}."
        yield Violation("probe-start-known", where, message)
        return
    guard, field = (workload.startup, "startupProbe") if workload.startup else (live, "livenessProbe")
    patience_s = START_MARGIN * workload.start_s - guard.initial_delay_s if guard else 0.0
    if guard and guard.failing_s < patience_s:
        given_s, failures = guard.initial_delay_s + guard.failing_s, math.ceil(patience_s / guard.period_s)
        message = f"{field} gives up after {given_s:g} s, a start takes {workload.start_s:g} s: raise "
        message += f"failureThreshold to {failures}, or the pod restarts for ever."
        yield Violation("probe-allows-start", where, message)
    if ready is None:
        yield Violation("probe-readiness", where, "has no readinessProbe: it gets traffic while loading.")
    if ready and live and ready.path == live.path:
        message = f"livenessProbe and readinessProbe both ask {live.path}: a pod that is not ready would be "
        message += "restarted instead of rested; give liveness a path of its own."
        yield Violation("probe-live-is-ready", where, message)
    if ready and live and live.failing_s <= ready.failing_s:
        message = f"livenessProbe restarts after {live.failing_s:g} s, no later than "
        message += "readinessProbe withdraws the pod: give it more periods or more failures."
        yield Violation("probe-live-patience", where, message)


def _number(amount: float) -> str:
    return f"{amount / 1024**3:g}Gi" if amount >= 1024**2 and amount % 1024**2 == 0 else f"{amount:g}"
