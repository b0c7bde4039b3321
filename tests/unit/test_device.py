"""The device benchmark: each engine that is here is timed, each that is not says why."""

import types
from pathlib import Path

import numpy as np
import pytest
from DEVICE import bench, engines, measures
from DEVICE.bench import DeviceBench
from DEVICE.plan import CEILINGS, FIDELITY, TimeBudget, plan
from DEVICE.table import _cache_name, _store, add_shares, as_row
from support.triton import save_graph

from photodup.bench.record.record import RunStore, load_points, load_records
from photodup.errors import PhotodupError
from photodup.study.precision import compiler

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module", autouse=True)
def small_ceilings():
    """Products and copies of a size that takes no time: what is tested is the table."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measures, "GEMM_SIZES", {"cuda": (64,), "cpu": (32, 64)})
        patch.setattr(measures, "COPY_MB", {"cuda": 1, "cpu": 1})
        yield


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """A tower of one convolution in place of ViT, and a graph: what is tested is the table, not the arithmetic."""
    tower = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 32, 32), torch.nn.Flatten()).eval()
    ends = ("image", ["n", 3, 224, 224]), ("embedding", ["n", 3, 1, 1])
    path = tmp_path_factory.mktemp("toy") / "toy.onnx"
    save_graph(path, [("GlobalAveragePool", ["image"], "embedding")], *ends)
    return tower, lambda: path


@pytest.fixture
def store(tmp_path):
    with RunStore(tmp_path / "kit", model={"digest": "toy"}) as store:
        yield store


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).standard_normal((6, 3, 224, 224), np.float32)


@pytest.fixture(scope="module")
def lines(toy, images, tmp_path_factory):
    with RunStore(tmp_path_factory.mktemp("run")) as store:
        return list(DeviceBench(*toy, store, batches=(1, 4), repeats=3, images=images).lines())


def parts(lines) -> set[tuple[str, str]]:
    return {(line["engine"], line["precision"]) for line in lines}


def test_every_planned_line_is_measured_or_explained(lines):
    assert parts(lines) == {(p.engine, p.precision) for p in plan("cpu")}
    assert (CEILINGS, "copy") in parts(lines)
    add_shares(lines, {})
    for line in lines:
        of, measured = as_row(line), {"latency_ms_p50", "tflops", "gb_per_s", "cosine_min"}
        assert ("not_run" in line) == (of.value is None) != bool(line.keys() & measured)
        assert line.get("not_run", "a reason")
        assert of.name.startswith(f"{line['engine']} {line['precision']}")
        assert of.because or line["engine"] == CEILINGS


def test_cpu_engines_are_timed_at_every_batch_size(lines):
    for engine in ("pytorch-eager", "onnx-cpu"):
        timed = [x for x in lines if x["engine"] == engine and x["precision"] == "fp32"]
        assert [x["batch"] for x in timed] == [1, 4]
        assert all(x["n"] == 3 and x["clock"] == "wall" for x in timed)
        assert timed[1]["throughput_images_per_s"] == pytest.approx(4000 / timed[1]["latency_ms_p50"])


def test_ceilings_are_measured_by_precision(lines):
    found = {x["precision"]: x for x in lines if x["engine"] == CEILINGS and "not_run" not in x}
    assert found["copy"]["gb_per_s"] > 0
    for precision in ("fp32", "bf16"):
        assert found[precision]["tflops"] == max(found[precision]["tflops_by_size"].values())
    assert "tf32" not in found


def test_fidelity_compares_a_precision_with_float32_on_the_same_device(lines, toy, images):
    (found,) = (x for x in lines if (x["engine"], x["precision"]) == (FIDELITY, "bf16"))
    exact = toy[0](torch.from_numpy(images)).detach().numpy()
    low = toy[0].to(torch.bfloat16)(torch.from_numpy(images).bfloat16()).detach().float().numpy()
    toy[0].float()
    cosine = (exact * low).sum(1) / np.linalg.norm(exact, axis=1) / np.linalg.norm(low, axis=1)
    assert found["n"] == 6 and found["against"] == "cpu fp32"
    assert found["cosine_min"] == pytest.approx(cosine.min(), abs=1e-4)
    assert found["cosine_min"] < found["cosine_median"] <= 1 and found["shift_max"] > 0


def test_fidelity_is_also_held_against_the_simulated_rounding(toy, images):
    exact = measures.embed(toy[0], images, "fp32", "cpu")
    found = measures.fidelity(toy[0], images, "bf16", "cpu", {"bf16": exact}.get)
    assert found["simulated"]["cosine_min"] == pytest.approx(found["cosine_min"])
    assert "simulated" not in measures.fidelity(toy[0], images, "bf16", "cpu", {}.get)


def test_a_step_is_kept_at_once_and_not_measured_again(toy, tmp_path, monkeypatch):
    """Stopped after three lines, the last of which was lost: the next start measures what is missing."""
    asked = ["pytorch-eager"], ["fp32", "bf16"]
    with RunStore(tmp_path / "kit") as store:
        first = DeviceBench(*toy, store, batches=(1, 2), repeats=2).lines(*asked)
        kept = [next(first) for _ in range(3)]
        assert len(list(load_records(tmp_path / "kit"))) == 3  # three steps while it still ran
    (third,) = (tmp_path / "kit" / "records").glob("device-pytorch-eager-bf16-b1-*.json")
    third.unlink()
    opened = []
    real = bench.open_torch
    monkeypatch.setattr(bench, "open_torch", lambda v, e, p, d: opened.append(p) or real(v, e, p, d))
    with RunStore(tmp_path / "kit") as store:
        again = list(DeviceBench(*toy, store, batches=(1, 2), repeats=2).lines(*asked))
    assert opened == ["bf16"]  # both of float32 were there
    assert again[:2] == kept[:2]
    wanted = [(precision, batch) for precision in ("fp32", "bf16") for batch in (1, 2)]
    assert [(x["precision"], x["batch"]) for x in again] == wanted
    assert len(list(load_records(tmp_path / "kit"))) == 4


def test_lines_of_other_weights_are_measured_again(toy, store):
    for weights in ("one", "other"):
        asked = DeviceBench(*toy, store, batches=(1,), repeats=1, facts={"weights": weights})
        list(asked.lines(["onnx-cpu"]))
    assert len(list(load_records(store.directory))) == 2


def test_steps_are_records_of_a_run_and_failures_are_tried_again(toy, store):
    found = list(DeviceBench(*toy, store, batches=(1,), repeats=1).lines(["pytorch-eager", "onnx-cuda"]))
    records = {record["key"]: record for record in load_records(store.directory)}
    assert len(found) == len(plan("cpu", ["pytorch-eager", "onnx-cuda"]))
    assert records["device pytorch-eager fp32 b1"]["result"]["latency_ms_p50"] > 0
    assert records["device onnx-cuda fp32 b1"]["status"] == "failed"
    assert "onnxruntime-gpu" in records["device onnx-cuda fp32 b1"]["error"]
    assert load_points(store.directory).empty  # no load was offered to a server
    timed = records["device pytorch-eager fp32 b1"]["result"]
    (same,) = (x for x in found if (x["engine"], x["precision"]) == ("pytorch-eager", "fp32"))
    assert timed["latency_ms_p50"] == same["latency_ms_p50"]
    configs = [record["config"] for record in records.values() if record["status"] == "failed"]
    assert {x["precision"] for x in configs if x["engine"] == "onnx-cuda"} == {"fp32", "fp16", "tf32"}


def test_a_budget_cuts_at_the_end_and_says_what(toy, store, monkeypatch):
    now = [0.0]
    clock = types.SimpleNamespace(perf_counter=lambda: now[0])
    monkeypatch.setattr("DEVICE.plan.time", clock)
    budget = TimeBudget(1)

    def opened(*_):
        def timed(batch, repeats):
            now[0] += 25
            return engines.Timing([1.0], "wall")

        return timed

    monkeypatch.setattr(bench, "open_torch", opened)
    monkeypatch.setattr(bench, "time", clock)
    found = list(DeviceBench(*toy, store, batches=(1, 8), repeats=1, budget=budget).lines(["pytorch-eager"]))
    assert [(x["precision"], x["batch"]) for x in found] == [("fp32", 1), ("fp32", 8)]
    assert "budget of 1 minutes" in budget.sentence()
    assert "pytorch-eager tf32 b1, pytorch-eager tf32 b8" in budget.sentence()
    assert " fp32" not in budget.sentence()


def test_the_least_important_comes_last():
    order = [part.engine for part in plan("cuda")]
    assert order[0] == CEILINGS
    assert order.index("pytorch-eager") < order.index("pytorch-cuda-graph") < order.index(FIDELITY)
    assert order.index("onnx-cuda") < order.index("pytorch-compile") < order.index("onnx-tensorrt")
    assert ("onnx-cuda", "fp16") in {(p.engine, p.precision) for p in plan("cuda")}


def test_only_what_is_asked_for(toy, store):
    found = list(DeviceBench(*toy, store, batches=(1,), repeats=1).lines(["onnx-cpu"], ["fp32"]))
    assert parts(found) == {("onnx-cpu", "fp32")}
    with pytest.raises(PhotodupError, match=r"no engine 'pytorch'.*pytorch-eager"):
        plan("cpu", ["pytorch"])
    with pytest.raises(PhotodupError, match=r"no precision 'fp8'"):
        plan("cpu", [], ["fp8"])


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16"])
def test_float32_means_float32_also_in_convolutions(precision):
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    with engines.arithmetic(precision):
        assert torch.backends.cudnn.allow_tf32 is (precision == "tf32")
        assert torch.get_float32_matmul_precision() == ("high" if precision == "tf32" else "highest")
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == before


def test_every_shape_is_compiled_for_itself(toy, store, monkeypatch):
    """A second shape would make PyTorch compile for any size; a ninth of one module would run eagerly."""
    asked, resets = [], []
    monkeypatch.setattr(torch, "compile", lambda network, **how: asked.append(how) or network)
    monkeypatch.setattr(torch._dynamo, "reset", lambda: resets.append(1))
    compiled = DeviceBench(*toy, store, batches=(1, 2, 3), repeats=1, compile_on_cpu=True)
    found = list(compiled.lines(["pytorch-compile"], ["fp32"]))
    assert [x["batch"] for x in found] == [1, 2, 3]
    assert asked == [{"dynamic": False, "fullgraph": True}] * 3 and len(resets) == 3


@pytest.mark.parametrize("makers", [{"fp32": 67.0, "bf16": 989.4}, {}])
def test_shares_are_of_the_measured_peak_of_the_same_precision(makers):
    lines = [
        {"engine": CEILINGS, "precision": "copy", "gb_per_s": 4000.0},
        {"engine": CEILINGS, "precision": "bf16", "tflops": 790.0},
        {"engine": CEILINGS, "precision": "fp32", "tflops": 50.0},
        {"engine": "pytorch-eager", "precision": "bf16", "throughput_images_per_s": 20_000.0},
        {"engine": "pytorch-eager", "precision": "fp16", "throughput_images_per_s": 20_000.0},
    ]
    add_shares(lines, makers)
    assert lines[3]["tflops"] == pytest.approx(20 * 8.82)
    assert lines[3]["share_of_measured_peak"] == pytest.approx(20 * 8.82 / 790)
    assert lines[3]["share_of_makers_peak"] == (pytest.approx(20 * 8.82 / 989.4) if makers else None)
    assert lines[4]["share_of_measured_peak"] is None  # no ceiling of that precision was measured


@pytest.mark.parametrize("name", ["reference-cpu", "published", "A B"])
def test_the_projects_own_runs_are_left_alone(tmp_path, name):
    with pytest.raises(PhotodupError, match=r"is no (run )?name"):
        _store(name, tmp_path, {})


def test_reasons_name_what_is_missing(lines):
    why = {(x["engine"], x["precision"]): x["not_run"] for x in lines if "not_run" in x}
    assert "NVIDIA" in why["pytorch-cuda-graph", "fp32"]
    assert "tensor cores" in why["pytorch-eager", "tf32"]
    assert "--compile" in why["pytorch-compile", "fp32"]
    assert "onnxruntime-gpu" in why["onnx-tensorrt", "fp16"]
    assert ("openvino", "fp32") not in why


def test_a_broken_graph_is_a_line_and_not_the_end(tmp_path, store):
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no graph")
    lines = list(DeviceBench(torch.nn.Flatten(), lambda: broken, store, batches=(1,), repeats=1).lines())
    assert any("not_run" in x for x in lines if x["engine"] == "onnx-cpu")
    assert any("latency_ms_p50" in x for x in lines if x["engine"] == "pytorch-eager")


@pytest.mark.parametrize(("said", "words"), [
    ("CUDA out of memory. Tried to allocate 20 GiB", "--batch"),
    ("CUDNN_STATUS_ALLOC_FAILED", "--batch"),
    ("The NVIDIA driver on your system is too old (found version 11040).", "update the driver"),
    ("CUDA driver version is insufficient for CUDA runtime version", "update the driver"),
    ("CUDA error: no kernel image is available for execution on the device", "no kernels for this GPU"),
    ("Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU", "nvidia-smi"),
    ("Torch not compiled with CUDA enabled", "TORCH_INDEX"),
    ("libcudnn.so.9: cannot open shared object file: No such file or directory", "cuDNN"),
    ("The engine plan file is generated on an incompatible device, expecting compute 8.9", "build/trt"),
    ("Shape mismatch attempting to re-use buffer", "Shape mismatch"),
])  # fmt: skip
def test_what_a_gpu_complains_of_gets_a_remedy(said, words):
    assert words in bench._reason(RuntimeError(said))


def test_without_a_gpu_every_cuda_line_says_so_and_nothing_stops(tmp_path, store):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    broken = tmp_path / "none.onnx"
    broken.write_bytes(b"")
    asked = DeviceBench(torch.nn.Flatten(), lambda: broken, store, "cuda", batches=(1,), repeats=1)
    lines = list(asked.lines())
    assert parts(lines) == {(p.engine, p.precision) for p in plan("cuda") if p.engine != FIDELITY}
    assert all("not_run" in x for x in lines)
    eager = next(x for x in lines if x["engine"] == "pytorch-eager")["not_run"]
    assert "TORCH_INDEX" in eager or "nvidia-smi" in eager or "driver" in eager


def test_the_size_that_does_not_fit_is_named_and_smaller_ones_stay(store, monkeypatch):
    """No GPU here to fill: the engine that runs out above four images is put in place of PyTorch's."""

    def opened(batch, repeats):
        if batch > 4:
            raise RuntimeError("CUDA out of memory")
        return engines.Timing([1.0] * repeats, "device", 1.0)

    monkeypatch.setattr(bench, "open_torch", lambda *_: opened)
    asked = DeviceBench(torch.nn.Flatten(), lambda: Path("no.onnx"), store, batches=(32, 8, 4, 1), repeats=2)
    found = list(asked.lines())
    eager = [x for x in found if (x["engine"], x["precision"]) == ("pytorch-eager", "fp32")]
    assert [(x["batch"], "not_run" in x) for x in eager] == [(1, False), (4, False), (8, True)]
    assert "--batch" in eager[-1]["not_run"]


def test_engines_of_another_gpu_are_not_found_in_the_cache():
    asked = ("NVIDIA A100-SXM4-40GB", "1.31.1"), ("NVIDIA L4", "1.31.1"), ("NVIDIA L4", "1.32.0")
    names = [_cache_name({"gpus": [{"name": gpu}], "packages": {"onnxruntime": v}}) for gpu, v in asked]
    assert names[0] == "nvidia-a100-sxm4-40gb-ort-1-31-1"
    assert len(set(names)) == 3


def test_tensorrt_profiles_cover_the_batches(tmp_path):
    settings = engines.settings("onnx-tensorrt", "fp16", tmp_path, 32)
    assert settings["trt_profile_min_shapes"] == "image:1x3x224x224"
    assert settings["trt_profile_max_shapes"] == "image:32x3x224x224"
    assert settings["trt_fp16_enable"] == "True" and settings["trt_cuda_graph_enable"] == "False"


@pytest.mark.parametrize(
    ("engine", "key"), [("onnx-cuda", "enable_cuda_graph"), ("onnx-tensorrt", "trt_cuda_graph_enable")]
)
def test_a_cuda_graph_is_asked_of_the_provider_and_stands_after_its_engine(engine, key):
    eager, graph = (engines.settings(name, "fp32", None, 8) for name in (engine, f"{engine}-graph"))
    order = [p.engine for p in plan("cuda")]
    assert {k for k in graph if graph[k] != eager[k]} == {key}
    assert order.index(engine) < order.index(f"{engine}-graph")


def test_an_engine_per_size_is_built_inside_requests_and_one_for_all_sizes_before_them(toy, tmp_path):
    asked = toy[1](), [1, 3, 1, 3]
    each = compiler.alone(compiler.answer_sizes, *asked, True, str(tmp_path / "cache"))["requests"]
    one = compiler.alone(compiler.answer_sizes, *asked, False)["requests"]
    assert [(r["batch"], r["built"]) for r in each] == [(1, True), (3, True), (1, False), (3, False)]
    assert [(r["batch"], r["built"]) for r in one] == [(1, False), (3, False), (1, False), (3, False)]
    assert all(r["latency_ms"] > 0 and r["memory_mb"] > 0 for r in each + one)
    assert list((tmp_path / "cache").iterdir())


@pytest.mark.parametrize("engine", ["onnx", "fp32"])
def test_an_engine_is_built_and_timed_at_each_batch_size(toy, engine):
    found = compiler.alone(compiler.time_batches, toy[1](), engine, [1, 2], 3)
    assert found["build_s"] > 0 and [len(row["latencies_ms"]) for row in found["batches"]] == [3, 3]
