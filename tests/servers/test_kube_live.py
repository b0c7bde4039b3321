"""The real control plane: what Kubernetes 1.20.2 does with our manifests and the published ones (`make cluster-test`)."""

from itertools import pairwise

import pytest
from support.command import one_sentence

from photodup.errors import PhotodupError
from photodup.study.kubernetes import live
from photodup.study.kubernetes.curve import ServiceCurve

CURVE = ServiceCurve((1.0, 2.0, 4.0, 8.0), (8.0, 14.0, 20.0, 22.0), (0.9, 1.5, 2.0, 2.0))
PLAN = live.Plan(ramp=((4.0, 45.0), (60.0, 105.0), (4.0, 310.0)))

REASON = live.missing()
built = pytest.mark.skipif(bool(REASON), reason=REASON)


@pytest.fixture(scope="module")
def seen():
    return live.experiment(CURVE, PLAN)


def changes(rows, column="replicas"):
    """Return (second, value) of each change."""
    return [(b["time_s"], b[column]) for a, b in pairwise(rows) if a[column] != b[column]]


@built
@pytest.mark.long
@pytest.mark.parametrize("name", ["published", "kind"])
def test_the_real_autoscaler_does_what_the_simulation_foretells(seen, name):
    there = seen["namespaces"][name]
    told = live.foretold(CURVE, PLAN, name, there["syncs_s"])
    real, simulated = changes(there["rows"]), [(at, to) for at, _, to in told.rescales()]
    assert len(there["syncs_s"]) >= 28
    assert [count for _, count in real] == [count for _, count in simulated]
    assert max(abs(a - b) for (a, _), (b, _) in zip(real, simulated, strict=True)) <= 20


@built
@pytest.mark.long
def test_the_published_quota_refuses_what_the_autoscaler_asks_for(seen):
    there = seen["namespaces"]["published"]
    assert max(row["replicas"] for row in there["rows"]) == 6
    assert max(row["pods"] for row in there["rows"]) == 4
    assert any("exceeded quota" in event["message"] for event in there["events"])


@built
@pytest.mark.long
def test_an_update_at_max_replicas_keeps_every_pod_and_ends_within_the_quota(seen):
    """A pod that is ending still counts, so the quota refuses the next one until it has gone; then it is made."""
    assert seen["update"] == {"least_ready": 6, "most_pods": 7, "pods": 6, "updated": 6}
    refused = [e for e in seen["namespaces"]["update"]["events"] if e["reason"] == "FailedCreate"]
    assert all("exceeded quota" in event["message"] for event in refused)


@built
@pytest.mark.long
def test_a_drain_gets_one_pod_and_the_next_when_its_replacement_is_ready(seen):
    at_once, again, later = seen["drains"]
    assert (at_once["granted"], at_once["refused"]) == (1, 5)
    assert again["granted"] == 0 and later["granted"] == 1


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """Return a function that puts a script in the place of a server; the cache is otherwise empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def install(name, body):
        script = live.tools_dir() / name
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(f"#!/bin/sh\n{body}\n")
        script.chmod(0o755)

    return install


def test_without_the_servers_the_remedy_is_named(tools):
    with one_sentence(r"etcd is not in .*: `make cluster-tools` builds it"), live.control_plane():
        pass


def test_a_server_that_ends_is_named_with_its_last_words_and_nothing_stays(tools, monkeypatch):
    monkeypatch.setattr(live, "tool", lambda name: name)
    for name in live.SERVERS:
        tools(name, "exec sleep 60")
    tools("etcd", "sleep 1; echo the disk is full >&2; exit 1")
    started = []
    start = live.ControlPlane.start
    monkeypatch.setattr(live.ControlPlane, "start", lambda plane: (started.append(plane), start(plane)))
    with pytest.raises(PhotodupError, match="etcd ended: the disk is full"), live.control_plane():
        pass
    assert not started[0].folder.exists()
    assert not any(process.running for process in started[0].processes)
