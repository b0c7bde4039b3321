"""The kit's timing of engines: each engine that is here is timed, each that is not is a record that says why."""

import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from support.paths import ROOT
from support.triton import save_graph

from photodup.bench.record.store import RunStore, figures_of_run, load_records
from photodup.core.errors import PhotodupError
from photodup.study.precision import compiler

sys.path.insert(0, str(ROOT / "tools" / "gpu_kit"))

import device
import engines
from device import CEILINGS, FIDELITY, PRECISIONS_OF, Budget, Device

ALL = [CEILINGS, "pytorch-eager", "pytorch-cuda-graph", FIDELITY, "onnx-cpu", "onnx-cuda"]


@pytest.fixture(scope="module", autouse=True)
def small_ceilings():
    """Products and copies of a size that takes no time: what is tested is the records."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "GEMM_SIZES", {"cuda": (64,), "cpu": (32, 64)})
        patch.setattr(engines, "COPY_MB", {"cuda": 1, "cpu": 1})
        yield


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).standard_normal((6, 3, 224, 224), np.float32)


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")  # not in every process that collects tests: it takes 3 s of CPU


@pytest.fixture(scope="module")
def toy(tmp_path_factory, torch):
    """A tower of one convolution in place of ViT, and a graph: what is tested is the records, not the arithmetic."""
    tower = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 32, 32), torch.nn.Flatten()).eval()
    ends = ("image", ["n", 3, 224, 224]), ("embedding", ["n", 3, 1, 1])
    path = tmp_path_factory.mktemp("toy") / "toy.onnx"
    save_graph(path, [("GlobalAveragePool", ["image"], "embedding")], *ends)
    return tower, lambda precision: path


@pytest.fixture
def measure(toy, images, tmp_path):
    """Measure engines of the toy into one run; return its records by key."""

    def measure(
        names, precisions=(), *, budget=None, visual=toy[0], graph=toy[1], name="cpu", batches=(1,), **facts
    ):
        with RunStore(tmp_path / "kit", model={"digest": "toy"}) as store:
            options = (store, batches, 3, tmp_path, images, lambda precision: None, facts)
            Device(name, visual, graph, *options).measure(names, precisions, budget or Budget(60))
        return {record["key"].removeprefix("device "): record for record in load_records(tmp_path / "kit")}

    return measure


def test_every_line_is_measured_or_explained(measure, tmp_path):
    records = measure(ALL, batches=(1, 4))
    assert {re.sub(r" b\d+$", "", key) for key in records} == {
        f"{e} {p}" for e in ALL for p in PRECISIONS_OF[e]
    }
    assert all(record["status"] == "ok" or record["error"] for record in records.values())
    for name in ("pytorch-eager fp32", "onnx-cpu fp32"):
        one, four = (records[f"{name} b{batch}"]["result"] for batch in (1, 4))
        assert one["n"] == four["n"] == 3 and one["clock"] == four["clock"] == "wall"
        assert four["throughput_images_per_s"] == pytest.approx(4000 / four["latency_ms_p50"])
    assert figures_of_run(tmp_path / "kit").empty, "no load was offered to a server"
    assert records["ceilings copy"]["result"]["gb_per_s"] > 0
    for precision in ("fp32", "bf16"):
        product = records[f"ceilings {precision}"]["result"]
        assert product["tflops"] == max(product["tflops_by_size"].values())
    assert "tensor cores" in records["ceilings tf32"]["error"]
    assert "NVIDIA" in records["pytorch-cuda-graph fp32 b1"]["error"]
    assert "onnxruntime-gpu" in records["onnx-cuda fp32 b1"]["error"]


def test_fidelity_compares_a_precision_with_float32_on_the_same_device(measure, toy, images, torch):
    measured = measure([FIDELITY], ["bf16"])["fidelity bf16"]["result"]
    exact = toy[0](torch.from_numpy(images)).detach().numpy()
    low = toy[0].to(torch.bfloat16)(torch.from_numpy(images).bfloat16()).detach().float().numpy()
    toy[0].float()
    cosine = (exact * low).sum(1) / np.linalg.norm(exact, axis=1) / np.linalg.norm(low, axis=1)
    assert measured["n"] == 6 and measured["against"] == "cpu fp32"
    assert measured["cosine_min"] == pytest.approx(cosine.min(), abs=1e-4)
    assert measured["cosine_min"] < measured["cosine_median"] <= 1 and measured["shift_max"] > 0


def test_fidelity_is_also_held_against_the_simulated_rounding(toy, images):
    exact = engines.embed(toy[0], images, "fp32", "cpu")
    measured = engines.fidelity(toy[0], images, "bf16", "cpu", exact)
    assert measured["simulated"]["cosine_min"] == pytest.approx(measured["cosine_min"])
    assert "simulated" not in engines.fidelity(toy[0], images, "bf16", "cpu")


def test_a_line_is_kept_at_once_and_not_measured_again(measure, tmp_path, monkeypatch):
    """One of four lines was lost: the next start measures that one alone."""
    asked = ["pytorch-eager"], ["fp32", "bf16"]
    first = measure(*asked, batches=(1, 2))
    (lost,) = (tmp_path / "kit" / "records").glob("device-pytorch-eager-bf16-b1-*.json")
    lost.unlink()
    opened, real = [], engines.open_torch
    monkeypatch.setattr(engines, "open_torch", lambda v, e, p, d: opened.append(p) or real(v, e, p, d))
    again = measure(*asked, batches=(1, 2))
    assert opened == ["bf16"] and again.keys() == first.keys() and len(again) == 4
    assert again["pytorch-eager fp32 b2"] == first["pytorch-eager fp32 b2"]


def test_lines_of_other_weights_are_measured_again(measure, tmp_path):
    for weights in ("one", "other"):
        measure(["onnx-cpu"], weights=weights)
    assert len(list(load_records(tmp_path / "kit"))) == 2


def test_a_budget_cuts_at_the_end_and_says_what(measure, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(device, "time", types.SimpleNamespace(perf_counter=lambda: now[0]))
    budget = Budget(1, _started=0.0)

    def opened(*_):
        def timed(batch, repeats):
            now[0] += 25
            return engines.Timing([1.0], "wall")

        return timed

    monkeypatch.setattr(engines, "open_torch", opened)
    assert list(measure(["pytorch-eager"], budget=budget, batches=(1, 8))) == [
        f"pytorch-eager fp32 b{n}" for n in (1, 8)
    ]
    assert budget.left_out[:2] == ["device pytorch-eager fp16 b1", "device pytorch-eager fp16 b8"]
    assert not any(" fp32" in name for name in budget.left_out)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16"])
def test_float32_means_float32_also_in_convolutions(precision, torch):
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    with engines.arithmetic(precision):
        assert torch.backends.cudnn.allow_tf32 is (precision == "tf32")
        assert torch.get_float32_matmul_precision() == ("high" if precision == "tf32" else "highest")
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == before


def test_every_shape_is_compiled_for_itself(measure, monkeypatch, torch):
    """A second shape would make PyTorch compile for any size; a ninth of one module would run eagerly."""
    asked, resets = [], []
    monkeypatch.setattr(torch, "compile", lambda network, **how: asked.append(how) or network)
    monkeypatch.setattr(torch._dynamo, "reset", lambda: resets.append(1))
    assert len(measure(["pytorch-compile"], ["fp32"], batches=(1, 2, 3))) == 3
    assert asked == [{"dynamic": False, "fullgraph": True}] * 3 and len(resets) == 3


def test_a_broken_graph_is_a_line_and_not_the_end(measure, tmp_path, torch):
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no graph")
    records = measure(
        ["onnx-cpu", "pytorch-eager"], visual=torch.nn.Flatten(), graph=lambda precision: broken
    )
    assert (
        records["onnx-cpu fp32 b1"]["status"] == "failed"
        and records["pytorch-eager fp32 b1"]["status"] == "ok"
    )


def test_without_a_gpu_every_cuda_line_says_so_and_nothing_stops(measure, torch):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    names = ["pytorch-eager", "pytorch-cuda-graph", "onnx-cuda", "onnx-tensorrt-graph"]
    records = measure(names, name="cuda", visual=torch.nn.Flatten())
    assert len(records) == sum(len(PRECISIONS_OF[name]) for name in names)
    assert all(record["status"] == "failed" for record in records.values())


def test_the_size_that_does_not_fit_is_named_and_smaller_ones_stay(measure, monkeypatch):
    """No GPU here to fill: the engine that runs out above four images is put in place of PyTorch's."""

    def opened(batch, repeats):
        if batch > 4:
            raise RuntimeError("CUDA out of memory")
        return engines.Timing([1.0] * repeats, "device", 1.0)

    monkeypatch.setattr(engines, "open_torch", lambda *_: opened)
    records = measure(["pytorch-eager"], ["fp32"], batches=(32, 8, 4, 1))
    states = {key: record["status"] for key, record in records.items()}
    assert states == {f"pytorch-eager fp32 b{n}": state for n, state in ((1, "ok"), (4, "ok"), (8, "failed"))}
    assert records["pytorch-eager fp32 b8"]["error"] == "CUDA out of memory"


def test_an_export_is_refused(monkeypatch, tiny_exports):
    monkeypatch.setenv("MODEL_PRETRAINED", f"onnx:{tiny_exports['fp32']}")
    with pytest.raises(PhotodupError, match="name PyTorch weights, of which all engines are made"):
        device.measure_device("cpu", "kit", ["onnx-cpu"], [], [1], 1, Budget(1))


def test_tensorrt_profiles_cover_the_batches(tmp_path):
    settings = engines.settings("onnx-tensorrt", "fp16", tmp_path, 32)
    assert settings["trt_profile_min_shapes"] == "image:1x3x224x224"
    assert settings["trt_profile_max_shapes"] == "image:32x3x224x224"
    assert settings["trt_fp16_enable"] == "1" and settings["trt_cuda_graph_enable"] == "0"


@pytest.mark.parametrize(
    ("engine", "key"), [("onnx-cuda", "enable_cuda_graph"), ("onnx-tensorrt", "trt_cuda_graph_enable")]
)
def test_a_cuda_graph_is_asked_of_the_provider(engine, key):
    eager, graph = (engines.settings(name, "fp32", Path("cache"), 8) for name in (engine, f"{engine}-graph"))
    assert {name for name in graph if graph[name] != eager[name]} == {key}


def test_an_engine_per_size_is_built_inside_requests_and_one_for_all_sizes_before_them(toy, tmp_path):
    asked = toy[1]("fp32"), [1, 3, 1, 3]
    each = compiler.in_own_process(compiler.answer_sizes, *asked, True, str(tmp_path / "cache"))["requests"]
    one = compiler.in_own_process(compiler.answer_sizes, *asked, False)["requests"]
    assert [(r["batch"], r["built"]) for r in each] == [(1, True), (3, True), (1, False), (3, False)]
    assert [(r["batch"], r["built"]) for r in one] == [(1, False), (3, False), (1, False), (3, False)]
    assert all(r["latency_ms"] > 0 and r["memory_mb"] > 0 for r in each + one)
    assert list((tmp_path / "cache").iterdir())
