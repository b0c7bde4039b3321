"""A record is written once, whole, and is read back the same; what is wrong is named."""

import getpass
import json
import math
import platform
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.command import running

from photodup.bench.record import environment, json_files
from photodup.bench.record.json_files import RecordError, to_json_value
from photodup.bench.record.store import FIGURE_COLUMNS, RunStore, figures_of_run, load_records
from photodup.core.errors import PhotodupError
from photodup.core.paths import project_root
from photodup.embedding.backends import parse_backend

CONFIG = {"scenario": "single_stream", "backend": "dummy", "batch": 1}


@pytest.fixture
def store(tmp_path):
    with RunStore(tmp_path / "run") as run:
        yield run


def only_record(store):
    (path,) = store.records_dir.glob("*.json")
    return path


def test_a_finished_point_is_measured_once_and_read_back_equal(store):
    calls = []

    def measure():
        calls.append(1)
        return {"latency_ms_p50": np.float32(1.5), "n_requests": np.int64(3), "nothing": math.nan}

    first = store.measure_or_load("Single stream, dummy", measure, config=CONFIG)
    again = RunStore(store.directory).measure_or_load("Single stream, dummy", measure, config=CONFIG)
    assert first == again == {"latency_ms_p50": 1.5, "n_requests": 3, "nothing": None}
    assert len(calls) == 1
    assert only_record(store).name.startswith("single-stream-dummy-")


def test_a_record_is_self_sufficient(store):
    store.measure_or_load("a", lambda: {"x": 1}, config=CONFIG)
    kept = store.record("a", config=CONFIG)
    facts = json.loads((store.directory / "environment.json").read_text())
    assert set(kept) == set(json_files.FIELDS)
    assert kept["config"] == CONFIG and kept["status"] == "ok" and kept["error"] is None
    assert kept["environment_digest"] == facts["digest"]
    assert kept["started_at"].endswith("+00:00")
    assert facts["cores"] >= 1 and facts["packages"]["numpy"] == np.__version__


def test_another_config_under_the_same_key_is_another_point(store):
    one = store.measure_or_load("a", lambda: {"x": 1}, config=CONFIG)
    two = store.measure_or_load("a", lambda: {"x": 2}, config={**CONFIG, "batch": 2})
    assert (one["x"], two["x"]) == (1, 2)
    assert store.measure_or_load("a", lambda: {"x": 3}, config=dict(reversed(CONFIG.items())))["x"] == 1


@pytest.mark.parametrize("as_exception", [True, False])
def test_a_failed_point_is_recorded_and_retried(store, as_exception):
    def fails():
        if as_exception:
            raise ConnectionRefusedError("nobody listens on port 1; see /root/secret/folder/log.txt")
        return {"status": "failed", "error": "nobody listens on port 1", "n_errors": 4}

    failed = store.measure_or_load("a", fails, config=CONFIG, kind="figure")
    gap = figures_of_run(store.directory).iloc[0]
    mended = store.measure_or_load("a", lambda: {"x": 1}, config=CONFIG)
    assert failed["status"] == "failed" and "nobody listens" in failed["error"]
    assert "secret" not in json.dumps(failed)
    assert (
        gap["status"] == "failed" and "nobody listens" in gap["error"] and math.isnan(gap["latency_ms_p50"])
    )
    assert mended == {"x": 1}


@pytest.mark.parametrize(("text", "kept"), [
    ("No metrics at http://gpu-7.example.org:8005/metrics: refused", "No metrics at http://…:8005/metrics: refused"),
    ("failed to connect to ipv4:203.0.113.7:8004", "failed to connect to ipv4:…:8004"),
    ("cannot open /home/someone/x/model.onnx", "cannot open …/model.onnx"),
    ("http://127.0.0.1:8002/v2/models/m/infer", "http://127.0.0.1:8002/v2/models/m/infer"),
    ("driver 1.2.3, 3 of 4, cosine 0.5 images/s", "driver 1.2.3, 3 of 4, cosine 0.5 images/s"),
])  # fmt: skip
def test_a_record_names_no_machine(store, text, kept):
    result = store.measure_or_load("a", lambda: {"notes": [text]}, config=CONFIG)
    failed = store.measure_or_load("b", lambda: {"status": "failed", "error": text}, config=CONFIG)
    assert result == {"notes": [kept]} and failed["error"] == kept


@pytest.mark.parametrize(
    "mistake", [TypeError, AttributeError, KeyError, ZeroDivisionError, ValueError, ImportError]
)
def test_a_mistake_in_a_program_is_no_result(store, mistake, caplog):
    def planted_mistake():
        raise mistake("planted")

    with pytest.raises(mistake, match="planted"):
        store.measure_or_load("a", planted_mistake, config=CONFIG)
    assert "a was not measured" in caplog.text and "in planted_mistake" in caplog.text, "with its traceback"
    assert store.record("a", config=CONFIG) is None
    assert store.measure_or_load("a", lambda: {"x": 1}, config=CONFIG) == {"x": 1}


def errors_of_libraries():
    import grpc
    import httpx
    import psutil
    from tritonclient.utils import InferenceServerException

    yield from (grpc.RpcError("x"), httpx.ReadTimeout("x"), psutil.NoSuchProcess(1))
    yield from (InferenceServerException("x"), subprocess.CalledProcessError(1, "x"))
    yield from (PhotodupError("x"), TimeoutError("x"), BrokenPipeError("x"), EOFError("x"))


@pytest.mark.parametrize("error", list(errors_of_libraries()), ids=lambda error: type(error).__name__)
def test_what_a_server_or_a_system_does_is_a_result(store, error):
    def fails():
        raise error

    assert store.measure_or_load("a", fails, config=CONFIG)["status"] == "failed"
    said = store.record("a", config=CONFIG)["error"]
    assert type(error).__name__ in said or isinstance(error, PhotodupError)


def test_an_interruption_records_nothing(store):
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.measure_or_load("a", interrupted, config=CONFIG)
    assert store.record("a", config=CONFIG) is None


def test_reading_only_never_measures(store):
    store.measure_or_load("a", lambda: {"status": "failed", "error": "gone"}, config=CONFIG)
    reader = RunStore(store.directory, create=False, measure=False)

    def never():
        raise AssertionError("measured")

    assert reader.measure_or_load("a", never, config=CONFIG)["error"] == "gone"
    assert reader.measure_or_load("b", never, config=CONFIG)["status"] == "missing"


def test_raw_latencies_lie_beside_the_record(store):
    latencies = np.linspace(1, 2, 500)
    result = store.measure_or_load("a", lambda: {"x": 1, "raw": {"latency_ms": latencies}}, config=CONFIG)
    assert result == {"x": 1}
    kept = store.raw("a", config=CONFIG)["latency_ms"]
    assert kept.dtype == np.float32
    np.testing.assert_allclose(kept, latencies, rtol=1e-6)


@pytest.mark.parametrize(("damage", "named"), [
    (lambda r: r.pop("config"), "'config' is missing"),
    (lambda r: r.update(duration_s="long"), "'duration_s' holds a str"),
    (lambda r: r.update(schema_version=True), "'schema_version' holds a bool"),
    (lambda r: r.update(schema_version=99), "'schema_version' is 99"),
    (lambda r: r.update(schema_version=1), "'schema_version' is 1, this photodup reads 2"),
    (lambda r: r.update(status="done"), "'status' is 'done'"),
    (lambda r: r["config"].update(batch=64), "'config' or 'key' was changed"),
])  # fmt: skip
def test_a_damaged_record_is_named_by_file_and_field(store, damage, named):
    store.measure_or_load("a", lambda: {"x": 1}, config=CONFIG)
    path = only_record(store)
    content = json.loads(path.read_text())
    damage(content)
    path.write_text(json.dumps(content))
    with pytest.raises(RecordError, match=named) as caught:
        list(load_records(store.directory))
    assert path.name in str(caught.value)


def test_a_missing_run_is_refused(tmp_path):
    with pytest.raises(RecordError, match="There is no run"):
        RunStore(tmp_path / "typo", create=False)


HOLDER = """
import sys, time
from photodup.bench.record.store import RunStore
RunStore(sys.argv[1]).lock()
print("held", flush=True)
time.sleep(60)
"""


def test_a_second_run_is_refused_and_a_killed_one_is_not_in_the_way(tmp_path):
    run = RunStore(tmp_path / "run")
    with running([sys.executable, "-c", HOLDER, str(run.directory)]) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(RecordError, match="Another run is writing"):
            run.measure_or_load("a", lambda: {"x": 1}, config=CONFIG)
    assert run.measure_or_load("a", lambda: {"x": 1}, config=CONFIG) == {"x": 1}
    run.close()


def test_figures_have_the_agreed_columns_and_join_their_visits(store):
    for visit, median in ((1, 2.0), (2, 8.0)):
        window = {"latency_ms_p50": median, "n_requests": 5, "n_errors": 0, "parts": [1, 2]}
        store.measure_or_load("p", lambda w=window: w, config=CONFIG | {"visit": visit}, kind="figure")
    store.measure_or_load("step", lambda: {"latency_ms_p50": 2.0}, config=CONFIG, kind="visit")
    figures = figures_of_run(store.directory)
    assert list(figures.columns[: len(FIGURE_COLUMNS)]) == FIGURE_COLUMNS
    assert list(figures["key"]) == ["p"] and list(figures["batch"]) == [1] and set(figures["run"]) == {"run"}
    assert figures.latency_ms_p50.tolist() == [pytest.approx(4)] and figures.n_requests.tolist() == [10]
    assert "parts" not in figures


def test_an_empty_run_is_an_empty_table(tmp_path):
    assert figures_of_run(RunStore(tmp_path / "run").directory).empty


def test_a_run_resumed_on_another_machine_keeps_both_environments(store, monkeypatch):
    store.measure_or_load("a", lambda: {"x": 1}, config=CONFIG)
    monkeypatch.setenv("MODEL_PRETRAINED", "/data/weights/mine.pt")
    RunStore(store.directory).measure_or_load("b", lambda: {"x": 1}, config=CONFIG)
    digests = {r["environment_digest"] for r in load_records(store.directory)}
    files = [json.loads(path.read_text()) for path in store.directory.glob("environment*.json")]
    assert {facts["digest"] for facts in files} == digests and len(digests) == 2
    assert "mine.pt" in {facts["model"]["pretrained"] for facts in files}


def test_the_environment_names_no_host_and_no_folder():
    text = json.dumps(environment.describe())
    assert "/" not in text.replace(platform.processor(), "")
    assert f'"{platform.node()}"' not in text and f'"{getpass.getuser()}"' not in text


def test_what_json_cannot_hold_is_refused():
    with pytest.raises(RecordError, match="object cannot be recorded"):
        to_json_value({"x": object()})


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_plain_is_json_and_idempotent(value):
    once = to_json_value(value)
    assert to_json_value(json.loads(json.dumps(once, allow_nan=False))) == once


def test_the_reference_run_is_read_whole():
    reference = project_root() / "results" / "reference-cpu"
    figures = figures_of_run(reference)
    n_visits = sum(r["kind"] == "figure" for r in load_records(reference))
    assert figures.n_visits.sum() == n_visits >= len(figures) > 100
    assert figures[["backend", "server", "engine", "precision", "link"]].notna().all().all()
    assert {parse_backend(name).name for name in figures.backend} == set(figures.backend)
    assert figures.rtt_ms.notna().all() and figures.device.notna().all()
    assert set(figures[figures.link == "us-east"].rtt_ms) == {25.0}
