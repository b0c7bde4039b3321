"""Verdicts on planted outcomes and points with a known answer, and the faults that must turn them."""

import json
import math

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.points import point
from support.visits import plant_visits

from photodup.bench.link.latency_model import predict_ms
from photodup.bench.link.link import LinkSpec
from photodup.bench.link.way import LOOPBACK, emulated
from photodup.bench.pairs.declared import declarations
from photodup.bench.record.record import RunStore
from photodup.bench.stats.interval import Interval
from photodup.errors import PhotodupError
from photodup.paths import project_root
from photodup.study.claims import claims, figure
from photodup.study.claims.claim import NONE_WRITTEN, load_claims
from photodup.study.claims.claims import judge
from photodup.study.claims.evidence import load_evidence
from photodup.study.claims.predicates import Comparison, Goal
from photodup.study.claims.reading import (
    CONTRADICTED,
    GOAL_MET,
    GOAL_MISSED,
    INCONCLUSIVE,
    NOT_TESTABLE,
    REPRODUCED,
    VERDICTS,
)
from photodup.study.claims.selection import Range
from photodup.study.published import published

CLAIMS = load_claims()
BY_ID = {claim.id: claim for claim in CLAIMS}
PAIRS = {pair.name: pair for pair in declarations().pairs}


def compared(claim_id, low, high, *, figure="ratio", **values):
    """Plant the outcome of the comparison that a claim names, over its own link."""
    pair = PAIRS[BY_ID[claim_id].evidence.pair]
    way = emulated(pair.link) if pair.link else LOOPBACK
    outcome = {figure: (low + high) / 2, f"{figure}_ci_low": low, f"{figure}_ci_high": high}
    row = {"run": "made-up", "pair": pair.name, "scenario": "comparison", "sentence": "It differs."}
    return row | way.columns() | {"valid": True, "engine": "", "backend": None} | outcome | values


def verdict(claim_id, *rows):
    table = judge([BY_ID[claim_id]], pd.DataFrame(rows))
    assert len(table) == 1
    return table.iloc[0]


def answers(binary_ms, json_ms, **values):
    """A batch of 32 as a tensor and as JSON, over a link of 25 ms."""
    values = {"batch": 32, "span": "photo"} | values
    names = ("triton-onnx-fp32-http-fp32", "triton-onnx-fp32-http-json")
    pairs = zip(names, (binary_ms, json_ms), strict=True)
    return [point(name, **({"latency_ms_mean": ms} | values)) for name, ms in pairs]


REMOTE = answers(100.0, 190.0)


def test_the_list_is_complete_and_rests_on_rows_and_comparisons_that_exist():
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
    named = [claim.evidence.pair for claim in CLAIMS if isinstance(claim.evidence, Comparison)]
    assert len(named) >= 4 and set(named) <= set(PAIRS)


@pytest.mark.parametrize(("claim_id", "low", "high", "expected"), [
    ("jpeg-beats-tensor-remotely", 1.9, 2.1, REPRODUCED),  # the direction; 3.2 times was published
    ("jpeg-beats-tensor-remotely", 0.7, 0.9, CONTRADICTED),
    ("jpeg-beats-tensor-remotely", 0.95, 1.04, CONTRADICTED),  # no difference, and 3.2 is excluded
    ("jpeg-beats-tensor-remotely", 0.8, 4.0, INCONCLUSIVE),
    ("grpc-slower-single", 1.02, 1.06, REPRODUCED),
    ("grpc-slower-single", 0.99, 1.05, INCONCLUSIVE),  # 1.04 was published: not excluded
    ("grpc-slower-single", 0.99, 1.01, CONTRADICTED),
])  # fmt: skip
def test_a_claim_of_a_direction_rests_on_its_comparison_alone(claim_id, low, high, expected):
    found = verdict(claim_id, compared(claim_id, low, high))
    assert (found["verdict"], found["rests_on"]) == (expected, "a comparison")
    assert found["because"] == "It differs." and found["effects"] == [[(low + high) / 2, low, high]]
    slower = point("triton-onnx-fp32-grpc-fp32", latency_ms_p50=900.0)
    assert verdict(claim_id, compared(claim_id, low, high), *REMOTE, slower)["verdict"] == expected


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(9, 12, REPRODUCED), (0.5, 4, CONTRADICTED), (20, 30, CONTRADICTED), (7, 9.5, INCONCLUSIVE)],
)
def test_a_claim_of_a_size_is_held_against_the_difference_in_its_unit(low, high, expected):
    found = verdict("server-overhead", compared("server-overhead", low, high, figure="difference"))
    assert found["verdict"] == expected and found["published"] == "10.7 ms"
    assert found["here"].endswith(f"ms [{low:.3g}, {high:.3g}]")


def test_a_comparison_that_was_not_measured_leaves_its_claim_inconclusive():
    unmeasured = compared("jpeg-beats-tensor-remotely", 1, 1) | {"valid": False, "ratio": None}
    unseen = unmeasured | {"invalid_because": "it was not measured in this run."}
    found = verdict("jpeg-beats-tensor-remotely", unseen)
    assert (found["verdict"], found["here"]) == (INCONCLUSIVE, "–")
    assert "it was not measured in this run" in found["because"]


def test_a_comparison_of_emulated_devices_is_shown_and_labelled_and_never_judged():
    emulation = compared("grpc-faster-batch-32", 1.5, 1.7, figure="inverse", engine="emulated-zero")
    found = verdict("grpc-faster-batch-32", emulation)
    assert found["verdict"] == NOT_TESTABLE and found["shown"] == [[1.6, 1.5, 1.7]]
    assert found["because"] == "this run has it only on an emulated device"


def test_recorded_visits_become_the_evidence_of_a_claim(tmp_path):
    for claim_id, ratio, value_a in (
        ("jpeg-beats-tensor-remotely", 3.2, 57.0),
        ("server-overhead", 24 / 13.4, 13.4),
    ):
        plant_visits(tmp_path / "run", PAIRS[BY_ID[claim_id].evidence.pair], ratio, value_a=value_a)
    table = judge(CLAIMS, load_evidence(tmp_path / "run")).set_index("claim")
    found = table.loc["jpeg-beats-tensor-remotely"]
    assert (found["verdict"], found["where"]) == (REPRODUCED, "us-east") and found["effects"][0][1] > 3.1
    assert "takes" in found["because"] and found["readings"][0]["records"] == [
        "visit-as published, ONNX Runtime with a tensor against PyTorch with a JPEG, one, us-east"
    ]
    wait = table.loc["server-overhead"]
    assert wait["verdict"] == REPRODUCED and wait["effects"][0][0] == pytest.approx(10.6, rel=0.02)
    assert table.loc["grpc-slower-single", "verdict"] == INCONCLUSIVE


def test_an_objection_stands_beside_the_verdict_it_argues_about():
    slower = verdict("grpc-slower-single", compared("grpc-slower-single", 1.4, 1.6))
    unclear = verdict("grpc-slower-single", compared("grpc-slower-single", 0.99, 1.05))
    assert slower["but"].startswith("Both clients are Python") and unclear["but"].startswith("So small")
    forms = (("json", 2.0), ("binary", 1.0))
    few = [point(f"body-{kind}", encode_ms=ms, batch=n) for kind, ms in forms for n in (1, 4)]
    found = verdict("json-encoding", *few)
    assert (found["verdict"], found["but"]) == (CONTRADICTED, NONE_WRITTEN)
    assert verdict("json-encoding", few[0])["but"] == "", "nothing to argue against"


def test_every_verdict_of_the_reference_run_is_argued_against():
    rows = json.loads((project_root() / "results/reference-cpu/verdicts.json").read_text(encoding="utf-8"))
    decided = {row["claim"]: row["verdict"] for row in rows if row["verdict"] != NOT_TESTABLE}
    assert set(BY_ID) == {row["claim"] for row in rows}
    missing = {claim: verdict for claim, verdict in decided.items() if verdict not in BY_ID[claim].objections}
    assert decided and not missing, "write an objection to these verdicts in claims.yaml"


def test_points_reproduce_a_published_effect():
    found = verdict("json-bottleneck", *REMOTE)
    assert (found["verdict"], found["published"], found["rests_on"]) == (REPRODUCED, "1.72×", "points")
    ((value, low, high),) = found["effects"]
    assert value == pytest.approx(1.9) and low < value < high
    assert "measured one after the other" in found["because"]


def test_a_flipped_inequality_is_seen():
    claim = BY_ID["json-bottleneck"]
    asked = claim.evidence
    flipped = asked.model_copy(update={"numerator": asked.denominator, "denominator": asked.numerator})
    claim = claim.model_copy(update={"evidence": flipped})
    assert judge([claim], pd.DataFrame(REMOTE)).iloc[0]["verdict"] == CONTRADICTED


@pytest.mark.parametrize("spoilt", [
    {"valid": False},
    {"latency_ms_mean": None},
    {"link": "rtt24", "rtt_ms": 24.0},
    {"connection": "warm"},
    {"batch": 4},
    {"span": "prepared"},
    None,  # it was dropped: never a guess
])  # fmt: skip
def test_only_valid_points_under_the_same_conditions_are_compared(spoilt):
    rows = [{**REMOTE[1], **spoilt}] if spoilt else []
    found = verdict("json-bottleneck", REMOTE[0], *rows)
    assert (found["verdict"], found["here"], found["effects"]) == (NOT_TESTABLE, "–", [])


def test_an_interval_across_the_bound_decides_nothing_and_a_wrong_unit_is_seen():
    assert verdict("json-bottleneck", *answers(100.0, 104.0, ci=0.01))["verdict"] == REPRODUCED
    assert verdict("json-bottleneck", *answers(100.0, 104.0, ci=0.2))["verdict"] == INCONCLUSIVE
    assert verdict("json-bottleneck", *answers(100.0, 0.19))["verdict"] == CONTRADICTED


def test_connections_that_disagree_are_inconclusive_and_say_so():
    found = verdict("json-bottleneck", *REMOTE, *answers(60.0, 50.0, connection="warm"))
    assert found["verdict"] == INCONCLUSIVE and "it depends on the place" in found["because"]
    assert found["here"] == "0.833 to 1.9×" and len(found["effects"]) == 2, "no mean of unlike"


def test_figures_without_an_interval_are_read_together_or_decide_nothing():
    def computes(*onnx_ms):
        return [
            point(name, server_compute_infer_ms_mean=ms, batch=32, link=f"rtt{20 + i}", rtt_ms=20.0 + i)
            for i, onnx in enumerate(onnx_ms)
            for name, ms in (("triton-onnx-fp32-http-fp32", onnx), ("fastapi-pytorch-fp32-http-jpeg", 100.0))
        ]

    alone = verdict("onnx-slower-at-32", *computes(520.0))
    assert alone["verdict"] == INCONCLUSIVE and "without an interval" in alone["because"]
    for onnx_ms, expected in (
        ((515, 520, 525), REPRODUCED),
        ((88, 90, 92), CONTRADICTED),
        ((890, 900, 910), CONTRADICTED),
        ((630, 650, 670), INCONCLUSIVE),
    ):
        found = verdict("onnx-slower-at-32", *computes(*onnx_ms))
        assert found["verdict"] == expected and "interval between them" in found["because"]


def test_growth_claims_compare_a_backend_with_itself():
    def rate(backend, c, images_per_s):
        return point(backend, throughput_images_per_s=images_per_s, concurrency=c, scenario="closed_loop")

    name, sibling = "fastapi-pytorch-fp32-http-jpeg", "fastapi-pytorch-fp32-http-base64"
    assert verdict("fastapi-scales", rate(name, 8, 10.0), rate(sibling, 16, 40.0))["verdict"] == NOT_TESTABLE
    for after, expected in ((47.8, INCONCLUSIVE), (55.0, REPRODUCED), (40.0, CONTRADICTED)):
        assert verdict("fastapi-scales", rate(name, 8, 47.3), rate(name, 16, after))["verdict"] == expected


def test_the_queue_of_eight_workers_is_asked_at_eight_in_flight():
    """32 requests in all, of which `max_workers=8` are in flight: one by one they give the rate of one in flight."""

    def rates(*of_eight, concurrency=8):
        name, label = "fastapi-pytorch-fp32-http-jpeg", {"label": "no batcher", "as_deployed": False}
        many = {"concurrency": concurrency, "scenario": "closed_loop", **label}
        yield point(name, throughput_images_per_s=10.0, **label)
        yield from (point(name, throughput_images_per_s=rate, **many) for rate in of_eight)

    assert verdict("pytorch-queues", *rates(10.2))["verdict"] == REPRODUCED
    assert verdict("pytorch-queues", *rates(25.0))["verdict"] == CONTRADICTED
    assert verdict("pytorch-queues", *rates(10.2, concurrency=32))["verdict"] == NOT_TESTABLE


def test_the_peak_must_be_where_it_is_claimed():
    def curve(*throughputs):
        levels = zip((8, 16, 32, 64, 128), throughputs, strict=False)
        topology = {"scenario": "closed_loop", "devices": 4, "arrangement": "instances", "batching": False}
        name = "triton-onnx-fp32-http-uint8"
        return [point(name, throughput_images_per_s=t, concurrency=c, **topology) for c, t in levels]

    assert verdict("saturates-at-32", *curve(20, 32, 43, 37, 30))["verdict"] == REPRODUCED
    assert verdict("saturates-at-32", *curve(20, 32, 43, 60))["verdict"] == INCONCLUSIVE, "below, not above"
    assert verdict("saturates-at-32", *curve(60, 55, 43, 60))["verdict"] == CONTRADICTED
    assert verdict("saturates-at-32", *curve(20, 32))["verdict"] == NOT_TESTABLE


@pytest.mark.parametrize(("trips", "expected"), [(True, CONTRADICTED), (False, REPRODUCED)])
def test_latencies_made_by_either_law_are_told_apart(trips, expected):
    law = "rounds" if trips else "bandwidth-only"
    rows = [
        point("network-only", payload_bytes=size, latency_ms_p50=predict_ms(law, size, 25.0, 20.0))
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
        assert (tally.pop(GOAL_MET), tally.pop(GOAL_MISSED)) == (1, 2), "goals need no run"
        assert tally == {REPRODUCED: 0, CONTRADICTED: 0, INCONCLUSIVE: 0, NOT_TESTABLE: len(CLAIMS) - 3}
        assert set(table["run"]) == {"nothing-yet"}


def test_every_claim_survives_points_with_few_columns():
    row = {"run": "r", "backend": "fastapi-pytorch-fp32-http-jpeg", "valid": True}
    row |= {"link": "loopback", "rtt_ms": 0.0}
    asked = [claim for claim in CLAIMS if not isinstance(claim.evidence, Goal)]
    assert set(judge(asked, pd.DataFrame([row]))["verdict"]) == {NOT_TESTABLE}


def test_verdicts_are_written_for_the_report(tmp_path):
    path = claims.write_verdicts(judge(CLAIMS, pd.DataFrame(REMOTE)), tmp_path)
    rows = json.loads(path.read_text(encoding="utf-8"))
    assert {"statement", "published", "here", "verdict", "where"} <= set(rows[0])
    assert "NaN" not in path.read_text()


def test_the_figure_shows_each_judged_effect_beside_the_published_one():
    judged = judge(CLAIMS, pd.DataFrame(REMOTE))
    judged = judged[(judged["effects"].map(len) > 0) & (judged["effect_published"].fillna(0) > 0)]
    drawn = figure.draw_effects(judged).axes[0]
    (dot,) = [line for line in drawn.get_lines() if line.get_marker() == "o"]
    assert len(drawn.get_yticklabels()) == 1
    assert dot.get_xdata()[0] == pytest.approx(1.9 / 1.72, rel=0.01)


@given(
    centre=st.floats(0.05, 20.0),
    width=st.floats(1.0, 1.5),
    bounds=st.sampled_from([(1.0, math.inf), (0.0, 1.0), (0.5, 2.0), (3.0, 6.0)]),
)
def test_a_verdict_never_contradicts_its_mirror(centre, width, bounds):
    """Swapping numerator and denominator and the bounds with them must give the same verdict."""
    low, high = centre / width, centre * width
    at_least, at_most = bounds
    mirrored = (0.0 if at_most == math.inf else 1 / at_most, math.inf if at_least == 0 else 1 / at_least)
    one = Interval(centre, low, high).lies_within(*bounds)
    two = Interval(1 / centre, 1 / high, 1 / low).lies_within(*mirrored)
    if min(abs(math.log(x / b)) for x in (low, high) for b in bounds if 0 < b < math.inf) > 1e-9:
        assert one == two


@pytest.mark.parametrize(
    ("rtt_ms", "is_remote"),
    [(25.0, True), (5, True), (0.5, False), (0.0, False), (None, False), (math.nan, False)],
)
def test_a_wide_area_link_is_known_by_its_round_trip(rtt_ms, is_remote):
    assert Range(at_least=5.0).holds(rtt_ms) is is_remote


def test_other_configurations_and_repeats_are_not_the_backend_as_deployed():
    rows = [{**row, "as_deployed": True, "repeat": 0} for row in REMOTE]
    for other in ({"as_deployed": False}, {"repeat": 1}):
        spoilt = [{**row, **other, "latency_ms_mean": 10.0} for row in rows]
        assert verdict("json-bottleneck", *rows, *spoilt)["verdict"] == REPRODUCED
        assert verdict("json-bottleneck", *spoilt)["verdict"] == NOT_TESTABLE


def test_a_link_ladder_is_evidence_without_a_server(tmp_path):
    way = emulated(LinkSpec(rate_mbit_s=100)).columns()
    sizes = (10_000, 150_528, 602_112, 19_267_584)
    rows = [
        {**way, "payload_bytes": size, "connection": kind, "valid": True, "samples_ms": [1.0]}
        | {"latency_ms_p50": predict_ms("rounds", size, 25.0, 100.0, connection=kind)}
        for size in sizes
        for kind in ("new", "warm")
    ]
    with RunStore(tmp_path / "made-up") as store:
        store.measure_or_load("ladder-25ms", lambda: {"rows": rows}, config={}, kind="ladder")
        failed = {"status": "failed", "error": "no link"}
        store.measure_or_load("ladder-broken", lambda: failed, config={}, kind="ladder")
    points = load_evidence(tmp_path / "made-up")
    ladder = points[points["scenario"] != "comparison"]
    assert len(ladder) == len(rows) and set(ladder["backend"]) == {"network-only"}
    found = judge([BY_ID["bytes-are-the-bottleneck"]], points).iloc[0]
    assert found["verdict"] == CONTRADICTED and found["where"] == way["link"] == "25ms-100mbit-cubic-iw10"
    assert load_evidence(tmp_path / "nothing").empty


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
    assert found["verdict"] == REPRODUCED and found["effects"][0][0] == pytest.approx(4.0)
    assert [place["where"] for place in found["readings"]] == ["rtt25, onnx"]
    channels = verdict("shared-channel-contends", *rows)
    assert channels["verdict"] == REPRODUCED and channels["effects"][0][0] == pytest.approx(3.9)
    on_a_cpu = [row | {"device": "cpu", "link": "loopback", "rtt_ms": 0.0} for row in rows]
    assert verdict("shared-channel-contends", *on_a_cpu)["verdict"] == NOT_TESTABLE, "20/s fill none"


@pytest.mark.parametrize(("ratios", "expected"), [
    ((1.5, 1.6), REPRODUCED),
    ((0.5, 0.6), CONTRADICTED),
    ((1.5, 1.6, 1.0), REPRODUCED),  # most places decide, none objects
    ((1.5, 1.0), INCONCLUSIVE),  # half of them do
    ((1.5, 1.6, 0.5), INCONCLUSIVE),  # they contradict each other
    ((1.0,), INCONCLUSIVE),
])  # fmt: skip
def test_a_claim_has_one_verdict_and_a_reading_of_each_place(ratios, expected):
    rows = [
        row
        for i, ratio in enumerate(ratios)
        for row in answers(100.0, 100.0 * ratio, link=f"{20 + i}ms-210mbit", rtt_ms=20.0 + i)
    ]
    found = verdict("json-bottleneck", *rows)
    assert found["verdict"] == expected
    assert len(found["readings"]) == len(found["effects"]) == len(ratios)
    if {REPRODUCED, CONTRADICTED} <= {place["verdict"] for place in found["readings"]}:
        assert "depends on the place" in found["because"]


BODIES = [
    {"form": form, "batch": batch, "bytes": 10, "encode_ms": ms}
    for batch in (4, 16, 32)
    for form, ms in (("json", 110.0 * batch), ("binary", 0.05 * batch))
]
RECORDS = {  # kind of record, and which: what it holds
    ("cold_start", "fastapi-pytorch-fp32-http-jpeg"): {"first_answer_s": 4.0},
    ("cold_start", "triton-onnx-fp32-http-fp32"): {"first_answer_s": 4.6},
    ("bodies", "b32"): {"rows": BODIES},
    ("export_parity", "onnx-parity"): {"rows": [{"variant": "fp32", "batch": 1, "difference": 6e-7}]},
    ("server_parity", ""): {"rows": [{"backend": "triton-onnx-fp32-http-fp32", "worst": 8e-7}]},
    ("precision", "ViT-B/32"): {"rows": [{"network": "ViT-B/32", "precision": "fp16", "cosine_min": 0.9999}]},
    ("precision", "parts-ViT-B/32-fp16"): {"rows": [{"network": "ViT-B/32", "difference": 0.1}]},
    ("session", ""): {"batch_ms": {"1": [60.0, 60.1, 60.2] * 3, "32": [1200.0, 1210.0, 1190.0]}},
}
EXPECTED = {
    "json-encoding": (REPRODUCED, {"encode_ms": 1.8}, CONTRADICTED),
    "onnx-parity": (REPRODUCED, {"difference": 0.1, "worst": 0.1}, CONTRADICTED),
    "cpu-batching-gains": (REPRODUCED, {"32": [2600.0, 2610.0, 2620.0]}, CONTRADICTED),
}


def record(directory, changed):
    """Write `RECORDS` as a run, with every field of these names replaced."""

    def spoil(value):
        if isinstance(value, list):
            return [spoil(entry) for entry in value]
        if isinstance(value, dict):
            return {name: changed.get(name, spoil(entry)) for name, entry in value.items()}
        return value

    with RunStore(directory) as store:
        for (kind, which), result in RECORDS.items():
            spoilt = spoil(result) if not which.startswith("fastapi") else result
            store.measure_or_load(which or kind, lambda s=spoilt: s, config={"backend": which}, kind=kind)


@pytest.mark.parametrize("claim_id", EXPECTED)
def test_measurements_that_are_no_points_decide_claims_and_other_numbers_turn_them(claim_id, tmp_path):
    before, changed, after = EXPECTED[claim_id]
    for name, change, expected in (("run", {}, before), ("spoilt", changed, after)):
        record(tmp_path / name, change)
        found = judge([BY_ID[claim_id]], load_evidence(tmp_path / name)).iloc[0]
        assert found["verdict"] == expected, (name, found["because"])


@pytest.mark.parametrize(("claim_id", "changed", "shown"), [
    ("fp16-is-safe", {"cosine_min": 0.9}, "0.9 cosine"),
])  # fmt: skip
def test_a_simulation_is_shown_and_never_judged(claim_id, changed, shown, tmp_path):
    record(tmp_path / "run", changed)
    found = judge([BY_ID[claim_id]], load_evidence(tmp_path / "run")).iloc[0]
    assert (found["verdict"], found["here"]) == (NOT_TESTABLE, "–")
    assert [place["here"] for place in found["readings"]] == [shown]
    assert found["readings"][0]["not_judged"] == "a simulation"


def test_another_device_and_an_emulated_one_are_shown_and_never_judged():
    def rates(engine, four, device):
        base = {"concurrency": 32, "scenario": "closed_loop", "arrangement": "instances", "batching": False}
        base |= {"device": device}
        name = f"triton-{engine}-fp32-http-fp32"
        return [point(name, throughput_images_per_s=r, devices=n, **base) for n, r in ((1, 100.0), (4, four))]

    assert verdict("four-gpus", *rates("onnx", 180.0, "RTX 4080"))["verdict"] == REPRODUCED
    assert verdict("four-gpus", *rates("onnx", 390.0, "RTX 4080"))["verdict"] == CONTRADICTED
    for engine, device, why in (
        ("emulated-4080", "4080", "an emulated device"),
        ("onnx", "cpu", "another device"),
    ):
        found = verdict("four-gpus", *rates(engine, 390.0, device))
        assert found["verdict"] == NOT_TESTABLE and found["because"] == f"this run has it only on {why}"
        assert found["readings"][0]["here"].startswith("3.9×") and found["but"] == ""


@pytest.mark.parametrize(("link", "judged"), [
    ({"link": "loopback", "rtt_ms": 0.0}, False),
    ({"link": "rtt100", "rtt_ms": 100.0}, False),
    ({"link": "home", "rtt_ms": 25.0, "rate_mbit_s": 20.0}, False),
    ({"link": "us-east", "rtt_ms": 25.0, "rate_mbit_s": 210.0}, True),
    ({"link": "network", "rtt_ms": 25.0, "rate_mbit_s": None}, True),
])  # fmt: skip
def test_a_claim_about_distant_clients_is_judged_on_the_matching_link_alone(link, judged):
    found = verdict("json-bottleneck", *answers(100.0, 150.0, **link))
    assert found["verdict"] == (REPRODUCED if judged else NOT_TESTABLE)
    assert found["readings"][0]["not_judged"] == ("" if judged else "another link")
    comparison = compared("jpeg-beats-tensor-remotely", 1.9, 2.1, **link)
    assert verdict("jpeg-beats-tensor-remotely", comparison)["verdict"] == found["verdict"]


def test_a_goal_is_judged_by_the_study_s_own_rows_and_never_by_a_run():
    met_here = point("triton-onnx-fp32-http-fp32", latency_ms_mean=900.0, batch=32)
    found = verdict("batch-32-under-two-seconds", met_here)
    assert (found["verdict"], found["here"], found["rests_on"]) == (GOAL_MISSED, "–", "the study's own rows")
    assert found["because"] == "its own rows give 5,614 ms where it asked for at most 2,000 ms"
    assert verdict("no-loss-of-throughput", met_here)["verdict"] == GOAL_MET


def test_a_gap_that_widens_is_compared_with_the_gap_at_one_image():
    def gap(batch, triton_ms):
        scenario = "offline" if batch > 1 else "single_stream"
        values = {"batch": batch, "connection": "warm", "scenario": scenario}
        return [
            point("fastapi-pytorch-fp32-http-jpeg", latency_ms_mean=100.0, **values),
            point("triton-onnx-fp32-http-fp32", latency_ms_mean=triton_ms, **values),
        ]

    found = verdict("gap-widens-with-batch", *gap(1, 140.0), *gap(32, 520.0))
    assert found["verdict"] == REPRODUCED and found["effects"][0][0] == pytest.approx(5.2 / 1.4)
    assert verdict("gap-widens-with-batch", *gap(1, 300.0), *gap(32, 200.0))["verdict"] == CONTRADICTED
    assert verdict("gap-widens-with-batch", *gap(32, 520.0))["verdict"] == NOT_TESTABLE


@pytest.mark.parametrize(("old", "new", "said"), [
    ("kind: ratio", "kind: guess", "guess"),
    ("document: executive-summary", "document: a-blog", "a-blog"),
    ("at_least: 1000", "at_lest: 1000", "at_lest"),
    ("id: json-bottleneck", "id: json-encoding", "more than one claim called json-encoding"),
])  # fmt: skip
def test_a_damaged_claims_file_is_refused_with_its_place(old, new, said, tmp_path):
    path = tmp_path / "claims.yaml"
    text = (published.published_dir() / "claims.yaml").read_text(encoding="utf-8")
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(PhotodupError, match=said):
        load_claims(path)
