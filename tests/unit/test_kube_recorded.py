"""The autoscaler against what a real one did: 1,482 decisions of Kubernetes 1.20.2's controller in 38 scenarios.

data/hpa_recorded.json.gz holds, for each scenario, the autoscaler's `spec`, the pods' `requests` and one row per sync:
[time, replicas, pods that exist, replicas that the controller set, values of External metrics, pods]. The pods are
[count, running, ready, started, readiness changed, sampled, deleted, values by metric]; times are in seconds since the
scenario began, null where there is none. The kubelet and the pods' work were played, all else was real
(`photodup.study.kubernetes.live`).
"""

import gzip
import json
from pathlib import Path

from support.kube import scaler

from photodup.study.kubernetes.autoscaler.hpa import Autoscaler, metric_target
from photodup.study.kubernetes.autoscaler.replicas import ControllerFlags, PodView

RECORDED = json.loads(gzip.decompress((Path(__file__).parent / "data" / "hpa_recorded.json.gz").read_bytes()))
EPOCH = 1e6
OLD = ControllerFlags(as_of_1_20=True)


def disagreements(flags=OLD):
    """Return (scenario, second, real, ours) of each sync that our autoscaler decides otherwise."""
    found = []
    for scenario in RECORDED:
        autoscaler = Autoscaler(scenario["spec"], scenario["requests"], flags)
        targets = [metric_target(metric) for metric in scenario["spec"]["metrics"]]
        outside = [name for type_, _, name in targets if type_ == "External"]
        inside = [name for type_, _, name in targets if type_ != "External"]
        for at, count, existing, real, values, rows in scenario["syncs"]:
            views = [view(row, inside) for row in rows]
            known = {name: v for name, v in zip(outside, values, strict=True) if v is not None}
            ours = autoscaler.sync(EPOCH + at, count, views, known, existing=existing).desired
            if ours != real:
                found.append((scenario["name"], at, real, ours))
                if real != count:  # what the real controller remembers
                    autoscaler.remember(EPOCH + at, count, real)
    return found


def view(row, names):
    count, running, ready, started, changed, sampled, deleted, *values = row
    return PodView(
        count=count,
        running=bool(running),
        ready=bool(ready),
        started_s=0.0 if started is None else EPOCH + started,
        ready_changed_s=0.0 if changed is None else EPOCH + changed,
        values={name: v for name, v in zip(names, values, strict=True) if v is not None},
        sampled_s=0.0 if sampled is None else EPOCH + sampled,
        ended=bool(deleted),
    )


def test_every_recorded_decision_is_the_same_with_the_rules_of_1_20():
    assert sum(len(scenario["syncs"]) for scenario in RECORDED) == 1482
    assert disagreements() == []


def test_without_the_three_rules_of_1_20_the_answers_differ_where_those_rules_reach():
    """34 decisions: today one unreadable metric forbids a scale-down, and both directions count in one window."""
    other = disagreements(ControllerFlags())
    assert len(other) == 34
    assert "blind-metric-beside-cpu" in {name for name, *_ in other}


def test_a_usage_at_the_very_edge_of_the_tolerance_scales_in_1_20_and_not_today():
    """66 % of a target of 60 %: seen on the control plane, and nowhere in the recording."""
    views = [PodView(2, values={"cpu": 0.3315}, sampled_s=EPOCH)]
    old, new = (
        scaler(60, 2, 6, request=0.5, flags=flags).sync(EPOCH + 1, 2, views).desired
        for flags in (OLD, ControllerFlags())
    )
    assert (old, new) == (3, 2)
