"""What the autoscaler remembers, pods without a sample, scaling to zero with a buffer in front, and KEDA."""

from dataclasses import replace

import pytest
from support.kube import BURST, ONE, by_metrics, pods, scaler, workload

from photodup.errors import PhotodupError
from photodup.study.kubernetes.autoscaler.hpa import Autoscaler
from photodup.study.kubernetes.autoscaler.keda import Keda
from photodup.study.kubernetes.autoscaler.replicas import PodView
from photodup.study.kubernetes.pods import Cohort, Kubelet
from photodup.study.kubernetes.simulate import Cluster, Load, simulate


def outside_metric(name, **target):
    kind = {"value": "Value", "averageValue": "AverageValue"}[next(iter(target))]
    return {"type": "External", "external": {"metric": {"name": name}, "target": {"type": kind, **target}}}


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


def test_zero_replicas_set_by_hand_stay():
    decision = scaler().sync(1000.0, 0, [])

    assert (decision.desired, decision.why) == (0, "scaling disabled at zero")


def test_no_cpu_request_keeps_the_count():
    hpa = scaler()
    hpa.requests = {}

    assert hpa.sync(1000.0, 3, pods(2.0, 2.0, 2.0)).why == "no metrics"


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


def to_zero(**metric):
    made = workload()
    hpa = {
        "minReplicas": 0,
        "maxReplicas": 6,
        "metrics": [outside_metric("photodup_requests_pending", **metric)],
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 60}},
    }
    return replace(made, hpa=hpa)


MORNING = Load(rate_per_s=lambda t: 12.0 if 300 <= t < 600 else 0.0)


def test_scale_to_zero_and_back_costs_a_cold_start():
    outcome = simulate(
        to_zero(averageValue="4"), ONE, MORNING, duration_s=1000, cluster=Cluster(buffer=2000), replicas=2
    )
    steps = outcome.steps
    cold = steps.query("300 <= time_s < 600 and ready == 0")

    assert steps.query("time_s == 290")["pods"].item() == 0
    assert steps["pods"].iloc[-1] == 0
    assert 22 <= len(cold) <= 22 + 15 + 15 + 10  # start, sample, sync, probe
    assert steps["unrouted"].sum() == 0
    assert outcome.latency_ms(1.0) >= 1000 * len(cold) / 2  # the mean of those that waited
    assert any("BufferEmptied" in text for _, text in outcome.events)


def test_without_a_buffer_the_cold_start_refuses_requests():
    bare = simulate(to_zero(averageValue="4"), ONE, MORNING, duration_s=1000, replicas=2)

    # Nothing waits where the metric could see it, so nothing wakes the application up either.
    assert bare.refused_share == 1.0
    assert bare.steps["pods"].iloc[-1] == 0


def test_a_rate_outside_wakes_the_application_without_a_buffer():
    w = to_zero(averageValue="4")
    w = replace(w, hpa={**w.hpa, "metrics": [outside_metric("photodup_requests_per_s", averageValue="10")]})
    outcome = simulate(w, ONE, MORNING, duration_s=1000, replicas=0)

    assert 0 < outcome.refused_share < 0.3


def test_zero_needs_a_metric_that_exists_without_pods():
    w = workload()
    w = replace(w, hpa={**w.hpa, "minReplicas": 0})

    with pytest.raises(PhotodupError, match="Object or External"):
        simulate(w, ONE, BURST, duration_s=10)


def test_requests_are_accounted_for_across_a_cold_start():
    outcome = simulate(
        to_zero(averageValue="4"), ONE, MORNING, duration_s=900, cluster=Cluster(buffer=100), replicas=0
    )
    steps = outcome.steps
    settled = steps["served"].sum() + steps["refused"].sum() + steps["in_flight"].iloc[-1]

    assert steps["arrived"].sum() == pytest.approx(settled, abs=1e-6)
    assert steps["arrived"].sum() + steps["unrouted"].sum() + steps["buffered"].iloc[-1] == pytest.approx(
        12.0 * 300
    )
    assert steps["buffered"].max() <= 100


def keda_spec(**changes):
    trigger = {
        "type": "prometheus",
        "name": "photodup_requests_pending",
        "metadata": {"threshold": "4", "activationThreshold": "2", "serverAddress": "http://p", "query": "q"},
    }
    return {"minReplicaCount": 0, "maxReplicaCount": 6, "triggers": [trigger], **changes}


def test_keda_switches_on_above_the_activation_threshold_only():
    keda = Keda(keda_spec(), {})

    assert keda.poll(0.0, 0, {"photodup_requests_pending": 2.0}) == 0
    assert keda.poll(30.0, 0, {"photodup_requests_pending": 2.1}) == 1
    assert keda.poll(30.0, 0, {}) == 0  # Prometheus does not answer


def test_keda_switches_off_after_the_cooldown_since_it_was_last_active():
    keda = Keda(keda_spec(cooldownPeriod=120), {})
    keda.poll(0.0, 3, {"photodup_requests_pending": 9.0})
    counts = {t: keda.poll(t, 1, {"photodup_requests_pending": 0.0}) for t in (30.0, 120.0, 150.0)}

    assert counts == {30.0: 1, 120.0: 1, 150.0: 0}


def test_keda_with_a_minimum_never_goes_to_zero():
    keda = Keda(keda_spec(minReplicaCount=2), {})
    keda.poll(0.0, 2, {})

    assert keda.poll(9999.0, 2, {}) == 2
    assert keda.scaler.min == 2


def test_keda_counts_from_one_on_by_the_autoscaler():
    keda = Keda(keda_spec(), {})

    assert keda.scaler.sync(0.0, 0, [], {"photodup_requests_pending": 40.0}).desired == 0
    assert keda.scaler.sync(15.0, 1, [PodView()], {"photodup_requests_pending": 16.0}).desired == 4


def test_keda_brings_a_deployment_up_and_down_again():
    w = replace(workload(), hpa=keda_spec(cooldownPeriod=60), replicas=0)
    outcome = simulate(w, ONE, MORNING, duration_s=1500, cluster=Cluster(buffer=2000))
    steps, texts = outcome.steps, [text for _, text in outcome.events]

    assert steps["pods"].max() > 1
    assert steps["pods"].iloc[-1] == 0
    assert any("KEDAScaleTargetActivated" in text for text in texts)
    assert any("KEDAScaleTargetDeactivated" in text for text in texts)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"triggers": [{"type": "kafka", "metadata": {}}]}, "kafka"),
        ({"triggers": [{"type": "prometheus", "name": "x", "metadata": {}}]}, "threshold"),
    ],
)
def test_keda_triggers_that_are_not_simulated_are_refused(changes, message):
    with pytest.raises(PhotodupError, match=message):
        Keda(keda_spec(**changes), {})
