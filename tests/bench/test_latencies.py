"""Single requests survive everything that a run survives, bit for bit, in one small file."""

import json
import signal

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from support.command import run_python

from photodup.bench.record import latencies
from photodup.bench.record.json_files import RecordError
from photodup.bench.record.store import RunStore
from photodup.core.paths import project_root

CONFIG = {"scenario": "single_stream"}
FLOATS = arrays.arrays(np.float32, st.integers(1, 30), elements=st.floats(width=32))


def point(n, offset=0.0):
    return {"x": n, "raw": {"latency_ms": np.arange(n) / 3 + offset, "finished_s": np.arange(n) / 7}}


def same(found, wanted):
    return found.keys() == wanted.keys() and all(
        found[name].dtype == np.float32
        and found[name].tobytes() == np.asarray(wanted[name], np.float32).tobytes()
        for name in wanted
    )


@given(
    st.lists(st.dictionaries(st.sampled_from(["latency_ms", "finished_s", "vectors"]), FLOATS), max_size=4)
)
def test_every_array_comes_back_bit_for_bit_before_and_after(tmp_path_factory, several):
    run = tmp_path_factory.mktemp("run")
    for number, raw in enumerate(several):
        (run / "records").mkdir(exist_ok=True)
        (run / "records" / f"point-{number}.json").write_text("{}")
        latencies.write_part(run / "records" / f"point-{number}.json", raw)
    for compacted in (0, len(several)):
        for number, raw in enumerate(several):
            assert same(latencies.read_arrays(run, f"point-{number}"), raw)
        assert latencies.compact(run) in (len(several) - compacted, 0)


def test_one_row_a_request_as_it_is_documented(tmp_path):
    with RunStore(tmp_path / "run") as store:
        for key, n in (("b", 3), ("a", 2)):
            store.measure_or_load(key, lambda n=n: point(n), config=CONFIG)
        vectors = np.arange(4, dtype=np.float32)
        store.measure_or_load("v", lambda: {"raw": {"vectors": vectors}}, config=CONFIG)
    assert not list(store.records_dir.glob("*.parquet"))
    table = pd.read_parquet(tmp_path / "run" / "latencies.parquet")
    assert list(table.columns) == ["record", "request", "finished_s", "latency_ms", "vectors"]
    assert [name[0] for name in table.record] == ["a"] * 2 + ["b"] * 3 + ["v"] * 4
    assert list(table.request) == [0, 1, 0, 1, 2, 0, 1, 2, 3]
    assert table.latency_ms.notna().sum() == 5 and list(table.vectors.dropna()) == [0, 1, 2, 3]
    stem = next(store.records_dir.glob("b-*.json")).stem
    few = pd.read_parquet(tmp_path / "run" / "latencies.parquet", filters=[("record", "==", stem)])
    np.testing.assert_array_equal(few.latency_ms, (np.arange(3) / 3).astype(np.float32))


KILLED = """
import os, signal, sys
import numpy as np
from photodup.bench.record.store import RunStore
store = RunStore(sys.argv[1])
store.measure_or_load("first", lambda: {"x": 1, "raw": {"latency_ms": np.arange(9)}}, config={})
how = sys.argv[2]
if how == "exit":
    sys.exit()
store.measure_or_load("second", lambda: os.kill(os.getpid(), getattr(signal, how)), config={})
"""


@pytest.mark.parametrize(("how", "parts"), [("SIGKILL", 1), ("exit", 0)])
def test_a_killed_run_loses_nothing_and_the_resumed_one_uses_it(tmp_path, how, parts):
    run = tmp_path / "run"
    done = run_python(KILLED, str(run), how)
    assert done.returncode == (-signal.SIGKILL if parts else 0), done.stderr
    assert len(list((run / "records").glob("*.latencies.parquet"))) == parts
    with RunStore(run) as store:
        result = store.measure_or_load("first", lambda: pytest.fail("measured again"), config={})
        assert result == {"x": 1} and list(store.raw("first", config={})["latency_ms"]) == list(range(9))
        store.measure_or_load("second", lambda: point(4), config={})
    assert [path.suffix for path in (run / "records").iterdir()] == [".json", ".json"]
    assert pd.read_parquet(run / "latencies.parquet").groupby("record").size().sort_values().tolist() == [
        4,
        9,
    ]


def test_an_interrupted_compaction_is_done_again(tmp_path, monkeypatch):
    """Between the two steps a request is in both files: it must not be read, or kept, twice."""
    run = tmp_path / "run"
    with RunStore(run) as store:
        store.measure_or_load("a", lambda: point(5), config=CONFIG)
    with RunStore(run) as store:
        store.measure_or_load("b", lambda: point(3), config=CONFIG)
        with monkeypatch.context() as patched:
            cut = lambda path, *, within: (_ for _ in ()).throw(OSError("power cut"))  # noqa: E731
            patched.setattr(latencies, "remove", cut)
            with pytest.raises(OSError, match="power cut"):
                latencies.compact(run)
        assert list(store.records_dir.glob("*.parquet")), "the small file is still there"
        assert same(store.raw("b", config=CONFIG), point(3)["raw"])
    assert len(pd.read_parquet(run / "latencies.parquet")) == 8


def test_a_point_measured_again_replaces_its_requests_and_one_deleted_goes(tmp_path):
    run = tmp_path / "run"
    with RunStore(run) as store:
        for key in "abc":
            store.measure_or_load(key, lambda: point(5), config=CONFIG)
    next(store.records_dir.glob("a-*.json")).unlink()
    next(store.records_dir.glob("b-*.json")).unlink()
    with RunStore(run) as store:
        store.measure_or_load("b", lambda: point(2, offset=100), config=CONFIG)
    kept = pd.read_parquet(run / "latencies.parquet").groupby(lambda row: 0).record.agg(list)[0]
    assert [name[0] for name in kept] == ["b"] * 2 + ["c"] * 5
    assert store.raw("b", config=CONFIG)["latency_ms"][0] == 100


@pytest.mark.parametrize("content", [b"", b"PAR1 but not really PAR1", b"x" * 5000])
def test_a_damaged_file_is_named_with_the_remedy(tmp_path, content):
    run = tmp_path / "run"
    with RunStore(run) as store:
        store.measure_or_load("a", lambda: point(5), config=CONFIG)
    (run / "latencies.parquet").write_bytes(content)
    with pytest.raises(RecordError, match=r"latencies\.parquet cannot be read .*restore it from git"):
        store.raw("a", config=CONFIG)


def approximately(value):
    return pytest.approx(float(value), rel=1e-6)


def test_the_committed_run_has_every_request_of_its_figures():
    run = project_root() / "results" / "reference-cpu"
    table = pd.read_parquet(run / "latencies.parquet")
    assert (run / "latencies.parquet").stat().st_size < 2_000_000
    n_of = table.dropna(subset="latency_ms").groupby("record").size()
    records = {path.stem: json.loads(path.read_text()) for path in (run / "records").glob("*.json")}
    kept = {name for name, record in records.items() if record.get("raw_file") or record.get("has_raw")}
    assert set(table.record.unique()) == kept
    assert any(records[name]["kind"] == "figure" for name in n_of.index)
    for name in n_of.index:
        kind, result = records[name]["kind"], records[name]["result"]
        if kind == "visit":  # all of its figures are made of the answers
            continue
        result = result.get("point", result)  # a peer's measurement keeps its point inside
        mine = table[table.record == name]
        assert len(mine) == result["n_requests"] and mine.finished_s.dropna().is_monotonic_increasing
        assert result["latency_ms_mean"] == approximately(mine.latency_ms.astype(float).mean())


def test_the_file_is_read_once_for_all_records_and_again_when_it_has_changed(tmp_path, monkeypatch):
    asked, read = [], latencies._read
    monkeypatch.setattr(latencies, "_read", lambda path: asked.append(path.name) or read(path))
    for round_ in (1, 2):
        for key in ("a", "b"):
            path = tmp_path / "records" / f"{key}.json"
            path.parent.mkdir(exist_ok=True)
            path.write_text("{}")
            latencies.write_part(path, {"latency_ms": [round_, 2.0]})
        latencies.compact(tmp_path)
        asked.clear()
        for _ in range(3):
            assert [latencies.read_arrays(tmp_path, key)["latency_ms"][0] for key in ("a", "b")] == [
                round_
            ] * 2
        assert asked == [latencies.NAME]
