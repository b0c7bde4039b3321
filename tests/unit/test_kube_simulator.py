"""The autoscaler against worked cases and laws, and the cluster around it. No tool and no server is needed."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from support.command import one_sentence
from support.kube import BURST, ONE, by_metrics, pods, scaler, workload

from photodup.errors import PhotodupError
from photodup.paths import project_root
from photodup.study.kubernetes.autoscaler.hpa import Autoscaler
from photodup.study.kubernetes.autoscaler.replicas import PodView
from photodup.study.kubernetes.compare_signals import SIGNALS, compare_signals
from photodup.study.kubernetes.curve import ServiceCurve, waiting_s
from photodup.study.kubernetes.manifests import Probe, read_workload
from photodup.study.kubernetes.pods import Cohort, Kubelet
from photodup.study.kubernetes.simulate import Cluster, Load, simulate, where_seconds_decide


def test_behavior_changes_the_first_step_from_two_pods():
    """The published manifests ask for 14 pods when both are busy; four without `behavior`, all six with it."""
    without = scaler(60, 2, 6, request=0.5).sync(1000.0, 2, pods(1.988, 1.988))
    with_it = scaler(60, 2, 6, {"scaleDown": {}}, request=0.5).sync(1000.0, 2, pods(1.988, 1.988))
    assert (with_it.proposal, without.desired, with_it.desired) == (14, 4, 6)


rates = st.fixed_dictionaries(
    {
        "stabilizationWindowSeconds": st.integers(0, 600),
        "selectPolicy": st.sampled_from(["Max", "Min", "Disabled"]),
        "policies": st.lists(
            st.fixed_dictionaries(
                {
                    "type": st.sampled_from(["Pods", "Percent"]),
                    "value": st.integers(1, 200),
                    "periodSeconds": st.sampled_from([15, 60, 300]),
                }
            ),
            min_size=1,
            max_size=3,
        ),
    }
)
behaviors = st.none() | st.fixed_dictionaries({}, optional={"scaleUp": rates, "scaleDown": rates})


@given(
    bounds=st.tuples(st.integers(1, 20), st.integers(0, 20)),
    behavior=behaviors,
    usage=st.lists(st.floats(0, 8) | st.none(), min_size=1, max_size=30),
    start=st.integers(1, 60),
)
def test_never_outside_min_and_max(bounds, behavior, usage, start):
    low, high = bounds[0], sum(bounds)
    hpa, current = scaler(60, low, high, behavior), start
    for i, cores in enumerate(usage):
        now = 1000.0 + 15 * i
        before, current = current, hpa.sync(now, current, pods(*[cores] * current, now=now)).desired
        assert low <= current <= high or (cores is None and current == before)


@given(
    n=st.integers(1, 40),
    unready=st.integers(0, 5),
    missing=st.integers(0, 5),
    usage=st.tuples(st.floats(0, 10), st.floats(0, 10)),
    behavior=behaviors,
)
def test_more_usage_never_asks_for_fewer_pods(n, unready, missing, usage, behavior):
    def desired(cores):
        ready = [True] * n + [False] * unready + [True] * missing
        view = pods(*[cores] * (n + unready), *[None] * missing, ready=ready)
        return scaler(60, 1, 1000, behavior).sync(1000.0, len(view), view).desired

    assert desired(min(usage)) <= desired(max(usage))


def published():
    text = (project_root() / "k8s" / "published" / "manifests.yaml").read_text()
    return read_workload(list(yaml.safe_load_all(text)))


def test_published_manifests_want_six_pods_and_get_four():
    outcome = simulate(published(), ONE, BURST, duration_s=700)
    assert outcome.steps["replicas"].max() == 6
    assert outcome.steps["pods"].max() == 4
    assert any("exceeded quota: 4 of 6" in text for _, text in outcome.events)


def test_published_steps_need_the_rules_without_behavior():
    """2 → 4 → 6 is what an autoscaler without `behavior` does; the listed `scaleDown` alone gives 2 → 6."""
    listed = published()
    plain = replace(listed, hpa={k: v for k, v in listed.hpa.items() if k != "behavior"})

    def steps(w):
        return [b for _, a, b in simulate(w, ONE, BURST, duration_s=240).rescales() if b > a]

    assert steps(listed) == [6]
    assert steps(plain) == [4, 6]


def test_a_burst_is_met_by_pods_that_start_and_leave_again():
    outcome = simulate(workload(), ONE, BURST, duration_s=700)
    assert outcome.steps["ready"].max() == 6, "no quota keeps any back"
    asked = outcome.rescales()[0][0]
    served = outcome.steps.query("ready > 2")["time_s"].min()
    assert 2 + 20 <= served + 1 - asked <= 2 + 20 + 5 + 5 + 2, "only after start and probe"
    down = [at for at, a, b in outcome.rescales() if b < a]
    assert down[0] >= 240 + 180 - 15
    assert outcome.steps["pods"].iloc[-1] == 2


def test_an_impatient_startup_probe_restarts_for_ever():
    impatient = workload(startup=Probe("/readyz", 0, 5, 5, 2))
    outcome = simulate(impatient, ONE, BURST, duration_s=400)
    assert outcome.steps["ready"].max() == 2
    assert sum("Killing" in text for _, text in outcome.events) >= 3


def test_probes_behind_the_requests_take_saturated_pods_away():
    heavy = Load(rate_per_s=lambda t: 60.0 if 60 <= t < 240 else 0.0)
    apart = simulate(workload(), ONE, heavy, duration_s=300)
    behind = simulate(workload(), ONE, heavy, duration_s=300, cluster=Cluster(probes_share_inference=True))
    assert behind.steps.query("time_s < 100")["ready"].min() < apart.steps["ready"].min() == 2
    assert behind.refused_share > apart.refused_share


@settings(max_examples=40)
@given(rate=st.floats(0.0, 300.0), quota=st.sampled_from([None, 3, 10]))
def test_requests_and_pods_are_accounted_for(rate, quota):
    w = workload(quota=None if quota is None else {"pods": float(quota)})
    load = Load(rate_per_s=lambda t: rate, until_s=120.0)
    steps = simulate(w, ONE, load, duration_s=200).steps
    settled = steps["served"].sum() + steps["refused"].sum() + steps["in_flight"].iloc[-1]
    assert steps["arrived"].sum() == pytest.approx(settled, rel=1e-6, abs=1e-6)
    assert (steps["ready"] <= steps["pods"]).all()
    assert steps["pods"].max() <= (quota or 6)


@settings(max_examples=40)
@given(rates=st.tuples(st.floats(0, 150), st.floats(0, 150)))
def test_more_load_never_runs_fewer_pods_at_its_peak(rates):
    def peak(rate):
        return simulate(workload(), ONE, Load(rate_per_s=lambda t: rate), duration_s=200).steps["pods"].max()

    assert peak(min(rates)) <= peak(max(rates))


def test_queue_time_is_a_signal_too():
    by_queue = by_metrics(triton_queue_time_ms="50")
    calm = simulate(by_queue, ONE, Load(rate_per_s=lambda t: 15.0), duration_s=300)
    busy = simulate(by_queue, ONE, Load(rate_per_s=lambda t: 60.0), duration_s=300)
    assert (calm.steps["replicas"].max(), busy.steps["replicas"].max()) == (2, 6)


def test_queue_time_alone_takes_away_the_pods_that_emptied_the_queue():
    """Enough pods make the wait zero, which reads as "too many"; a second, linear metric holds them."""

    def n_rescales(**metrics):
        load = Load(rate_per_s=lambda t: 70.0 if t > 60 else 1.0)
        return len(simulate(by_metrics(**metrics), ONE, load, duration_s=1800).rescales())

    assert n_rescales(triton_queue_time_ms="50") > 4
    assert n_rescales(triton_queue_time_ms="50", triton_busy_share="600m") <= 2


def test_a_metric_nobody_simulates_is_refused():
    with pytest.raises(PhotodupError, match="moon_phase"):
        simulate(by_metrics(moon_phase="1"), ONE, BURST, duration_s=10)


@given(n=st.floats(0, 50), arrivals=st.floats(0, 500), dt=st.floats(0.1, 30))
def test_a_step_of_the_curve_conserves_requests(n, arrivals, dt):
    after = ONE.step(n, arrivals, dt)
    assert 0 <= after <= n + arrivals
    assert n + arrivals - after == pytest.approx(dt * ONE.rate_per_s(after), rel=1e-6, abs=1e-6)


def test_curve_from_points():
    points = [
        {"concurrency": 4, "throughput_images_per_s": 19.0, "server_cpu_cores": 1.6},
        {"concurrency": 1, "throughput_images_per_s": 10.0, "server_cpu_cores": 1.2},
        {"concurrency": 8, "throughput_images_per_s": 18.0},
        {"concurrency": 2, "throughput_images_per_s": None, "error": "refused"},
    ]
    curve = ServiceCurve.from_points(points, cpu_cores=2.0)
    assert (curve.in_flight, curve.throughput_per_s) == ((1, 4, 8), (10.0, 19.0, 19.0))
    assert curve.cpu_cores == pytest.approx((1.5, 2.0, 2.0))
    assert curve.unloaded_s == pytest.approx(0.1)
    with pytest.raises(PhotodupError, match="refused"):
        ServiceCurve.from_points(points[3:], cpu_cores=2.0)


def test_waiting_agrees_with_theory():
    """The mean wait of M/D/1 is ρ·s / 2(1 − ρ), its probability of no wait is 1 − ρ."""
    assert waiting_s(0.5, 1.0, 0.49) == 0.0
    assert waiting_s(0.5, 1.0, 0.55) > 0.0
    mean = np.mean([waiting_s(0.8, 1.0, q) for q in np.linspace(0.0005, 0.9995, 200)])
    assert mean == pytest.approx(0.8 / (2 * 0.2), rel=0.05)
    with pytest.raises(PhotodupError, match="grows for ever"):
        waiting_s(1.0, 1.0, 0.99)


@pytest.mark.parametrize(("takes_s", "late"), [(0.0, True), (0.05, False)])
def test_a_sync_that_takes_time_drifts_past_the_edge_of_the_window(takes_s, late):
    """Without drift the 20th recommendation is exactly 300 s old, counts once more, and shrinking waits a period."""
    plain = workload(hpa={k: v for k, v in workload().hpa.items() if k != "behavior"})
    told = simulate(plain, ONE, BURST, duration_s=900, cluster=Cluster(sync_takes_s=takes_s))
    busy = max(d.time_s for d in told.decisions if (d.proposal or 0) > 6)
    waited = next(d.time_s for d in told.decisions if d.desired < d.current) - busy
    assert (waited >= 315) == late and waited >= 300
    gaps = {round(b.time_s - a.time_s, 6) for a, b in pairwise(told.decisions)}
    assert gaps == {15.0 + takes_s}


def test_an_unreadable_metric_forbids_to_shrink():
    target = {"type": "AverageValue", "averageValue": "15"}
    pending = {"metric": {"name": "photodup_requests_pending"}, "target": target}
    both = workload(
        hpa={
            **workload().hpa,
            "metrics": [*workload().hpa["metrics"], {"type": "External", "external": pending}],
        }
    )

    def last(**changes):
        told = simulate(both, ONE, BURST, duration_s=900, cluster=Cluster(**changes))
        return int(told.steps["replicas"].iloc[-1])

    assert (last(), last(unreadable=("photodup_requests_pending",))) == (2, 6)
    with one_sentence("'cpuu' cannot be unreadable: the autoscaler reads cpu, photodup"):
        last(unreadable=("cpuu",))


def test_where_seconds_decide_is_named():
    """A burst of 16 s is seen whole by some phases of the autoscaler and not at all by others."""
    rate = 3 * ONE.capacity_per_s
    short = Load(rate_per_s=lambda t: rate if 60 <= t < 76 else 1.0)
    near = Cluster(sync_phase_s=67.0 - 60.2)
    found = where_seconds_decide(workload(), ONE, short, duration_s=400, cluster=near)
    steady = where_seconds_decide(workload(), ONE, Load(rate_per_s=lambda t: 1.0), duration_s=400)
    assert steady == [] and found and all(end - start > 2 for start, end in found)


# ---- what it remembers, zero replicas, pods without a sample


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
    pod = Cohort()
    assert not pod.running
    while not pod.running:
        kubelet.live(pod, 10.0, 0.1)
    kubelet._restart(pod, 20.0)
    assert pod.running and pod.container_s is None and pod.values == {}


def test_zero_pods_are_refused():
    none = workload(hpa={**workload().hpa, "minReplicas": 0})
    with pytest.raises(PhotodupError, match="minReplicas 0 is not simulated"):
        simulate(none, ONE, BURST, duration_s=10)


# ---- signals at equal cost


# Twenty minutes, up and down again between what one pod and what four pods serve.
WAVE = Load(rate_per_s=lambda t: 40 - 30 * math.cos(2 * math.pi * t / 1200))


def unbounded():
    made = workload(replicas=1)
    return replace(made, hpa={**made.hpa, "minReplicas": 1, "maxReplicas": 12})


def at_cost(pod_hours, **options):
    return compare_signals(unbounded(), ONE, WAVE, pod_hours=pod_hours, duration_s=2400, dt_s=2.0, **options)


def test_every_signal_gets_the_same_budget():
    rows = at_cost(3.5)
    assert [row["signal"] for row in rows] == [signal.name for signal in SIGNALS]
    # Pods come whole and in steps, so a few per cent is as near as a target can be set.
    assert all(row["pod_hours"] == pytest.approx(3.5, rel=0.06) for row in rows)
    assert len({(row["pod_hours"], row["latency_ms_p50"]) for row in rows}) == len(rows)
    # CPU follows the load below saturation; the others only see a backlog, and at this budget that is too late.
    assert rows[0]["latency_ms_p99"] < min(row["latency_ms_p99"] for row in rows[1:])
    assert all(signal.least < row["target"] < signal.most for signal, row in zip(SIGNALS, rows, strict=True))


def test_more_money_buys_a_lower_latency():
    cpu = SIGNALS[:1]
    assert at_cost(5.0, signals=cpu)[0]["latency_ms_p99"] < at_cost(2.6, signals=cpu)[0]["latency_ms_p99"]


def test_a_budget_outside_the_bounds_is_one_sentence():
    with pytest.raises(PhotodupError, match="minReplicas cost"):
        at_cost(0.1)
