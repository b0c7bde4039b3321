"""Advice on made-up points with a known answer, and on records that cannot answer."""

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.points import point as made_up

from photodup.embedding.backends import parse_backend
from photodup.errors import PhotodupError
from photodup.study.claims.advice import COLUMNS, Workload, rank


def point(backend, p95, rate, **values):
    figures = {"latency_ms_p95": p95, "latency_ms_mean": p95, "throughput_images_per_s": rate}
    load = {"scenario": "closed_loop", "concurrency": 8, "rate_mbit_s": None}
    size = 602_112 if parse_backend(backend).wire == "fp32" else 15_000
    return made_up(backend, **(load | {"payload_bytes": size} | figures | values))


SEVERAL = [f"triton-onnx-{p}-http-{w}" for p in ("fp32", "bf16") for w in ("fp32", "fp16", "uint8", "jpeg")]
TWO = pd.DataFrame(
    [point("fastapi-pytorch-fp32-http-jpeg", 65.0, 48.0), point("triton-onnx-fp32-http-fp32", 190.0, 43.0)]
)


def test_the_faster_backend_is_chosen_for_people_who_wait():
    work = Workload(40, rtt_ms=25, price_usd_per_hour=0.85)
    table = rank(work, TWO)
    assert list(table.columns) == COLUMNS
    assert list(table["backend"]) == ["fastapi-pytorch-fp32-http-jpeg", "triton-onnx-fp32-http-fp32"]
    assert list(table["rank"]) == [1, 2] and set(table["fits"]) == {"yes"}
    assert table["usd_per_1000_images"].iloc[0] == pytest.approx(0.85 / 3600 / 40 * 1000)
    assert table[["latency_ms", "latency_percentile"]].iloc[0].tolist() == [65.0, "p95"]
    turned = TWO.assign(backend=TWO["backend"].tolist()[::-1])  # a flipped latency turns the choice
    assert rank(work, turned)["backend"].iloc[0] == "triton-onnx-fp32-http-fp32"


def test_the_latency_limit_cuts_goodput_not_throughput():
    points = pd.DataFrame(
        [
            point("triton-onnx-fp32-http-jpeg", 50.0, 10.0),
            point("triton-onnx-fp32-http-jpeg", 400.0, 90.0, concurrency=64),
        ]
    )
    table = rank(Workload(20, rtt_ms=25, latency_limit_ms=100), points)
    assert table["goodput_images_per_s"].iloc[0] == 10.0 and table["servers"].iloc[0] == 2
    assert table["latency_ms"].iloc[0] == 50.0
    none = rank(Workload(20, rtt_ms=25, latency_limit_ms=10), points)
    assert none["fits"].iloc[0] == "no" and none["because"].iloc[0] == "no load keeps p95 within 10 ms"


def test_a_full_uplink_does_not_fit():
    work = Workload(100, rtt_ms=25, uplink_mbit_s=210)
    table = rank(work, TWO).set_index("backend")
    assert table.loc["triton-onnx-fp32-http-fp32", "fits"] == "no"
    assert table.loc["triton-onnx-fp32-http-fp32", "uplink_mbit_per_s"] == pytest.approx(481.7, rel=1e-3)
    assert table.loc["fastapi-pytorch-fp32-http-jpeg", "fits"] == "yes"


def test_batch_work_is_ranked_by_cost_then_by_goodput():
    names = ["triton-onnx-fp32-http-jpeg", "triton-openvino-fp32-http-jpeg"]
    offline = {"batch": 32, "scenario": "offline"}
    points = pd.DataFrame(
        [
            point(name, 900.0, rate, price_usd_per_hour=price, **offline)
            for name, rate, price in zip(names, (20.0, 60.0), (0.1, 0.9), strict=True)
        ]
    )
    work = Workload(600, kind="batch", rtt_ms=25)
    assert rank(work, points)["backend"].iloc[0] == names[0]
    assert rank(work, points.drop(columns="price_usd_per_hour"))["backend"].iloc[0] == names[1]


def test_what_intervals_do_not_tell_apart_shares_a_rank():
    def ranks(*p95):
        points = [point(name, ms, 48.0) for name, ms in zip(TWO["backend"], p95, strict=True)]
        return list(rank(Workload(10, rtt_ms=25), pd.DataFrame(points))["rank"])

    assert ranks(100.0, 101.0) == [1, 1] and ranks(100.0, 120.0) == [1, 2]
    bare = TWO.drop(columns=[name for name in TWO if "_ci_" in name])
    assert list(rank(Workload(10, rtt_ms=25), bare)["rank"]) == [1, 1], (
        "without intervals nothing is told apart"
    )


def test_a_link_or_a_percentile_that_was_not_measured_is_not_filled_in():
    assert rank(Workload(10, rtt_ms=100), TWO).empty
    median = TWO.drop(columns="latency_ms_p95").assign(latency_ms_p50=[60.0, 180.0])
    assert set(rank(Workload(10, rtt_ms=25), median)["fits"]) == {"unknown"}


@pytest.mark.parametrize("spoilt", [{"valid": False}, {"throughput_images_per_s": None}, {"rtt_ms": 0.0}])
def test_unusable_points_are_not_used(spoilt):
    points = pd.DataFrame([point("fastapi-pytorch-fp32-http-jpeg", 65.0, 48.0) | spoilt])
    assert rank(Workload(1, rtt_ms=25), points).empty


def test_empty_records_and_bad_workloads():
    for empty in (pd.DataFrame(), TWO.iloc[0:0]):
        assert rank(Workload(1), empty).empty
    for wrong in (
        {"images_per_s": 0},
        {"images_per_s": 1, "kind": "realtime"},
        {"images_per_s": 1, "rtt_ms": -1},
    ):
        with pytest.raises(PhotodupError):
            Workload(**wrong)


@given(
    st.lists(st.tuples(st.floats(1, 1000), st.floats(0.1, 1000)), min_size=1, max_size=8), st.floats(1, 1000)
)
def test_a_better_rank_is_never_slower(values, limit):
    points = pd.DataFrame([point(SEVERAL[i], p95, rate) for i, (p95, rate) in enumerate(values)])
    table = rank(Workload(1, rtt_ms=25, latency_limit_ms=limit), points)
    fitting = table[table["fits"] == "yes"]
    assert fitting["latency_ms"].is_monotonic_increasing
    assert len(table) == len(values) and table["rank"].is_monotonic_increasing


def test_a_link_of_another_rate_says_nothing_about_this_uplink():
    points = pd.DataFrame(
        [
            point("fastapi-pytorch-fp32-http-jpeg", 65.0, 48.0, rate_mbit_s=210.0),
            point("triton-onnx-fp32-http-jpeg", 90.0, 40.0, rate_mbit_s=20.0),
        ]
    )
    for rate, expected in (
        (210, "fastapi-pytorch-fp32-http-jpeg"),
        (20, "triton-onnx-fp32-http-jpeg"),
        (None, "fastapi-pytorch-fp32-http-jpeg"),
    ):
        assert list(rank(Workload(1, rtt_ms=25, uplink_mbit_s=rate), points)["backend"]) == [expected]
    assert rank(Workload(1, rtt_ms=25, uplink_mbit_s=1000), points).empty


def test_emulated_gpus_never_meet_real_engines():
    points = pd.DataFrame(
        [*TWO.to_dict("records"), point("triton-emulated-a100-fp32-http-jpeg", 30.0, 440.0)]
    )
    assert set(rank(Workload(1, rtt_ms=25), points)["backend"]) == set(TWO["backend"])
    assert list(rank(Workload(1, rtt_ms=25, emulated=True), points)["backend"]) == [
        "triton-emulated-a100-fp32-http-jpeg"
    ]


def test_what_needs_several_devices_is_an_offer_of_its_own():
    """It was left out, so that no demand above one device's throughput had an answer but copies of it."""
    points = pd.DataFrame(
        [
            point("triton-onnx-fp32-http-jpeg", 50.0, 100.0, arrangement="instances", devices=1),
            point("triton-onnx-fp32-http-jpeg", 60.0, 390.0, arrangement="instances", devices=4),
            point("triton-onnx-fp32-http-jpeg", 70.0, 300.0, arrangement="servers", devices=4),
        ]
    )
    table = rank(Workload(350, kind="batch", rtt_ms=25, price_usd_per_hour=0.5), points)
    assert list(table["backend"]) == [
        "triton-onnx-fp32-http-jpeg",
        "triton-onnx-fp32-http-jpeg × 4 (instances)",
        "triton-onnx-fp32-http-jpeg × 4 (servers)",
    ]
    assert list(table["servers"]) == [4, 1, 2]
    assert table["usd_per_1000_images"].iloc[1] == pytest.approx(4 * 0.5 / 3600 / 390 * 1000)


def test_each_point_is_judged_by_the_highest_percentile_it_carries():
    small = point("fastapi-pytorch-fp32-http-jpeg", None, 10.0, concurrency=1, latency_ms_p50=40.0)
    loaded = point("fastapi-pytorch-fp32-http-jpeg", 900.0, 20.0, concurrency=16, latency_ms_p50=700.0)
    table = rank(Workload(5, rtt_ms=25), pd.DataFrame([small, loaded]))
    assert table[
        ["latency_ms", "latency_percentile", "goodput_images_per_s", "fits"]
    ].to_numpy().tolist() == [[40.0, "p50", 10.0, "unknown"]]
