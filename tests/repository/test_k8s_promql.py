"""The queue-time queries, run by Prometheus itself (`promtool test rules`) over series in the shape Triton gives.

Needs promtool, which Debian's package `prometheus` brings.
"""

import re
import shutil
import subprocess

import pytest
import yaml
from support.paths import ROOT

from photodup.embedding.backends import backend_of_model
from photodup.serving.triton.repository import committed_models

GPU = ROOT / "k8s" / "overlays" / "gpu"
PROMTOOL = shutil.which("promtool")
pytestmark = pytest.mark.skipif(not PROMTOOL, reason="promtool is missing: apt-get install prometheus")

# One minute between samples, Prometheus' default. Pod a: the encoder gets 5 requests a second that wait 30 ms each and
# run in batches of 2 for 40 ms, and an ensemble with its steps counts the same requests again. Pod b is idle. Pod c
# has a second encoder with a longer queue.
SERIES = {
    ("a", "openclip_vit_b32_uint8"): (300, 300 * 30_000, 300 * 40_000, 150),
    ("a", "openclip_vit_b32_jpeg"): (300, 300 * 500_000, 300 * 900_000, 300),
    ("a", "openclip_vit_b32_preprocess"): (300, 300 * 400_000, 300 * 8_000, 300),
    ("b", "openclip_vit_b32_uint8"): (0, 0, 0, 0),
    ("c", "openclip_vit_b32"): (60, 60 * 10_000, 60 * 100_000, 60),
    ("c", "openclip_vit_b32_trt"): (600, 600 * 80_000, 600 * 10_000, 600),
}
COUNTERS = (
    "nv_inference_request_success",
    "nv_inference_queue_duration_us",
    "nv_inference_compute_infer_duration_us",
    "nv_inference_exec_count",
)
QUEUE_MS = {"a": 30.0, "b": 0.0, "c": 80.0}
BUSY = {"a": 5 * 0.040 / 2, "b": 0.0, "c": 1 * 0.100 + 10 * 0.010}


def adapter_rules():
    """Return the adapter's queries as it would send them for the pods of one namespace."""
    values = yaml.safe_load((GPU / "prometheus-adapter.yaml").read_text())
    return {
        rule["name"]["as"]: rule["metricsQuery"]
        .replace("<<.LabelMatchers>>", 'namespace="photodup",pod=~"a|b|c"')
        .replace("<<.GroupBy>>", "pod")
        for rule in values["rules"]["custom"]
    }


def keda_rules():
    text = (ROOT / "k8s/overlays/gpu-keda/scaledobject.yaml").read_text()
    (spec,) = (item["spec"] for item in yaml.safe_load_all(text))
    return {trigger["name"]: trigger["metadata"]["query"] for trigger in spec["triggers"]}


def run(tmp_path, queries, expected):
    """Let promtool evaluate each query between two samples, as happens nearly always, and compare."""
    series = [
        {
            "series": f'{name}{{namespace="photodup",pod="{pod}",model="{model}",version="1"}}',
            "values": f"0+{step}x20",
        }
        for (pod, model), steps in SERIES.items()
        for name, step in zip(COUNTERS, steps, strict=True)
    ]
    at = {"eval_time": "10m30s"}
    checks = [{"expr": f"round({queries[n]}, 0.000001)", "exp_samples": s, **at} for n, s in expected.items()]
    test = {"interval": "1m", "input_series": series, "promql_expr_test": checks}
    tests = {"rule_files": [], "evaluation_interval": "1m", "tests": [test]}
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(tests))
    command = [PROMTOOL, "test", "rules", "tests.yaml"]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)


def per_pod(values):
    return [{"labels": f'{{pod="{pod}"}}', "value": round(value, 6)} for pod, value in values.items()]


def test_the_adapter_reads_queue_and_busy_share_of_the_encoders(tmp_path):
    wanted = {"triton_queue_time_ms": per_pod(QUEUE_MS), "triton_busy_share": per_pod(BUSY)}
    done = run(tmp_path, adapter_rules(), wanted)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_window_of_one_minute_reads_nothing_at_the_default_scrape(tmp_path):
    """Why the window is two minutes: what the rules were before."""
    short = {name: query.replace("[2m]", "[1m]") for name, query in adapter_rules().items()}
    assert run(tmp_path, short, {"triton_queue_time_ms": []}).returncode == 0


def test_without_the_filter_an_ensemble_counts_twice(tmp_path):
    unfiltered = {name: re.sub(r',model=~"[^"]*"', "", q) for name, q in adapter_rules().items()}
    assert run(tmp_path, unfiltered, {"triton_queue_time_ms": per_pod(QUEUE_MS)}).returncode != 0


def test_keda_reads_the_longest_queue_and_the_sum_of_busy_gpus(tmp_path):
    expected = {"triton_queue_time_ms": max(QUEUE_MS.values()), "triton_busy_share": sum(BUSY.values())}
    samples = {name: [{"labels": "{}", "value": round(value, 6)}] for name, value in expected.items()}
    done = run(tmp_path, keda_rules(), samples)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_filter_names_the_encoders_and_nothing_else():
    pattern = re.search(r'model=~"([^"]+)"', (GPU / "prometheus-adapter.yaml").read_text())[1]
    chosen = {name for name in committed_models() if re.fullmatch(pattern, name)}
    encoders = [b for name in committed_models() if (b := backend_of_model(name)) and b.wire != "jpeg"]
    assert chosen == {b.triton_model for b in encoders} - {"openclip_vit_b32_openvino"}


def test_the_adapter_is_told_where_prometheus_is():
    values = yaml.safe_load((GPU / "prometheus-adapter.yaml").read_text())["prometheus"]
    assert values["url"].startswith("http://") and values["port"] == 9090
