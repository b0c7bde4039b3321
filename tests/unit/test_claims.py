"""Verdicts on points with a known answer, and the faults that must turn them."""

import contextlib
import json
import math

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from photodup.embedding.backends import parse_backend
from photodup.errors import PhotodupError
from photodup.paths import project_root
from photodup.study.claims import claims, predicates
from photodup.study.claims.claim import NONE_WRITTEN, load_claims
from photodup.study.claims.claims import judge
from photodup.study.claims.outcome import (
    CONTRADICTED,
    GOAL_MET,
    GOAL_MISSED,
    NOT_TESTABLE,
    REPRODUCED,
    UNDECIDED,
    VERDICTS,
    NoiseFloors,
)
from photodup.study.claims.selection import Range
from photodup.study.published import published

CLAIMS = load_claims()
BY_ID = {claim.id: claim for claim in CLAIMS}


def point(backend, *, ci=0.02, **values):
    base = {
        "run": "made-up",
        "backend": backend,
        "link": "rtt25",
        "rtt_ms": 25.0,
        "scenario": "single_stream",
        "batch": 1,
        "concurrency": 1,
        "connection": "new",
        "valid": True,
        "offered_per_s": None,
        "device": "A100 SXM4",
    }
    with contextlib.suppress(PhotodupError):  # a plain name, such as body-json
        base |= parse_backend(backend).columns()
    row = base | values
    for name in ("latency_ms_p50", "latency_ms_mean", "throughput_images_per_s"):
        if row.get(name) is not None:
            row[f"{name}_ci_low"], row[f"{name}_ci_high"] = row[name] * (1 - ci), row[name] * (1 + ci)
    return row


def verdict(claim_id, *rows, floor=0.05):
    table = judge([BY_ID[claim_id]], pd.DataFrame(rows), NoiseFloors(floor, floor))
    assert len(table) == 1
    return table.iloc[0]


REMOTE = (
    point("fastapi-pytorch-fp32-http-base64", latency_ms_p50=56.9),
    point("triton-onnx-fp32-http-fp32", latency_ms_p50=182.9),
)


def test_the_list_is_complete_and_rests_on_rows_that_exist():
    rows = published.load_measurements()
    assert len(CLAIMS) >= 30 and len(BY_ID) == len(CLAIMS)
    for claim in CLAIMS:
        assert set(claim.rows) <= set(rows.index), claim.id
        assert claim.statement.endswith(".") and claim.rival.endswith(".") and claim.source
        assert claim.objections and set(claim.objections) <= set(VERDICTS) - {NOT_TESTABLE}, claim.id
        for but in claim.objections.values():
            assert but.endswith(".") and len(but) > 50 and but != claim.rival, claim.id
        assert claim.needs.endswith(".") and claim.needs.count(". ") == 0, f"{claim.id}: one sentence"
        if claim.published:
            assert published.evaluate(claim.published, rows)[0] > 0


def test_an_objection_stands_beside_the_verdict_it_argues_about():
    slower, equal = (
        verdict(
            "grpc-slower-single",
            point("triton-onnx-fp32-http-fp32", latency_ms_p50=100.0),
            point("triton-onnx-fp32-grpc-fp32", latency_ms_p50=grpc),
        )
        for grpc in (150.0, 100.0)
    )
    assert (slower["verdict"], equal["verdict"]) == (REPRODUCED, UNDECIDED)
    assert slower["but"].startswith("Both clients are Python") and equal["but"].startswith("So small")
    bodies = [point(f"body-{kind}", encode_ms=ms, ci=0) for kind, ms in (("json", 2.0), ("binary", 1.0))]
    found = verdict("json-encoding", *bodies)
    assert (found["verdict"], found["but"]) == (CONTRADICTED, NONE_WRITTEN)
    assert verdict("json-encoding", bodies[0])["but"] == "", "nothing to argue against"


def test_every_verdict_of_the_reference_run_is_argued_against():
    rows = json.loads((project_root() / "results/reference-cpu/verdicts.json").read_text(encoding="utf-8"))
    decided = {row["claim"]: row["verdict"] for row in rows if row["verdict"] != NOT_TESTABLE}
    assert set(BY_ID) == {row["claim"] for row in rows}
    missing = {claim: verdict for claim, verdict in decided.items() if verdict not in BY_ID[claim].objections}
    assert decided and not missing, "write an objection to these verdicts in claims.yaml"


def test_a_published_effect_is_reproduced():
    found = verdict("jpeg-beats-tensor-remotely", *REMOTE)
    assert found["verdict"] == REPRODUCED and found["published"] == "3.21×"
    assert found["effect"] == pytest.approx(182.9 / 56.9)
    assert found["effect_low"] < found["effect"] < found["effect_high"]


def test_a_flipped_inequality_is_seen():
    claim = BY_ID["jpeg-beats-tensor-remotely"]
    asked = claim.predicate
    flipped = asked.model_copy(update={"numerator": asked.denominator, "denominator": asked.numerator})
    claim = claim.model_copy(update={"predicate": flipped})
    assert judge([claim], pd.DataFrame(REMOTE)).iloc[0]["verdict"] == CONTRADICTED


def test_a_wrong_unit_is_seen():
    seconds = point("triton-onnx-fp32-http-fp32", latency_ms_p50=0.1829)
    assert verdict("jpeg-beats-tensor-remotely", REMOTE[0], seconds)["verdict"] == CONTRADICTED


def test_a_dropped_row_is_not_testable_never_a_guess():
    found = verdict("jpeg-beats-tensor-remotely", REMOTE[0])
    assert found["verdict"] == NOT_TESTABLE and found["here"] == "–"
    assert math.isnan(found["effect"]) if found["effect"] is not None else True


@pytest.mark.parametrize(
    "spoilt",
    [
        {"valid": False},
        {"latency_ms_p50": None},
        {"link": "rtt24", "rtt_ms": 24.0},
        {"connection": "warm"},
        {"batch": 4},
        {"span": "prepared"},
    ],
)
def test_only_valid_points_under_the_same_conditions_are_compared(spoilt):
    rows = [{"span": "photo", **REMOTE[0]}, {"span": "photo", **REMOTE[1], **spoilt}]
    assert verdict("jpeg-beats-tensor-remotely", *rows)["verdict"] == NOT_TESTABLE


def test_nothing_within_the_noise_floor_is_a_difference():
    rows = (
        point("triton-onnx-fp32-http-fp32", latency_ms_p50=100.0, ci=0.001),
        point("triton-onnx-fp32-grpc-fp32", latency_ms_p50=104.0, ci=0.001),
    )
    assert verdict("grpc-slower-single", *rows, floor=0.05)["verdict"] == UNDECIDED
    assert verdict("grpc-slower-single", *rows, floor=0.01)["verdict"] == REPRODUCED
    wide = (rows[0], point("triton-onnx-fp32-grpc-fp32", latency_ms_p50=104.0, ci=0.2))
    assert verdict("grpc-slower-single", *wide, floor=0.01)["verdict"] == UNDECIDED


def test_connections_that_disagree_are_undecided_and_say_so():
    warm = (
        point("fastapi-pytorch-fp32-http-base64", latency_ms_p50=60.0, connection="warm"),
        point("triton-onnx-fp32-http-fp32", latency_ms_p50=50.0, connection="warm"),
    )
    found = verdict("jpeg-beats-tensor-remotely", *REMOTE, *warm)
    assert found["verdict"] == UNDECIDED and "it depends on the place" in found["because"]
    assert found["effect"] is None and found["here"] == "0.833 to 3.21×, 2 comparisons", "no mean of unlike"


def test_each_link_and_run_is_judged_on_its_own():
    loop = [{**row, "link": "loopback", "rtt_ms": 0.0} for row in REMOTE]
    other = [{**row, "run": "another", "latency_ms_p50": 70.0} for row in REMOTE]
    for row in other:
        row["latency_ms_p50_ci_low"], row["latency_ms_p50_ci_high"] = 69.0, 71.0
    table = judge(
        [BY_ID["grpc-slower-single"], BY_ID["jpeg-beats-tensor-remotely"]],
        pd.DataFrame([*REMOTE, *loop, *other]),
    )
    remote = table[table["claim"] == "jpeg-beats-tensor-remotely"].set_index("run")["verdict"]
    assert remote.to_dict() == {"made-up": REPRODUCED, "another": UNDECIDED}
    assert set(table[table["claim"] == "grpc-slower-single"]["verdict"]) == {NOT_TESTABLE}


def test_a_magnitude_is_contradicted_from_either_side():
    def computes(onnx_ms):
        return (
            point("triton-onnx-fp32-http-fp32", server_compute_infer_ms_mean=onnx_ms, batch=32),
            point("fastapi-pytorch-fp32-http-jpeg", server_compute_infer_ms_mean=100.0, batch=32),
        )

    assert verdict("onnx-slower-at-32", *computes(520.0))["verdict"] == REPRODUCED
    assert verdict("onnx-slower-at-32", *computes(90.0))["verdict"] == CONTRADICTED
    assert verdict("onnx-slower-at-32", *computes(900.0))["verdict"] == CONTRADICTED
    assert verdict("onnx-slower-at-32", *computes(640.0))["verdict"] == UNDECIDED


def test_growth_claims_compare_a_backend_with_itself():
    rows = [
        point(
            "fastapi-pytorch-fp32-http-jpeg",
            throughput_images_per_s=t,
            concurrency=c,
            scenario="closed_loop",
        )
        for c, t in ((8, 47.3), (16, 49.1))
    ]
    assert verdict("fastapi-scales", *rows)["verdict"] == UNDECIDED, "4 % is within the noise"
    rows[1] |= {f"throughput_images_per_s{end}": 40.0 for end in ("", "_ci_low", "_ci_high")}
    assert verdict("fastapi-scales", *rows)["verdict"] == CONTRADICTED


def test_the_peak_must_be_where_it_is_claimed():
    def curve(*throughputs):
        levels = zip((8, 16, 32, 64), throughputs, strict=True)
        return [
            point(
                "triton-onnx-fp32-http-uint8",
                throughput_images_per_s=t,
                concurrency=c,
                scenario="closed_loop",
                devices=4,
                arrangement="instances",
                batching=False,
            )
            for c, t in levels
        ]

    assert verdict("saturates-at-32", *curve(20, 32, 43, 37))["verdict"] == REPRODUCED
    assert verdict("saturates-at-32", *curve(20, 32, 43, 60))["verdict"] == CONTRADICTED
    assert verdict("saturates-at-32", *curve(20, 32, 43, 43.5))["verdict"] == UNDECIDED
    assert verdict("saturates-at-32", *curve(20, 32, 43, 37)[:3])["verdict"] == NOT_TESTABLE


@pytest.mark.parametrize(("trips", "expected"), [(True, CONTRADICTED), (False, REPRODUCED)])
def test_latencies_made_by_either_law_are_told_apart(trips, expected):
    from photodup.bench.link.latency_model import bandwidth_only_ms, rounds_ms

    law = rounds_ms if trips else bandwidth_only_ms
    rows = [
        point("network-only", payload_bytes=size, latency_ms_p50=law(size, 25.0, 20.0))
        for size in (14_000, 75_000, 150_528, 301_056, 602_112)
    ]
    rows = [row | {"rate_mbit_s": 100.0} for row in rows]  # of one connection, as on the published path
    assert verdict("bytes-are-the-bottleneck", *rows)["verdict"] == expected
    assert verdict("bytes-are-the-bottleneck", *rows[:3])["verdict"] == NOT_TESTABLE
    wide = [row | {"rate_mbit_s": 210.0} for row in rows]
    assert verdict("bytes-are-the-bottleneck", *wide)["verdict"] == NOT_TESTABLE, "another link than theirs"


def test_shares_and_bounds():
    row = point("triton-onnx-fp32-http-fp32", latency_ms_mean=182.9, server_request_ms_mean=15.1)
    assert verdict("network-dominates", row)["verdict"] == REPRODUCED
    assert verdict("network-dominates", row | {"server_request_ms_mean": 150.0})["verdict"] == CONTRADICTED
    assert verdict("network-dominates", row | {"link": "loopback", "rtt_ms": 0.0})["verdict"] == NOT_TESTABLE
    for difference, expected in ((6e-7, REPRODUCED), (0.002, CONTRADICTED)):
        for backend in ("triton-onnx-fp32-grpc-fp32", "local-onnx-fp32"):
            row = point(backend, difference_max=difference, scenario="parity")
            assert verdict("onnx-parity", row)["verdict"] == expected


def test_an_empty_run_is_not_measured_and_keeps_its_name():
    for points in (pd.DataFrame(), pd.DataFrame(columns=["run", "backend", "valid"])):
        table = judge(CLAIMS, points, run="nothing-yet")
        tally = claims.counts(table)
        assert tally.pop(GOAL_MET) == 1 and tally.pop(GOAL_MISSED) == 2, "goals need no run"
        assert tally == {
            "reproduced": 0,
            "contradicted": 0,
            "undecided": 0,
            "not testable here": len(CLAIMS) - 3,
        }
        assert set(table["run"]) == {"nothing-yet"}


def test_every_claim_survives_points_with_few_columns():
    few = pd.DataFrame(
        [
            {
                "run": "r",
                "backend": "fastapi-pytorch-fp32-http-jpeg",
                "valid": True,
                "link": "loopback",
                "rtt_ms": 0.0,
            }
        ]
    )
    assert set(judge([claim for claim in CLAIMS if not claim.goal], few)["verdict"]) == {NOT_TESTABLE}


def test_verdicts_are_written_for_the_report(tmp_path):
    path = claims.write_verdicts(judge(CLAIMS, pd.DataFrame(REMOTE)), tmp_path)
    rows = json.loads(path.read_text(encoding="utf-8"))
    assert {"statement", "published", "here", "verdict"} <= set(rows[0])
    assert "NaN" not in path.read_text()


@settings(deadline=None)  # a shared machine
@given(
    centre=st.floats(0.05, 20.0),
    width=st.floats(1.0, 1.5),
    floor=st.floats(0.0, 0.2),
    bounds=st.sampled_from([(1.0, math.inf), (0.0, 1.0), (0.5, 2.0), (3.0, 6.0)]),
)
def test_a_verdict_never_contradicts_its_mirror(centre, width, floor, bounds):
    """Swapping numerator and denominator and the bounds with them must give the same verdict."""
    low, high = centre / width, centre * width
    at_least, at_most = bounds
    mirrored = (0.0 if at_most == math.inf else 1 / at_most, math.inf if at_least == 0 else 1 / at_least)
    one = predicates.verdict_of(low, high, at_least=at_least, at_most=at_most, noise_floor=floor)
    two = predicates.verdict_of(
        1 / high, 1 / low, at_least=mirrored[0], at_most=mirrored[1], noise_floor=floor
    )
    edges = [
        abs(math.log(x / (b * math.exp(s * floor))))
        for x in (low, high)
        for b in bounds
        if 0 < b < math.inf
        for s in (-1, 0, 1)
    ]
    if min(edges) > 1e-9:
        assert one == two


@pytest.mark.parametrize(
    ("rtt_ms", "is_remote"),
    [(25.0, True), (5, True), (0.5, False), (0.0, False), (None, False), (math.nan, False)],
)
def test_a_wide_area_link_is_known_by_its_round_trip(rtt_ms, is_remote):
    assert Range(at_least=5.0).holds(rtt_ms) is is_remote


def test_the_noise_floor_is_the_run_s_own_where_it_has_one():
    first, again = (
        point("fastapi-pytorch-fp32-http-jpeg", latency_ms_p50=ms, repeat=repeat)
        for repeat, ms in enumerate((10, 10.8))
    )
    other = point("triton-onnx-fp32-http-fp32", latency_ms_p50=99.0, repeat=1)
    floor, source = claims.noise_floor_of(pd.DataFrame([first, again, other]))
    assert floor == pytest.approx(math.log(1.08)) and "1 A/A" in source
    invalid = {**again, "valid": False}
    for without in ([], [first], [again], [first, {**again, "batch": 4}], [first, invalid]):
        table = pd.DataFrame(without)
        assert claims.noise_floor_of(table, default=0.1) == (0.1, "assumed: the run has no A/A comparison")


def test_other_configurations_and_repeats_are_not_the_backend_as_deployed():
    rows = [{**row, "as_deployed": True, "repeat": 0} for row in REMOTE]
    for other in ({"as_deployed": False}, {"repeat": 1}):
        spoilt = [{**row, **other, "latency_ms_p50": 10.0} for row in rows]
        assert verdict("jpeg-beats-tensor-remotely", *rows, *spoilt)["verdict"] == REPRODUCED
        assert verdict("jpeg-beats-tensor-remotely", *spoilt)["verdict"] == NOT_TESTABLE
    lone = point(
        "triton-onnx-fp32-http-fp32", server_queue_ms_mean=10.1, label="batching-published", as_deployed=False
    )
    assert verdict("server-overhead", lone)["verdict"] == REPRODUCED
    assert verdict("server-overhead", lone | {"label": "batching-default"})["verdict"] == NOT_TESTABLE


def test_a_backend_is_compared_with_itself_not_with_its_sibling():
    def rate(backend, c, images_per_s):
        return point(backend, throughput_images_per_s=images_per_s, concurrency=c, scenario="closed_loop")

    rows = [
        rate("fastapi-pytorch-fp32-http-jpeg", 8, 10.0),
        rate("fastapi-pytorch-fp32-http-base64", 16, 40.0),
    ]
    assert verdict("fastapi-scales", *rows)["verdict"] == NOT_TESTABLE
    assert verdict("fastapi-scales", *rows, rate("fastapi-pytorch-fp32-http-jpeg", 16, 10.5))[
        "effect"
    ] == pytest.approx(1.05)


def test_runs_of_different_models_are_called_unlike():
    one = {"model": {"name": "ViT-B-32", "pretrained": "random:0", "digest": "aa"}}
    assert claims.unlike({"a": one, "b": one, "empty": {}}) == []
    other = {"model": {**one["model"], "pretrained": "laion2b_s34b_b79k", "digest": "bb"}}
    sentences = claims.unlike({"a": one, "b": other})
    assert len(sentences) == 2 and "a: random:0" in " ".join(sentences) and "by digest" in sentences[1]


def test_a_link_ladder_is_evidence_without_a_server(tmp_path):
    from photodup.bench.link.latency_model import rounds_ms
    from photodup.bench.link.link import LinkSpec
    from photodup.bench.link.way import emulated
    from photodup.bench.record.record import RunStore

    way = emulated(LinkSpec(rate_mbit_s=100)).columns()
    sizes = (10_000, 150_528, 602_112, 19_267_584)
    rows = [
        {**way, "payload_bytes": size, "connection": kind, "valid": True, "samples_ms": [1.0]}
        | {"latency_ms_p50": rounds_ms(size, 25.0, 100.0, connection=kind)}
        for size in sizes
        for kind in ("new", "warm")
    ]
    with RunStore(tmp_path / "made-up") as store:
        store.measure_or_load("ladder-25ms", lambda: {"rows": rows}, config={}, kind="ladder")
        store.measure_or_load(
            "ladder-broken", lambda: {"status": "failed", "error": "no link"}, config={}, kind="ladder"
        )
    points = claims.load_evidence(tmp_path / "made-up")
    assert len(points) == len(rows) and set(points["backend"]) == {"network-only"}
    found = judge([BY_ID["bytes-are-the-bottleneck"]], points).iloc[0]
    assert found["verdict"] == CONTRADICTED and found["link"] == way["link"] == "25ms-100mbit-cubic-iw10"
    assert claims.load_evidence(tmp_path / "nothing").empty


def test_protocols_are_compared_on_the_same_engine_and_channel():
    def rate(engine, protocol, images_per_s, **values):
        backend = f"triton-{engine}-{'fp16' if engine == 'trt' else 'fp32'}-{protocol}-fp32"
        values |= {"concurrency": 16, "scenario": "closed_loop"}
        return point(backend, throughput_images_per_s=images_per_s, **values)

    rows = [
        rate("onnx", "http", 400.0),
        rate("onnx", "grpc", 100.0, channel="shared"),
        rate("trt", "grpc", 900.0, channel="shared"),
        rate("onnx", "grpc", 390.0, channel="per-worker"),
    ]
    found = verdict("http-scales-better", *rows)
    assert found["verdict"] == REPRODUCED and found["effect"] == pytest.approx(4.0)
    assert [place["where"] for place in found["breakdown"]] == ["rtt25, onnx"]
    assert verdict("shared-channel-contends", *rows)["effect"] == pytest.approx(3.9)


SAME = ("triton-onnx-fp32-http-fp32", "triton-onnx-fp32-grpc-fp32")


def places(*ratios):
    """gRPC ÷ HTTP on one link each."""
    return [
        point(backend, latency_ms_p50=ms, link=f"{20 + i}ms-210mbit", rtt_ms=20.0 + i)
        for i, r in enumerate(ratios)
        for backend, ms in zip(SAME, (100.0, 100.0 * r), strict=True)
    ]


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ((1.5, 1.6), REPRODUCED),
        ((0.5, 0.6), CONTRADICTED),
        ((1.5, 1.0), REPRODUCED),  # half of the places decide, none objects
        ((1.5, 1.0, 1.0), UNDECIDED),  # fewer do
        ((1.5, 1.6, 0.5), UNDECIDED),  # they contradict each other
        ((1.0,), UNDECIDED),
    ],
)
def test_a_claim_has_one_verdict_and_a_breakdown_of_its_places(ratios, expected):
    found = verdict("grpc-slower-single", *places(*ratios))
    assert found["verdict"] == expected
    assert len(found["breakdown"]) == len(ratios)
    if len(ratios) > 1:
        assert found["link"] == f"{len(ratios)} places"
        assert found["effect"] is None, "unlike links have no mean"
        assert (found["effect_low"], found["effect_high"]) == (min(ratios), max(ratios))
    if {REPRODUCED, CONTRADICTED} <= {place["verdict"] for place in found["breakdown"]}:
        assert "depends on the place" in found["because"]


def test_a_place_that_disagrees_with_itself_decides_nothing():
    warm = [
        point(row["backend"], latency_ms_p50=ms, connection="warm")
        for row, ms in zip(REMOTE, (60, 50), strict=True)
    ]
    other = [{**row, "link": "rtt30", "rtt_ms": 30.0} for row in REMOTE]
    alone = verdict("jpeg-beats-tensor-remotely", *other)
    found = verdict("jpeg-beats-tensor-remotely", *REMOTE, *warm, *other)
    assert alone["verdict"] == REPRODUCED and found["verdict"] == UNDECIDED


def test_what_cannot_be_tested_is_listed_by_what_would_decide_it():
    table = judge(CLAIMS, pd.DataFrame(REMOTE))
    needed = claims.missing(table)
    assert ["trt-compute"] in needed.values() and BY_ID["trt-compute"].needs in needed
    assert sum(map(len, needed.values())) == claims.counts(table)[NOT_TESTABLE]
    assert claims.missing(table[table["verdict"] != NOT_TESTABLE]) == {}


RECORDS = {  # kind of record, and which: what it holds
    ("cold_start", "fastapi-pytorch-fp32-http-jpeg"): {"first_answer_s": 4.0},
    ("cold_start", "triton-onnx-fp32-http-fp32"): {"first_answer_s": 4.6},
    ("bodies", "b32"): {
        "rows": [
            {"form": "json", "batch": 32, "bytes": 10, "encode_ms": 3600.0},
            {"form": "binary", "batch": 32, "bytes": 1, "encode_ms": 1.8},
        ]
    },
    ("export_parity", "onnx-parity"): {"rows": [{"variant": "fp32", "batch": 1, "difference": 6e-7}]},
    ("server_parity", ""): {
        "rows": [{"backend": "triton-onnx-fp32-http-fp32", "worst": 8e-7, "median": 7e-7}]
    },
    ("precision", "ViT-B/32"): {"rows": [{"network": "ViT-B/32", "precision": "fp16", "cosine_min": 0.9999}]},
    ("precision", "parts-ViT-B/32-fp16"): {
        "rows": [{"network": "ViT-B/32", "precision": "fp16", "difference": 0.1}]
    },
    ("session", ""): {"batch_ms": {"1": [60.0] * 9, "32": [1200.0, 1210.0, 1190.0]}},
    ("replay", ""): {"pods_ready_max": 4, "hpa_reaction_s": 40.0, "hpa_reaction_s_ci_high": 44.0},
}
EXPECTED = {
    "json-encoding": (REPRODUCED, {"encode_ms": 1.8}, CONTRADICTED),
    "onnx-parity": (REPRODUCED, {"difference": 0.1, "worst": 0.1}, CONTRADICTED),
    "cpu-batching-gains": (REPRODUCED, {"32": [2600.0] * 3}, CONTRADICTED),
}


def record(directory, changed):
    """Write `RECORDS` as a run, with every field of these names replaced."""
    from photodup.bench.record.record import RunStore

    def spoil(value):
        if isinstance(value, list):
            return [spoil(entry) for entry in value]
        if isinstance(value, dict):
            return {name: changed.get(name, spoil(entry)) for name, entry in value.items()}
        return value

    with RunStore(directory) as store:
        for (kind, which), result in RECORDS.items():
            spoilt = spoil(result) if not which.startswith("fastapi") else result
            store.measure_or_load(
                which or kind, lambda spoilt=spoilt: spoilt, config={"backend": which}, kind=kind
            )


@pytest.mark.parametrize("claim_id", EXPECTED)
def test_measurements_that_are_no_points_decide_claims_and_other_numbers_turn_them(claim_id, tmp_path):
    before, changed, after = EXPECTED[claim_id]
    for name, change, expected in (("run", {}, before), ("spoilt", changed, after)):
        record(tmp_path / name, change)
        found = judge([BY_ID[claim_id]], claims.load_evidence(tmp_path / name)).iloc[0]
        assert found["verdict"] == expected, (name, found["because"])


@pytest.mark.parametrize(
    ("claim_id", "changed", "shown"),
    [
        ("fp16-is-safe", {"cosine_min": 0.9}, "0.9 cosine"),
        ("six-pods", {}, "4 pods"),
        ("reacts-in-30-seconds", {"hpa_reaction_s": 90.0, "hpa_reaction_s_ci_high": 90.0}, "90 s"),
    ],
)
def test_a_simulation_is_shown_and_never_judged(claim_id, changed, shown, tmp_path):
    record(tmp_path / "run", changed)
    found = judge([BY_ID[claim_id]], claims.load_evidence(tmp_path / "run")).iloc[0]
    assert (found["verdict"], found["here"]) == (NOT_TESTABLE, "–")
    assert [place["here"] for place in found["breakdown"]] == [shown]
    assert "a simulation: shown, not judged" in found["breakdown"][0]["because"]


def test_another_device_and_a_sleeping_one_are_shown_and_never_judged():
    def rates(engine, four, device):
        base = {"concurrency": 32, "scenario": "closed_loop", "arrangement": "instances", "batching": False}
        base |= {"device": device}
        name = f"triton-{engine}-fp32-http-fp32"
        return [
            point(name, throughput_images_per_s=rate, devices=n, **base)
            for n, rate in ((1, 100.0), (4, four))
        ]

    assert verdict("four-gpus", *rates("onnx", 180.0, "RTX 4080"))["verdict"] == REPRODUCED
    assert verdict("four-gpus", *rates("onnx", 390.0, "RTX 4080"))["verdict"] == CONTRADICTED
    for engine, device, why in (
        ("emulated-4080", "4080", "a device that sleeps"),
        ("onnx", "cpu", "another device"),
    ):
        found = verdict("four-gpus", *rates(engine, 390.0, device))
        assert found["verdict"] == NOT_TESTABLE and found["because"] == f"this run has it only on {why}"
        assert found["breakdown"][0]["here"].startswith("3.9×") and found["but"] == ""


@pytest.mark.parametrize(
    ("link", "judged"),
    [
        ({"link": "loopback", "rtt_ms": 0.0}, False),
        ({"link": "rtt100", "rtt_ms": 100.0}, False),
        ({"link": "home", "rtt_ms": 25.0, "rate_mbit_s": 20.0}, False),
        ({"link": "us-east", "rtt_ms": 25.0, "rate_mbit_s": 210.0}, True),
        ({"link": "network", "rtt_ms": 25.0, "rate_mbit_s": None}, True),
    ],
)
def test_a_claim_about_distant_clients_is_judged_on_the_matching_link_alone(link, judged):
    rows = [point(name, latency_ms_p50=ms, **link) for name, ms in zip(SAME, (100.0, 150.0), strict=True)]
    found = verdict("grpc-slower-single", *rows)
    assert found["verdict"] == (REPRODUCED if judged else NOT_TESTABLE)
    if not judged:
        assert found["breakdown"][0]["because"].startswith("another link: shown, not judged")


def test_a_goal_is_judged_by_the_study_s_own_rows_and_never_by_a_run():
    met_here = point("triton-onnx-fp32-http-fp32", latency_ms_mean=900.0, batch=32)
    found = verdict("batch-32-under-two-seconds", met_here)
    assert found["verdict"] == GOAL_MISSED and found["here"].startswith("900 ms")
    assert found["because"] == "its own rows give 5,614 ms where it asked for at most 2,000 ms"
    assert verdict("no-loss-of-throughput", met_here)["verdict"] == GOAL_MET
    shown = [place["verdict"] for place in found["breakdown"]]
    assert shown and not {REPRODUCED, CONTRADICTED} & set(shown), "a place meets or misses a goal, too"


def test_latencies_and_throughputs_have_a_floor_each():
    floors = NoiseFloors(latency=0.2, throughput=0.01)
    rows = [
        point(name, latency_ms_p50=ms, throughput_images_per_s=rate, batch=batch, ci=0.001)
        for name, ms, rate in zip(SAME, (100.0, 110.0), (10.0, 11.0), strict=True)
        for batch in (1, 32)
    ]
    table = judge([BY_ID["grpc-slower-single"], BY_ID["grpc-faster-batch-32"]], pd.DataFrame(rows), floors)
    assert list(table["verdict"]) == [UNDECIDED, REPRODUCED]


def test_a_gap_that_widens_is_compared_with_the_gap_at_one_image():
    def gap(batch, triton_ms):
        values = {
            "batch": batch,
            "connection": "warm",
            "scenario": "offline" if batch > 1 else "single_stream",
        }
        return [
            point("fastapi-pytorch-fp32-http-jpeg", latency_ms_mean=100.0, **values),
            point("triton-onnx-fp32-http-fp32", latency_ms_mean=triton_ms, **values),
        ]

    found = verdict("gap-widens-with-batch", *gap(1, 140.0), *gap(32, 520.0))
    assert found["verdict"] == REPRODUCED and found["effect"] == pytest.approx(5.2 / 1.4)
    assert verdict("gap-widens-with-batch", *gap(1, 300.0), *gap(32, 200.0))["verdict"] == CONTRADICTED
    assert verdict("gap-widens-with-batch", *gap(32, 520.0))["verdict"] == NOT_TESTABLE


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("kind: ratio", "kind: guess", "guess"),
        ("document: executive-summary", "document: a-blog", "a-blog"),
        ("at_least: 1000", "at_lest: 1000", "at_lest"),
        ("id: json-bottleneck", "id: json-encoding", "more than one claim called json-encoding"),
    ],
)
def test_a_damaged_claims_file_is_refused_with_its_place(old, new, said, tmp_path):
    path = tmp_path / "claims.yaml"
    text = (published.published_dir() / "claims.yaml").read_text(encoding="utf-8")
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(PhotodupError, match=said):
        load_claims(path)


def test_a_damaged_record_is_named_by_file_and_field(tmp_path):
    from photodup.bench.record.record import RecordError

    record(tmp_path / "run", {})
    path = next((tmp_path / "run" / "records").glob("onnx-parity*.json"))
    content = json.loads(path.read_text())
    del content["started_at"]
    path.write_text(json.dumps(content))
    with pytest.raises(RecordError, match=rf"{path.name}.*started_at"):
        claims.load_evidence(tmp_path / "run")


def test_a_run_s_digest_comes_from_its_reference_embeddings(tmp_path):
    """Two runs called random:0 may still hold different weights; that must not pass in silence."""
    from photodup.bench.record.record import RunStore
    from photodup.study.claims.evidence import model_environment

    for name, digest in (("a", "1234"), ("b", "1234"), ("c", "beef")):
        with RunStore(tmp_path / name) as store:
            computed = {"digest": digest, "pretrained": "random:0"}
            store.measure_or_load("reference-embeddings", lambda computed=computed: computed, config={})
    facts = {name: model_environment(tmp_path / name) for name in "abc"}
    assert claims.unlike({name: facts[name] for name in "ab"}) == []
    assert [s for s in claims.unlike(facts) if "by digest" in s and "c: beef" in s]
    assert model_environment(tmp_path / "nothing") == {}


def test_only_repeats_are_a_a_comparisons():
    rows = [
        {"backend": "a", "repeat": repeat, "as_deployed": deployed, "valid": True, "latency_ms_p50": ms}
        for repeat, deployed, ms in ((0, True, 50.0), (1, True, 50.5), (2, True, 55.0), (1, False, 99.0))
    ]
    assert claims.noise_floor_of(pd.DataFrame(rows))[0] == pytest.approx(math.log(1.1))
