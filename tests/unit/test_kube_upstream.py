"""The autoscaler against Kubernetes' own test tables (tests/unit/data/hpa_cases.yaml), case by case."""

from pathlib import Path

import pytest
import yaml
from support.kube import by_cpu

from photodup.study.kubernetes.autoscaler import hpa, replicas
from photodup.study.kubernetes.autoscaler.hpa import Autoscaler
from photodup.study.kubernetes.autoscaler.replicas import ControllerFlags, PodView, Tolerances
from photodup.study.kubernetes.manifests import KUBERNETES_VERSION, scaling_requests

CASES = yaml.safe_load((Path(__file__).parent / "data" / "hpa_cases.yaml").read_text())
NOW = 1e6
TRUST = ControllerFlags(cpu_initialization_period_s=120, initial_readiness_delay_s=10)  # as upstream's tests
MAPPED = {name: table for name, table in CASES.items() if name != "unmapped"}


@pytest.fixture(autouse=True)
def upstreams_scale_up_factor(monkeypatch):
    """Upstream's tests raise the factor to 8, so that it does not hide what they look at."""
    monkeypatch.setattr(hpa, "SCALE_UP_LIMIT_FACTOR", 8.0)


def rows(table):
    """Name every case of a table or of a group of tables."""
    groups = MAPPED[table] if isinstance(MAPPED[table], dict) else {table: MAPPED[table]}
    return [
        pytest.param(case, id=f"{test}: {case['case'] if isinstance(case, dict) else case[0]}")
        for test, cases in groups.items()
        for case in cases
    ]


def pods_of(case, *, sampled, key, halves=False):
    """Make the pods of a case; `halves` reads levels as of a whole pod, split between its two containers."""
    requests = case["requests"] if "requests" in case else [1.0] * case.get("pods", 0)
    levels = case["levels"] or []
    share = 0.5 if halves else 1.0
    made = []
    for i, request in enumerate(requests):
        start = {"0": 0.0, "3": NOW - 180, "N": NOW}[case.get("start", "0" * len(requests))[i]]
        phase = case.get("phase", "R" * len(requests))[i]
        level = levels[i] if i < len(levels) else []
        each = level if isinstance(level, list) else [level * share] * 2
        values = {f"{n}/{key}": value / 1000 for n, value in enumerate(each, start=1)}
        if len(each) == 2:
            values[key] = sum(each) / 1000
        asks = {} if request is None else {key: 2 * request * share}
        asks |= {} if request is None else {f"{n}/{key}": request * share for n in (1, 2)}
        made.append(
            PodView(
                running=phase != "P",
                ended=phase in "FSD",
                ready=case.get("ready", "T" * len(requests))[i] == "T",
                started_s=start,
                ready_changed_s=start if sampled else 0.0,
                values=values,
                sampled_s=sampled,
                window_s=60,
                requests=asks,
            )
        )
    return made


@pytest.mark.parametrize("case", rows("calculator"))
def test_replica_calculator(case):
    kind, current, target = case.get("kind", "resource"), case["current"], case["target"]
    tolerances = Tolerances(*case.get("tolerance", (0.1, 0.1)))
    if kind == "per_pod":
        answer = replicas.per_pod(sum(case["levels"]), target, current, tolerances)
    elif kind == "total":
        pods = pods_of(case | {"levels": []}, sampled=0.0, key="qps")
        answer = replicas.total(min(sum(case["levels"]), 2**63 - 1), target, current, pods, tolerances)
    elif kind == "pods":
        pods = pods_of(case, sampled=0.0, key="qps", halves=True)
        groups = replicas.group(pods, "qps", NOW, TRUST, is_cpu=False)
        answer = replicas.plain(groups, "qps", target, current, tolerances)
    else:
        name = f"{case['container']}/cpu" if "container" in case else "cpu"
        found = replicas.group(pods_of(case, sampled=0.0, key="cpu"), name, NOW, TRUST, is_cpu=True)
        answer = replicas.utilization(found, name, target, current, tolerances, {})
    assert (answer and answer[1]) == case["want"]
    if "use" in case:
        assert answer[0] * target == pytest.approx(case["use"])


@pytest.mark.parametrize("case", rows("groups"))
def test_groups_of_pods(case):
    pods = [
        PodView(
            running=pod.get("phase") != "P",
            ended=pod.get("phase") in ("D", "F", "S"),
            ready=pod["ready"] == "T",  # no condition at all counts as not ready
            started_s=NOW - pod["start"],
            ready_changed_s=NOW - pod.get("change", pod["start"]),
            values={"m": 0.001} if "sample" in pod else {},
            sampled_s=NOW - pod.get("sample", 0),
            window_s=pod.get("window", 0),
        )
        for pod in case["pods"]
    ]
    found = replicas.group(pods, "m", NOW, TRUST, is_cpu=not case.get("memory"))
    made = [next((x for x in "RUM" if any(p is pod for p in getattr(found, NAMES[x]))), "I") for pod in pods]
    assert "".join(made) == case["group"]


NAMES = {"R": "ready", "U": "unready", "M": "missing"}


@pytest.mark.parametrize("case", rows("requests"))
def test_requests_a_utilisation_is_held_against(case):
    def container(name, milli):
        return {"name": str(name)} | (
            {} if milli is None else {"resources": {"requests": {"cpu": f"{milli}m"}}}
        )

    pod = {
        "containers": [container(n, milli) for n, milli in enumerate(case["containers"], start=1)],
        "initContainers": [
            *(container(f"i{n}", milli) for n, milli in enumerate(case.get("init", []))),
            *(
                container(f"s{n}", milli) | {"restartPolicy": "Always"}
                for n, milli in enumerate(case.get("sidecars", []))
            ),
        ],
    }
    if "pod" in case:
        pod["resources"] = {"requests": {"cpu": f"{case['pod']}m"}}
    found = scaling_requests(pod).get(f"{case['container']}/cpu" if "container" in case else "cpu")
    assert found == (None if case["want"] is None else pytest.approx(case["want"] / 1000))


def rules(given):
    policies = [
        {"type": kind, "value": given[name][0], "periodSeconds": given[name][1]}
        for kind, name in (("Pods", "pods"), ("Percent", "percent"))
        if name in given and given[name][0]
    ]
    tolerance = {key: value for key, value in given.items() if key == "tolerance"}
    return tolerance | ({"policies": policies} if policies else {})


def scaler(case, low=1, high=1000, metrics=(), flags=None):
    spec = by_cpu(50, low, high) | ({"metrics": metrics} if metrics else {})
    behavior = {side: rules(case[n]) for side, n in (("scaleUp", "up"), ("scaleDown", "down")) if n in case}
    return Autoscaler(spec | ({"behavior": behavior} if behavior else {}), {"cpu": 1.0}, flags)


def metrics_of(case):
    if "cpu" in case:
        target = {"type": "Utilization", "averageUtilization": case["cpu"]}
        if "container" in case:
            body = {"name": "cpu", "container": str(case["container"]), "target": target}
            yield {"type": "ContainerResource", "containerResource": body}
        else:
            yield {"type": "Resource", "resource": {"name": "cpu", "target": target}}
    if "metric" in case:
        kind, how, milli = case["metric"]
        body = {"metric": {"name": "qps"}, "target": {how: f"{milli}m"}}
        yield {"type": kind, kind.lower(): body}


@pytest.mark.parametrize("case", rows("reconcile"))
def test_one_reconciliation(case):
    flags = ControllerFlags(
        cpu_initialization_period_s=120,
        initial_readiness_delay_s=10,
        **dict.fromkeys(case.get("gates", []), False),
    )
    hpa = scaler(case, *case["bounds"], list(metrics_of(case)), flags)
    if "history" in case:
        hpa.recommendations = [(NOW - ago, count) for count, ago in case["history"]]
    hpa.scaled_to_zero = case.get("zero", False)
    outside = {}
    if case.get("metric", [""])[0] in ("Object", "External") and case["levels"] and "outside" not in case:
        outside = {"qps": sum(case["levels"]) / 1000}
    pods = [
        PodView(**{**vars(a), "values": a.values | b.values})  # the same levels as CPU and as metric
        for a, b in zip(
            *(pods_of(case, sampled=NOW, key=key, halves=True) for key in ("cpu", "qps")), strict=True
        )
    ]
    decision = hpa.sync(NOW, case["spec"], pods, outside, existing=case.get("existing"))
    assert decision.desired == case["want"]
    if "then_zero" in case:
        assert hpa.scaled_to_zero is case["then_zero"]


@pytest.mark.parametrize("case", rows("fixed_limits"))
def test_limits_without_behavior(case):
    _, current, desired, low, high, want = case
    assert scaler({}, low, high).limit_plainly(NOW, current, desired) == want


@pytest.mark.parametrize("case", rows("min_policy"))
def test_the_smallest_change_of_two_policies(case):
    current, direction, want = case
    hpa = scaler({direction: {"pods": [2, 60], "percent": [50, 60]}}, low=1)
    getattr(hpa, direction)["selectPolicy"] = "Min"
    assert hpa.limit(NOW, current, 1000 if direction == "up" else 0) == want


@pytest.mark.parametrize("case", rows("plain_windows"))
def test_window_without_behavior(case):
    _, history, proposal, want, kept = case
    hpa = scaler({})
    hpa.recommendations = [(NOW - ago, count) for count, ago in history]
    assert hpa.stabilize_plainly(NOW, 0, proposal) == want
    assert len(hpa.recommendations) == kept


@pytest.mark.parametrize("case", rows("windows"))
def test_windows_of_behavior(case):
    hpa = scaler({"up": {}, "down": {}})
    hpa.up["stabilizationWindowSeconds"], hpa.down["stabilizationWindowSeconds"] = case["windows"]
    hpa.recommendations = [(NOW - ago, count) for count, ago in case["history"]]
    assert hpa.stabilize(NOW, case["current"], case["proposal"]) == case["want"]
    if "kept" in case:
        assert [count for _, count in hpa.recommendations] == case["kept"]


def spread(changes):
    segment = 120 / max(1, len(changes))
    return [(NOW - int(120 - segment * (i + 1) + segment / 2), n) for i, n in enumerate(changes)]


@pytest.mark.parametrize("case", rows("rates"))
def test_rate_policies(case):
    hpa = scaler({"up": {}, "down": {}} | {k: case[k] for k in ("up", "down") if k in case}, *case["bounds"])
    hpa.added, hpa.removed = spread(case.get("added", [])), spread(case.get("removed", []))
    assert hpa.limit(NOW, case["current"], case["desired"]) == case["want"]


@pytest.mark.parametrize("direction", ["up", "down"])
@pytest.mark.parametrize("case", rows("events"))
def test_events_that_are_kept(case, direction):
    hpa = scaler({direction: case["rules"]} if "rules" in case else {})
    before = [(NOW - ago, n) for n, ago in case["before"]]
    hpa.added, hpa.removed = (before, []) if direction == "up" else ([], before)
    hpa.remember(NOW, 10, 15 if direction == "up" else 5)
    assert [n for _, n in (hpa.added if direction == "up" else hpa.removed)] == case["kept"]


def test_the_tables_are_whole(capsys):
    """Say how many cases are mapped; a table that shrinks is noticed."""
    mapped = sum(len(rows(table)) for table in MAPPED)
    left_out = sum(entry["cases"] for entry in CASES["unmapped"])
    with capsys.disabled():
        print(f"\nKubernetes {KUBERNETES_VERSION}: {mapped} of upstream's cases mapped, {left_out} not")
    assert mapped >= 250
    assert all(entry["why"] for entry in CASES["unmapped"])
