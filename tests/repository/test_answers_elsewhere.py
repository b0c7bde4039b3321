"""Notebooks 05 and 07 answer for a machine without INT8: from what it has, or by saying what it lacks."""

import contextlib
import io
from types import SimpleNamespace

import matplotlib.pyplot as plt
import nbformat
import pandas as pd
import pytest
from support.paths import ROOT

from photodup.bench.stats.compare import Comparison, Outcome
from photodup.serving.embedded import MODELS
from photodup.serving.endpoints import from_ports
from photodup.study.notebook import charts
from photodup.study.notebook.gaps import need
from photodup.study.report.facts import state_of
from photodup.study.rounds.declared import declarations
from photodup.study.rounds.outcomes import POOLED, Compared

FP32_ALONE = from_ports("198.18.0.2", models=MODELS, name="rehearsal")
WITH_TENSORRT = from_ports(
    "198.18.0.2", models=("openclip_vit_b32", "openclip_vit_b32_trt"), name="rehearsal"
)
NOTHING: dict[str, str] = {}


def judged(notebook, endpoints, verdicts=NOTHING, otherwise="different") -> Compared:
    """Return the comparisons of a notebook as a run against these servers has them: a verdict where both sides are there."""
    pairs = tuple(pair.on(endpoints.backends) for pair in declarations().of([notebook], at_least=2))
    outcomes, arms = {}, []
    for pair in pairs:
        declared = pair.as_declared("there")
        lacking = [s.backend for s in (pair.a, pair.b) if s.backend.name not in endpoints.backends]
        verdict = None if lacking else verdicts.get(pair.name, otherwise)
        because = (
            f"{endpoints.name} has no {lacking[-1]}." if lacking else "" if verdict else "It keeps them."
        )
        comparison = Comparison(pair.name, pair.notebook, pair.metric, declared.a, declared.b)
        figures = {"effect": 0.5, "low": 0.4, "high": 0.6, "value_a": 10.0, "value_b": 15.0}
        figures |= {"n_rounds": 8, "spread": 0.053}
        outcomes[pair.name] = Outcome(comparison, verdict, because, **(figures if verdict else {}))
        for side in () if lacking else (pair.a, pair.b):
            row = {"side": side.name, "load": pair.asked.name, "label": side.label, **side.backend.columns()}
            arms.append(row | {f"{m}{end}": 12.0 for m in POOLED for end in ("", "_ci_low", "_ci_high")})
    return Compared(pairs, outcomes, (), pd.DataFrame(), pd.DataFrame(arms).drop_duplicates(["side", "load"]))


def printed(stem, cells, **names) -> str:
    """Execute cells of a notebook, by id, with these names; return what they printed."""
    notebook = nbformat.read(ROOT / "notebooks" / f"{stem}.ipynb", as_version=4)
    sources = {cell.id: cell.source for cell in notebook.cells}
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        for cell in cells:
            exec(sources[cell], names)
    return said.getvalue()


def seven(endpoints, **how) -> str:
    """Return the answer of notebook 07 at the sizes that measure comparisons alone."""
    return printed(
        "07_scale_gpus",
        ["r1-code", "39-code"],
        run=None,
        need=need,
        EXPLORE=False,
        ROUNDS=8,
        MINUTES=1,
        compare_rounds=lambda run, stem, **_: judged(stem, endpoints, **how),
        read_rounds=lambda run, stem: judged(stem, endpoints),
    ).split("\n", 3)[3]


def test_07_compares_instances_of_the_engine_that_the_machine_has():
    said = seven(FP32_ALONE)
    higher = "The throughput of two instances of ONNX Runtime is 50% higher than that of one instance of ONNX Runtime."
    assert said.startswith(higher)
    assert state_of("passed", " ".join(said.split())) == "decided" and "As it is deployed" not in said


def test_07_takes_tensors_where_no_model_takes_a_jpeg():
    said = seven(WITH_TENSORRT)
    assert (
        "two instances of ONNX Runtime, tensor is 50% higher than that of one instance of ONNX Runtime, tensor"
        in said
    )


def test_07_says_why_nothing_was_compared_and_what_the_machine_does_as_it_is():
    said = seven(FP32_ALONE, otherwise=None)
    assert (
        "two instances of ONNX Runtime and one instance of ONNX Runtime was not compared: It keeps them."
        in said
    )
    assert "As it is deployed, ONNX Runtime in Triton, tensor answers 12.0 images/s" in said
    assert state_of("passed", " ".join(said.split())) == "undecided"


def test_07_with_int8_is_answered_by_the_fastest_engine_as_before():
    models = [*MODELS, "openclip_vit_b32_openvino_int8_jpeg"]
    said = seven(from_ports("127.0.0.1", models=models))
    assert said.startswith("The throughput of two instances of one thread is 50% higher")


@pytest.fixture
def five(tmp_path, monkeypatch):
    """Return a function that tells what notebook 05 prints and answers, and which bars it draws."""
    monkeypatch.setattr(plt, "show", lambda: None)
    drawn = []
    monkeypatch.setattr(charts, "save", lambda figure, *_: drawn.append(figure))

    def told(endpoints, weights="random:0 (random weights)", **how):
        names = {"run": SimpleNamespace(weights=weights, machine="a machine"), "gates": {}, "need": need}
        names |= {"charts": charts, "plt": plt, "read_rounds": lambda _, s: judged(s, endpoints, **how)}
        first = printed("05_trt_fp16", ["p1-code", "p3-code"], **names)
        said = printed("05_trt_fp16", ["p1-code", "41-code"], **names).removeprefix(
            printed("05_trt_fp16", ["p1-code"], **names)
        )
        axes = drawn[-1].axes
        plt.close("all")
        return first, said, [tick.get_text().split("\n")[-1] for ax in axes for tick in ax.get_xticklabels()]

    return told


def test_05_compares_engines_in_the_precision_that_the_machine_has(five):
    first, said, bars = five(FP32_ALONE)
    assert "Throughput of OpenVINO in Triton, tensor against ONNX Runtime in Triton, tensor" in first
    assert said.startswith(
        "Between engines, both in FP32: median latency of OpenVINO in Triton, tensor against"
    )
    assert "INT8 was not measured beside FP32: rehearsal has no triton-openvino-int8-http-jpeg." in said
    assert "The gate was not asked" in said and "weights of ViT-B/32 are random" in said
    assert state_of("passed", " ".join(said.split())) == "decided"
    assert set(bars) == {"FP32"} and len(bars) >= 4


def test_05_compares_fp16_where_there_is_tensorrt(five):
    _, said, bars = five(WITH_TENSORRT, weights="laion2b_s34b_b79k")
    assert said.startswith(
        "Between engines, FP16 and FP32: median latency of TensorRT FP16 in Triton, tensor"
    )
    assert {"FP16", "FP32"} == set(bars) and "random" not in said


def test_05_takes_the_comparison_that_decides(five):
    engines = "OpenVINO against ONNX Runtime in Triton"
    verdicts = {f"{engines}, one": "undecided"}
    assert "both in FP32: throughput of OpenVINO" in five(FP32_ALONE, verdicts=verdicts)[1]
    said = five(FP32_ALONE, otherwise="undecided")[1]
    assert state_of("passed", " ".join(said.split())) == "undecided"


def test_05_with_bf16_alone_is_answered_by_bf16(five):
    models = [*MODELS, "openclip_vit_b32_openvino_jpeg", "openclip_vit_b32_openvino_bf16_jpeg"]
    _, said, _ = five(from_ports("127.0.0.1", models=models))
    assert said.startswith("Median latency of OpenVINO BF16 in Triton against OpenVINO in Triton")
