"""Verdicts on points with a known answer, and the faults that must turn them."""

import json
import math

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from photodup.paths import project_root
from photodup.study.claims import claims, predicates
from photodup.study.claims.claims import Claim, judge
from photodup.study.claims.claims_list import CLAIMS
from photodup.study.claims.claims_notes import NONE_WRITTEN, NOTES
from photodup.study.claims.predicates import CONTRADICTED, INCONCLUSIVE, NOT_MEASURED, REPRODUCED, ratio
from photodup.study.published import published

BY_ID = {claim.id: claim for claim in CLAIMS}


def point(backend, *, ci=0.02, **values):
    base = {
        "run": "made-up",
        "backend": backend,
        "link": "rtt25",
        "scenario": "single_stream",
        "batch": 1,
        "concurrency": 1,
        "connection": "new",
        "valid": True,
        "offered_per_s": None,
    }
    row = base | values
    for name in ("latency_ms_p50", "latency_ms_mean", "throughput_images_per_s"):
        if row.get(name) is not None:
            row[f"{name}_ci_low"], row[f"{name}_ci_high"] = row[name] * (1 - ci), row[name] * (1 + ci)
    return row


def verdict(claim_id, *rows, **kwargs):
    table = judge([BY_ID[claim_id]], pd.DataFrame(rows), **kwargs)
    assert len(table) == 1
    return table.iloc[0]


REMOTE = (
    point("pytorch-http-base64", latency_ms_p50=56.9),
    point("triton-onnx-http-fp32", latency_ms_p50=182.9),
)


def test_the_list_is_complete_and_rests_on_rows_that_exist():
    rows = published.load_measurements()
    assert len(CLAIMS) >= 30 and len(BY_ID) == len(CLAIMS) and set(NOTES) == set(BY_ID)
    for claim in CLAIMS:
        assert set(claim.rows) <= set(rows.index), claim.id
        assert claim.statement.endswith(".") and claim.rival.endswith(".") and claim.source
        assert claim.but and set(claim.but) <= {REPRODUCED, CONTRADICTED, INCONCLUSIVE}, claim.id
        for but in claim.but.values():
            assert but.endswith(".") and len(but) > 60 and but != claim.rival, claim.id
        assert claim.needs, claim.id
        if claim.published:
            assert published.evaluate(claim.published, rows)[0] > 0


def test_an_objection_stands_beside_the_verdict_it_argues_about():
    slower, equal = (
        verdict(
            "grpc-slower-single",
            point("triton-onnx-http-fp32", latency_ms_p50=100.0),
            point("triton-onnx-grpc-fp32", latency_ms_p50=grpc),
        )
        for grpc in (150.0, 100.0)
    )
    assert (slower["verdict"], equal["verdict"]) == (REPRODUCED, INCONCLUSIVE)
    assert slower["but"].startswith("Both clients are Python") and equal["but"].startswith("On loopback")
    bodies = [point(f"body-{kind}", encode_ms=ms, ci=0) for kind, ms in (("json", 2.0), ("binary", 1.0))]
    found = verdict("json-encoding", *bodies)
    assert (found["verdict"], found["but"]) == (CONTRADICTED, NONE_WRITTEN)
    assert verdict("json-encoding", bodies[0])["but"] == "", "nothing measured, nothing to argue against"


def test_every_verdict_of_the_reference_run_is_argued_against():
    rows = json.loads((project_root() / "results/reference-cpu/verdicts.json").read_text(encoding="utf-8"))
    decided = {row["claim"]: row["verdict"] for row in rows if row["verdict"] != NOT_MEASURED}
    missing = {claim: verdict for claim, verdict in decided.items() if verdict not in NOTES[claim][1]}
    assert decided and not missing, "write an objection to these verdicts in claims_notes.py"


def test_a_published_effect_is_reproduced():
    found = verdict("jpeg-beats-tensor-remotely", *REMOTE)
    assert found["verdict"] == REPRODUCED and found["published"] == "3.21×"
    assert found["effect"] == pytest.approx(182.9 / 56.9)
    assert found["effect_low"] < found["effect"] < found["effect_high"]


def test_a_flipped_inequality_is_seen():
    flipped = ratio("pytorch-http-base64", "triton-onnx-http-fp32", "latency_ms_p50", at_least=1)
    claim = Claim("flipped", "The other way round.", "test", (), flipped)
    assert judge([claim], pd.DataFrame(REMOTE)).iloc[0]["verdict"] == CONTRADICTED


def test_a_wrong_unit_is_seen():
    seconds = point("triton-onnx-http-fp32", latency_ms_p50=0.1829)
    assert verdict("jpeg-beats-tensor-remotely", REMOTE[0], seconds)["verdict"] == CONTRADICTED


def test_a_dropped_row_is_not_measured_never_a_guess():
    found = verdict("jpeg-beats-tensor-remotely", REMOTE[0])
    assert found["verdict"] == NOT_MEASURED and found["here"] == "–"
    assert math.isnan(found["effect"]) if found["effect"] is not None else True


@pytest.mark.parametrize(
    "spoilt",
    [
        {"valid": False},
        {"latency_ms_p50": None},
        {"link": "rtt50"},
        {"connection": "warm"},
        {"batch": 4},
        {"span": "prepared"},
    ],
)
def test_only_valid_points_under_the_same_conditions_are_compared(spoilt):
    rows = [{"span": "photo", **REMOTE[0]}, {"span": "photo", **REMOTE[1], **spoilt}]
    assert verdict("jpeg-beats-tensor-remotely", *rows)["verdict"] == NOT_MEASURED


def test_nothing_within_the_noise_floor_is_a_difference():
    rows = (
        point("triton-onnx-http-fp32", latency_ms_p50=100.0, ci=0.001),
        point("triton-onnx-grpc-fp32", latency_ms_p50=104.0, ci=0.001),
    )
    assert verdict("grpc-slower-single", *rows, noise_floor=0.05)["verdict"] == INCONCLUSIVE
    assert verdict("grpc-slower-single", *rows, noise_floor=0.01)["verdict"] == REPRODUCED
    wide = (rows[0], point("triton-onnx-grpc-fp32", latency_ms_p50=104.0, ci=0.2))
    assert verdict("grpc-slower-single", *wide, noise_floor=0.01)["verdict"] == INCONCLUSIVE


def test_pairs_that_disagree_are_inconclusive_and_say_so():
    warm = (
        point("pytorch-http-base64", latency_ms_p50=60.0, connection="warm"),
        point("triton-onnx-http-fp32", latency_ms_p50=50.0, connection="warm"),
    )
    found = verdict("jpeg-beats-tensor-remotely", *REMOTE, *warm)
    assert found["verdict"] == INCONCLUSIVE and "disagree" in found["because"]


def test_each_link_and_run_is_judged_on_its_own():
    loop = [{**row, "link": "loopback"} for row in REMOTE]
    other = [{**row, "run": "another", "latency_ms_p50": 70.0} for row in REMOTE]
    for row in other:
        row["latency_ms_p50_ci_low"], row["latency_ms_p50_ci_high"] = 69.0, 71.0
    table = judge(
        [BY_ID["grpc-slower-single"], BY_ID["jpeg-beats-tensor-remotely"]],
        pd.DataFrame([*REMOTE, *loop, *other]),
    )
    remote = table[table["claim"] == "jpeg-beats-tensor-remotely"].set_index("run")["verdict"]
    assert remote.to_dict() == {"made-up": REPRODUCED, "another": INCONCLUSIVE}
    assert set(table[table["claim"] == "grpc-slower-single"]["verdict"]) == {NOT_MEASURED}


def test_a_magnitude_is_contradicted_from_either_side():
    def rates(local_pytorch):
        return (
            point("local-onnx", throughput_images_per_s=100.0, batch=32, link="loopback"),
            point("local-pytorch", throughput_images_per_s=local_pytorch, batch=32, link="loopback"),
        )

    assert verdict("onnx-slower-at-32", *rates(520.0))["verdict"] == REPRODUCED
    assert verdict("onnx-slower-at-32", *rates(90.0))["verdict"] == CONTRADICTED
    assert verdict("onnx-slower-at-32", *rates(900.0))["verdict"] == CONTRADICTED
    assert verdict("onnx-slower-at-32", *rates(785.0))["verdict"] == INCONCLUSIVE


def test_growth_claims_compare_a_backend_with_itself():
    rows = [
        point(
            "pytorch-http-jpeg",
            throughput_images_per_s=t,
            concurrency=c,
            scenario="closed_loop",
            link="loopback",
        )
        for c, t in ((8, 47.3), (16, 49.1))
    ]
    assert verdict("fastapi-scales", *rows)["verdict"] == CONTRADICTED


def test_the_peak_must_be_where_it_is_claimed():
    def curve(*throughputs):
        levels = zip((8, 16, 32, 64), throughputs, strict=True)
        return [
            point(
                "triton-emulated-4080-http-uint8",
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
    assert verdict("saturates-at-32", *curve(20, 32, 43, 43.5))["verdict"] == INCONCLUSIVE
    assert verdict("saturates-at-32", *curve(20, 32, 43, 37)[:3])["verdict"] == NOT_MEASURED


@pytest.mark.parametrize(("trips", "expected"), [(True, CONTRADICTED), (False, REPRODUCED)])
def test_latencies_made_by_either_law_are_told_apart(trips, expected):
    from photodup.bench.link.latency_model import bandwidth_only_ms, rounds_ms

    law = rounds_ms if trips else bandwidth_only_ms
    rows = [
        point("triton-onnx-http-fp32", payload_bytes=size, latency_ms_p50=law(size, 25.0, 20.0))
        for size in (14_000, 75_000, 150_528, 301_056, 602_112)
    ]
    assert verdict("bytes-are-the-bottleneck", *rows)["verdict"] == expected
    assert verdict("bytes-are-the-bottleneck", *rows[:3])["verdict"] == NOT_MEASURED


def test_shares_and_bounds():
    row = point("triton-onnx-http-fp32", latency_ms_mean=182.9, server_request_ms_mean=15.1)
    assert verdict("network-dominates", row)["verdict"] == REPRODUCED
    assert verdict("network-dominates", row | {"server_request_ms_mean": 90.0})["verdict"] == CONTRADICTED
    assert verdict("network-dominates", row | {"link": "loopback"})["verdict"] == NOT_MEASURED
    for difference, expected in ((6e-7, REPRODUCED), (0.002, CONTRADICTED)):
        for backend in ("triton-onnx-grpc-fp32", "local-onnx"):
            row = point(backend, difference_max=difference, scenario="parity")
            assert verdict("onnx-parity", row)["verdict"] == expected


def test_an_empty_run_is_not_measured_and_keeps_its_name():
    for points in (pd.DataFrame(), pd.DataFrame(columns=["run", "backend", "valid"])):
        table = judge(CLAIMS, points, run="nothing-yet")
        assert claims.counts(table) == {
            "reproduced": 0,
            "contradicted": 0,
            "inconclusive": 0,
            "not measured": len(CLAIMS),
        }
        assert set(table["run"]) == {"nothing-yet"}


def test_every_claim_survives_points_with_few_columns():
    few = pd.DataFrame([{"run": "r", "backend": "pytorch-http-jpeg", "valid": True, "link": "loopback"}])
    assert set(judge(CLAIMS, few)["verdict"]) == {NOT_MEASURED}


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
    ("link", "rtt", "remote"),
    [
        ("25ms-210mbit-cubic-iw10", 25.0, True),
        ("0.5ms-10000mbit-cubic-iw10", 0.5, False),
        ("us-east", 25.0, True),
        ("datacentre", 0.5, False),
        ("loopback", 0.0, False),
        (None, 0.0, False),
    ],
)
def test_links_are_read_from_their_label(link, rtt, remote):
    assert predicates.link_rtt_ms(link) == rtt and predicates.remote(link) is remote


def test_an_unknown_link_is_not_taken_for_a_wide_area_one():
    assert math.isnan(predicates.link_rtt_ms("moon")) and not predicates.remote("moon")


def test_the_noise_floor_is_the_run_s_own_where_it_has_one():
    first, again = (
        point("pytorch-http-jpeg", latency_ms_p50=ms, label=label)
        for ms, label in ((10, ""), (10.8, "again"))
    )
    other = point("triton-onnx-http-fp32", latency_ms_p50=99.0, label="again")
    floor, source = claims.noise_floor_of(pd.DataFrame([first, again, other]))
    assert floor == pytest.approx(math.log(1.08)) and "1 A/A" in source
    invalid = {**again, "valid": False}
    for without in ([], [first], [again], [first, {**again, "batch": 4}], [first, invalid]):
        table = pd.DataFrame(without)
        assert claims.noise_floor_of(table, default=0.1) == (0.1, "assumed: the run has no A/A comparison")


def test_other_configurations_and_repeats_are_not_the_backend_as_deployed():
    slow = [{**row, "label": "batching-published", "latency_ms_p50": 10.0} for row in REMOTE]
    rows = [{**row, "label": ""} for row in REMOTE]
    assert verdict("jpeg-beats-tensor-remotely", *rows, *slow)["verdict"] == REPRODUCED
    assert verdict("jpeg-beats-tensor-remotely", *slow)["verdict"] == NOT_MEASURED
    lone = point("triton-onnx-http-fp32", server_queue_ms_mean=10.1, label="batching-published")
    assert verdict("server-overhead", lone)["verdict"] == REPRODUCED
    assert verdict("server-overhead", lone | {"label": "batching-default"})["verdict"] == NOT_MEASURED


def test_a_backend_is_compared_with_itself_not_with_its_sibling():
    def rate(backend, c, images_per_s):
        return point(backend, throughput_images_per_s=images_per_s, concurrency=c, scenario="closed_loop")

    rows = [rate("pytorch-http-jpeg", 8, 10.0), rate("pytorch-http-base64", 16, 40.0)]
    assert verdict("fastapi-scales", *rows)["verdict"] == NOT_MEASURED
    assert verdict("fastapi-scales", *rows, rate("pytorch-http-jpeg", 16, 10.5))["effect"] == pytest.approx(
        1.05
    )


def test_runs_of_different_models_are_called_unlike():
    one = {"model": {"name": "ViT-B-32", "pretrained": "random:0", "digest": "aa"}}
    assert claims.unlike({"a": one, "b": one, "empty": {}}) == []
    other = {"model": {**one["model"], "pretrained": "laion2b_s34b_b79k", "digest": "bb"}}
    sentences = claims.unlike({"a": one, "b": other})
    assert len(sentences) == 2 and "a: random:0" in " ".join(sentences) and "by digest" in sentences[1]


def test_a_link_ladder_is_evidence_without_a_server(tmp_path):
    from photodup.bench.link.latency_model import rounds_ms
    from photodup.bench.record.record import RunStore

    link = "25ms-210mbit-cubic-iw10"
    sizes = (10_000, 150_528, 602_112, 19_267_584)
    rows = [
        {"link": link, "payload_bytes": size, "connection": kind, "valid": True, "samples_ms": [1.0]}
        | {"latency_ms_p50": rounds_ms(size, 25.0, 210.0, connection=kind)}
        for size in sizes
        for kind in ("new", "warm")
    ]
    with RunStore(tmp_path / "made-up") as store:
        store.measure_or_load("ladder-25ms", lambda: {"rows": rows}, config={})
        store.measure_or_load("ladder-broken", lambda: {"status": "failed", "error": "no link"}, config={})
    points = claims.load_evidence(tmp_path / "made-up")
    assert len(points) == len(rows) and set(points["backend"]) == {"network-only"}
    found = judge([BY_ID["bytes-are-the-bottleneck"]], points).iloc[0]
    assert found["verdict"] == CONTRADICTED and found["link"] == link
    assert claims.load_evidence(tmp_path / "nothing").empty


def test_protocols_are_compared_on_the_same_engine_and_channel():
    def rate(engine, protocol, images_per_s, **values):
        backend = f"triton-{engine}-{protocol}-fp32"
        values |= {"engine": engine, "concurrency": 16, "scenario": "closed_loop", "link": "loopback"}
        return point(backend, throughput_images_per_s=images_per_s, **values)

    rows = [
        rate("emulated-a100", "http", 400.0),
        rate("emulated-a100", "grpc", 100.0, channel="shared"),
        rate("emulated-rtx4080", "grpc", 900.0, channel="shared"),
        rate("emulated-a100", "grpc", 390.0, channel="per-worker"),
    ]
    found = verdict("http-scales-better", *rows)
    assert found["verdict"] == REPRODUCED and found["effect"] == pytest.approx(4.0)
    assert [place["where"] for place in found["breakdown"]] == ["loopback, emulated-a100"]
    assert verdict("shared-channel-contends", *rows)["effect"] == pytest.approx(3.9)


SAME = ("triton-onnx-http-fp32", "triton-onnx-grpc-fp32")


def places(*ratios):
    """gRPC ÷ HTTP on one link each."""
    return [
        point(backend, latency_ms_p50=ms, link=f"{5 * (i + 1)}ms-210mbit")
        for i, r in enumerate(ratios)
        for backend, ms in zip(SAME, (100.0, 100.0 * r), strict=True)
    ]


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ((1.5, 1.6), REPRODUCED),
        ((0.5, 0.6), CONTRADICTED),
        ((1.5, 1.0), REPRODUCED),  # half of the places decide, none objects
        ((1.5, 1.0, 1.0), INCONCLUSIVE),  # fewer do
        ((1.5, 1.6, 0.5), INCONCLUSIVE),  # they contradict each other
        ((1.0,), INCONCLUSIVE),
    ],
)
def test_a_claim_has_one_verdict_and_a_breakdown_of_its_places(ratios, expected):
    found = verdict("grpc-slower-single", *places(*ratios))
    assert found["verdict"] == expected
    assert len(found["breakdown"]) == len(ratios)
    if len(ratios) > 1:
        assert found["link"] == f"{len(ratios)} places"
        assert found["effect_low"] <= found["effect"] <= found["effect_high"]
    if {REPRODUCED, CONTRADICTED} <= {place["verdict"] for place in found["breakdown"]}:
        assert "depends on the place" in found["because"]


def test_a_place_that_disagrees_with_itself_decides_nothing():
    warm = [
        point(row["backend"], latency_ms_p50=ms, connection="warm")
        for row, ms in zip(REMOTE, (60, 50), strict=True)
    ]
    other = [{**row, "link": "rtt50"} for row in REMOTE]
    alone = verdict("jpeg-beats-tensor-remotely", *other)
    found = verdict("jpeg-beats-tensor-remotely", *REMOTE, *warm, *other)
    assert alone["verdict"] == REPRODUCED and found["verdict"] == INCONCLUSIVE


def test_what_was_not_measured_is_listed_by_what_it_needs():
    table = judge(CLAIMS, pd.DataFrame(REMOTE))
    needed = claims.missing(table)
    assert {"trt-compute", "gpu-decides-engine"} == set(needed["a CUDA GPU with TensorRT"])
    assert sum(map(len, needed.values())) == claims.counts(table)["not measured"]
    assert claims.missing(table[table["verdict"] != NOT_MEASURED]) == {}


RECORDS = {
    "cold-start-pytorch-http-jpeg-0": {"first_answer_s": 4.0},
    "cold-start-triton-onnx-http-fp32-0": {"first_answer_s": 4.6},
    "serialization-b32": {
        "rows": [
            {"form": "json", "batch": 32, "bytes": 10, "encode_ms": 1800.0},
            {"form": "binary", "batch": 32, "bytes": 1, "encode_ms": 1.8},
        ]
    },
    "onnx-parity": {"rows": [{"variant": "fp32", "batch": 1, "difference": 6e-7}]},
    "triton-parity": {"rows": [{"backend": "triton-onnx-http-fp32", "worst": 8e-7, "median": 7e-7}]},
    "precision-ViT-B/32": {"rows": [{"network": "ViT-B/32", "precision": "fp16", "cosine_min": 0.9999}]},
    "precision-parts-ViT-B/32-fp16": {
        "rows": [{"network": "ViT-B/32", "precision": "fp16", "difference": 0.1}]
    },
    "onnx-profile": {"batch_ms": {"1": [60.0] * 9, "32": [1200.0, 1210.0, 1190.0]}},
    "kube-replay": {"pods_ready_max": 4, "hpa_reaction_s": 40.0, "hpa_reaction_s_ci_high": 44.0},
}
EXPECTED = {
    "cold-start": (REPRODUCED, {"first_answer_s": 40.0}, CONTRADICTED),
    "json-encoding": (REPRODUCED, {"encode_ms": 1.8}, CONTRADICTED),
    "onnx-parity": (REPRODUCED, {"difference": 0.1, "worst": 0.1}, CONTRADICTED),
    "fp16-is-safe": (REPRODUCED, {"cosine_min": 0.9}, CONTRADICTED),
    "cpu-batching-gains": (REPRODUCED, {"32": [1900.0] * 3}, CONTRADICTED),
    "six-pods": (CONTRADICTED, {"pods_ready_max": 6}, REPRODUCED),
    "reacts-in-30-seconds": (
        REPRODUCED,
        {"hpa_reaction_s": 90.0, "hpa_reaction_s_ci_high": 90.0},
        CONTRADICTED,
    ),
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
        for key, result in RECORDS.items():
            spoilt = spoil(result) if not key.startswith("cold-start-pytorch") else result
            store.measure_or_load(key, lambda spoilt=spoilt: spoilt, config={})


@pytest.mark.parametrize("claim_id", EXPECTED)
def test_measurements_that_are_no_points_decide_claims_and_other_numbers_turn_them(claim_id, tmp_path):
    before, changed, after = EXPECTED[claim_id]
    for name, change, expected in (("run", {}, before), ("spoilt", changed, after)):
        record(tmp_path / name, change)
        found = judge([BY_ID[claim_id]], claims.load_evidence(tmp_path / name)).iloc[0]
        assert found["verdict"] == expected, (name, found["because"])


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
