"""A run described for others: the table says what the records say, every column is explained, every part exists."""

import json

import pandas as pd
import pytest
from support.paths import ROOT

from photodup.bench.record.record import RunStore, load_points
from photodup.errors import PhotodupError
from photodup.study.package import write

REFERENCE = ROOT / "results" / "reference-cpu"


def made_up(folder):
    point = {"scenario": "closed_loop", "batch": 1, "concurrency": 8, "valid": True, "link": "loopback"}
    with RunStore(folder) as store:
        for n, backend in enumerate(("triton-onnx-fp32-http-fp32", "fastapi-pytorch-fp32-http-jpeg")):
            found = point | {
                "backend": backend,
                "throughput_images_per_s": 20.5 + n,
                "slow_start_after_idle": True,
            }
            store.measure_or_load(f"point-{n}", lambda found=found: found, config={"scenario": "closed_loop"})
    return folder


def test_the_table_holds_the_points_and_the_crate_names_what_there_is(tmp_path):
    run = made_up(tmp_path / "made-up")
    crate = json.loads(write.write_package(run).read_text(encoding="utf-8"))

    table = pd.read_parquet(run / write.POINTS)
    assert list(table.throughput_images_per_s) == list(load_points(run).throughput_images_per_s)
    parts = {part["@id"] for part in crate["@graph"][0]["hasPart"]}
    assert parts == {"points.parquet", "points.schema.json", "records/", "environment.json"}
    assert all((run / part).exists() for part in parts)
    first = (run / write.CRATE).read_bytes()
    write.write_package(run)
    assert (run / write.CRATE).read_bytes() == first, "the same records, the same file"


def test_each_column_carries_its_meaning_in_the_file_itself(tmp_path):
    import pyarrow.parquet as pq

    run = made_up(tmp_path / "made-up")
    write.write_package(run)
    fields = {field.name: field for field in pq.read_schema(run / write.POINTS)}
    schema = {f["name"]: f for f in json.loads((run / write.SCHEMA).read_text())["fields"]}

    assert fields.keys() == schema.keys()
    assert fields["concurrency"].metadata[b"description"] == b"requests in flight"
    assert (schema["valid"]["type"], schema["throughput_images_per_s"]["type"]) == ("boolean", "number")


def test_every_column_of_the_reference_run_is_explained_and_its_package_current():
    points = load_points(REFERENCE)
    schema = write.schema_of(write._plain(points))

    assert [f["name"] for f in schema["fields"] if not f["description"]] == []
    assert json.loads((REFERENCE / write.SCHEMA).read_text(encoding="utf-8")) == schema
    assert len(pd.read_parquet(REFERENCE / write.POINTS)) == len(points)


def test_the_ends_of_an_interval_are_told_from_their_column():
    assert write.meaning("latency_ms_p50_ci_low", {"latency_ms_p50": "median latency"}).startswith(
        "lower end"
    )
    assert write.meaning("nothing_ci_low", {}) == write.meaning("nothing", {}) == ""


def test_a_run_without_points_is_said(tmp_path):
    (tmp_path / "records").mkdir()
    with pytest.raises(PhotodupError, match="no points yet"):
        write.write_package(tmp_path)
