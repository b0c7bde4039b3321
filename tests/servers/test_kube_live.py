"""Creating a cluster: every refusal, and that nothing half-made stays. Docker and kind are stand-ins here."""

import socket

import pytest

from photodup.errors import PhotodupError
from photodup.study.kubernetes import live


@pytest.fixture
def stand_ins(tmp_path, monkeypatch):
    """Put scripts named docker, kind and kubectl on an otherwise empty PATH; each writes what it was asked."""
    log = tmp_path / "commands.log"
    log.touch()

    def install(name, body="exit 0"):
        script = tmp_path / name
        script.write_text(f'#!/bin/sh\necho "{name} $*" >> {log}\n{body}\n')
        script.chmod(0o755)

    for name in ("docker", "kind", "kubectl"):
        install(name)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(live, "tool", lambda name: str(tmp_path / name))
    monkeypatch.setattr(live, "render", lambda overlay: [])
    monkeypatch.setattr(live, "check", lambda objects: [])
    install.log = log
    install.folder = tmp_path
    return install


@pytest.mark.parametrize(
    ("name", "body", "sentence"),
    [
        ("docker", "exit 1", "Docker daemon does not answer"),
        ("docker", '[ "$1" != image ]', "docker build -f docker/service.Dockerfile"),
        ("kind", "echo photodup", "kind delete cluster --name photodup"),
    ],
)
def test_what_stands_in_the_way_is_named_with_its_remedy(stand_ins, name, body, sentence):
    stand_ins(name, body)

    with pytest.raises(PhotodupError, match=sentence):
        live.ready_to_create()


@pytest.mark.parametrize("name", ["docker", "kind"])
def test_a_missing_tool_is_named(stand_ins, name):
    (stand_ins.folder / name).unlink()

    assert live.missing().startswith(f"{name} is not installed")


def test_a_taken_port_is_named(stand_ins):
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", live.PORT))
        taken.listen()

        with pytest.raises(PhotodupError, match="Port 8092 is taken"):
            live.ready_to_create()


def test_a_contradictory_overlay_is_refused(stand_ins, monkeypatch):
    monkeypatch.setattr(live, "check", lambda objects: ["quota-admits-max · admits 4 pods"])

    with pytest.raises(PhotodupError, match="quota-admits-max"):
        live.ready_to_create()


def test_a_cluster_is_made_used_and_deleted(stand_ins):
    with live.cluster():
        pass
    asked = [" ".join(line.split()[:3]) for line in stand_ins.log.read_text().splitlines()]

    assert asked.index("kind create cluster") < asked.index("kind load docker-image")
    assert asked[-1] == "kind delete cluster"


def test_a_half_made_cluster_is_deleted(stand_ins):
    stand_ins("kubectl", "echo no such server >&2; exit 1")

    with pytest.raises(PhotodupError, match="no such server"), live.cluster(keep=True):
        pass
    assert stand_ins.log.read_text().splitlines()[-1] == "kind delete cluster --name photodup"


def test_a_cluster_that_cannot_be_deleted_is_named(stand_ins):
    stand_ins("kind", '[ "$1" != delete ]')

    with pytest.raises(PhotodupError, match="could not be removed: repeat"), live.cluster():
        pass


def test_snapshot_reads_what_kubectl_lists():
    ready = {"type": "Ready", "status": "True"}
    status = {"conditions": [ready], "containerStatuses": [{"restartCount": 2}]}
    metric = {"type": "Resource", "resource": {"current": {"averageUtilization": 398}}}
    listing = {
        "items": [
            {"kind": "Deployment", "metadata": {}, "spec": {"replicas": 6}},
            {"kind": "HorizontalPodAutoscaler", "metadata": {}, "status": {"currentMetrics": [metric]}},
            {"kind": "Pod", "metadata": {}, "status": status},
            {"kind": "Pod", "metadata": {}, "status": {}},
            {"kind": "Pod", "metadata": {"deletionTimestamp": "now"}, "status": status},
        ]
    }

    assert live.snapshot(listing) == {
        "replicas": 6,
        "pods": 2,
        "ready": 1,
        "restarts": 2,
        "cpu_percent_of_request": 398,
    }
