#!/usr/bin/env python3
"""A real Kubernetes control plane on this machine, without containers, under this repository's manifests.

    .venv/bin/python tools/cluster/control_plane.py [--out FILE]      (tools/cluster/build.sh first; 8 minutes)

Real: etcd, kube-apiserver, kube-controller-manager and kube-scheduler of Kubernetes 1.20.2, with their autoscaler,
ReplicaSets, quota, scheduling and evictions. Played: the kubelet, the work of the pods and the metrics server. The published
manifests and ours get one load; a third Deployment is updated at maxReplicas and then drained. The JSON that is printed
has the counts of each second at which one changed, and Kubernetes' own events.
"""

from __future__ import annotations

import argparse
import json
import secrets
import ssl
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

from photodup.core.errors import PhotodupError
from photodup.core.paths import cache_dir
from photodup.serving.process.ports import claim_ports
from photodup.serving.process.server_process import ServerProcess, last_error
from photodup.study.kubernetes import kustomize, of_kind, output_of, read_workload, tool
from photodup.study.notebook.machine import this_machine

VERSION = "1.20.2"
SERVERS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
LOOPBACK = "127.0.0.1"
METRICS = "metrics.k8s.io"
NAMESPACES = {"published": "k8s/published", "kind": "k8s/overlays/kind", "update": "k8s/overlays/kind"}
# Load of the two scaled namespaces in pods' worth, and until which second
RAMP = ((0.1, 45.0), (4.0, 150.0), (0.1, 460.0))
UPDATE_S, DRAINS_S = 20, (250, 255, 310)
# Of a played pod: until its container runs, from then until it is ready, and its end.
CONTAINER_S, START_S, END_S = 2.0, 5.0, 5.0
SAMPLE_S = 15  # between two samples of the metrics
QUEUE_S = 11.0  # work that a full pod has waiting; it refuses what is beyond
API_FLAGS = """
    --bind-address=127.0.0.1 --advertise-address=127.0.0.1 --secure-port={port} --insecure-port=0
    --token-auth-file={folder}/tokens.csv --authorization-mode=RBAC --endpoint-reconciler-type=none
    --service-cluster-ip-range=10.96.0.0/16 --service-account-issuer=https://kubernetes.default.svc
    --service-account-key-file={folder}/tls.crt --service-account-signing-key-file={folder}/tls.key
    --requestheader-client-ca-file={folder}/tls.crt --tls-cert-file={folder}/tls.crt
    --tls-private-key-file={folder}/tls.key
    --proxy-client-cert-file={folder}/tls.crt --proxy-client-key-file={folder}/tls.key
"""
CLIENT_FLAGS = """
    --kubeconfig={folder}/kubeconfig --authentication-kubeconfig={folder}/kubeconfig
    --authorization-kubeconfig={folder}/kubeconfig
    --bind-address=127.0.0.1 --port=0 --leader-elect=false --kube-api-qps=100 --kube-api-burst=200
"""
MANAGER_FLAGS = """
    --use-service-account-credentials=true --service-account-private-key-file={folder}/tls.key
    --node-monitor-grace-period=2h
"""


class ControlPlane:
    """The four servers in a folder of their own; `api` is an HTTP client with an administrator's rights."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.processes = folder, list[ServerProcess]()
        self.ports = claim_ports(LOOPBACK, dict.fromkeys((*SERVERS, "etcd's peers"), 0))
        self.certificate, self.key = folder / "tls.crt", folder / "tls.key"
        subject = ["-subj", "/CN=photodup", "-addext", f"subjectAltName=DNS:localhost,IP:{LOOPBACK}"]
        files = ["-keyout", str(self.key), "-out", str(self.certificate)]
        output_of("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *files, *subject)
        token = secrets.token_hex(16)  # other users of this machine reach the loopback, too
        (folder / "tokens.csv").write_text(f'{token},admin,admin,"system:masters"\n')
        url = f"https://{LOOPBACK}:{self.ports['kube-apiserver']}"
        cluster = {"server": url, "certificate-authority": str(self.certificate)}
        config = {"apiVersion": "v1", "kind": "Config", "current-context": "here"}
        config |= {"clusters": [{"name": "here", "cluster": cluster}]}
        config |= {"users": [{"name": "admin", "user": {"token": token}}]}
        config |= {"contexts": [{"name": "here", "context": {"cluster": "here", "user": "admin"}}]}
        (folder / "kubeconfig").write_text(json.dumps(config))
        verify = ssl.create_default_context(cafile=str(self.certificate))
        self.api = httpx.Client(
            base_url=url, headers={"Authorization": f"Bearer {token}"}, verify=verify, timeout=60
        )

    def start(self) -> None:
        """Start the servers, each when the one that it needs answers, and add a node that fits every pod."""
        etcd, peer = (f"http://{LOOPBACK}:{self.ports[name]}" for name in ("etcd", "etcd's peers"))
        store = [f"--data-dir={self.folder}/etcd", f"--initial-cluster=default={peer}"]
        store += [f"--{name}-client-urls={etcd}" for name in ("listen", "advertise")]
        store += [f"--{name}-peer-urls={peer}" for name in ("listen", "initial-advertise")]
        self._start("etcd", *store)
        self._start("kube-apiserver", f"--etcd-servers={etcd}", *self._flags(API_FLAGS))
        self.until("kube-apiserver answers", lambda: self.api.get("/readyz").is_success)
        for name, flags in zip(SERVERS[2:], (CLIENT_FLAGS + MANAGER_FLAGS, CLIENT_FLAGS), strict=True):
            self._start(name, *self._flags(flags), f"--secure-port={self.ports[name]}")
        room = {"cpu": "1000", "memory": "1000Gi", "pods": "1000"}
        times = dict.fromkeys(("lastHeartbeatTime", "lastTransitionTime"), stamp(time.time()))
        ready = {"type": "Ready", "status": "True", "reason": "Played"} | times
        self.post("/api/v1/nodes", {"metadata": {"name": "played"}})
        status = {"conditions": [ready], "capacity": room, "allocatable": room}
        self.patch("/api/v1/nodes/played/status", {"status": status})

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.stop()
        self.api.close()

    def until(self, event: str, has_happened: Any, limit_s: float = 120.0) -> None:
        """Wait until `has_happened()`.

        Raises:
            PhotodupError: a server ended meanwhile, or `limit_s` went by.
        """
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            for process in self.processes:
                if not process.is_running:
                    raise PhotodupError(f"{process.name} ended: {last_error(process.log_text())}")
            with suppress(httpx.TransportError):
                if has_happened():
                    return
            time.sleep(0.3)
        raise PhotodupError(f"Waited {limit_s:.0f} s in vain until {event}.")

    def get(self, path: str) -> dict[str, Any]:
        return self.api.get(path).raise_for_status().json()

    def post(self, path: str, body: dict[str, Any]) -> None:
        self.api.post(path, json=body).raise_for_status()

    def patch(self, path: str, body: dict[str, Any]) -> None:
        """Change an object; one that has gone meanwhile is no error."""
        kind = {"Content-Type": "application/strategic-merge-patch+json"}
        answer = self.api.patch(path, content=json.dumps(body), headers=kind)
        if answer.status_code not in (404, 409):
            answer.raise_for_status()

    def kubectl(self, *arguments: str, stdin: str | None = None) -> None:
        output_of(tool("kubectl"), *arguments, "--kubeconfig", str(self.folder / "kubeconfig"), stdin=stdin)

    def _flags(self, text: str) -> list[str]:
        return text.format(port=self.ports["kube-apiserver"], folder=self.folder).split()

    def _start(self, name: str, *arguments: str) -> None:
        program = str(cache_dir() / "cluster-tools" / name)
        self.processes.append(ServerProcess(name, [program, *arguments], self.folder / f"{name}.log"))


@dataclass
class Pod:
    """A played pod; times in seconds since the experiment began. `cpu_s` is since the last sample."""

    name: str
    created_s: float
    has_node: bool = True
    ending_s: float | None = None
    is_running: bool = False
    is_ready: bool = False
    waiting_s: float = 0.0
    cpu_s: float = 0.0
    cores: float | None = None  # of the last sample
    sampled_s: float = 0.0

    @property
    def serves(self) -> bool:
        return self.is_ready and self.ending_s is None


class Namespace:
    """The objects of one folder in a namespace of their own, and what their pods do.

    Attributes:
        rows: `time_s`, `replicas`, `pods` and `ready` at the beginning and whenever a count has changed.
    """

    def __init__(self, plane: ControlPlane, name: str, folder: str) -> None:
        self.plane, self.name, self.objects = plane, name, kustomize(folder)
        self.workload = read_workload(self.objects)
        self.path = f"/api/v1/namespaces/{name}"
        self.deployment = f"/apis/apps/v1/namespaces/{name}/deployments/{self.workload.name}"
        self.pods: dict[str, Pod] = {}
        self.rows: list[dict[str, float]] = []
        self.began = 0.0

    def apply(self, replicas: int) -> None:
        """Apply all objects but the autoscaler and the services (one node port, thrice); wait for the scheduler."""
        self.plane.post("/api/v1/namespaces", {"metadata": {"name": self.name}})
        for item in self.objects:
            if item["kind"] not in ("Namespace", "HorizontalPodAutoscaler", "Service"):
                self._apply(item)
        self.plane.patch(self.deployment, {"spec": {"replicas": replicas}})
        self.plane.until(f"{replicas} pods of {self.name} have a node", lambda: self._nodes() >= replicas)

    def begin(self, now: float) -> None:
        """Let time run from `now` (Unix), with pods that have been ready for an hour, and apply the autoscaler."""
        self.began = now
        self._list(-3600.0)
        self.second(0.0, 0.0)
        if self.name != "update":
            self._apply(of_kind(self.objects, "HorizontalPodAutoscaler")[0])

    def second(self, now: float, load: float) -> None:
        """Let one second pass under a load of so many pods' worth: pods start, serve, end, and say so."""
        self._list(now)
        if now % SAMPLE_S == 7:
            for pod in self.pods.values():
                if pod.is_running and pod.created_s + CONTAINER_S <= now - SAMPLE_S and pod.ending_s is None:
                    pod.cores, pod.sampled_s = pod.cpu_s / SAMPLE_S, now
                pod.cpu_s = 0.0
        serving = [pod for pod in self.pods.values() if pod.serves]
        for uid, pod in self.pods.items():
            pod.waiting_s += load / len(serving) if pod.serves else 0.0
            work = min(1.0, pod.waiting_s) if pod.is_ready else float(pod.is_running)
            pod.waiting_s = min(QUEUE_S, max(0.0, pod.waiting_s - work))
            pod.cpu_s += work * self.workload.limits["cpu"]
            age_s = now - pod.created_s if pod.has_node and pod.ending_s is None else 0.0
            state = age_s >= CONTAINER_S, age_s >= CONTAINER_S + START_S
            if pod.ending_s is None and state != (pod.is_running, pod.is_ready):
                pod.is_running, pod.is_ready = state
                self._show(uid, pod, min(now, pod.created_s + CONTAINER_S + START_S))
        replicas = self.plane.get(self.deployment)["spec"]["replicas"]
        ready = sum(pod.serves for pod in self.pods.values())
        row = {"time_s": now, "replicas": replicas, "pods": len(self.pods), "ready": ready}
        if not self.rows or {**row, "time_s": 0} != {**self.rows[-1], "time_s": 0}:
            self.rows.append(row)

    def usage(self) -> list[dict[str, Any]]:
        """Return the items of a PodMetricsList."""
        return [
            {
                "metadata": {"name": pod.name, "namespace": self.name},
                "timestamp": stamp(self.began + pod.sampled_s),
                "window": f"{SAMPLE_S}s",
                "containers": [
                    {"name": "server", "usage": {"cpu": f"{pod.cores * 1e9:.0f}n", "memory": "1Mi"}}
                ],
            }
            for pod in list(self.pods.values())
            if pod.cores is not None and pod.ending_s is None
        ]

    def drain(self) -> dict[str, int]:
        """Ask to evict every ready pod at once, as a drain does; count answers by granted and refused."""
        answers = {"granted": 0, "refused": 0}
        for pod in self.pods.values():
            if pod.serves:
                body = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": pod.name}}
                answer = self.plane.api.post(f"{self.path}/pods/{pod.name}/eviction", json=body)
                if answer.status_code != 429:
                    answer.raise_for_status()
                answers["refused" if answer.status_code == 429 else "granted"] += 1
        return answers

    def events(self) -> list[dict[str, Any]]:
        """Return Kubernetes' events about scaling and refusals, with seconds since the beginning."""
        events = [
            {"time_s": round(datetime.fromisoformat(event["firstTimestamp"]).timestamp() - self.began, 1)}
            | {name: event[name] for name in ("reason", "message", "count")}
            for event in self.plane.get(f"{self.path}/events")["items"]
            if event["firstTimestamp"] and event["reason"] in ("SuccessfulRescale", "FailedCreate")
        ]
        return sorted(events, key=lambda event: event["time_s"])

    def _nodes(self) -> int:
        return sum("nodeName" in pod["spec"] for pod in self.plane.get(f"{self.path}/pods")["items"])

    def _apply(self, item: dict[str, Any]) -> None:
        item = as_of_1_20(item)
        item["metadata"]["namespace"] = self.name
        self.plane.kubectl("apply", "-f", "-", stdin=json.dumps(item))

    def _list(self, now: float) -> None:
        """Read which pods exist, have a node and are being deleted; let those go whose end is over."""
        listed = {pod["metadata"]["uid"]: pod for pod in self.plane.get(f"{self.path}/pods")["items"]}
        self.pods = {uid: pod for uid, pod in self.pods.items() if uid in listed}
        for uid, item in listed.items():
            pod = self.pods.setdefault(uid, Pod(item["metadata"]["name"], now))
            pod.has_node = "nodeName" in item["spec"]
            if "deletionTimestamp" in item["metadata"]:
                pod.ending_s = now if pod.ending_s is None else pod.ending_s
                if now - pod.ending_s >= END_S or not pod.is_running:
                    body = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
                    self.plane.api.request("DELETE", f"{self.path}/pods/{pod.name}", json=body)

    def _show(self, uid: str, pod: Pod, changed_s: float) -> None:
        """Write the status of a pod, as a kubelet would."""
        times = {"lastTransitionTime": stamp(self.began + changed_s)}
        ready = {"status": str(pod.is_ready)} | times
        conditions = [{"type": kind} | ready for kind in ("Ready", "ContainersReady")]
        status = {
            "phase": "Running",
            "startTime": stamp(self.began + pod.created_s),
            "conditions": conditions,
        }
        self.plane.patch(f"{self.path}/pods/{pod.name}/status", {"status": status})


@contextmanager
def metrics_server(plane: ControlPlane, namespaces: list[Namespace]) -> Iterator[None]:
    """Serve metrics.k8s.io behind the API server, which finds it as a service called `localhost`."""
    by_name, version = {namespace.name: namespace for namespace in namespaces}, f"{METRICS}/v1beta1"
    resource = {"name": "pods", "namespaced": True, "kind": "PodMetrics", "verbs": ["list"]}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            parts = self.path.partition("?")[0].strip("/").split("/")
            body: dict[str, Any] = {
                "kind": "APIResourceList",
                "groupVersion": version,
                "resources": [resource],
            }
            if len(parts) == 6 and parts[4] in by_name:
                body = {"kind": "PodMetricsList", "metadata": {}, "items": by_name[parts[4]].usage()}
            text = json.dumps({"apiVersion": version if len(parts) == 6 else "v1", **body}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
    server.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(plane.certificate, plane.key)
    # The handshake happens in the connection's thread: a client that never speaks holds up nobody.
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        plane.post("/api/v1/namespaces", {"metadata": {"name": "metrics"}})
        target = {"type": "ExternalName", "externalName": "localhost"}
        plane.post("/api/v1/namespaces/metrics/services", {"metadata": {"name": "metrics"}, "spec": target})
        spec = {"group": METRICS, "version": "v1beta1", "insecureSkipTLSVerify": True}
        spec |= {"groupPriorityMinimum": 100, "versionPriority": 100}
        spec["service"] = {"namespace": "metrics", "name": "metrics", "port": server.server_port}
        services = "/apis/apiregistration.k8s.io/v1/apiservices"
        plane.post(services, {"metadata": {"name": f"v1beta1.{METRICS}"}, "spec": spec})
        path = f"/apis/{version}/namespaces/{namespaces[0].name}/pods"
        plane.until("the API server finds the metrics", lambda: plane.api.get(path).is_success)
        yield
    finally:
        server.shutdown()
        server.server_close()


def experiment(plane: ControlPlane) -> dict[str, Any]:
    """Scale the published manifests and ours under RAMP, update a third Deployment and drain it; return what happened."""
    spaces = {name: Namespace(plane, name, folder) for name, folder in NAMESPACES.items()}
    update, drains = spaces["update"], []
    with metrics_server(plane, list(spaces.values())):
        for namespace in spaces.values():
            namespace.apply(update.workload.max_replicas if namespace is update else 2)
        began = time.time()
        for namespace in spaces.values():
            namespace.begin(began)
        for second in range(1, int(RAMP[-1][1])):
            time.sleep(max(0.0, began + second - time.time()))
            if second == UPDATE_S:
                plane.kubectl("-n", "update", "rollout", "restart", f"deployment/{update.workload.name}")
            if second == DRAINS_S[0]:
                updated = plane.get(update.deployment)["status"].get("updatedReplicas", 0)
            if second in DRAINS_S:
                drains.append({"time_s": second, **update.drain()})
            load = next(load for load, until_s in RAMP if second < until_s)
            for namespace in spaces.values():
                namespace.second(float(second), 0.0 if namespace is update else load)
        rows = [row for row in update.rows if UPDATE_S <= row["time_s"] < DRAINS_S[0]]
        counts = {
            "least_ready": min(row["ready"] for row in rows),
            "most_pods": max(row["pods"] for row in rows),
        }
        return {
            "version": VERSION,
            "machine": str(this_machine()),
            "ramp": RAMP,
            "start_s": START_S,
            "namespaces": {name: {"rows": n.rows, "events": n.events()} for name, n in spaces.items()},
            "update": {**counts, "pods": update.workload.max_replicas, "updated": updated},
            "drains": drains,
        }


def as_of_1_20(item: dict[str, Any]) -> dict[str, Any]:
    """Return the object as 1.20 knows it: older API versions, and two newer fields left out or spelt out."""
    item = json.loads(json.dumps(item))
    older = {"autoscaling/v2": "autoscaling/v2beta2", "policy/v1": "policy/v1beta1"}
    item["apiVersion"] = older.get(item["apiVersion"], item["apiVersion"])
    if item["kind"] == "PodDisruptionBudget":
        item["spec"].pop("unhealthyPodEvictionPolicy", None)
    for container in item.get("spec", {}).get("template", {}).get("spec", {}).get("containers", []):
        hook = container.get("lifecycle", {}).get("preStop", {})
        if "sleep" in hook:
            hook["exec"] = {"command": ["sleep", str(hook.pop("sleep")["seconds"])]}
    return item


def stamp(at: float) -> str:
    return datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def main() -> str:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="file for the JSON; printed by default")
    options = parser.parse_args()
    absent = [name for name in SERVERS if not (cache_dir() / "cluster-tools" / name).is_file()]
    if absent:
        return f"{absent[0]} is not built: run tools/cluster/build.sh (ten minutes, once)."
    with tempfile.TemporaryDirectory(prefix="photodup-cluster-") as folder, ExitStack() as stack:
        plane = ControlPlane(Path(folder))
        stack.callback(plane.stop)
        plane.start()
        text = json.dumps(experiment(plane), indent=1) + "\n"
    options.out.write_text(text) if options.out else print(text)
    return ""


if __name__ == "__main__":
    try:
        sys.exit(main())
    except PhotodupError as error:
        sys.exit(str(error))
