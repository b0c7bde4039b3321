"""Notebooks 05 and 07 answer for a machine without INT8: from what it has, or by saying what it lacks."""

import contextlib
import io
from types import SimpleNamespace

import nbformat
import pandas as pd
import pytest
from support.paths import ROOT

from photodup.bench.pairs.declared import declarations
from photodup.bench.stats.comparison import Comparison, Outcome, Verdict
from photodup.serving.embedded import MODELS
from photodup.serving.endpoints import from_ports
from photodup.study import FigureSpec, Load, WindowPlan, need
from photodup.study.comparisons.outcomes import Comparisons

FP32_ALONE = from_ports("198.18.0.2", models=MODELS, name="rehearsal")
WITH_TENSORRT = from_ports(
    "198.18.0.2", models=("openclip_vit_b32", "openclip_vit_b32_trt"), name="rehearsal"
)
FIGURES = ("latency_ms_p50", "throughput_images_per_s")
NOTHING: dict[str, Verdict] = {}


def compared(notebook, endpoints, verdicts=NOTHING, otherwise=Verdict.BEYOND) -> Comparisons:
    """Return the comparisons of a notebook as a run against these servers has them: measured where both sides are there."""
    pairs = tuple(pair.offered(endpoints.has) for pair in declarations().pairs_of([notebook]))
    outcomes, arms = {}, []
    for pair in pairs:
        lacking = [s.backend for s in (pair.a, pair.b) if s.backend.name not in endpoints.backends]
        verdict = Verdict.NOT_MEASURED if lacking else verdicts.get(pair.name, otherwise)
        reason = f"{endpoints.name} has no {lacking[-1]}." if lacking else "It keeps them."
        question = Comparison(
            pair.name, pair.notebook, pair.load.usual_metric, pair.load_name, pair.a.label, pair.b.label, "",
            pair.is_primary, requests=pair.load,
        )  # fmt: skip
        figures = {"effect": 0.5, "low": 0.4, "high": 0.6, "value_a": 10.0, "value_b": 15.0, "n": 20}
        known = verdict is not Verdict.NOT_MEASURED
        outcomes[pair.name] = Outcome(question, verdict, **(figures if known else {"reason": reason}))
        for side in () if lacking else (pair.a, pair.b):
            row = {"side": side.name, "load": pair.load_name, "label": side.label, **side.backend.columns()}
            arms.append(row | {f"{m}{end}": 12.0 for m in FIGURES for end in ("", "_ci_low", "_ci_high")})
    return Comparisons(pairs, outcomes, (), pd.DataFrame(arms).drop_duplicates(["side", "load"]), {})


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
    sizes = {"EXPLORE": False, "VISITS": 3, "VISIT_S": 1.0, "SECONDS": 1.0, "ARRANGEMENT": "instances"}

    def compare(run, stem, **_):
        return compared(stem, endpoints, **(how if stem[:2] == "07" else {}))

    names = {"run": SimpleNamespace(endpoints=endpoints), "compare": compare, "need": need, "Load": Load}
    names |= {"WindowPlan": WindowPlan, "FigureSpec": FigureSpec, **sizes}
    return printed("07_scale_gpus", ["what-is-asked", "r1-code", "39-code"], **names).split("\n", 3)[3]


def test_07_compares_instances_of_the_engine_that_the_machine_has():
    said = seven(FP32_ALONE)
    higher = "A pair of ONNX Runtime instances has 50% higher throughput than one instance of ONNX Runtime [40.0, 60.0]"
    assert said.startswith(higher) and "As it is deployed" not in said


def test_07_takes_tensors_where_no_model_takes_a_jpeg():
    said = seven(WITH_TENSORRT)
    w = "A pair of ONNX Runtime instances with a binary tensor has 50% higher throughput than one instance"
    assert w in said


def test_07_says_why_nothing_was_compared_and_what_the_machine_does_as_it_is():
    said = seven(FP32_ALONE, otherwise=Verdict.NOT_MEASURED)
    assert (
        "Throughput of a pair of ONNX Runtime instances and one instance of ONNX Runtime: not measured. It keeps them."
        in said
    )
    assert "As it is deployed, PyTorch FP32 in FastAPI answers 12.0 images/s" in said


def test_07_with_int8_is_answered_by_the_fastest_engine_as_before():
    models = [*MODELS, "openclip_vit_b32_openvino_int8_jpeg"]
    said = seven(from_ports("127.0.0.1", models=models))
    wanted = "A pair of one-thread instances has 50% higher throughput than one instance of two threads"
    assert said.startswith(wanted)


@pytest.fixture
def five():
    """Return a function that tells what notebook 05 prints and answers."""

    def told(endpoints, weights="random:0 (random weights)", **how):
        names = {"run": SimpleNamespace(weights=weights, machine="a machine"), "checks": {}, "need": need}
        names |= {"compared": compared("06_compare_three_backends", endpoints, **how)}
        first = printed("05_trt_fp16", ["p1-code"], **names)
        return first, printed("05_trt_fp16", ["p1-code", "41-code"], **names).removeprefix(first)

    return told


def test_05_compares_engines_in_the_precision_that_the_machine_has(five):
    first, said = five(FP32_ALONE)
    slower = "OpenVINO FP32 in Triton with a binary tensor takes 50% longer than"
    assert f"{slower} ONNX Runtime FP32 in Triton with a binary tensor" in first
    assert said.startswith(f"Between engines (both in FP32), 1 in flight: {slower}")
    assert "INT8 was not compared with FP32: rehearsal has no triton-openvino-int8-http-jpeg." in said
    assert "The accuracy check was not made" in said and "weights of ViT-B/32 are random" in said


def test_05_compares_fp16_where_there_is_tensorrt(five):
    _, said = five(WITH_TENSORRT, weights="laion2b_s34b_b79k")
    wanted = "Between engines (FP16 and FP32), 1 in flight: TensorRT FP16 in Triton with a binary tensor takes 50% "
    assert said.startswith(wanted)
    assert "random" not in said


def test_05_takes_the_comparison_that_decides(five):
    verdicts = {"OpenVINO against ONNX Runtime in Triton, one": Verdict.NOT_FOUND}
    second = five(FP32_ALONE, verdicts=verdicts)[1]
    assert "8 in flight: OpenVINO FP32 in Triton with a binary tensor has 50% higher" in second
    assert "No difference in median latency" in five(FP32_ALONE, otherwise=Verdict.NOT_FOUND)[1]


def test_05_with_bf16_alone_is_answered_by_bf16(five):
    models = [*MODELS, "openclip_vit_b32_openvino_jpeg", "openclip_vit_b32_openvino_bf16_jpeg"]
    _, said = five(from_ports("127.0.0.1", models=models))
    assert said.startswith("1 in flight: OpenVINO BF16 in Triton takes 50% longer than OpenVINO FP32")
