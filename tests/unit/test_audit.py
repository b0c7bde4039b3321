"""The internal audit: every verdict is computed, so other rows give another one."""

import shutil
from collections import Counter

import pytest
from support.points import point

from photodup.bench.link.link import LinkSpec
from photodup.bench.link.way import emulated
from photodup.bench.record.record import RunStore
from photodup.errors import PhotodupError
from photodup.study.published import audit, checks
from photodup.study.published.published import PublishedError, load_measurements

ROWS = load_measurements()
FINDINGS = checks.run_all(ROWS)


def changed(**values):
    rows = ROWS.copy()
    for row_id, value in values.items():
        assert row_id in rows.index
        rows.loc[row_id, "value"] = value
    return rows


def test_all_checks_speak():
    assert list(FINDINGS) == [f"E{n}" for n in range(1, 22)]
    assert set(checks.check_words()) == set(FINDINGS)
    assert all(one.because.endswith((".", ").")) and "{" not in one.because for one in FINDINGS.values())
    assert Counter(found.verdict for found in FINDINGS.values()) == {
        "does not stand": 10,
        "method is in doubt": 4,
        "numbers cannot say": 6,
        "stands": 1,
    }
    unclaimed = {name: found.claim for name, found in FINDINGS.items() if not found.quote}
    assert list(unclaimed) == ["E6", "E14", "E16", "E18"], "about these the study claimed nothing"
    assert all(claim.startswith("Method: ") for claim in unclaimed.values())


WOULD_STAND = {  # what the rows would have to say for the claim to survive
    "E1": {"step6a_a100_onnx_b32_throughput": 7.0},
    "E2": {f"step5a_triton_b{n}_mean": n * 7.0 for n in (1, 4, 8, 16, 32)},
    "E3": {"step6a_a100_onnx_gpu_compute": 1.0},
    "E4": {"step6a_a100_trt_gpu_compute": 3.7, "step7_a100_trt_http_gpu_compute": 3.7},
    "E6": {
        f"step6b_c{n}_p50": n / ROWS.at[f"step6b_c{n}_throughput", "value"] * 1000
        for n in (1, 4, 8, 16, 32, 64, 128)
    },
    "E9": {"step5a_pytorch_concurrent": 120.0},
    "E11": {"step7_rtx4090_trt_grpc_gpu_compute": 7.7, "step7_rtx4090_onnx_grpc_gpu_compute": 8.6},
    "E12": {"k8s_quota_limits": 12.0},
    "E14": {
        "step7_a100_onnx_http_b32_throughput": 32.0,
        "step7_a100_onnx_grpc_b32_throughput": 53.8,
        "step7_a100_pytorch_b32_throughput": 64.0,
        "step6a_a100_trt_b1": 172.0,
        "step6a_a100_onnx_b1": 208.0,
        "step6a_a100_pytorch_b1": 64.0,
    },
    "E15": {"step5a_triton_b32_mean": 1000.0},
    "E17": {"wire_jpeg_payload": 121_000.0},
    "E19": {"step5a_cpu_b32_latency": 31.0},
    "E20": {"step6a_rtx4080_trt_gpu_compute": 2.7},
    "E21": {
        "step7_rtx4090_trt_http_b32_throughput": 5.0,
        "step7_a100_pytorch_c16_throughput": 60.0,
        "step7_a100_trt_http_c16_throughput": 50.0,
        "step7_rtx4090_trt_http_c16_throughput": 40.0,
    },
}


@pytest.mark.parametrize("name", WOULD_STAND)
def test_other_rows_turn_the_verdict(name):
    assert FINDINGS[name].stands is (None if name in ("E1", "E17", "E21") else False)
    other = checks.finding(name, *checks.CHECKS[name](changed(**WOULD_STAND[name])))
    assert other.stands is True
    assert other.because != FINDINGS[name].because


def test_round_trips_nearest_to_both_steps_would_refute_the_bandwidth():
    rows = changed(step7_a100_onnx_http_b32_throughput=40.0)
    assert checks.bandwidth_or_round_trips(rows)[0] is False


def test_assumptions_are_parameters():
    assert checks.littles_law(ROWS, tolerance=2.0)[0]
    assert checks.queue_delay(ROWS, delay_ms=0.0)[0] is False
    assert checks.protective_probe(ROWS, unready=0)[0]
    assert checks.laptop_against_gpu(ROWS, laptop_watts=0)[0]
    assert checks.connection_policy(ROWS, rtt_ms=1e-6, rate_mb_per_s=1e9)[0]
    assert checks.json_factor(ROWS, most=0.4)[0]
    assert checks.bandwidth_or_round_trips(ROWS, rtt_ms=1.0)[1]["round_trips_give_ms"] < 30


def test_a_same_workload_would_make_the_gpu_ratio_a_ratio():
    rows = ROWS.copy()
    same = ["closed_loop", 1, 32]
    rows.loc["step6a_rtx4080_onnx_b32_throughput", ["scenario", "batch", "concurrency"]] = same
    assert checks.multi_gpu_scaling(rows)[0]


@pytest.mark.parametrize(("name", "number", "expected"), [
    ("E1", "round_trips_give_ms", 190.1),
    ("E6", "mean_ms", [294, 364, 396, 502, 741, 1711, 3450]),
    ("E12", "needed", 12),
    ("E19", "gains", [1, 1.46, 1.56, 1.65, 1.64]),
])  # fmt: skip
def test_known_numbers(name, number, expected):
    """Worked by hand from the documents."""
    assert FINDINGS[name].numbers[number] == pytest.approx(expected, rel=0.005)


def test_sentences_carry_the_numbers():
    for name, words in {
        "E2": ("0.050 TFLOP/s", "0.26%", "R² 0.983"), "E3": ("2.3 to 3.4", "12.9"),
        "E5": ("613 images/s", "7% busy", "208 Mbit/s"), "E6": ("103 requests", "1.29 images"),
        "E10": ("1.04 times", "0.4%", "names no gain"), "E15": ("5.6 of 9.6 s",), "E12": ("at most 4", "14"),
        "E14": ("5.3 times",),
    }.items():  # fmt: skip
        for word in words:
            assert word in FINDINGS[name].because, (name, word)


def test_a_dropped_row_is_an_error_not_a_guess():
    with pytest.raises(PublishedError, match="step6b_requests"):
        checks.multi_gpu_scaling(ROWS.drop(index="step6b_requests"))


def test_the_command_prints_the_audit_and_judges_a_run(tmp_path, monkeypatch):
    root = tmp_path / "checkout"
    shutil.copytree(audit.project_root() / "results" / "published", root / "results" / "published")
    monkeypatch.setenv("PHOTODUP_ROOT", str(root))
    with pytest.raises(PhotodupError, match="no records in results/nothing"):
        list(audit.report_lines("nothing"))
    with RunStore(root / "results" / "made-up") as store:
        for wire, latency_ms in (("fp32", 65.0), ("json", 190.0)):
            values = {"latency_ms_mean": latency_ms, "batch": 32, "span": "photo", "ci": 0.1}
            made = point(f"triton-onnx-fp32-http-{wire}", **values, **emulated(LinkSpec()).columns())
            store.measure_or_load(wire, lambda made=made: made, config={"wire": wire}, kind="point")
    lines = list(audit.report_lines("made-up"))
    assert any("E12 does not stand" in line for line in lines)
    assert any("116 printed ratios recomputed, 8 do not follow" in line for line in lines)
    wanted = "reproduced       json-bottleneck: published 1.72×, here 2.92×"
    assert any(line.startswith(wanted) for line in lines)
    assert (root / "results" / "made-up" / "verdicts.json").is_file()
    (tmp_path / "empty").mkdir()
    with pytest.raises(PhotodupError, match="executive-summary: not found"):
        list(audit.report_lines(documents=tmp_path / "empty"))
