"""The manifests: schema, policies, and what objects promise each other. Each check meets a planted fault."""

import copy
import functools
import json
import re
import shutil
import subprocess
import sys
import tempfile

import kubernetes_validate
import pytest
import yaml

from photodup.core.errors import PhotodupError
from photodup.core.paths import project_root
from photodup.study import kubernetes
from photodup.study.kubernetes import OVERLAYS, kustomize, of_kind, quantity, read_workload

K8S = project_root() / "k8s"
KUBERNETES_VERSION = "1.37.0"


@pytest.fixture(scope="session", autouse=True)
def tools():
    """Fetch helm, kubectl and checkov once; skip only where the script says that it cannot work."""
    done = subprocess.run([K8S / "get-tools.sh"], capture_output=True, text=True, timeout=850, check=False)
    if done.returncode == 2:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr


@pytest.fixture(params=OVERLAYS)
def target(request):
    return request.param


@pytest.fixture
def kind():
    return overlay("kind")


_built = functools.cache(kustomize)


def overlay(name):
    """Return the objects of an overlay, made once; a test may change them."""
    return copy.deepcopy(_built(OVERLAYS[name]))


def render_chart(*values):
    """Return the objects that Helm makes of k8s/chart with these values files."""
    files = [word for file in values for word in ("--values", str(file))]
    command = [kubernetes.tool("helm"), "template", "photodup", str(K8S / "chart"), "--namespace", "photodup"]
    return list(filter(None, yaml.safe_load_all(kubernetes.output_of(*command, *files))))


def schema(objects):
    """Return what Kubernetes' own schema refuses, unknown fields included; kinds of operators are unknown to it."""
    for item in objects:
        if item["kind"] not in ("PodMonitor", "ScaledObject"):
            try:
                kubernetes_validate.validate(item, KUBERNETES_VERSION, strict=True)
            except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
                yield f"{item['kind']}: {error}"


def references(objects):
    """Return the rules of selectors, ports and budgets that do not fit the pods."""
    template = spec(objects, "Deployment")["template"]
    labels, names = template["metadata"]["labels"].items(), {p["name"] for p in container(objects)["ports"]}
    cluster = yaml.safe_load((K8S / "kind.yaml").read_text())["nodes"]
    mapped = {port["containerPort"] for node in cluster for port in node.get("extraPortMappings", [])} | {
        None
    }
    for item in of_kind(objects, "Service", "PodMonitor"):
        ports, selector = item["spec"].get("ports", ()), item["spec"]["selector"]
        if not selector.get("matchLabels", selector).items() <= labels:
            yield "selector"
        targets = {port["targetPort"] for port in ports}
        targets |= {endpoint["port"] for endpoint in item["spec"].get("podMetricsEndpoints", ())}
        if not targets <= names or not {port.get("nodePort") for port in ports} <= mapped:
            yield "port"
    for budget in of_kind(objects, "PodDisruptionBudget"):
        least = read_workload(objects).hpa["minReplicas"]
        if budget["spec"].get("maxUnavailable") == 0 or budget["spec"].get("minAvailable", 0) >= least:
            yield "budget-allows-drain"


def rules(objects):
    if list(schema(objects)):
        return {"schema"}
    return {finding.rule for finding in kubernetes.check_manifests(objects)} | {*references(objects)}


def spec(objects, kind):
    return of_kind(objects, kind)[0]["spec"]


def pod_of(objects, kind="Deployment"):
    return spec(objects, kind)["template"]["spec"]


def container(objects):
    return pod_of(objects)["containers"][0]


def hpa(objects):
    return spec(objects, "HorizontalPodAutoscaler")


def quota(objects):
    return spec(objects, "ResourceQuota")["hard"]


def test_every_overlay_is_valid_and_consistent(target):
    assert rules(overlay(target)) == set()


def policies(target: str, objects: list[dict]) -> list[str]:
    """Return the policies of checkov that are refused, but for what k8s/policy.yaml excuses `target` from."""
    excuses = yaml.safe_load((K8S / "policy.yaml").read_text())["skip"]
    for excuse in excuses:
        assert str(excuse.get("reason", "")).strip(), f"k8s/policy.yaml: {excuse['check']} has no reason"
    skip = [excuse["check"] for excuse in excuses if target in excuse["targets"]]
    command = [
        kubernetes.tool("checkov-venv/bin/checkov"),
        "--framework",
        "kubernetes",
        "--output",
        "json",
        "--compact",
        "--quiet",
    ]
    command += ["--skip-check", ",".join(skip)] if skip else []
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump_all(objects, file)
        file.flush()
        done = subprocess.run([*command, "--file", file.name], capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    assert report["summary"]["passed"], "checkov did not see the objects"
    return [failure["check_id"] for failure in report["results"]["failed_checks"]]


@pytest.mark.long
def test_every_overlay_passes_the_policies(target):
    assert policies(target, overlay(target)) == []


@pytest.mark.long
def test_a_privileged_container_fails_the_policies(kind):
    container(kind)["securityContext"]["privileged"] = True
    assert "CKV_K8S_16" in policies("kind", kind)


def test_a_policy_excuse_without_a_reason_is_refused(tmp_path, monkeypatch, kind):
    (tmp_path / "k8s").mkdir()
    (tmp_path / "k8s" / "policy.yaml").write_text("skip: [{check: CKV_K8S_43, targets: [kind]}]")
    monkeypatch.setattr(sys.modules[__name__], "K8S", tmp_path / "k8s")
    with pytest.raises(AssertionError, match="CKV_K8S_43 has no reason"):
        policies("kind", kind)


def test_published_manifests_contradict_themselves():
    objects = kustomize("k8s/published")
    findings = kubernetes.check_manifests(objects)
    assert read_workload(objects).admitted() == 4
    assert {f.rule for f in findings} == {"quota-admits-max", "probe-live-is-ready", "probe-live-patience"}
    assert "raise it from 8 to 12" in next(f.message for f in findings if f.rule == "quota-admits-max")


def test_kind_overlay_is_what_the_study_meant(kind):
    workload = read_workload(kind)
    port = spec(kind, "Service")["ports"][0]
    assert (workload.hpa["minReplicas"], workload.max_replicas) == (2, 6)
    assert workload.hpa["metrics"][0]["resource"]["target"]["averageUtilization"] == 60
    assert workload.hpa["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 180
    assert (workload.requests["cpu"], workload.limits["cpu"]) == (0.5, 2.0)
    assert workload.admitted() >= 6 + workload.max_surge
    assert (port["nodePort"], container(kind)["imagePullPolicy"]) == (30092, "Never")


def probe(objects, name, **values):
    container(objects)[f"{name}Probe"].update(values)


def no_patience(objects):
    del container(objects)["startupProbe"]
    probe(objects, "liveness", periodSeconds=10, failureThreshold=3)


def keeps_all(objects):
    budget = spec(objects, "PodDisruptionBudget")
    del budget["maxUnavailable"]
    budget["minAvailable"] = 2


ELSE = {"app.kubernetes.io/name": "photodub"}
CPU_ALONE = {"requests": {"cpu": "500m"}, "limits": {"cpu": "2"}}
READY = {"path": "/readyz", "port": "http"}
OLD = {"apiVersion": "autoscaling/v2beta2"}
FAULTS = {
    "port of a monitor": ("port", lambda o: spec(o, "PodMonitor")["podMetricsEndpoints"][0].update(port="x")),
    "pods of a monitor": ("selector", lambda o: spec(o, "PodMonitor")["selector"].update(matchLabels=ELSE)),
    "a quota too small": ("quota-admits-max", lambda o: quota(o).update({"limits.cpu": "8"})),
    "a quota without the surge pod": ("quota-admits-surge", lambda o: quota(o).update({"limits.cpu": "12"})),
    "more replicas than the quota": ("quota-admits-max", lambda o: hpa(o).update(maxReplicas=9)),
    "no memory limit": ("quota-needs-resources", lambda o: container(o).update(resources=CPU_ALONE)),
    "impatient start": ("probe-allows-start", lambda o: probe(o, "startup", failureThreshold=10)),
    "impatient liveness, no start": ("probe-allows-start", no_patience),
    "alive asks ready": ("probe-live-is-ready", lambda o: probe(o, "liveness", httpGet=READY)),
    "no readiness": ("probe-readiness", lambda o: container(o).pop("readinessProbe")),
    "no start": ("probe-start-known", lambda o: of_kind(o, "Deployment")[0]["metadata"].pop("annotations")),
    "misspelt field": ("schema", lambda o: probe(o, "readiness", periodSecond=5)),
    "old API": ("schema", lambda o: of_kind(o, "HorizontalPodAutoscaler")[0].update(OLD)),
    "a typo in the selector": ("selector", lambda o: spec(o, "Service").update(selector=ELSE)),
    "an unmapped node port": ("port", lambda o: spec(o, "Service")["ports"][0].update(nodePort=30093)),
    "no drain": ("budget-allows-drain", lambda o: spec(o, "PodDisruptionBudget").update(maxUnavailable=0)),
    "a budget that keeps all": ("budget-allows-drain", keeps_all),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_found(fault):
    rule, plant = FAULTS[fault]
    objects = overlay("gpu" if "monitor" in fault else "kind")
    plant(objects)
    assert rule in rules(objects)


def test_a_drain_evicts_one_pod_at_a_time(target):
    """minAvailable: 1 let five of six be evicted at once."""
    budget = spec(overlay(target), "PodDisruptionBudget")
    assert budget["maxUnavailable"] == 1 and "minAvailable" not in budget


def test_no_probe_asks_for_an_inference(target):
    server = container(overlay(target))
    paths = {server[name]["httpGet"]["path"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert paths <= {"/readyz", "/healthz", "/v2/health/ready", "/v2/health/live"}


def comparable(objects):
    """Drop what must differ: the Namespace and test pod, generated names, Helm's own labels."""
    found = {}
    for item in copy.deepcopy(objects):
        if item["kind"] in ("Namespace", "Pod"):
            continue
        for label in ("app.kubernetes.io/managed-by", "helm.sh/chart"):
            item["metadata"].get("labels", {}).pop(label, None)
        if item["kind"] == "Deployment":
            template = item["spec"]["template"]
            notes = template["metadata"].pop("annotations", {})
            notes.pop("checksum/settings", None)
            template["metadata"] |= {"annotations": notes} if notes else {}
        text = re.sub(r"-settings-[a-z0-9]{10}\b", "-settings", json.dumps(item))
        item = json.loads(text)
        found[item["kind"], item["metadata"]["name"]] = item
    return found


@pytest.mark.parametrize("name", ["base", "kind", "gpu"])
def test_chart_gives_the_objects_of_the_overlay(name):
    values = [] if name == "base" else [K8S / "chart" / f"values-{name}.yaml"]
    from_chart, from_overlay = comparable(render_chart(*values)), comparable(overlay(name))
    assert from_chart.keys() == from_overlay.keys()
    for key in from_overlay:
        assert from_chart[key] == from_overlay[key]


@pytest.mark.parametrize("values", [[], ["values-kind.yaml"], ["values-gpu.yaml"]])
def test_chart_lints(values):
    command = [kubernetes.tool("helm"), "lint", "--strict", K8S / "chart"]
    for file in values:
        command += ["--values", K8S / "chart" / file]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


EVERYTHING = """
nodeSelector: {disk: ssd}
affinity: {podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [
  {weight: 1, podAffinityTerm: {topologyKey: kubernetes.io/hostname}}]}}
tolerations: [{key: batch, operator: Exists}]
topologySpreadConstraints: [{maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: ScheduleAnyway}]
imagePullSecrets: [{name: registry-key}]
serviceAccount: {name: photodup, create: true, annotations: {team: vision}}
podMonitor: {enabled: true, labels: {release: stack}}
ingress: {enabled: true, className: nginx, host: photos.example.org, tlsSecret: photos-tls, annotations: {a: b}}
quota: {pods: "8"}
"""


def test_chart_takes_what_administrators_set(tmp_path):
    (tmp_path / "all.yaml").write_text(EVERYTHING)
    objects = render_chart(tmp_path / "all.yaml")
    pod = pod_of(objects)
    (spread,) = pod["topologySpreadConstraints"]
    assert rules(objects) == set()
    assert (pod["nodeSelector"], pod["serviceAccountName"]) == ({"disk": "ssd"}, "photodup")
    assert pod["imagePullSecrets"] == [{"name": "registry-key"}]
    assert pod["tolerations"] == [{"key": "batch", "operator": "Exists"}]
    assert pod["affinity"]["podAntiAffinity"] and spread["maxSkew"] == 1
    # Without a selector a constraint counts no pods at all.
    assert spread["labelSelector"] == {"matchLabels": {"app.kubernetes.io/name": "photodup"}}
    assert of_kind(objects, "PodMonitor")[0]["metadata"]["labels"]["release"] == "stack"
    assert spec(objects, "Ingress")["rules"][0]["host"] == "photos.example.org"
    assert not of_kind(objects, "ServiceAccount")[0]["automountServiceAccountToken"]


@pytest.mark.parametrize(("values", "named"), [
    ("autoscaling: {maxReplica: 9}", "maxReplica"),
    ("ingress: {enabled: true}", "host"),
    ("serviceAccount: {create: true}", "name"),
    ("podMonitor: {interval: often}", "interval"),
    ("affinity: {nodes: {}}", "nodes"),
    ("imagePullSecrets: [registry-key]", "imagePullSecrets"),
])  # fmt: skip
def test_chart_refuses_half_a_setting(tmp_path, values, named):
    (tmp_path / "half.yaml").write_text(values)
    with pytest.raises(PhotodupError, match=named):
        render_chart(tmp_path / "half.yaml")


def test_base_brings_neither_namespace_nor_quota():
    assert {item["kind"] for item in overlay("base")}.isdisjoint({"Namespace", "ResourceQuota"})
    assert of_kind(kustomize("k8s/namespace"), "Namespace")
    for name in ("kind", "gpu", "gpu-keda"):
        assert len(of_kind(overlay(name), "Namespace")) == 1


@pytest.mark.parametrize("step", ["loader", "engines", "claims"])
def test_steps_of_a_gpu_cluster_fit_the_schema(step):
    objects = kustomize(f"k8s/overlays/gpu/{step}")
    assert [*schema(objects)] == []
    assert {item["metadata"].get("namespace", "photodup") for item in objects} == {"photodup"}


def mounts(pod):
    return {mount["mountPath"]: mount for mount in pod["containers"][0]["volumeMounts"]}


def test_engines_are_built_where_the_pods_look_for_them():
    """The path in config.pbtxt, the Job's mount and the Deployment's mount are one, on one claim."""
    pods = overlay("gpu")
    pod = pod_of(pods)
    job = pod_of(kustomize("k8s/overlays/gpu/engines"), "Job")
    config = (project_root() / "model_repository/openclip_vit_b32_trt/config.pbtxt").read_text()
    path = re.search(r'"trt_engine_cache_path" value: "([^"]+)"', config)[1]
    for each in (pod, job):
        assert not mounts(each)[path].get("readOnly")
        volume = next(v for v in each["volumes"] if v["name"] == mounts(each)[path]["name"])
        assert volume["persistentVolumeClaim"] == {"claimName": "engine-cache"}
    claims = {c["metadata"]["name"] for c in of_kind(pods, "PersistentVolumeClaim")}
    assert claims == {"model-repository", "engine-cache"}
    assert pod["containers"][0]["image"] == job["containers"][0]["image"]
    assert pod["containers"][0]["resources"]["limits"] == job["containers"][0]["resources"]["limits"]


def test_the_loader_can_write_where_the_pods_only_read():
    loader = spec(kustomize("k8s/overlays/gpu/loader"), "Pod")
    pod = pod_of(overlay("gpu"))
    assert not mounts(loader)["/models"].get("readOnly")
    assert mounts(pod)["/models"]["readOnly"]
    assert "nvidia.com/gpu" not in loader["containers"][0]["resources"]["limits"]
    assert loader["securityContext"]["runAsUser"] == pod["securityContext"]["runAsUser"]


def test_names_are_resolved_by_a_dns_cache_on_the_node_too(target):
    policy = of_kind(overlay(target), "NetworkPolicy")[0]
    (dns,) = [rule for rule in policy["spec"]["egress"] if "to" in rule]
    assert {"ipBlock": {"cidr": "169.254.20.10/32"}} in dns["to"]


def test_keda_asks_for_the_same_bounds_and_makes_the_only_autoscaler():
    gpu, rendered = overlay("gpu"), overlay("gpu-keda")
    scaled = spec(rendered, "ScaledObject")
    assert not of_kind(rendered, "HorizontalPodAutoscaler")
    assert (scaled["minReplicaCount"], scaled["maxReplicaCount"]) == (2, hpa(gpu)["maxReplicas"])
    made = scaled["advanced"]["horizontalPodAutoscalerConfig"]
    assert made["behavior"] == hpa(gpu)["behavior"]


def test_chart_objects_fit_the_schema():
    assert [*schema(render_chart(K8S / "chart" / "values-gpu.yaml"))] == []


def test_every_chart_value_is_in_the_schema():
    values = yaml.safe_load((K8S / "chart" / "values.yaml").read_text())
    schema = json.loads((K8S / "chart" / "values.schema.json").read_text())
    assert values.keys() | {"global"} == schema["properties"].keys()


def test_metrics_server_patch_adds_the_flag(tmp_path):
    """The upstream manifest needs the network; a stand-in of the same shape shows that the patch applies."""
    shutil.copytree(K8S / "metrics-server" / "patch", tmp_path / "patch")
    (tmp_path / "stand-in.yaml").write_text(
        "{apiVersion: apps/v1, kind: Deployment, metadata: {name: metrics-server, namespace: kube-system},"
        " spec: {template: {spec: {containers: [{name: metrics-server, args: [--metric-resolution=15s]}]}}}}"
    )
    (tmp_path / "kustomization.yaml").write_text("resources: [stand-in.yaml]\ncomponents: [patch]\n")
    assert container(kustomize(tmp_path))["args"] == ["--metric-resolution=15s", "--kubelet-insecure-tls"]


def test_a_broken_kustomization_is_one_sentence(tmp_path):
    with pytest.raises(PhotodupError, match="kustomize failed"):
        kustomize(tmp_path)


@pytest.mark.parametrize(("text", "value"), [("500m", 0.5), ("2", 2), (3, 3), ("1Gi", 2**30), ("0.5", 0.5)])
def test_quantities(text, value):
    assert quantity(text) == value
    for bad in ("", "five", "5x", "1KiB", "-1"):
        with pytest.raises(PhotodupError, match="quantity"):
            quantity(bad)
