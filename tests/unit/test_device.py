"""The device benchmark: each engine that is here is timed, each that is not says why."""

import json

import pytest

from photodup.errors import PhotodupError
from photodup.selfbench import device

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    """A tower of one convolution in place of ViT: what is tested is the table, not the arithmetic."""
    import onnx
    from onnx import TensorProto, helper

    tower = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 32, 32), torch.nn.Flatten()).eval()
    info = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("image", ["n", 3, 224, 224]), ("embedding", ["n", 3, 1, 1]))
    ]
    node = helper.make_node("GlobalAveragePool", ["image"], ["embedding"])
    graph = helper.make_graph([node], "toy", info[:1], info[1:])
    path = tmp_path_factory.mktemp("toy") / "toy.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return list(device.bench(tower, path, device="cpu", batches=(1, 4), repeats=3))


def test_every_planned_line_is_timed_or_explained(lines):
    seen = {(line["engine"], line["precision"]) for line in lines}

    assert seen == set(device._plan("cpu"))
    assert all(line["not_run"] if "not_run" in line else line["latency_ms_p50"] > 0 for line in lines)


def test_cpu_engines_are_timed_at_every_batch_size(lines):
    for engine in ("pytorch-eager", "onnx-cpu"):
        timed = [x for x in lines if x["engine"] == engine and x["precision"] == "fp32"]
        assert [x["batch"] for x in timed] == [1, 4]
        assert all(x["n"] == 3 and x["clock"] == "wall" for x in timed)
        assert timed[1]["throughput_images_per_s"] == pytest.approx(4000 / timed[1]["latency_ms_p50"])


def test_reasons_name_what_is_missing(lines):
    why = {(x["engine"], x["precision"]): x["not_run"] for x in lines if "not_run" in x}

    assert "NVIDIA" in why["pytorch-cuda-graph", "fp32"]
    assert "tensor cores" in why["pytorch-eager", "tf32"]
    assert "--compile" in why["pytorch-compile", "fp32"]
    assert "onnxruntime-gpu" in why["onnx-tensorrt", "fp16"]
    assert "make install" in why["onnx-openvino", "fp32"]


def test_a_broken_graph_is_a_line_and_not_the_end(tmp_path):
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no graph")
    lines = list(device.bench(torch.nn.Flatten(), broken, batches=(1,), repeats=1))

    assert any("not_run" in x for x in lines if x["engine"] == "onnx-cpu")
    assert any("latency_ms_p50" in x for x in lines if x["engine"] == "pytorch-eager")


@pytest.mark.parametrize(
    ("said", "words"),
    [
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
    ],
)
def test_what_a_gpu_complains_of_gets_a_remedy(said, words):
    assert words in device._reason(RuntimeError(said))


def test_without_a_gpu_every_cuda_line_says_so_and_nothing_stops(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    broken = tmp_path / "none.onnx"
    broken.write_bytes(b"")
    lines = list(device.bench(torch.nn.Flatten(), broken, device="cuda", batches=(1,), repeats=1))

    assert {(x["engine"], x["precision"]) for x in lines} == set(device._plan("cuda"))
    assert all("not_run" in x for x in lines)
    eager = next(x for x in lines if x["engine"] == "pytorch-eager")["not_run"]
    assert "TORCH_INDEX" in eager or "nvidia-smi" in eager or "driver" in eager


def test_the_size_that_does_not_fit_is_named_and_smaller_ones_stay(tmp_path, monkeypatch):
    """No GPU here to fill: the engine that runs out above four images is put in place of PyTorch's."""

    def opened(batch, repeats):
        if batch > 4:
            raise RuntimeError("CUDA out of memory")
        return [1.0] * repeats, "device", 1.0

    monkeypatch.setattr(device, "_torch", lambda *_: opened)
    found = list(device.bench(torch.nn.Flatten(), tmp_path / "no.onnx", batches=(32, 8, 4, 1), repeats=2))
    eager = [x for x in found if (x["engine"], x["precision"]) == ("pytorch-eager", "fp32")]

    assert [(x["batch"], "not_run" in x) for x in eager] == [(1, False), (4, False), (8, True)]
    assert "--batch" in eager[-1]["not_run"]


def test_engines_of_another_gpu_are_not_found_in_the_cache():
    from photodup.study.parts.device_table import _cache_name

    names = [
        _cache_name({"gpus": [{"name": gpu}], "packages": {"onnxruntime": version}})
        for gpu, version in (
            ("NVIDIA A100-SXM4-40GB", "1.31.1"),
            ("NVIDIA L4", "1.31.1"),
            ("NVIDIA L4", "1.32.0"),
        )
    ]
    assert names[0] == "nvidia-a100-sxm4-40gb-ort-1-31-1"
    assert len(set(names)) == 3


def test_tensorrt_profiles_cover_the_batches(tmp_path):
    settings = device._settings("onnx-tensorrt", "fp16", tmp_path, 32)

    assert settings["trt_profile_min_shapes"] == "image:1x3x224x224"
    assert settings["trt_profile_max_shapes"] == "image:32x3x224x224"
    assert settings["trt_fp16_enable"] == "True"


def test_openvino_without_its_python_is_one_sentence(tmp_path):
    with pytest.raises(PhotodupError, match="make install"):
        device.run_openvino(tmp_path / "python", tmp_path / "graph.onnx")


def test_openvino_reports_a_graph_it_cannot_read(tmp_path):
    from photodup.study.parts.device_table import openvino_python

    python = openvino_python()
    if python is None:
        pytest.skip("no OpenVINO beside this Python (make install)")
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no graph")
    with pytest.raises(PhotodupError, match=r"cannot run broken\.onnx"):
        device.run_openvino(python, broken)


def test_table_writes_what_it_printed(tmp_path):
    from photodup.study.parts import device_table

    with pytest.raises(PhotodupError, match="another file"):
        device_table._write(tmp_path / "none" / "file.json", {})
    device_table._write(tmp_path / "file.json", {"lines": []})
    assert json.loads((tmp_path / "file.json").read_text()) == {"lines": []}


def test_an_engine_per_size_is_built_inside_requests_and_one_for_all_sizes_before_them(tmp_path):
    import onnx
    from onnx import TensorProto, helper

    from photodup.study.parts.device_table import openvino_python

    python = openvino_python()
    if python is None:
        pytest.skip("no OpenVINO beside this Python (make install)")
    info = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("image", ["n", 3, 224, 224]), ("embedding", ["n", 3, 1, 1]))
    ]
    node = helper.make_node("GlobalAveragePool", ["image"], ["embedding"])
    graph = helper.make_graph([node], "toy", info[:1], info[1:])
    path = tmp_path / "toy.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    asked = ["--requests", "1", "3", "1", "3", "--engines"]

    each = device.run_openvino(python, path, *asked, "per-size")["requests"]
    one = device.run_openvino(python, path, *asked, "one")["requests"]
    assert [(r["batch"], r["built"]) for r in each] == [(1, True), (3, True), (1, False), (3, False)]
    assert [(r["batch"], r["built"]) for r in one] == [(1, False), (3, False), (1, False), (3, False)]
    assert all(r["latency_ms"] > 0 and r["memory_mb"] > 10 for r in each + one)


def test_what_did_not_run_is_said_once_for_each_reason():
    from photodup.study.parts.device_table import _not_run

    lines = [
        {"engine": "a", "precision": "fp32", "batch": 1, "latency_ms_p50": 1.0},
        {"engine": "a", "precision": "fp32", "batch": 8, "not_run": "out of memory"},
        {"engine": "b", "precision": "fp16", "not_run": "no such GPU"},
        {"engine": "b", "precision": "bf16", "not_run": "no such GPU"},
    ]
    assert _not_run(lines) == [
        "not run here: a fp32 from batch 8 on: out of memory.",
        "not run here: b fp16, bf16: no such GPU.",
    ]
