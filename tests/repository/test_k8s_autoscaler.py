"""The autoscaler's formula in notebook 09, held against decisions of a real one: Kubernetes 1.20.2, in 38 scenarios."""

import gzip
import json
import math
from dataclasses import replace

import nbformat
import pytest
import yaml
from support.paths import ROOT

from photodup.study.kubernetes import quantity, read_workload

RECORD = ROOT / "results" / "control-plane" / "decisions.json.gz"
SCENARIOS = json.loads(gzip.decompress(RECORD.read_bytes()))["scenarios"]
NOTEBOOK = nbformat.read(ROOT / "notebooks" / "09_scale_on_kind.ipynb", as_version=4)
SOURCE = "\n".join(c.source for c in NOTEBOOK.cells if "autoscaler" in c.metadata.get("tags", []))


def formula(source: str = SOURCE) -> dict:
    """Return the names that the notebook's cells tagged `autoscaler` define."""
    import pandas as pd

    names = {"math": math, "pd": pd, "quantity": quantity}
    exec(compile(source, "notebook 09", "exec"), names)
    return names


def agreement(decisions) -> dict[str, tuple[int, int]]:
    """Return (decided alike, syncs) of the syncs that changed the count, of the others, and of those with pods missing."""
    counts = {"changed": [], "same": [], "short": []}
    for sync, count in (pair for scenario in SCENARIOS for pair in decisions(scenario)):
        is_alike = count == sync["decided"]
        counts["changed" if sync["decided"] != sync["replicas"] else "same"].append(is_alike)
        if sync["existing"] != sync["replicas"]:
            counts["short"].append(is_alike)
    return {name: (sum(rows), len(rows)) for name, rows in counts.items()}


def holds(counts: dict[str, tuple[int, int]]) -> bool:
    """Say whether 28 of 30 syncs that changed the count are alike (so many of each 30), and 99% of the others."""
    return all(
        alike >= least * n
        for (alike, n), least in zip(counts.values(), (28 / 30, 0.99, 28 / 30), strict=True)
    )


def test_the_formula_decides_as_the_real_autoscaler():
    counts = agreement(formula()["decisions"])
    assert [n for _, n in counts.values()] == [236, 1246, 30]
    assert holds(counts), counts


def test_always_answering_no_change_does_not_pass():
    never = agreement(lambda scenario: ((sync, sync["replicas"]) for sync in scenario["syncs"]))
    assert never["same"] == (1246, 1246) and not holds(never)


SMALLEST = '(max if (rule["selectPolicy"] == "Max") == up else min)'
FAULTS = {
    "the tolerance is a tenth": ("SAMPLE_S = 0.1,", "SAMPLE_S = 0.3,"),
    "the window of the way up": ("(min if proposal >= replicas else max)", "(max if proposal >= replicas else max)"),
    "the window of the way down": ("(min if proposal >= replicas else max)", "(min if proposal >= replicas else min)"),
    "proposals are remembered": ('memory["proposals"].append((now_s, proposal))', "pass"),
    "changes are remembered": ('memory["changes"].append((sync', "str((sync"),
    "starting pods count as idle": ('elif metric.endswith("cpu") and not is_believed(pod, now_s):', "elif False:"),
    "pods without a sample count": ("missing.append((pod", "str((pod"),
    "the policies bound a step": ("if count != replicas:\n            count", "if False:\n            count"),
    "the smallest change where the policy says so": (SMALLEST, "(max if up else min)"),
    "without behavior at most double": ("max(2 * replicas, 4)", "max(3 * replicas, 4)"),
    "the largest proposal decides": ("proposal = max(", "proposal = min("),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_shows(fault):
    """The record reaches every rule: without it some decision differs."""
    text, planted = FAULTS[fault]
    assert SOURCE.count(text) == 1
    counts = agreement(formula(SOURCE.replace(text, planted))["decisions"])
    assert any(alike < n for alike, n in counts.values())


def test_the_formula_is_short():
    assert len(SOURCE.splitlines()) <= 150


def test_a_replay_takes_the_published_steps():
    """As listed 2 to 6 in one step, without `behavior` by way of 4; four pods of six run under the published quota."""
    replay = formula()["replay"]
    manifests = (ROOT / "k8s" / "published" / "manifests.yaml").read_text()
    listed = read_workload(list(yaml.safe_load_all(manifests)))
    hpa = {name: part for name, part in listed.hpa.items() if name != "behavior"}
    for scaled, steps in ((listed.hpa, [2, 6]), (hpa, [2, 4, 6])):
        course = replay(replace(listed, hpa=scaled), lambda t: 4.0 if t >= 53 else 0.1, 200)
        assert list(dict.fromkeys(course["replicas"])) == steps
        assert course["pods"].max() == course["ready"].max() == listed.admitted() == 4
