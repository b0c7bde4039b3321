"""What the autoscaler remembers, zero replicas, and pods without a sample."""

import pytest
from support.kube import BURST, ONE, by_metrics, pods, scaler, workload

from photodup.errors import PhotodupError
from photodup.study.kubernetes.autoscaler.hpa import Autoscaler
from photodup.study.kubernetes.autoscaler.replicas import PodView
from photodup.study.kubernetes.pods import Cohort, Kubelet
from photodup.study.kubernetes.simulate import Cluster, simulate


def test_the_first_recommendation_is_the_count_at_the_first_sync():
    """Recorded before bounds and metrics: the window of a scale-up runs from there."""
    hpa = scaler(low=3, behavior={"scaleUp": {"stabilizationWindowSeconds": 300}})
    assert hpa.sync(1000.0, 1, []).why == "below minReplicas"
    counts = {t: hpa.sync(t, 3, pods(1.2, 1.2, 1.2, now=t)).desired for t in (1015.0, 1299.0, 1301.0)}

    assert counts == {1015.0: 3, 1299.0: 3, 1301.0: 6}


def test_an_event_is_forgotten_by_its_own_directions_longest_period():
    """Two scale-ups half a minute apart, policies of 15 s: the second overwrites the first."""
    down = {
        "stabilizationWindowSeconds": 0,
        "policies": [{"type": "Pods", "value": 1, "periodSeconds": 300}],
    }
    hpa = scaler(100, behavior={"scaleUp": {}, "scaleDown": down})
    assert hpa.sync(1000.0, 2, pods(3.0, 3.0)).desired == 6
    assert hpa.sync(1030.0, 6, pods(*[1.3] * 6, now=1030.0)).desired == 8
    hpa.added.sort()

    assert hpa.added == [(1030.0, 2)]
    assert hpa.sync(1045.0, 8, pods(*[0.1] * 8, now=1045.0)).desired == 5  # 8 - 2, and one less


def test_tolerance_is_a_quantity():
    hpa = scaler(100, behavior={"scaleUp": {"tolerance": "50m"}})

    assert hpa.sync(1000.0, 2, pods(1.04, 1.04)).desired == 2
    assert hpa.sync(1015.0, 2, pods(1.08, 1.08, now=1015.0)).desired == 3


def test_a_pod_that_loads_its_model_has_no_server_metric():
    """Two pods at half the target and two that load: the loading ones are missing, so the count is kept."""
    waiting = by_metrics(triton_queue_time_ms="1")
    seen = [PodView(values={"triton_queue_time_ms": 0.0005})] * 2 + [PodView(ready=False)] * 2
    hpa = Autoscaler(waiting.hpa, waiting.requests)
    assert hpa.sync(1000.0, 4, seen).desired == 4

    slow = Cluster(start_s=120.0)
    outcome = simulate(waiting, ONE, BURST, duration_s=200, cluster=slow)
    grown = outcome.rescales()[0][0]
    while_loading = [d for d in outcome.decisions if grown < d.time_s < grown + 120]

    assert while_loading
    assert all(d.proposal >= d.current for d in while_loading)


def test_a_restarting_pod_stays_running():
    kubelet = Kubelet(workload(), ONE, Cluster(), 1.0)
    pod = Cohort(1, 0.0)
    assert not pod.running
    while not pod.running:
        kubelet.live(pod, 10.0, 0.1, 1.0)
    kubelet._restart(pod, 20.0)

    assert pod.running and pod.container_s is None and pod.values == {}


def test_zero_pods_are_refused():
    none = workload(hpa={**workload().hpa, "minReplicas": 0})

    with pytest.raises(PhotodupError, match="minReplicas 0 is not simulated"):
        simulate(none, ONE, BURST, duration_s=10)
