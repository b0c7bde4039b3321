"""KEDA's ScaledObject with Prometheus triggers, as its operator and the autoscaler it makes take decisions.

Modelled version: KEDA 2.19. Two hands move the count. The operator asks every trigger each `pollingInterval` and only
switches between zero and one: on as soon as a value is above its `activationThreshold`, off when none has been for
`cooldownPeriod`. From one pod on a HorizontalPodAutoscaler with External metrics decides (`hpa`), which asks
KEDA's metrics server for the value of the moment at every sync. So cooldown delays the last pod only, and the
autoscaler's own stabilisation the others.

A query is not evaluated here: `name` of the trigger says which simulated signal it reads (`study.kubernetes.signals`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from photodup.errors import PhotodupError
from photodup.study.kubernetes.autoscaler.hpa import Autoscaler
from photodup.study.kubernetes.autoscaler.replicas import ControllerFlags

MODELLED_VERSION = "2.19"


class Keda:
    """One ScaledObject: the operator's switch, and `scaler`, the autoscaler behind it, which is disabled at zero.

    Args:
        spec: the object's `spec`, as in the manifest.
        requests: what one pod requests, by resource.

    Raises:
        PhotodupError: a trigger that is not simulated, or a threshold that is missing.
    """

    def __init__(
        self, spec: dict[str, Any], requests: dict[str, float], flags: ControllerFlags | None = None
    ) -> None:
        self.min, self.max = int(spec.get("minReplicaCount", 0)), int(spec.get("maxReplicaCount", 100))
        self.polling_interval_s = float(spec.get("pollingInterval", 30))
        self.cooldown_s = float(spec.get("cooldownPeriod", 300))
        self._activation = {}
        for trigger in spec["triggers"]:
            if trigger["type"] != "prometheus":
                raise PhotodupError(f"KEDA trigger {trigger['type']!r} is not simulated: use prometheus.")
            name = trigger.get("name")
            if not name or "threshold" not in trigger["metadata"]:
                raise PhotodupError("A prometheus trigger needs a name and metadata.threshold: give both.")
            self._activation[name] = float(trigger["metadata"].get("activationThreshold", 0))
        self.scaler = Autoscaler(autoscaler_spec(spec), requests, flags)
        self._last_active_s: float | None = None

    def poll(self, now_s: float, current: int, outside: Mapping[str, float | None]) -> int:
        """Do the operator's turn and return the count: only between zero and one does it change it."""
        values = [(outside.get(name), least) for name, least in self._activation.items()]
        active = any(value is not None and value > least for value, least in values)
        if active or self._last_active_s is None:
            self._last_active_s = now_s
        if current == 0:
            return max(1, self.min) if active else 0
        idle_s = now_s - self._last_active_s
        return 0 if self.min == 0 and not active and idle_s > self.cooldown_s else current


def autoscaler_spec(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the `spec` of the HorizontalPodAutoscaler that KEDA makes of a ScaledObject's."""
    metrics = []
    for trigger in spec["triggers"]:
        how = trigger.get("metricType", "AverageValue")
        key = {"AverageValue": "averageValue", "Value": "value"}[how]
        target = {"type": how, key: str(trigger["metadata"]["threshold"])}
        metrics.append(
            {"type": "External", "external": {"metric": {"name": trigger["name"]}, "target": target}}
        )
    behavior = spec.get("advanced", {}).get("horizontalPodAutoscalerConfig", {}).get("behavior")
    made = {
        "minReplicas": max(1, int(spec.get("minReplicaCount", 0))),
        "maxReplicas": int(spec.get("maxReplicaCount", 100)),
        "metrics": metrics,
    }
    return made | ({"behavior": behavior} if behavior else {})
