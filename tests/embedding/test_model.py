"""The image encoder: the same answers every time, and one sentence when it cannot be had."""

import json
import os

import numpy as np
import pytest
from support.command import one_sentence, run_python
from support.triton import tiny_embedding, tiny_graph

from photodup.core.errors import PhotodupError
from photodup.embedding.engines.encoder import load_model
from photodup.embedding.engines.weights import import_open_clip, random_clip
from photodup.embedding.imaging import normalize

PIXELS = np.random.default_rng(3).integers(0, 256, (3, 3, 224, 224), dtype=np.uint8)


def test_random_weights_repeat_in_another_process_of_one_thread(real_model):
    code = (
        "import json, numpy as np, torch; from photodup.embedding.engines.encoder import load_model; "
        "m = load_model(pretrained='random:0', device='cpu', threads=1); "
        "x = np.zeros((1, 3, 224, 224), np.float32); threads = torch.get_num_threads(); "
        "print(threads, m.digest, m.is_random, m.dim, json.dumps(m.embed(x)[0, :3].tolist()))"
    )
    done = run_python(code, check=True)
    ours = real_model
    threads, digest, is_random, dim, values = done.stdout.split(maxsplit=4)
    assert (threads, digest, is_random, dim) == ("1", ours.digest, "True", "512")
    wanted = ours.embed(np.zeros((1, 3, 224, 224), np.float32))[0, :3]
    np.testing.assert_allclose(json.loads(values), wanted, atol=1e-6)
    assert done.stderr == ""  # open_clip's warning about missing weights is not news here


def test_another_seed_gives_other_weights_and_leaves_the_random_state_alone(real_model):
    import torch

    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    other, ours = load_model(pretrained="random:1", device="cpu"), real_model
    assert torch.equal(torch.rand(3), expected)
    assert other.digest != ours.digest
    assert np.abs(other.embed_pixels(PIXELS) - ours.embed_pixels(PIXELS)).max() > 1e-2


def test_embeddings_are_those_of_open_clip_and_of_length_1(real_model):
    import torch

    with torch.random.fork_rng(), torch.inference_mode():
        torch.manual_seed(0)
        clip = import_open_clip().create_model("ViT-B-32", load_weights=False).eval()
        wanted = clip.encode_image(torch.from_numpy(normalize(PIXELS)), normalize=True).numpy()
    found = real_model.embed(normalize(PIXELS))
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)


def test_pixels_and_normalised_images_give_the_same(real_model):
    model = real_model
    np.testing.assert_array_equal(model.embed_pixels(PIXELS), model.embed(normalize(PIXELS)))


def test_the_text_tower_is_not_kept(real_model):
    names = [name for name, _ in real_model.visual.named_parameters()]
    assert names and sum(p.numel() for p in real_model.visual.parameters()) < 90e6  # with text, 151 million


@pytest.mark.parametrize("bad", [
    np.zeros((3, 224, 224), np.float32),
    np.zeros((1, 3, 224, 224), np.float64),
    np.zeros((1, 3, 100, 100), np.float32),
    np.zeros((1, 224, 224, 3), np.float32),
])  # fmt: skip
def test_other_shapes_and_types_are_refused(bad, real_model):
    with pytest.raises(ValueError, match=r"float32 \[n, 3, 224, 224\]"):
        real_model.embed(bad)


def test_a_checkpoint_file_gives_its_weights(tmp_path, real_model):
    """The weights of random:0 through a checkpoint are the same model."""
    import torch

    path = tmp_path / "weights.pt"
    torch.save(random_clip("ViT-B-32", "random:0").state_dict(), path)
    model = load_model(pretrained=str(path), device="cpu")
    assert model.digest == real_model.digest
    assert not model.is_random and model.pretrained == str(path)
    path.write_bytes(path.read_bytes()[:1_000_000])
    with pytest.raises(PhotodupError, match=r"weights\.pt cannot be read as weights of ViT-B-32"):
        load_model(pretrained=str(path), device="cpu")


@pytest.mark.parametrize("variant", ["fp32", "fp16", "uint8"])
def test_any_onnx_encoder_can_be_loaded(tmp_path, variant):
    path = tiny_graph(tmp_path / "tiny.onnx", variant)
    model = load_model(pretrained=f"onnx:{path}")
    assert (model.dim, model.is_random) == (512, False)
    given = PIXELS if variant == "uint8" else normalize(PIXELS)
    tolerance = 2e-3 if variant == "fp16" else 1e-5
    np.testing.assert_allclose(model.embed_pixels(PIXELS), tiny_embedding(given), atol=tolerance)
    np.testing.assert_allclose(model.embed(normalize(PIXELS)), tiny_embedding(given), atol=tolerance)
    other = load_model(pretrained=f"onnx:{tiny_graph(tmp_path / 'other.onnx', variant, seed=1)}")
    assert other.digest != model.digest


@pytest.mark.parametrize(("options", "words"), [
    ({"pretrained": "random:zero"}, "whole number"),
    ({"name": "ViT-Z-1", "pretrained": "random:0"}, "no model ViT-Z-1"),
    ({"pretrained": "laion9b"}, "no weights called laion9b: use one of .*laion2b_s34b_b79k"),
    ({"pretrained": "/nowhere/clip.pt"}, "No checkpoint at /nowhere/clip.pt"),
    ({"pretrained": "onnx:/nowhere.onnx"}, "photodup export"),
    ({"name": "ViT-B-32-256", "pretrained": "random:0"}, "other pixels"),
    ({"pretrained": "random:0", "device": "abacus"}, "no device abacus here: use .*cpu"),
])  # fmt: skip
def test_what_cannot_be_loaded_is_one_sentence_with_a_remedy(options, words):
    with pytest.raises(PhotodupError, match=words):
        load_model(**options)


def test_weights_that_cannot_be_downloaded_are_one_sentence_with_remedies(tmp_path, monkeypatch, capfd):
    for name in [name for name in os.environ if name.startswith("MODEL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with one_sentence("could not be downloaded") as raised:
        load_model()
    said = capfd.readouterr().err
    assert "ERROR" not in said and "Failed to download" not in said
    for remedy in ("huggingface.co", "MODEL_PRETRAINED", "random:0"):
        assert remedy in str(raised.value)
