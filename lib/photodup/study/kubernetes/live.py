"""The real thing: a kind cluster on this machine, from nothing to torn down. Needs Docker, kind and kubectl.

Not run where the reference results were made (no Docker there): what was checked is every refusal, and the order of
commands against stand-ins.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from photodup.errors import PhotodupError
from photodup.paths import project_root
from photodup.study.kubernetes.checks import check
from photodup.study.kubernetes.manifests import OVERLAYS, render, tool

NAME, CONTEXT, NAMESPACE, IMAGE, PORT = "photodup", "kind-photodup", "photodup", "photodup-service:cpu", 8092
URL = f"http://127.0.0.1:{PORT}"


def missing() -> str:
    """Return in one sentence what keeps this machine from running a cluster, with its remedy; "" for nothing."""
    for name, remedy in (
        ("docker", "install Docker Engine or Docker Desktop"),
        ("kind", "install kind from https://kind.sigs.k8s.io"),
    ):
        if shutil.which(name) is None:
            return f"{name} is not installed: {remedy}."
    try:
        tool("kubectl")
    except PhotodupError as error:
        return str(error)
    if _run("docker", "info", check=False).returncode:
        return "The Docker daemon does not answer: start it (`systemctl start docker`, or Docker Desktop)."
    return ""


def ready_to_create() -> None:
    """Refuse before anything is made.

    Raises:
        PhotodupError: a tool is missing, the manifests contradict themselves, the image is not built, a cluster
            of this name exists, or port 8092 is taken; each with the command that fixes it.
    """
    if reason := missing():
        raise PhotodupError(reason)
    if findings := check(render(OVERLAYS["kind"])):
        raise PhotodupError(f"k8s/overlays/kind is wrong: {findings[0]}")
    if _run("docker", "image", "inspect", IMAGE, check=False).returncode:
        raise PhotodupError(
            f"The image {IMAGE} is missing: `docker build -f docker/service.Dockerfile -t {IMAGE} .` builds it."
        )
    if NAME in _run("kind", "get", "clusters").stdout.split():
        raise PhotodupError(
            f"A kind cluster {NAME!r} exists: `kind delete cluster --name {NAME}` removes it."
        )
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", PORT))
        except OSError:
            raise PhotodupError(
                f"Port {PORT} is taken: `ss -ltnp 'sport = :{PORT}'` names what listens there; stop it."
            ) from None


@contextmanager
def cluster(*, keep: bool = False) -> Iterator[None]:
    """Create the cluster, load the image, apply metrics-server and the kind overlay, wait; delete at the end.

    Whatever fails on the way, a half-made cluster is deleted; where that fails too, the error names it.

    Args:
        keep: leave a working cluster behind, to look around in.
    """
    ready_to_create()
    config = str(project_root() / "k8s" / "kind.yaml")
    worked = False
    try:
        _run("kind", "create", "cluster", "--config", config, "--wait", "180s")
        _run("kind", "load", "docker-image", IMAGE, "--name", NAME)
        kubectl("apply", "-k", str(project_root() / "k8s" / "metrics-server"))
        kubectl("apply", "-k", str(project_root() / OVERLAYS["kind"]))
        kubectl("-n", "kube-system", "rollout", "status", "deployment/metrics-server", "--timeout=180s")
        kubectl("-n", NAMESPACE, "rollout", "status", "deployment/photodup", "--timeout=300s")
        worked = True
        yield
    finally:
        if not (keep and worked):
            delete()


def delete() -> None:
    """Delete the cluster.

    Raises:
        PhotodupError: it is still there; names the command to repeat.
    """
    if _run("kind", "delete", "cluster", "--name", NAME, check=False).returncode:
        raise PhotodupError(
            f"The cluster {NAME!r} could not be removed: repeat `kind delete cluster --name {NAME}`."
        )


def kubectl(*arguments: str, check: bool = True) -> str:
    """Run kubectl against the kind cluster only, whatever context the user works in; return its output."""
    return _run(tool("kubectl"), "--context", CONTEXT, *arguments, check=check).stdout


@dataclass
class Watch:
    """Samples the cluster every `every_s` in a thread; use as a context manager.

    `rows` hold time since the start, `replicas` (what the Deployment wants), `pods`, `ready` and the CPU the
    autoscaler sees (per cent of the request, None before its first reading).
    """

    every_s: float = 2.0
    rows: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)

    def __enter__(self) -> Watch:
        self._began, self._stop = time.time(), threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        found = json.loads(kubectl("-n", NAMESPACE, "get", "events", "-o", "json"))["items"]
        self.events = [
            {"reason": e["reason"], "message": e["message"], "at": e["lastTimestamp"]} for e in found
        ]

    def _loop(self) -> None:
        while not self._stop.wait(self.every_s):
            text = kubectl("-n", NAMESPACE, "get", "deployment,hpa,pods", "-o", "json", check=False)
            if text:
                self.rows.append(
                    {"time_s": round(time.time() - self._began, 1), **snapshot(json.loads(text))}
                )


def snapshot(listing: dict[str, Any]) -> dict[str, Any]:
    """Return one row of `Watch` from `kubectl get deployment,hpa,pods -o json`."""
    items = listing["items"]
    by_kind = {item["kind"]: item for item in items}
    pods = [item for item in items if item["kind"] == "Pod" and "deletionTimestamp" not in item["metadata"]]
    ready = [
        pod
        for pod in pods
        if any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))
    ]
    current = by_kind.get("HorizontalPodAutoscaler", {}).get("status", {}).get("currentMetrics") or [{}]
    return {
        "replicas": by_kind["Deployment"]["spec"]["replicas"],
        "pods": len(pods),
        "ready": len(ready),
        "restarts": sum(
            s["restartCount"] for pod in pods for s in pod["status"].get("containerStatuses", [])
        ),
        "cpu_percent_of_request": (current[0] or {})
        .get("resource", {})
        .get("current", {})
        .get("averageUtilization"),
    }


TOUR: tuple[tuple[str, Sequence[str]], ...] = (
    ("what the server wrote", ("logs", "deployment/photodup", "--tail=5")),
    ("inside a pod", ("exec", "deployment/photodup", "--", "id")),
    ("what the metrics server sees", ("top", "pods")),
    ("roll out a change", ("set", "env", "deployment/photodup", "LOG_LEVEL=debug")),
    ("wait for it", ("rollout", "status", "deployment/photodup", "--timeout=300s")),
    ("two revisions", ("rollout", "history", "deployment/photodup")),
    ("roll back", ("rollout", "undo", "deployment/photodup")),
    ("wait for it", ("rollout", "status", "deployment/photodup", "--timeout=300s")),
    ("what a drain may evict", ("get", "pdb", "photodup")),
)


def tour() -> list[dict[str, str]]:
    """Walk through the commands of a working day; return what each printed.

    The last two evict a pod under the disruption budget: draining the only node evicts pods one by one, as far
    as the budget lets it, and times out because nothing else can host them. The node is uncordoned again.
    """
    said = [
        {
            "step": step,
            "command": " ".join(("kubectl", *command)),
            "output": kubectl("-n", NAMESPACE, *command),
        }
        for step, command in TOUR
    ]
    node = f"{NAME}-control-plane"
    drain = ["drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=45s"]
    drain += ["--pod-selector=app.kubernetes.io/name=photodup"]
    done = _run(tool("kubectl"), "--context", CONTEXT, *drain, check=False)
    kubectl("uncordon", node)
    output = (done.stdout + done.stderr).strip()
    return [*said, {"step": "drain", "command": " ".join(("kubectl", *drain)), "output": output}]


def experiment(
    *, requests: int = 600, concurrency: int = 16, ramp: Sequence[tuple[float, float]]
) -> dict[str, Any]:
    """Make a cluster, put the published load and then a ramp on it, walk the tour, remove it.

    Args:
        requests, concurrency: the published load: so many requests, from so many clients that wait.
        ramp: (images per second, seconds) of the open loop that follows.

    Returns:
        `points` (one per load), `rows` and `events` of `Watch`, and `tour`.
    """
    from photodup.bench.backends.adapters import adapter
    from photodup.bench.load.load import measure
    from photodup.bench.load.plan import Stopping
    from photodup.bench.stats.facts import Load
    from photodup.study.notebook.weights import payload_photos

    photos, points = payload_photos(16), []
    with cluster(), Watch() as watch:
        loads = [(Load("closed_loop", concurrency=concurrency), Stopping(5.0, requests, 900.0))]
        loads += [(Load("server", offered_per_s=rate), Stopping(s, 64, 2 * s)) for rate, s in ramp]
        for load, stopping in loads:
            point = measure(adapter("fastapi-pytorch-fp32-http-jpeg", URL), photos, load, stopping)
            points.append({name: value for name, value in point.items() if name != "raw"})
        toured = tour()
    return {"points": points, "rows": watch.rows, "events": watch.events, "tour": toured}


def _run(*command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and done.returncode:
        words = " ".join((done.stderr or done.stdout).split())[-300:]
        raise PhotodupError(f"`{' '.join(command)}` failed: {words or done.returncode}")
    return done
