"""The real control plane: what Kubernetes 1.20.2 does with the published manifests and ours (`tools/cluster`)."""

import json
import shlex
import subprocess
import sys

import pytest
import yaml
from support.paths import ROOT

from photodup.core.errors import PhotodupError
from photodup.core.paths import cache_dir
from photodup.study.kubernetes import tool

PROGRAM = ROOT / "tools" / "cluster" / "control_plane.py"


def needs_cluster() -> None:
    try:
        tool("kubectl")
    except PhotodupError as reason:
        pytest.skip(str(reason))
    if not (cache_dir() / "cluster-tools" / "kube-apiserver").is_file():
        pytest.skip("The control plane is not built: run tools/cluster/build.sh.")


def page() -> list[list[str]]:
    """The commands that GitHub's workflow takes from docs/kubernetes.md, by the line with which it takes them."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    taken, _, runs = workflow["jobs"]["kind"]["steps"][-1]["run"].rpartition(" | ")
    assert runs == "bash -euxo pipefail"
    text = subprocess.run(["bash", "-c", taken], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [shlex.split(line, comments=True) for line in text.splitlines()]


def test_the_workflow_runs_the_whole_block_of_the_page():
    commands = page()
    assert commands[0] == ["tools/cluster/kind.sh"] and commands[-1] == ["tools/cluster/kind.sh", "delete"]
    kubectl = {words[3] for words in commands if words[:3] == ["kubectl", "-n", "photodup"]}
    assert kubectl == {"rollout", "logs", "exec", "set"} and sum("top" in words for words in commands) == 1


@pytest.mark.long
def test_the_rollback_of_the_page_goes_back_on_a_real_control_plane(tmp_path, monkeypatch):
    needs_cluster()
    monkeypatch.syspath_prepend(PROGRAM.parent)
    from control_plane import ControlPlane, Namespace

    plane = ControlPlane(tmp_path)
    try:
        plane.start()
        namespace = Namespace(plane, "photodup", "k8s/overlays/kind")
        namespace.apply(2)

        def environment() -> list[dict]:
            plane.until("the change is seen", is_observed)
            (container,) = plane.get(namespace.deployment)["spec"]["template"]["spec"]["containers"]
            return container.get("env", [])

        def is_observed() -> bool:
            deployment = plane.get(namespace.deployment)
            return deployment["status"].get("observedGeneration") == deployment["metadata"]["generation"]

        before, after = environment(), []
        for words in page():
            if "set" in words or "history" in words or "undo" in words:
                plane.kubectl(*words[1:])
                after.append(environment())
        changed, same, back = after
        assert {"name": "BATCH_MAX", "value": "4"} in changed and same == changed and back == before
    finally:
        plane.stop()


@pytest.mark.long
def test_a_real_control_plane_does_what_the_notebook_says(tmp_path):
    needs_cluster()
    subprocess.run([sys.executable, PROGRAM, "--out", tmp_path / "out.json"], check=True)
    experiment = json.loads((tmp_path / "out.json").read_text())
    published, kind, update = (experiment["namespaces"][name] for name in ("published", "kind", "update"))
    # The published quota refuses what the autoscaler asks for; ours admits it.
    assert max(row["replicas"] for row in published["rows"]) == 6
    assert max(row["pods"] for row in published["rows"]) == 4
    assert any("exceeded quota" in event["message"] for event in published["events"])
    counts = [row["replicas"] for row in kind["rows"]]
    assert list(dict.fromkeys(counts)) == [2, 6, 3] and counts[-1] == 2
    assert max(row["ready"] for row in kind["rows"]) == 6
    # An update at maxReplicas keeps every pod. One that is ending counts, so the quota refuses the next until it has gone.
    assert experiment["update"] == {"least_ready": 6, "most_pods": 7, "pods": 6, "updated": 6}
    refused = [event for event in update["events"] if event["reason"] == "FailedCreate"]
    assert all("exceeded quota" in event["message"] for event in refused)
    # A drain gets one pod, and the next when its replacement is ready.
    at_once, again, later = experiment["drains"]
    assert (at_once["granted"], at_once["refused"]) == (1, 5)
    assert again["granted"] == 0 and later["granted"] == 1


def test_without_the_servers_the_remedy_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    done = subprocess.run([sys.executable, PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "etcd is not built: run tools/cluster/build.sh (ten minutes, once).\n"


def test_a_server_that_ends_is_named_with_its_last_words(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "photodup" / "cluster-tools"
    folder.mkdir(parents=True)
    for name in ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"):
        script = folder / name
        last = "sleep 1; echo the disk is full >&2; exit 1" if name == "etcd" else "exec sleep 60"
        script.write_text(f"#!/bin/sh\n{last}\n")
        script.chmod(0o755)
    done = subprocess.run([sys.executable, PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr == "etcd ended: the disk is full.\n"
