"""Encoders from elsewhere: float or bytes, and no other model's thresholds."""

import os
import pickle
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from support.command import one_sentence
from support.triton import echo_graph, taking_pictures

from photodup.embedding.engines.encoder import load_model
from photodup.embedding.engines.onnx_runtime import input_dtype
from photodup.embedding.engines.reduced import source_of
from photodup.embedding.imaging import denormalize, normalize
from photodup.photos.search.models import THRESHOLDS

PIXELS = np.random.default_rng(0).integers(0, 256, (5, 3, 224, 224), dtype=np.uint8)


@pytest.mark.parametrize("engine", ["onnx", "openvino"])
def test_every_way_of_taking_pictures_gives_the_same_vectors(tmp_path, engine):
    if find_spec(engine if engine == "openvino" else "onnxruntime") is None:
        pytest.skip(f"{engine} is not installed")
    found = []
    for uint8 in (False, True):
        path = taking_pictures(tmp_path / f"{uint8}.onnx", uint8=uint8)
        model = load_model(f"onnx:{path}", engine=engine, device="cpu")
        found.append(model.embed_pixels(PIXELS))
        np.testing.assert_allclose(model.embed(normalize(PIXELS)), found[-1], atol=1e-5)
    for others in found[1:]:
        np.testing.assert_allclose(others, found[0], atol=1e-5)
    other = load_model(f"onnx:{path}", engine=engine, device="cpu").embed_pixels(PIXELS[:, :, :, ::-1].copy())
    assert np.abs(other - found[0]).max() > 1e-3, "or the test proves nothing"


def test_an_open_size_is_taken(tmp_path):
    open_ = taking_pictures(tmp_path / "open.onnx", size="side")
    assert load_model(f"onnx:{open_}", device="cpu").embed_pixels(PIXELS).shape == (5, 512)


@pytest.mark.parametrize("engine", ["onnx", "openvino"])
def test_a_file_that_is_no_encoder_is_one_sentence(tmp_path, engine):
    files = {
        echo_graph(tmp_path / "text.onnx", ["n", 77], "INT64"): "is no image encoder",
        echo_graph(tmp_path / "large.onnx", ["n", 3, 320, 320]): r"uint8 \[n, 3, 224, 224\] to ",
        echo_graph(tmp_path / "last.onnx", ["n", 224, 224, 3]): "is no image encoder",
        taking_pictures(tmp_path / "one.onnx", n=1): "is no image encoder",
        echo_graph(tmp_path / "map.onnx", ["n", 3, 224, 224]): r"to \[n, dim\]",
        tmp_path: "No ONNX file",
        tmp_path / "pipe": "No ONNX file",
        tmp_path / "cut.onnx": rf"{'OpenVINO ' * (engine != 'onnx')}cannot load .*cut\.onnx",
    }
    os.mkfifo(tmp_path / "pipe")  # reading it would wait for ever
    (tmp_path / "cut.onnx").write_bytes((tmp_path / "text.onnx").read_bytes()[:60])
    for path, words in files.items():
        with one_sentence(words):
            load_model(f"onnx:{path}", engine=engine, device="cpu")


class RunsAtUnpickling:
    def __reduce__(self):
        return Path.touch, (Path("owned"),)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("kind", ["pickle", "torch", "torchscript", "no tensors"])
def test_a_checkpoint_runs_nothing(kind, tmp_path, monkeypatch):
    import torch

    class Writes(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images.flatten(1)[:, :512] + torch.from_file("owned", shared=True, size=1000)[0]

    monkeypatch.chdir(tmp_path)
    path = tmp_path / "weights.pt"
    if kind == "pickle":
        path.write_bytes(pickle.dumps(RunsAtUnpickling()))
    elif kind == "torchscript":
        torch.jit.script(Writes()).save(str(path))
    else:
        torch.save({"state_dict": RunsAtUnpickling() if kind == "torch" else 5}, path)
    with one_sentence(r"weights\.pt cannot be read as weights"):
        load_model(str(path), device="cpu")
    assert not (tmp_path / "owned").exists()


def test_shapes_that_are_no_pictures():
    assert input_dtype("tensor(double)", ["n", 3, 224, 224]) is None
    assert input_dtype("tensor(float)", ["n", 3, 224]) is None
    assert input_dtype("tensor(float)", ["n", 4, 224, 224]) is None
    assert input_dtype("tensor(float)", ["n", 3, 224, 448]) is None
    assert input_dtype("tensor(uint8)", [None, 3, 288, 288]) is None
    assert input_dtype("tensor(float)", [1, 3, 224, 224]) is None, "one picture at a time"
    assert input_dtype("tensor(float)", ["n", 3, "h", "w"]) is np.float32


def test_pixels_survive_the_way_to_floats_and_back():
    assert np.array_equal(denormalize(normalize(PIXELS)), PIXELS)


def test_a_file_that_does_not_name_itself_gets_no_other_models_thresholds(tmp_path, monkeypatch):
    monkeypatch.delenv("MODEL_NAME", raising=False)
    path = taking_pictures(tmp_path / "ViT-B-32.onnx")  # the file's name says nothing
    model = load_model(f"onnx:{path}", name="ViT-B-32", device="cpu")
    assert model.name == source_of(path).model_name == "unnamed-encoder" and model.name not in THRESHOLDS
    facts = {"model_name": "ViT-B-32", "model_pretrained": "mine", "model_digest": "b" * 64}
    named = taking_pictures(tmp_path / "a.onnx", **facts)
    assert load_model(f"onnx:{named}", device="cpu").name == "ViT-B-32"
    monkeypatch.setenv("MODEL_NAME", "mine")
    assert load_model(f"onnx:{path}", device="cpu").name == source_of(path).model_name == "mine"
