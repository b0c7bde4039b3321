"""Read Kubernetes manifests: render them with the real tools and pick out what scaling depends on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml

from photodup.core.errors import PhotodupError
from photodup.core.paths import project_root

KUBERNETES_VERSION = "1.37.0"
OVERLAYS = {"base": "k8s/base"} | {name: f"k8s/overlays/{name}" for name in ("kind", "gpu", "gpu-keda")}
START_SECONDS = "photodup/start-seconds"
_SUFFIXES = {"": Decimal(1)} | {a: Decimal(1000) ** power for power, a in enumerate("num", start=-3)}
_SUFFIXES |= {a: Decimal(1000) ** power for power, a in enumerate("kMGTPE", start=1)}
_SUFFIXES |= {f"{a}i": Decimal(1024) ** power for power, a in enumerate("KMGTPE", start=1)}
# in the order of `Probe`
_PROBE_DEFAULTS = {"initialDelaySeconds": 0, "periodSeconds": 10, "timeoutSeconds": 1, "failureThreshold": 3}


@dataclass(frozen=True)
class Probe:
    """One probe of a container, Kubernetes' defaults filled in."""

    path: str
    initial_delay_s: float
    period_s: float
    timeout_s: float
    failure_threshold: int

    @property
    def budget_s(self) -> float:
        """Return the seconds of continuous failure after which the probe gives up."""
        return self.initial_delay_s + self.period_s * self.failure_threshold


@dataclass(frozen=True)
class ScaledDeployment:
    """What the autoscaler and the scheduler see of one scaled Deployment.

    `requests` and `limits` are of one pod, in base units (cores, bytes, GPUs); `quota` is the namespace's
    ResourceQuota in the same units, or None. `hpa` is the HorizontalPodAutoscaler's whole spec as a mapping. `start_s` is
    the time from container start to ready that the Deployment is annotated with, or None.
    """

    name: str
    hpa: dict[str, Any]
    requests: dict[str, float]
    limits: dict[str, float]
    quota: dict[str, float] | None
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
        if self.quota is None:
            return None
        return min((fits(self.quota[name], need) for name, need in self.quota_needs().items()), default=None)

    def quota_needs(self) -> dict[str, float]:
        """Return what one pod takes from each limit of the quota, by the quota's own names."""
        needs = {"pods": 1.0, "count/pods": 1.0}
        needs |= {f"requests.{name}": value for name, value in self.requests.items()}
        needs |= {f"limits.{name}": value for name, value in self.limits.items()}
        needs |= {name: self.requests[name] for name in ("cpu", "memory") if name in self.requests}
        return {name: needs[name] for name in (self.quota or {}) if needs.get(name, 0) > 0}


def tool(name: str) -> str:
    """Return the command of `kubectl`, `helm` or `checkov`: from build/tools first, else from PATH.

    Raises:
        PhotodupError: neither has it.
    """
    tools = project_root() / "build" / "tools"
    local = tools / "checkov-venv" / "bin" / "checkov" if name == "checkov" else tools / name
    if local.is_file() and os.access(local, os.X_OK):
        return str(local)
    if program := shutil.which(name):
        return program
    raise PhotodupError(f"{name} was not found: run k8s/get-tools.sh, or install it and put it on PATH.")


def kustomize(directory: str | Path) -> list[dict[str, Any]]:
    """Return the objects that `kubectl kustomize` makes of a directory (relative to the project root).

    Raises:
        PhotodupError: kustomize refuses it; the message is kustomize's.
    """
    text = output_of(tool("kubectl"), "kustomize", str(project_root() / directory))
    return [item for item in yaml.safe_load_all(text) if item]


def read_workload(objects: list[dict[str, Any]]) -> ScaledDeployment:
    """Return the one Deployment among these objects that an autoscaler or a ScaledObject scales.

    Raises:
        PhotodupError: no autoscaler, more than one, or one that points nowhere.
    """
    scalers = of_kind(objects, "HorizontalPodAutoscaler") or of_kind(objects, "ScaledObject")
    if len(scalers) != 1:
        raise PhotodupError(f"Expected one HorizontalPodAutoscaler, found {len(scalers)}: name one overlay.")
    spec = scalers[0]["spec"]
    if "triggers" in spec:  # KEDA's words for the same bounds
        bounds = {
            "minReplicas": spec.get("minReplicaCount", 0),
            "maxReplicas": spec.get("maxReplicaCount", 100),
        }
        spec = {**spec, **bounds, "metrics": []}
    name = spec["scaleTargetRef"]["name"]
    deployment = next((d for d in of_kind(objects, "Deployment") if d["metadata"]["name"] == name), None)
    if deployment is None:
        raise PhotodupError(
            f"The autoscaler's target is Deployment {name!r}, which is not among the objects."
        )
    pod = deployment["spec"]["template"]["spec"]
    container = pod["containers"][0]
    quotas = of_kind(objects, "ResourceQuota")
    surge = deployment["spec"].get("strategy", {}).get("rollingUpdate", {}).get("maxSurge", "25%")
    per_cent = int(surge[:-1]) if isinstance(surge, str) else 0
    start = deployment["metadata"].get("annotations", {}).get(START_SECONDS)
    return ScaledDeployment(
        name=name,
        hpa=spec,
        requests=_quantities(pod, "requests"),
        limits=_quantities(pod, "limits"),
        quota={k: quantity(v) for k, v in quotas[0]["spec"]["hard"].items()} if quotas else None,
        startup=_probe(container.get("startupProbe")),
        readiness=_probe(container.get("readinessProbe")),
        liveness=_probe(container.get("livenessProbe")),
        max_surge=-(-int(spec["maxReplicas"]) * per_cent // 100) if isinstance(surge, str) else int(surge),
        start_s=float(start) if start else None,
    )


def fits(total: float, each: float) -> int:
    """Return how many of `each` fit into `total`; forgives the last bit of a decimal fraction."""
    return int(total / each + 1e-9)


def of_kind(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Return the objects of one kind."""
    return [item for item in objects if item["kind"] == kind]


def quantity(text: str | int | float) -> float:
    """Return a Kubernetes quantity as a number: `500m` is 0.5, `1Gi` is 1073741824.

    Raises:
        PhotodupError: not a quantity.
    """
    match = re.fullmatch(r"(\d+\.?\d*|\.\d+)([eE][-+]?\d+|[num]|[kMGTPE]|[KMGTPE]i)?", str(text))
    if match is None:
        raise PhotodupError(f"{text!r} is not a Kubernetes quantity: write 500m, 2 or 1Gi.")
    number, suffix = Decimal(match[1]), match[2] or ""
    if suffix in _SUFFIXES:
        return float(number * _SUFFIXES[suffix])
    return float(number * Decimal(10) ** int(suffix[1:]))


def _quantities(pod: dict[str, Any], which: str) -> dict[str, float]:
    """Sum over the pod's long-running containers, as quota and scheduler do; the pod's own values count first."""
    total: dict[str, float] = {}
    for container in _long_running(pod):
        for name, value in _with_defaults(container.get("resources", {}), which).items():
            total[name] = total.get(name, 0.0) + quantity(value)
    of_pod = pod.get("resources", {}).get(which, {})
    return total | {name: quantity(value) for name, value in of_pod.items()}


def _long_running(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the containers, and the init containers that never end (sidecars)."""
    sidecars = [c for c in pod.get("initContainers", []) if c.get("restartPolicy") == "Always"]
    return [*pod["containers"], *sidecars]


def _with_defaults(resources: dict[str, Any], which: str) -> dict[str, Any]:
    """Return requests or limits; a missing request is its limit, as the API server fills it in."""
    values = resources.get(which, {})
    return {**resources.get("limits", {}), **values} if which == "requests" else dict(values)


def _probe(spec: dict[str, Any] | None) -> Probe | None:
    if spec is None:
        return None
    timing = (spec.get(name, default) for name, default in _PROBE_DEFAULTS.items())
    return Probe(spec.get("httpGet", {}).get("path", ""), *timing)


def output_of(*command: str, stdin: str | None = None) -> str:
    """Return what a program prints.

    Raises:
        PhotodupError: it failed; ends with its last words.
    """
    process = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    if process.returncode:
        words = (
            " ".join((process.stderr or process.stdout).split())[-300:] or f"exit status {process.returncode}"
        )
        raise PhotodupError(f"{Path(command[0]).name} {command[1]} failed: {words}")
    return process.stdout
