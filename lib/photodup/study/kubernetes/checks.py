"""Check manifests: the schema by its own tool, and by us only what no tool knows.

What no tool knows is how objects of one application contradict each other: a quota that forbids what the
autoscaler asks for, a startup probe that gives up before the model is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from photodup.core.paths import project_root
from photodup.study.kubernetes.manifests import (
    KUBERNETES_VERSION,
    START_SECONDS,
    ScaledDeployment,
    fits,
    of_kind,
    read_workload,
)

# Kinds that operators add; Kubernetes' own schema does not know them, `references` holds them against the pods.
CUSTOM_KINDS = {("monitoring.coreos.com/v1", "PodMonitor"), ("keda.sh/v1alpha1", "ScaledObject")}
START_MARGIN = 2.0  # a loaded node starts a pod at half speed


@dataclass(frozen=True)
class Violation:
    """One thing wrong: the rule, the object, and a sentence with the remedy."""

    rule: str
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.rule} · {self.where} · {self.message}"


def check_manifests(objects: list[dict[str, Any]]) -> list[Violation]:
    """Return what is wrong with these objects, schema first, then the contradictions between them.

    Args:
        objects: as `kustomize` returns them.
    """
    if findings := [*schema(objects)]:
        return findings
    workload = read_workload(objects)
    return [*quota(workload), *probes(workload), *references(objects, workload)]


def schema(objects: list[dict[str, Any]]) -> Iterator[Violation]:
    """Find what Kubernetes' own schema refuses; unknown fields included."""
    import kubernetes_validate

    for item in objects:
        if (item.get("apiVersion"), item.get("kind")) in CUSTOM_KINDS:
            continue
        where = f"{item.get('kind', '?')}/{item.get('metadata', {}).get('name', '?')}"
        try:
            kubernetes_validate.validate(item, KUBERNETES_VERSION, strict=True)
        except kubernetes_validate.ValidationError as error:
            path = ".".join(str(part) for part in error.path)
            yield Violation("schema", where, f"{path or 'object'}: {error.message}")
        except kubernetes_validate.SchemaNotFoundError:
            yield Violation(
                "schema", where, f"no such kind in Kubernetes {KUBERNETES_VERSION}: check apiVersion."
            )


def quota(workload: ScaledDeployment) -> Iterator[Violation]:
    """Find each namespace limit that admits fewer pods than the autoscaler may ask for."""
    hard, replicas, surge = workload.quota or {}, workload.max_replicas, workload.max_surge
    for name, need in workload.quota_needs().items():
        admitted = fits(hard[name], need)
        rule, pods, cause = "quota-admits-max", replicas, f"maxReplicas {replicas}"
        if admitted >= replicas:
            rule, pods = "quota-admits-surge", replicas + surge
            cause += f" and {surge} surge pods of an update"
        if admitted < pods:
            message = f"admits {admitted} pods of {_number(need)} each, not {cause}: raise it from "
            message += f"{_number(hard[name])} to {_number(need * pods)}, or lower maxReplicas."
            yield Violation(rule, f"ResourceQuota/{name}", message)
    limits = {name for name in hard if name.startswith(("requests.", "limits."))}
    for name in sorted(limits - set(workload.quota_needs())):
        kind, _, resource = name.partition(".")
        if resource in ("cpu", "memory"):
            message = f"sets no {resource} in {kind}, but the quota has {name}: every pod would be refused."
            yield Violation("quota-needs-resources", f"Deployment/{workload.name}", message)


def probes(workload: ScaledDeployment) -> Iterator[Violation]:
    """Find probe settings that restart a pod which only starts slowly or is only busy."""
    where = f"Deployment/{workload.name}"
    start_s = workload.start_s
    if start_s is None:
        message = f"says nowhere how long it starts: annotate {START_SECONDS}."
        yield Violation("probe-start-known", where, message)
        return
    patience_s, ready, live = START_MARGIN * start_s, workload.readiness, workload.liveness
    guard, field = (workload.startup, "startupProbe") if workload.startup else (live, "livenessProbe")
    if guard is not None and guard.budget_s < patience_s:
        failures = int(-(-(patience_s - guard.initial_delay_s) // guard.period_s))
        message = f"{field} gives up after {guard.budget_s:g} s, a start takes {start_s:g} s: raise "
        message += f"failureThreshold to {failures}, or the pod restarts for ever."
        yield Violation("probe-allows-start", where, message)
    if ready is None:
        yield Violation("probe-readiness", where, "has no readinessProbe: it gets traffic while loading.")
    if ready and live and ready.path == live.path:
        message = f"livenessProbe and readinessProbe both ask {live.path}: a pod that is not ready would be "
        message += "restarted instead of rested; give liveness a path of its own."
        yield Violation("probe-live-is-ready", where, message)
    if ready and live and live.period_s * live.failure_threshold <= ready.period_s * ready.failure_threshold:
        message = f"livenessProbe restarts after {live.period_s * live.failure_threshold:g} s, no later than "
        message += "readinessProbe withdraws the pod: give it more periods or more failures."
        yield Violation("probe-live-patience", where, message)


def references(objects: list[dict[str, Any]], workload: ScaledDeployment) -> Iterator[Violation]:
    """Find selectors, ports and budgets of one application that do not fit each other."""
    deployment = next(d for d in of_kind(objects, "Deployment") if d["metadata"]["name"] == workload.name)
    template = deployment["spec"]["template"]
    labels = template["metadata"]["labels"].items()
    names = {port.get("name") for port in template["spec"]["containers"][0].get("ports", [])}
    for service in of_kind(objects, "Service"):
        where = f"Service/{service['metadata']['name']}"
        if not service["spec"].get("selector", {}).items() <= labels:
            yield Violation("selector", where, "selects none of the Deployment's pods: compare labels.")
        for port in service["spec"]["ports"]:
            target, node_port = port.get("targetPort", port["port"]), port.get("nodePort")
            if isinstance(target, str) and target not in names:
                yield Violation("port", where, f"targets port {target!r}, which no container names.")
            if node_port is not None and node_port not in _mapped_node_ports():
                message = f"nodePort {node_port} is not mapped by k8s/kind.yaml: add it."
                yield Violation("port", where, message)
    for monitor in of_kind(objects, "PodMonitor"):
        where = f"PodMonitor/{monitor['metadata']['name']}"
        if not monitor["spec"]["selector"].get("matchLabels", {}).items() <= labels:
            yield Violation("selector", where, "selects none of the Deployment's pods: compare labels.")
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            if endpoint.get("port") not in names:
                message = f"scrapes port {endpoint.get('port')!r}, which no container names."
                yield Violation("port", where, message)
    least = int(workload.hpa.get("minReplicas", 1))
    for budget in of_kind(objects, "PodDisruptionBudget"):
        available = budget["spec"].get("minAvailable", 0)
        if budget["spec"].get("maxUnavailable") == 0 or (isinstance(available, int) and available >= least):
            where = f"PodDisruptionBudget/{budget['metadata']['name']}"
            message = f"lets none of {least} pods go: no node can be drained; write maxUnavailable: 1."
            yield Violation("budget-allows-drain", where, message)


def _mapped_node_ports() -> set[int]:
    cluster = yaml.safe_load((project_root() / "k8s" / "kind.yaml").read_text())
    return {port["containerPort"] for node in cluster["nodes"] for port in node.get("extraPortMappings", [])}


def _number(value: float) -> str:
    if value >= 1024**2 and value % 1024**2 == 0:
        return f"{value / 1024**3:g}Gi"
    return f"{value:g}"
