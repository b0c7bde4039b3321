"""An exported file computes what PyTorch computes, is whole, and is made once."""

import json
import shutil

import numpy as np
import pytest

from photodup.core.errors import PhotodupError
from photodup.embedding.engines import export as exporting
from photodup.embedding.engines.encoder import load_model
from photodup.embedding.engines.export import (
    VARIANTS,
    export,
    exported_path,
    is_intact,
    known_export,
    verify_export,
)
from photodup.embedding.engines.pytorch import TorchModel
from photodup.embedding.imaging import normalize

PIXELS = np.random.default_rng(5).integers(0, 256, (5, 3, 224, 224), dtype=np.uint8)


def tiny_model(seed: int = 0, pretrained: str = "tiny") -> TorchModel:
    """A real `TorchModel` whose tower has 100,000 weights: the exporter takes seconds, the file is small."""
    import torch

    class Tower(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = torch.nn.Conv2d(3, 16, 32, 32)
            self.projection = torch.nn.Linear(16 * 49, 64)

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            return self.projection(torch.tanh(self.patches(image)).flatten(1))

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        tower = Tower().eval().requires_grad_(False)
    model = TorchModel.__new__(TorchModel)
    model.name, model.pretrained, model.is_random, model.device = "tiny", pretrained, False, "cpu"
    model.visual, model.dim = tower, 64
    return model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exports")
    model = tiny_model()
    return model, folder, export(model, folder)


def test_openclip_in_every_variant_is_openclip(real_model, real_exports):
    model, files = real_model, real_exports
    wanted = model.embed(normalize(PIXELS))
    for variant, path in files.items():
        loaded = load_model(pretrained=f"onnx:{path}", device="cpu")
        found = loaded.embed_pixels(PIXELS)
        assert np.linalg.norm(found - wanted, axis=1).max() < 1e-3, variant
        assert (found * wanted).sum(axis=1).min() > 0.99999
        assert loaded.digest == model.digest and loaded.is_random and loaded.name == "ViT-B-32"
        told = json.loads(path.with_suffix(".json").read_text())
        assert told["max_relative_error"] < 1e-3 and told["batches"] == [1, 3, 8]


# Operators of the graph that TensorRT 10 takes (docs/operators.md of onnx/onnx-tensorrt): another one splits the engine,
# and the second part has no profile of shapes.
TENSORRT = {
    "Add", "Cast", "Clip", "Concat", "Conv", "Div", "Erf", "Expand", "Gather", "Gemm", "LayerNormalization", "MatMul",
    "Mul", "ReduceL2", "Reshape", "Shape", "Slice", "Softmax", "Squeeze", "Sub", "Transpose", "Unsqueeze",
}  # fmt: skip


def test_openclip_is_one_graph_for_tensorrt(real_exports):
    """Of these operators, Shape and the arithmetic take no uint8."""
    import onnx

    for variant, path in real_exports.items():
        nodes = onnx.load(path, load_external_data=False).graph.node
        assert {node.op_type for node in nodes} <= TENSORRT, variant
        readers = [node.op_type for node in nodes if "image" in node.input]
        assert readers == ["Cast"] or variant == "fp32", (variant, readers)


def test_an_export_is_known_again_by_what_it_was_made_from(tiny, tmp_path, monkeypatch):
    """Without PyTorch: another name, another version of it or a damaged file has to ask it again."""
    path = tmp_path / tiny[2]["fp32"].name
    for suffix in (".onnx", ".json"):
        shutil.copy(tiny[2]["fp32"].with_suffix(suffix), tmp_path)
    assert known_export("tiny", "tiny", tmp_path) == path and known_export("tiny", "other", tmp_path) is None
    path.write_bytes(path.read_bytes()[:-1])
    assert known_export("tiny", "tiny", tmp_path) is None
    assert known_export("tiny", "tiny", tmp_path, is_read=False) == path
    monkeypatch.setattr(exporting, "version", lambda library: "another")
    assert known_export("tiny", "tiny", tmp_path, is_read=False) is None


@pytest.mark.parametrize("variant", VARIANTS)
def test_tensors_are_named_the_batch_is_free_and_the_weights_are_inside(tiny, variant):
    import onnx

    _, folder, files = tiny
    graph = onnx.load(files[variant]).graph
    (image,), (embedding,) = graph.input, graph.output
    assert (image.name, embedding.name) == ("image", "embedding")
    assert image.type.tensor_type.shape.dim[0].dim_param
    assert [d.dim_value for d in image.type.tensor_type.shape.dim][1:] == [3, 224, 224]
    kind = {"fp32": onnx.TensorProto.FLOAT, "fp16": onnx.TensorProto.FLOAT16, "uint8": onnx.TensorProto.UINT8}
    assert image.type.tensor_type.elem_type == kind[variant]
    assert embedding.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    assert sorted(p.suffix for p in folder.iterdir()) == [".json"] * 3 + [".onnx"] * 3  # no remains


def test_nothing_is_exported_twice(tiny, monkeypatch):
    model, folder, files = tiny
    monkeypatch.setattr(exporting, "_export_one", lambda *_: pytest.fail("exported again"))
    assert export(model, folder) == files


def test_other_weights_have_another_name(tiny):
    _, folder, files = tiny
    other = tiny_model(seed=1)
    assert exported_path(other, folder, "fp32") != files["fp32"]
    assert exported_path(tiny_model(), folder, "fp32") == files["fp32"]


@pytest.mark.parametrize("damage", ["cut", "flipped", "no sidecar", "half a sidecar"])
def test_a_damaged_file_is_noticed_and_made_again(tiny, tmp_path, damage):
    model, folder, files = tiny
    path = tmp_path / files["fp32"].name
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    assert is_intact(path)
    sidecar = path.with_suffix(".json")
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "flipped":
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    elif damage == "no sidecar":
        sidecar.unlink()
    else:
        sidecar.write_text(sidecar.read_text()[:40])
    assert not is_intact(path)
    assert is_intact(export(model, tmp_path, ["fp32"])["fp32"])


def test_a_file_that_computes_something_else_never_gets_its_name(tmp_path, monkeypatch):
    """Planted fault: the graph is traced from other weights than those it is compared with."""
    model, other = tiny_model(), tiny_model(seed=1)
    trace = exporting._trace
    monkeypatch.setattr(exporting, "_trace", lambda _, variant: trace(other, variant))
    with pytest.raises(PhotodupError, match=r"differs from PyTorch by .*it was not kept"):
        export(model, tmp_path, ["fp32"])
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_two_in_a_thousand_is_noticed(tiny):
    model, _, files = tiny

    class Off:
        name = "tiny"

        def embed(self, images: np.ndarray) -> np.ndarray:
            right = model.embed(images)
            return right + 2e-3 * np.roll(right, 1, axis=1)

    verify_export(files["fp32"], model, "fp32")
    with pytest.raises(PhotodupError, match=r"more than 0\.1%"):
        verify_export(files["fp32"], Off(), "fp32")


def test_an_interrupted_export_leaves_nothing(tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(exporting, "verify_export", interrupt)
    with pytest.raises(KeyboardInterrupt):
        export(tiny_model(), tmp_path, ["fp32"])
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path):
    blocked = tmp_path / "file"
    blocked.touch()
    with pytest.raises(PhotodupError, match="Cannot write"):
        export(tiny_model(), blocked / "models", ["fp32"])


def test_wrong_requests_are_one_sentence(tiny, tmp_path):
    model, _, files = tiny
    with pytest.raises(PhotodupError, match=r"No variant fp8: choose from fp32, uint8, fp16"):
        export(model, tmp_path, ["fp8"])
    with pytest.raises(PhotodupError, match="exported already"):
        export(load_model(pretrained=f"onnx:{files['fp32']}"), tmp_path)


def test_the_servers_runtime_is_not_left_behind(tiny):
    """Triton's images run older ONNX Runtimes than the one here; opset 18 is in 1.17 (early 2024)."""
    import onnx

    model = onnx.load(tiny[2]["fp32"])
    assert [o.version for o in model.opset_import if o.domain in ("", "ai.onnx")] == [18]
    assert model.ir_version <= 10
