"""A real control plane on this machine, without containers: what the autoscaler, the quota and the budget really do.

etcd, kube-apiserver, kube-controller-manager and kube-scheduler of Kubernetes 1.20.2 run as processes on the loopback
(`make cluster-tools` builds them once). The manifests of this repository are applied, autoscaler, ReplicaSets, quota,
scheduler and evictions are Kubernetes' own. Played are the kubelet, the pods' work and the metrics server: each pod
lives and serves as `simulate` has it, so what differs from a simulated run is what the simulation has wrong.

It does not prove: a kubelet, an image, a network between pods, KEDA, or a rule newer than 1.20.
"""

from __future__ import annotations

import json
import secrets
import shutil
import ssl
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx

from photodup.errors import PhotodupError
from photodup.paths import cache_dir
from photodup.serving.process.ports import claim_ports
from photodup.serving.process.process import ServerProcess, last_error
from photodup.study.kubernetes.autoscaler.replicas import ControllerFlags
from photodup.study.kubernetes.curve import ServiceCurve
from photodup.study.kubernetes.manifests import OVERLAYS, of_kind, output_of, read_workload, render, tool
from photodup.study.kubernetes.pods import Cluster, Cohort, ticks
from photodup.study.kubernetes.simulate import Load, SimulatedRun, Simulation, simulate

LIVE_VERSION = "1.20.2"
SERVERS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
OPENED = "127.0.0.1"
_SAME_FORM = {"autoscaling/v2": "autoscaling/v2beta2", "policy/v1": "policy/v1beta1"}  # as 1.20 names them
_GROUP = "metrics.k8s.io"
_API_FLAGS = """
    --bind-address=127.0.0.1 --advertise-address=127.0.0.1 --secure-port={port} --insecure-port=0
    --token-auth-file={at}/tokens.csv --authorization-mode=RBAC --endpoint-reconciler-type=none
    --service-cluster-ip-range=10.96.0.0/16 --service-account-issuer=https://kubernetes.default.svc
    --service-account-key-file={at}/tls.crt --service-account-signing-key-file={at}/tls.key
    --requestheader-client-ca-file={at}/tls.crt --tls-cert-file={at}/tls.crt --tls-private-key-file={at}/tls.key
    --proxy-client-cert-file={at}/tls.crt --proxy-client-key-file={at}/tls.key
"""
_CLIENT_FLAGS = """
    --kubeconfig={at}/kubeconfig --authentication-kubeconfig={at}/kubeconfig --authorization-kubeconfig={at}/kubeconfig
    --bind-address=127.0.0.1 --port=0 --leader-elect=false --kube-api-qps=100 --kube-api-burst=200
"""
_MANAGER_FLAGS = """
    --use-service-account-credentials=true --service-account-private-key-file={at}/tls.key --node-monitor-grace-period=2h
"""


def tools_dir() -> Path:
    """Return the folder of the user's cache that `make cluster-tools` fills."""
    return cache_dir() / "cluster-tools"


def missing() -> str:
    """Return in one sentence what keeps this machine from running the control plane; "" for nothing."""
    absent = [name for name in SERVERS if not (tools_dir() / name).is_file()]
    if absent:
        return (
            f"{absent[0]} is not in {tools_dir()}: `make cluster-tools` builds it once, in about ten minutes."
        )
    if not shutil.which("openssl"):
        return "openssl is missing: apt-get install openssl."
    try:
        tool("kubectl")
    except PhotodupError as error:
        return str(error)
    return ""


class ControlPlane:
    """The four servers in a folder of their own; `control_plane` starts and stops them.

    `api` is an HTTP client with an administrator's rights.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.processes = folder, list[ServerProcess]()
        self.ports = claim_ports(OPENED, dict.fromkeys((*SERVERS, "etcd's peers"), 0))
        self.config = folder / "kubeconfig"
        self.certificate, self.key = folder / "tls.crt", folder / "tls.key"
        subject = ["-subj", "/CN=photodup", "-addext", f"subjectAltName=DNS:localhost,IP:{OPENED}"]
        pair = ["-keyout", str(self.key), "-out", str(self.certificate)]
        output_of("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *pair, *subject)
        token = secrets.token_hex(16)  # the API server listens on loopback, where others may be
        (folder / "tokens.csv").write_text(f'{token},admin,admin,"system:masters"\n')
        server = {
            "server": f"https://{OPENED}:{self.ports['kube-apiserver']}",
            "certificate-authority": str(self.certificate),
        }
        here = {"cluster": "here", "user": "admin"}
        config = {"clusters": [{"name": "here", "cluster": server}], "current-context": "here"}
        config["users"] = [{"name": "admin", "user": {"token": token}}]
        config["contexts"] = [{"name": "here", "context": here}]
        self.config.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **config}))
        self.api = httpx.Client(
            base_url=server["server"],
            headers={"Authorization": f"Bearer {token}"},
            verify=ssl.create_default_context(cafile=str(self.certificate)),
            timeout=60,
        )

    def start(self) -> None:
        """Start the servers, each when what it needs answers."""
        etcd, peer = (f"http://{OPENED}:{self.ports[name]}" for name in ("etcd", "etcd's peers"))
        store = [f"--listen-client-urls={etcd}", f"--advertise-client-urls={etcd}"]
        store += [f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"]
        self._start("etcd", f"--data-dir={self.folder}/etcd", *store, f"--initial-cluster=default={peer}")
        self._start("kube-apiserver", f"--etcd-servers={etcd}", *self._flags(_API_FLAGS))
        self.until("kube-apiserver answers", lambda: self.api.get("/readyz").is_success)
        for name in ("kube-controller-manager", "kube-scheduler"):
            manages = _MANAGER_FLAGS if name == "kube-controller-manager" else ""
            self._start(name, *self._flags(_CLIENT_FLAGS + manages), f"--secure-port={self.ports[name]}")

    def stop(self) -> None:
        """Stop what runs, the last started first."""
        for process in reversed(self.processes):
            process.stop()
        self.api.close()

    def until(self, what: str, happened: Any, limit_s: float = 120.0) -> None:
        """Wait until `happened()` is true.

        Raises:
            PhotodupError: a server ended meanwhile, or `limit_s` went by.
        """
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            for process in self.processes:
                if not process.running:
                    raise PhotodupError(f"{process.name} ended: {last_error(process.log_text())}")
            with suppress(httpx.TransportError):
                if happened():
                    return
            time.sleep(0.3)
        raise PhotodupError(f"Waited {limit_s:.0f} s in vain until {what}.")

    def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        """Create an object; a refusal is in the answer's status."""
        return self.api.post(path, json=body)

    def items(self, path: str) -> list[dict[str, Any]]:
        """Return the objects of a list."""
        return self.api.get(path).raise_for_status().json()["items"]

    def patch(self, path: str, body: dict[str, Any]) -> None:
        """Change an object; one that has gone meanwhile is no error."""
        kind = {"Content-Type": "application/strategic-merge-patch+json"}
        answer = self.api.patch(path, content=json.dumps(body), headers=kind)
        if answer.status_code not in (404, 409):
            answer.raise_for_status()

    def kubectl(self, *arguments: str, given: str | None = None) -> str:
        """Run kubectl against this control plane only; return its output."""
        return output_of(tool("kubectl"), *arguments, "--kubeconfig", str(self.config), given=given)

    def _flags(self, text: str) -> list[str]:
        return text.format(port=self.ports["kube-apiserver"], at=self.folder).split()

    def _start(self, name: str, *arguments: str) -> None:
        command = [str(tools_dir() / name), *arguments]
        self.processes.append(ServerProcess(name, command, self.folder / f"{name}.log"))


@contextmanager
def control_plane() -> Iterator[ControlPlane]:
    """Start a control plane with one node and no pods; stop it and remove all it wrote at the end.

    Raises:
        PhotodupError: it is not built, or a server ended; names the remedy or the server's last words.
    """
    if reason := missing():
        raise PhotodupError(reason)
    with tempfile.TemporaryDirectory(prefix="photodup-cluster-") as folder, ExitStack() as stack:
        plane = ControlPlane(Path(folder))
        stack.callback(plane.stop)
        plane.start()
        capacity = {"cpu": "1000", "memory": "1000Gi", "pods": "1000"}
        ready = {"type": "Ready", "status": "True", "reason": "Played"} | dict.fromkeys(
            ("lastHeartbeatTime", "lastTransitionTime"), _stamp(time.time())
        )
        plane.post("/api/v1/nodes", {"metadata": {"name": "played"}}).raise_for_status()
        status = {"conditions": [ready], "capacity": capacity, "allocatable": capacity}
        plane.patch("/api/v1/nodes/played/status", {"status": status})
        yield plane


class Namespace(Simulation):
    """One namespace of the control plane: its pods are listed, all else about them is simulated.

    Attributes:
        rows: `time_s`, `replicas`, `pods` and `ready` at the beginning and whenever a count has changed.
        syncs_s: when the autoscaler read the pods' metrics.
    """

    def __init__(
        self, plane: ControlPlane, name: str, path: str, curve: ServiceCurve, load: Load, cluster: Cluster
    ) -> None:
        objects = render(path)
        super().__init__(read_workload(objects), curve, load, cluster, 1.0)
        self.plane, self.name, self.objects = plane, name, objects
        self.pods = f"/api/v1/namespaces/{name}/pods"
        self.deployment = f"/apis/apps/v1/namespaces/{name}/deployments/{self.workload.name}"
        self.cohorts_of: dict[str, Cohort] = {}
        self.shown: dict[str, tuple[bool, bool]] = {}
        self.names: dict[str, str] = {}
        self.rows: list[dict[str, float]] = []
        self.syncs_s: list[float] = []
        self.began_s = 0.0

    def apply(self, *, replicas: int) -> None:
        """Apply the objects, all but the autoscaler, with so many pods, and wait for the scheduler."""
        self.plane.post("/api/v1/namespaces", {"metadata": {"name": self.name}}).raise_for_status()
        self.replicas = replicas
        others = ("Namespace", "HorizontalPodAutoscaler", "Service")  # one nodePort, thrice
        for item in (item for item in self.objects if item["kind"] not in others):
            self._apply(item)
        self.plane.patch(self.deployment, {"spec": {"replicas": replicas}})
        bound = lambda: sum("nodeName" in p["spec"] for p in self.plane.items(self.pods)) >= replicas  # noqa: E731
        self.plane.until(f"{replicas} pods of {self.name} have a node", bound)

    def scale(self) -> None:
        """Apply the autoscaler; its first look is one period later."""
        for item in of_kind(self.objects, "HorizontalPodAutoscaler"):
            self._apply(item)

    def begin(self, at: float) -> None:
        """Let time run from `at` (Unix); pods that exist are warm."""
        self.began_s = at
        warm = self.cohorts[0]
        for pod in self.plane.items(self.pods):
            self.cohorts_of[pod["metadata"]["uid"]] = replace(warm, count=1, values={})
        self._list(0.0)
        self._show()

    def second(self, now: float) -> None:
        """Let one second pass: list the pods, let them start, serve and end, and write their status."""
        self.replicas = self.plane.api.get(self.deployment).raise_for_status().json()["spec"]["replicas"]
        self._list(now)
        if ticks(now, self.dt, self.cluster.metrics_resolution_s, self.cluster.metrics_phase_s):
            self._sample(now)
        row = self._advance(now)
        row = {name: row[name] for name in ("time_s", "replicas", "pods", "ready")}
        if not self.rows or {**row, "time_s": 0} != {**self.rows[-1], "time_s": 0}:
            self.rows.append(row)
        self._show()

    def usage(self) -> list[dict[str, Any]]:
        """Return the items of a PodMetricsList, and note that the autoscaler looked."""
        self.syncs_s.append(time.time() - self.began_s)
        return [
            {
                "metadata": {"name": self.names[uid], "namespace": self.name},
                "timestamp": _stamp(self.began_s + c.sampled_s),
                "window": f"{self.cluster.metrics_resolution_s:g}s",
                "containers": [
                    {"name": "server", "usage": {"cpu": f"{c.values['cpu'] * 1e9:.0f}n", "memory": "1Mi"}}
                ],
            }
            for uid, c in list(self.cohorts_of.items())
            if "cpu" in c.values
        ]

    def evict_all(self) -> dict[str, int]:
        """Ask to evict every ready pod at once, as a drain does; count answers by granted and refused.

        A Pending pod goes whatever the budget says: it serves nobody.
        """
        answers = {"granted": 0, "refused": 0}
        for pod in self.plane.items(self.pods):
            c = self.cohorts_of.get(pod["metadata"]["uid"])
            if c and c.ready and "deletionTimestamp" not in pod["metadata"]:
                name = pod["metadata"]["name"]
                body: dict[str, Any] = {"apiVersion": "policy/v1beta1", "kind": "Eviction"}
                body |= {"metadata": {"name": name, "namespace": self.name}}
                answer = self.plane.post(f"{self.pods}/{name}/eviction", body)
                if answer.status_code != 429:
                    answer.raise_for_status()
                answers["refused" if answer.status_code == 429 else "granted"] += 1
        return answers

    def noted(self) -> list[dict[str, Any]]:
        """Return the events about scaling and refusals: seconds since the beginning, reason, message, count."""
        events = [
            {
                "time_s": round(datetime.fromisoformat(e["firstTimestamp"]).timestamp() - self.began_s, 1),
                "reason": e["reason"],
                "message": e["message"],
                "count": e["count"],
            }
            for e in self.plane.items(f"/api/v1/namespaces/{self.name}/events")
            if e["reason"] in ("SuccessfulRescale", "FailedCreate", "FailedScheduling")
            and e["firstTimestamp"]
        ]
        return sorted(events, key=lambda e: e["time_s"])

    def _apply(self, item: dict[str, Any]) -> None:
        item = _as_1_20_has_it(item)
        item["metadata"] = {**item["metadata"], "namespace": self.name}
        self.plane.kubectl("apply", "-f", "-", given=json.dumps(item))

    def _list(self, now: float) -> None:
        """Take over which pods exist, which have a node and which are being deleted; let those go that are done."""
        found = {pod["metadata"]["uid"]: pod for pod in self.plane.items(self.pods)}
        for uid, pod in found.items():
            c = self.cohorts_of.setdefault(uid, Cohort(1, started_s=now))
            c.schedulable = "nodeName" in pod["spec"]
            self.names[uid] = pod["metadata"]["name"]
            if "deletionTimestamp" in pod["metadata"]:
                if c.terminating_s is None:
                    c.terminating_s, c.values = now, {}
                if self._gone(c, now):
                    now_ = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
                    self.plane.api.request("DELETE", f"{self.pods}/{self.names[uid]}", json=now_)
        self.cohorts_of = {uid: c for uid, c in self.cohorts_of.items() if uid in found}
        self.cohorts = list(self.cohorts_of.values())

    def _show(self) -> None:
        """Write the status of each pod that has changed, as a kubelet would."""
        for uid, c in self.cohorts_of.items():
            state = (c.running, c.ready)
            if self.shown.get(uid) == state or not c.running:
                continue
            self.shown[uid] = state
            started, changed = (
                _stamp(self.began_s + s) for s in (c.started_s, c.ready_changed_s or c.started_s)
            )
            word = "True" if c.ready else "False"
            conditions = [
                {"type": kind, "status": word, "lastTransitionTime": changed}
                for kind in ("Ready", "ContainersReady")
            ]
            status = {"phase": "Running", "startTime": started, "conditions": conditions}
            self.plane.patch(f"{self.pods}/{self.names[uid]}/status", {"status": status})


@contextmanager
def metrics_server(plane: ControlPlane, namespaces: Sequence[Namespace]) -> Iterator[None]:
    """Serve metrics.k8s.io behind the API server, which finds it as a service called `localhost`."""
    by_name = {namespace.name: namespace for namespace in namespaces}
    version = f"{_GROUP}/v1beta1"

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            parts = self.path.partition("?")[0].strip("/").split("/")
            body: dict[str, Any] = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version}
            body["resources"] = [
                {"name": "pods", "namespaced": True, "kind": "PodMetrics", "verbs": ["list"]}
            ]
            if len(parts) == 6 and parts[4] in by_name:
                items = by_name[parts[4]].usage()
                body = {"kind": "PodMetricsList", "apiVersion": version, "metadata": {}, "items": items}
            data = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer((OPENED, 0), Handler)
    server.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(plane.certificate, plane.key)
    # The handshake happens in the connection's thread: a client that never speaks holds up nobody.
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        service = {"type": "ExternalName", "externalName": "localhost"}
        plane.post("/api/v1/namespaces", {"metadata": {"name": "played-metrics"}}).raise_for_status()
        plane.post(
            "/api/v1/namespaces/played-metrics/services", {"metadata": {"name": "metrics"}, "spec": service}
        ).raise_for_status()
        spec = {
            "group": _GROUP,
            "version": "v1beta1",
            "insecureSkipTLSVerify": True,
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "service": {"namespace": "played-metrics", "name": "metrics", "port": server.server_port},
        }
        services = "/apis/apiregistration.k8s.io/v1/apiservices"
        plane.post(services, {"metadata": {"name": f"v1beta1.{_GROUP}"}, "spec": spec}).raise_for_status()
        path = f"/apis/{version}/namespaces/{namespaces[0].name}/pods"
        plane.until("the API server finds the metrics", lambda: plane.api.get(path).is_success)
        yield
    finally:
        server.shutdown()
        server.server_close()


@dataclass(frozen=True)
class Plan:
    """The times of an experiment, in seconds since the beginning, and the load on the two scaled namespaces.

    `ramp` holds (images per second, seconds); the last step ends the experiment.
    """

    ramp: tuple[tuple[float, float], ...]
    start_s: float = 20.0
    update_s: float = 20.0
    drains_s: tuple[float, ...] = (250.0, 255.0, 310.0)

    def rate_per_s(self, t: float) -> float:
        """Return what clients send at `t`."""
        for rate, seconds in self.ramp:
            if t < seconds:
                return rate
            t -= seconds
        return self.ramp[-1][0]

    @property
    def duration_s(self) -> float:
        return sum(seconds for _, seconds in self.ramp)

    def load(self) -> Load:
        return Load(rate_per_s=self.rate_per_s)


def experiment(curve: ServiceCurve, plan: Plan) -> dict[str, Any]:
    """Scale the published manifests and ours under the same load, and update and drain a third Deployment.

    Returns:
        `version`; `namespaces`: by name (`published`, `kind`, `update`) `rows` (one for each change of a count),
        `events` and `syncs_s`; `update`: the fewest pods ready and the most that existed; `drains`: evictions
        granted and refused, one row per attempt; `late_s`: by how much the slowest second was late.

    Raises:
        PhotodupError: the control plane is not built, or one of its servers ended.
    """
    cluster = Cluster(start_s=plan.start_s)
    idle = Load()
    with control_plane() as plane:
        made = {
            name: Namespace(plane, name, path, curve, load, cluster)
            for name, path, load in (
                ("published", "k8s/published", plan.load()),
                ("kind", OVERLAYS["kind"], plan.load()),
                ("update", OVERLAYS["kind"], idle),
            )
        }
        scaled = [made["published"], made["kind"]]
        with metrics_server(plane, scaled):
            for namespace in scaled:
                namespace.apply(replicas=namespace.replicas)
            made["update"].apply(replicas=made["update"].workload.max_replicas)
            began, late = time.time(), 0.0
            for namespace in made.values():
                namespace.begin(began)
            for namespace in scaled:
                namespace.syncs_s.clear()
                namespace.scale()
            drains, updated = [], 0
            for second in range(int(plan.duration_s)):
                wait = began + second - time.time()
                late = max(late, -wait)
                time.sleep(max(0.0, wait))
                if second == plan.update_s:
                    plane.kubectl("-n", "update", "rollout", "restart", "deployment/photodup")
                if second == plan.drains_s[0]:
                    status = plane.api.get(made["update"].deployment).raise_for_status().json()["status"]
                    updated = status.get("updatedReplicas", 0)
                if second in plan.drains_s:
                    drains.append({"time_s": second, **made["update"].evict_all()})
                for namespace in made.values():
                    namespace.second(float(second))
        updating = [row for row in made["update"].rows if plan.update_s <= row["time_s"] < min(plan.drains_s)]
        return {
            "version": LIVE_VERSION,
            "namespaces": {
                name: {"rows": n.rows, "events": n.noted(), "syncs_s": [round(at, 3) for at in n.syncs_s]}
                for name, n in made.items()
            },
            "update": {
                "least_ready": min(row["ready"] for row in updating),
                "most_pods": max(row["pods"] for row in updating),
                "pods": made["update"].workload.max_replicas,
                "updated": updated,
            },
            "drains": drains,
            "late_s": late,
        }


def foretold(curve: ServiceCurve, plan: Plan, name: str, syncs_s: Sequence[float]) -> SimulatedRun:
    """Simulate one scaled namespace of `experiment` with 1.20's rules and the autoscaler's real seconds."""
    flags = ControllerFlags(as_of_1_20=True)
    apart_s = statistics.median(b - a for a, b in pairwise(syncs_s))
    takes_s = max(0.0, apart_s - flags.sync_period_s)
    cluster = Cluster(start_s=plan.start_s, sync_phase_s=syncs_s[0], sync_takes_s=takes_s, flags=flags)
    workload = read_workload(render({**OVERLAYS, "published": "k8s/published"}[name]))
    return simulate(workload, curve, plan.load(), duration_s=plan.duration_s, cluster=cluster)


def _as_1_20_has_it(item: dict[str, Any]) -> dict[str, Any]:
    """Return the object as 1.20 knows it: older API versions, and two newer fields left out or spelt out."""
    item = json.loads(json.dumps(item))
    item["apiVersion"] = _SAME_FORM.get(item["apiVersion"], item["apiVersion"])
    if item["kind"] == "PodDisruptionBudget":
        item["spec"].pop("unhealthyPodEvictionPolicy", None)
    for container in item.get("spec", {}).get("template", {}).get("spec", {}).get("containers", []):
        pause = container.get("lifecycle", {}).get("preStop", {})
        if "sleep" in pause:
            pause["exec"] = {"command": ["sleep", str(pause.pop("sleep")["seconds"])]}
    return item


def _stamp(at: float) -> str:
    return datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
