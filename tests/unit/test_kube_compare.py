"""Signals compared at equal cost: the budget is met, and a dearer budget buys a lower latency."""

import math
from dataclasses import replace

import pytest
from support.kube import ONE, workload

from photodup.errors import PhotodupError
from photodup.study.kubernetes.compare_signals import SIGNALS, compare_signals
from photodup.study.kubernetes.simulate import Load

# Twenty minutes, up and down again between what one pod and what four pods serve.
WAVE = Load(rate_per_s=lambda t: 40 - 30 * math.cos(2 * math.pi * t / 1200))


def unbounded():
    made = workload(replicas=1)
    return replace(made, hpa={**made.hpa, "minReplicas": 1, "maxReplicas": 12})


def run(pod_hours, **options):
    return compare_signals(unbounded(), ONE, WAVE, pod_hours=pod_hours, duration_s=2400, dt_s=2.0, **options)


def test_every_signal_gets_the_same_budget():
    rows = run(3.5)

    assert [row["signal"] for row in rows] == [signal.name for signal in SIGNALS]
    # Pods come whole and in steps, so a few per cent is as near as a target can be set.
    assert all(row["pod_hours"] == pytest.approx(3.5, rel=0.06) for row in rows)
    assert len({(row["pod_hours"], row["latency_ms_p50"]) for row in rows}) == len(rows)
    # CPU follows the load below saturation; the others only see a backlog, and at this budget that is too late.
    assert rows[0]["latency_ms_p99"] < min(row["latency_ms_p99"] for row in rows[1:])
    assert all(signal.least < row["target"] < signal.most for signal, row in zip(SIGNALS, rows, strict=True))


def test_more_money_buys_a_lower_latency():
    cpu = SIGNALS[:1]

    assert run(5.0, signals=cpu)[0]["latency_ms_p99"] < run(2.6, signals=cpu)[0]["latency_ms_p99"]


def test_a_budget_outside_the_bounds_is_one_sentence():
    with pytest.raises(PhotodupError, match="minReplicas cost"):
        run(0.1)
