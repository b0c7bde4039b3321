"""The measuring stage: declared, planned once, measured in rounds, judged from the records alone."""

import json

import pytest
import yaml

from photodup.bench.record.record import RunStore, load_records
from photodup.embedding.backends import COLUMNS
from photodup.errors import PhotodupError
from photodup.serving.endpoints import from_ports
from photodup.study.notebook.run import Run
from photodup.study.rounds import declared, figures, outcomes, stage

SIDES = {
    "slow": {"label": "slow", "backend": "local-dummy-fp32", "options": {"delay_ms": 20.0}},
    "fast": {"label": "fast", "backend": "local-dummy-fp32", "options": {"delay_ms": 5.0}},
    "like fast": {"label": "like fast", "backend": "local-dummy-fp32", "options": {"delay_ms": 5.001}},
    "absent": {"label": "absent", "backend": "triton-trt-fp16-http-fp32"},
}
DATA = {
    "sides": SIDES,
    "loads": {"one": {"scenario": "single_stream"}},
    "comparisons": {
        "06": [
            {"name": "halved", "a": "slow", "b": "fast", "loads": ["one"], "importance": 3},
            {"name": "alike", "a": "fast", "b": "like fast", "loads": ["one"], "importance": 2},
            {"name": "elsewhere", "a": "fast", "b": "absent", "loads": ["one"], "importance": 3},
        ]
    },
}


@pytest.fixture
def declare(tmp_path):
    def write(data):
        path = tmp_path / "comparisons.yaml"
        path.write_text(yaml.safe_dump(data))
        declared._read.cache_clear()
        return declared.declarations(path)

    return write


def opened(directory, measure=True):
    return Run("rounds", directory, from_ports("127.0.0.1", 1, 0, 0, 0), RunStore(directory, measure=measure))


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rounds")
    path = folder / "comparisons.yaml"
    path.write_text(yaml.safe_dump(DATA))
    found, directory = declared.declarations(path), folder / "run"
    run = opened(directory)
    with run.store:
        sizes = {"rounds": 8, "budget_min": 5, "shortest_s": 0.3}
        compared = outcomes.compare_rounds(run, "06", **sizes, found=found, say=lambda _: None)
    return directory, found, compared


def test_a_planted_difference_is_found_and_its_sentence_holds_the_pooled_figures(measured, figure):
    _, _, compared = measured
    outcome = compared["halved, one"]
    # The planted delays are four to one: no busy machine hides that, but it may change by how much.
    assert outcome.verdict == "different" and outcome.effect < 0, outcome.because
    figure(-0.85 < outcome.effect < -0.5, outcome)
    assert "different by -" in compared.sentence("halved, one")
    assert compared.plain("halved, one").startswith("The median latency of fast is ")
    table = compared.table("halved, one", "of another run, one")
    assert list(table.index) == ["halved, one"] and table.verdict.tolist() == ["different"]
    fast = compared.figure("fast", "one", "latency_ms_p50")
    assert fast["low"] <= fast["value"] <= fast["high"] and fast["n_rounds"] >= 6
    figure(fast["value"] == pytest.approx(outcome.value_b, rel=0.02), (fast, outcome))


def test_what_got_a_verdict_is_listed_by_importance(measured):
    compared = measured[2]
    told = [name for name, o in compared.outcomes.items() if o.verdict in ("different", "equal")]
    assert compared.decided()[0] == "halved, one" and set(compared.decided()) == set(told)


@pytest.mark.figures
def test_the_same_delay_is_never_called_different(measured):
    assert measured[2]["alike, one"].verdict in ("equal", "undecided")


def test_what_the_servers_do_not_have_is_named_and_still_counts_in_the_family(measured):
    directory, _, compared = measured
    assert compared["elsewhere, one"].verdict is None
    assert "has no triton-trt-fp16-http-fp32" in compared.sentence("elsewhere, one")
    plan = stage.plan_of(opened(directory), "06")
    assert len(plan["declared"]) == 3 and plan["kept"] == ["halved, one", "alike, one"]


def test_reading_needs_no_server_and_says_the_same(measured):
    directory, found, compared = measured
    before = sorted(path.name for path in (directory / "records").iterdir())
    again = outcomes.compare_rounds(opened(directory, measure=False), "06", found=found)
    assert again.sentences() == compared.sentences()
    assert sorted(path.name for path in (directory / "records").iterdir()) == before


def test_a_stage_that_was_cut_off_goes_on_with_the_same_plan(measured, tmp_path):
    directory, found, _ = measured
    copy = tmp_path / "run"
    (copy / "records").mkdir(parents=True)
    kept = [path for path in sorted((directory / "records").iterdir()) if path.suffix == ".json"]
    lost = [path for path in kept if "repeat-7" in path.name]
    assert lost
    for path in set(kept) - set(lost):
        (copy / "records" / path.name).write_bytes(path.read_bytes())
    run = opened(copy)
    with run.store:
        outcomes.compare_rounds(run, "06", rounds=99, budget_min=0.001, found=found, say=lambda _: None)
        plan = stage.plan_of(run, "06")
    made = [r["key"] for r in load_records(copy) if r["key"].endswith("repeat-7")]
    assert len(made) == len(lost), "only the round that was lost is measured"
    assert plan == stage.plan_of(opened(directory, measure=False), "06") and plan["rounds"] == 8


def test_too_little_time_drops_the_least_important_first_and_says_so(declare, tmp_path, monkeypatch):
    # Four arms of six rounds are 48 s, three 36 s, however busy the machine is when it is calibrated.
    monkeypatch.setattr(stage, "_seconds", lambda stopping: 2.0)
    run = opened(tmp_path / "run")
    with run.store:
        compared = outcomes.compare_rounds(
            run, "06", rounds=6, budget_min=0.7, shortest_s=0.2, found=declare(DATA), say=lambda _: None
        )
    assert "allow more time" in compared.sentence("alike, one")
    assert compared["halved, one"].verdict is not None


def test_nothing_measured_is_no_verdict(declare, tmp_path):
    compared = outcomes.read_rounds(opened(tmp_path / "run", measure=False), "06", found=declare(DATA))
    assert {o.verdict for o in compared.outcomes.values()} == {None}
    assert compared.arms.empty and len(compared.table()) == 3
    # A notebook computes with the frame of nothing as with any other.
    assert {*COLUMNS, "throughput_images_per_s"} <= set(compared.arms)
    assert figures.sides_under(compared, "one", "eight") == []


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda d: d["comparisons"]["06"][0].update(a="nobody"), "compares 'nobody'"),
        (lambda d: d["comparisons"]["06"][0].update(loads=["two"]), "asks for the load 'two'"),
        (lambda d: d["comparisons"]["06"][0].update(loads={"one": "speed"}), "no metric 'speed'"),
        (
            lambda d: d["comparisons"]["06"].append(dict(d["comparisons"]["06"][0])),
            "two comparisons are called",
        ),
        (lambda d: d["sides"]["fast"].update(backend="triton-magic"), "names no backend"),
        (lambda d: d["sides"]["fast"].update(settings={"speed": 2}), "sets 'speed', which is none of"),
    ],
)
def test_a_slip_in_the_file_is_one_sentence(declare, spoil, said):
    data = json.loads(json.dumps(DATA))
    spoil(data)
    with pytest.raises(PhotodupError, match=said):
        declare(data)


def test_settings_reach_the_model_that_computes():
    """Of an ensemble that takes JPEG files it is the encoder."""
    from photodup.serving.triton.config import parse_config
    from photodup.study.rounds.arms import configure

    side = declared.declarations().sides["triton-int8-2x1"]
    assert side.configured_model == "openclip_vit_b32_openvino_int8_uint8"
    config = parse_config("max_batch_size: 32 dynamic_batching { } instance_group [ { count: 1 } ]")
    configure(config, instances=2, threads=1, delay_us=10_000, preferred=4)
    assert config.instance_group[0].count == 2 and config.parameters["threads"].string_value == "1"
    batcher = config.dynamic_batching
    assert (batcher.max_queue_delay_microseconds, list(batcher.preferred_batch_size)) == (10_000, [4])


@pytest.mark.parametrize(
    ("served", "expected"),
    [
        ('backend: "python" instance_group [ { kind: KIND_CPU } ]', {"threads": "1"}),
        ('backend: "onnxruntime" instance_group [ { kind: KIND_CPU } ]', {"intra_op_thread_count": "1"}),
        ('backend: "onnxruntime" instance_group [ { kind: KIND_GPU } ]', {}),
    ],
)
def test_threads_are_set_where_the_server_has_them_under_its_own_name(served, expected):
    from photodup.serving.triton.config import parse_config
    from photodup.study.rounds.arms import configure

    config = parse_config(served)
    configure(config, instances=2, threads=1)
    assert config.instance_group[0].count == 2
    assert {name: value.string_value for name, value in config.parameters.items()} == expected
    configure(waiting := parse_config('backend: "python"'), delay_us=5)
    assert waiting.dynamic_batching.max_queue_delay_microseconds == 5 and not waiting.instance_group


@pytest.mark.parametrize("notebook", ["04_profile_serialization", "07_scale_gpus", "08_compare_grpc_http"])
def test_a_rented_machine_with_fp32_alone_has_both_sides_of_a_comparison(notebook):
    from photodup.serving.embedded import MODELS

    served = from_ports("198.18.0.2", models=MODELS).backends
    pairs = [pair.on(served) for pair in declared.declarations().of([notebook], at_least=2)]
    assert any(all(side.backend.name in served for side in (pair.a, pair.b)) for pair in pairs)


def test_the_repositorys_own_file_is_sound():
    found = declared.declarations()
    assert found.pairs and {p.notebook for p in found.pairs} <= {p.stem for p in _notebooks()}


def _notebooks():
    from photodup.study.notebook.files import notebooks

    return notebooks(())


def test_servers_that_lack_a_side_are_asked_for_what_they_have_and_the_plan_keeps_it(declare, tmp_path):
    """A rented machine has no INT8: its own engine answers, and a reader with other endpoints reads that."""
    data = {
        **DATA,
        "comparisons": {"06": [{**DATA["comparisons"]["06"][2], "elsewhere": [["slow", "fast"]]}]},
    }
    found, run = declare(data), opened(tmp_path / "run")
    with run.store:
        compared = outcomes.compare_rounds(
            run, "06", rounds=2, budget_min=1, shortest_s=0.3, found=found, say=lambda _: None
        )
    (pair,) = compared.pairs
    assert (pair.a.name, pair.b.name) == ("slow", "fast")
    everything = from_ports("127.0.0.1", 1, 2, 3, 4, models=["openclip_vit_b32_trt"])
    reader = Run("rounds", tmp_path / "run", everything, RunStore(tmp_path / "run", measure=False))
    assert {"slow", "fast"} == set(outcomes.read_rounds(reader, "06", found=found).arms.side)


def test_a_machine_with_the_declared_sides_is_asked_for_those(declare):
    data = {
        **DATA,
        "comparisons": {"06": [{**DATA["comparisons"]["06"][0], "elsewhere": [["fast", "absent"]]}]},
    }
    (pair,) = declare(data).of(["06"])
    assert pair.on([]).a.name == "slow"
    assert pair.with_sides(("fast", "absent")).b.name == "absent"
    assert pair.with_sides(None) == pair and pair.with_sides(("x", "y")) == pair
    wrong = {
        **data,
        "comparisons": {"06": [{**data["comparisons"]["06"][0], "elsewhere": [["fast", "nobody"]]}]},
    }
    with pytest.raises(PhotodupError, match="compares 'nobody', which is no side"):
        declare(wrong)
