"""Records of the first edition are read with the facts in columns, and found by today's names."""

import json

import pytest

from photodup.bench.link.way import emulated
from photodup.bench.load.plan import Load, Stopping
from photodup.bench.record.first_edition import upgrade
from photodup.bench.record.json_files import digest, read_record, slug
from photodup.bench.record.record import RunStore, load_points, load_records
from photodup.embedding.backends import parse_backend
from photodup.paths import project_root
from photodup.serving.endpoints import from_ports
from photodup.study.claims.evidence import load_evidence
from photodup.study.notebook.points import measure_point
from photodup.study.notebook.run import Run

REFERENCE = project_root() / "results" / "reference-cpu"
LOAD, STOPPING = Load("single_stream"), Stopping()


def old_point(backend, label="", link="", status="ok", **more):
    """A record as the first edition wrote it."""
    load = {"scenario": "single_stream", "batch": 1, "concurrency": 1, "offered_per_s": None}
    load |= {"connection": "warm", "span": "photo"}
    stopping = {"min_duration_s": 5.0, "min_requests": 64, "max_duration_s": 60.0}
    stopping |= {"warmup_requests": 3, "ramp_s": 0.5, "seed": 0}
    config = load | {"backend": backend, "label": label, "stopping": stopping, "slo_ms": None}
    config |= {"link": link} if link else {}
    key = "-".join(part for part in ("point", backend, "single_stream", "b1", "c1", link, label) if part)
    result = {**load, "backend": backend, "link": link or "loopback", "server": backend.split("-")[0]}
    return {
        "schema_version": 1,
        "key": key,
        "config": config,
        "status": status,
        "error": None if status == "ok" else "planted",
        "result": result | {"latency_ms_p50": 7.0, "valid": True} if status == "ok" else {},
        "raw_file": None,
        "started_at": "2026-01-01T00:00:00+00:00",
        "duration_s": 1.0,
        "photodup_version": "0.1.0",
        "git_commit": None,
        "git_dirty": None,
        "environment_digest": "0",
    } | more


def keep(run, record):
    name = f"{slug(record['key'])}-{digest({'key': record['key'], 'config': record['config']})[:8]}.json"
    path = run / "records" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record))
    return path


def opened(run, measure=False):
    return Run("old", run, from_ports("127.0.0.1", 1, 1, 1, 0), RunStore(run, measure=measure))


@pytest.mark.parametrize(
    ("label", "now", "columns"),
    [
        ("", {}, (0, True, None)),
        ("again", {"repeat": 1}, (1, True, None)),
        ("again 3", {"repeat": 3}, (3, True, None)),
        ("50% load", {"label": "50% load", "load_share": 0.5}, (0, True, 0.5)),
        ("batching-default", {"label": "batching-default", "as_deployed": True}, (0, True, None)),
        ("batching-published", {"label": "batching-published"}, (0, False, None)),
        ("no batcher", {"label": "no batcher"}, (0, False, None)),
        ("delay-again", {"label": "delay-0ms", "repeat": 1}, (1, False, None)),
    ],
)
@pytest.mark.parametrize(
    "backend", ["pytorch-http-jpeg", "triton-onnx-grpc-fp32", "triton-emulated-a100-http-uint8"]
)
def test_what_a_label_said_is_a_column_and_todays_question_finds_the_record(
    tmp_path, backend, label, now, columns
):
    keep(tmp_path, old_point(backend, label))
    for asked in (backend, parse_backend(backend)):
        found = measure_point(opened(tmp_path), asked, LOAD, STOPPING, **now)
        assert found["latency_ms_p50"] == 7.0, found["invalid_because"]
        assert (found["repeat"], found["as_deployed"], found["load_share"]) == columns
    row = load_points(tmp_path).iloc[0]
    assert {row[name] == value for name, value in parse_backend(backend).columns().items()} == {True}
    assert row["label"] == now.get("label", "") and row["device"] == (
        parse_backend(backend).emulated_device or None
    )


@pytest.mark.parametrize(
    "preset", ["us-east", "home-uplink", "metro", "cross-country", "datacentre", "published-6a"]
)
def test_what_a_link_was_is_in_columns(tmp_path, preset):
    keep(tmp_path, old_point("triton-onnx-http-fp32", link=preset))
    row = load_points(tmp_path).iloc[0].to_dict()
    assert {name: row[name] for name in emulated(preset).columns()} == emulated(preset).columns()
    assert measure_point(opened(tmp_path), "triton", LOAD, STOPPING, link=preset)["latency_ms_p50"] == 7.0


@pytest.mark.parametrize(("link", "rtt_ms"), [("loopback", 0.0), ("network-25.3ms", 25.3), ("network", None)])
def test_the_way_to_a_machine_elsewhere_is_in_columns(link, rtt_ms):
    old = old_point("triton-onnx-http-fp32")
    old["result"]["link"] = link
    found = upgrade(old)["result"]
    assert (found["link"], found["rtt_ms"]) == (link.split("-")[0], rtt_ms)


def test_a_failed_one_is_measured_again_in_its_place(tmp_path):
    path = keep(tmp_path, old_point("triton-onnx-http-fp32", "again", status="failed"))
    row = load_points(tmp_path).iloc[0]
    assert row["repeat"] == 1 and row["engine"] == "onnx" and not row["valid"]
    run = opened(tmp_path, measure=True)
    with run.store:  # nobody listens: it fails again, as a record of today
        measure_point(run, "triton-onnx-fp32-http-fp32", LOAD, STOPPING, repeat=1, check=False)
    assert not path.exists()
    (record,) = load_records(tmp_path)
    assert (
        record["schema_version"] == 2
        and record["status"] == "failed"
        and "refused" in record["error"].lower()
    )


def test_what_failed_before_it_knew_its_backend_is_read_as_well():
    """Points of one pod name no backend in what was asked for."""
    old = old_point("pytorch-http-jpeg", status="failed") | {
        "key": "kube-pod-c2",
        "config": {"concurrency": 2},
    }
    found = upgrade(old)
    assert (found["kind"], found["status"], found["config"]) == ("point", "failed", {"concurrency": 2})


def test_a_first_edition_record_is_still_checked(tmp_path):
    path = keep(tmp_path, old_point("triton-onnx-http-fp32"))
    for spoil, said in (({"raw_file": 3}, "'raw_file' holds a int"), ({"key": "other"}, "was changed after")):
        path.write_text(json.dumps(old_point("triton-onnx-http-fp32") | spoil))
        with pytest.raises(Exception, match=said):
            read_record(path)


def test_the_reference_run_is_read_whole():
    points, evidence = load_points(REFERENCE), load_evidence(REFERENCE)
    assert (
        len(points) >= 359
        and points[["backend", "server", "engine", "precision", "link"]].notna().all().all()
    )
    assert {parse_backend(name).name for name in points.backend} == set(points.backend)
    assert points.rtt_ms.notna().all() and points.device.notna().all()
    assert set(points[points.link == "us-east"].rtt_ms) == {25.0} and points.repeat.max() == 7
    assert {"network-only", "simulated-hpa", "body-json"} <= set(evidence.backend)
    ladder = evidence[evidence.backend == "network-only"]
    assert set(ladder.initcwnd) == {10, 32} and set(ladder.rtt_ms) == {5, 25, 100}
    starts = evidence[evidence.scenario == "start"].backend
    assert {parse_backend(name).server for name in starts} == {"fastapi", "triton"}
