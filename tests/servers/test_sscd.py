"""SSCD's loading and preprocessing, on a ResNet-50 of the same interface with random weights."""

import os
import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.command import one_sentence, running
from support.review_library import photo
from support.service import free_port
from support.triton import save_graph, taking_pictures

from photodup.embedding.client.client import connect
from photodup.embedding.engines import sscd
from photodup.embedding.engines.encoder import load_model
from photodup.embedding.engines.onnx_runtime import file_sha256
from photodup.embedding.engines.weights import import_open_clip
from photodup.errors import PhotodupError
from photodup.photos.embed.choose import EncoderRequest, choose
from photodup.photos.embed.embed import embed_library
from photodup.photos.groups.model_thresholds import THRESHOLDS
from photodup.photos.library.catalogue import Catalogue
from photodup.photos.library.settings import LibrarySettings
from photodup.settings import variables

pytestmark = [
    # torch 2.13: "torch.jit.script/save/load is deprecated"; the published weights come as TorchScript.
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
]


@pytest.fixture(scope="module")
def network():
    """ResNet-50, generalised-mean pooling, 512 values of length 1: what SSCD's TorchScript computes."""
    import torch

    import_open_clip()  # mends torchvision where its build and PyTorch's differ
    from torchvision.models import resnet50

    class Sscd(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            trunk = resnet50(weights=None)
            self.trunk = torch.nn.Sequential(*list(trunk.children())[:-2])
            self.head = torch.nn.Linear(2048, 512)

        def forward(self, images):
            features = self.trunk(images).clamp(min=1e-6).pow(3).mean(dim=(2, 3)).pow(1 / 3)
            return torch.nn.functional.normalize(self.head(features), dim=1)

    torch.manual_seed(0)
    return Sscd().eval().requires_grad_(False)


@pytest.fixture(scope="module")
def checkpoint(network, tmp_path_factory):
    import torch

    path = tmp_path_factory.mktemp("sscd") / "sscd_disc_mixup.torchscript.pt"
    torch.jit.trace(network, torch.zeros(1, 3, 320, 320)).save(str(path))
    with variables(PHOTODUP_TRUSTED_TORCHSCRIPT=file_sha256(path)):
        yield path


def test_torchscript_of_nobody_known_writes_no_file_unless_its_digest_is_trusted(tmp_path, monkeypatch):
    """With its digest trusted it does write one, so that the refusal is what keeps it from that."""
    import torch

    class Writes(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images.flatten(1)[:, :512] + torch.from_file("owned", shared=True, size=1000)[0]

    monkeypatch.chdir(tmp_path)
    path, owned = tmp_path / "sscd_disc_mixup.torchscript.pt", tmp_path / "owned"
    torch.jit.script(Writes()).save(str(path))
    for trusted in ("", "1", next(iter(sscd.PUBLISHED)), file_sha256(path)):
        monkeypatch.setenv("PHOTODUP_TRUSTED_TORCHSCRIPT", trusted)
        if trusted == file_sha256(path):
            assert load_model(pretrained=f"sscd:{path}", device="cpu").dim == 512
            assert owned.stat().st_size == 4000
            return
        with one_sentence(f"a program .*PHOTODUP_TRUSTED_TORCHSCRIPT={file_sha256(path)}"):
            load_model(pretrained=f"sscd:{path}", device="cpu")
        assert not owned.exists()


class RunsAtUnpickling:
    def __reduce__(self):
        return Path.touch, (Path("owned"),)


@pytest.mark.parametrize("kind", ["pickle", "torch", "torchscript", "no tensors"])
def test_a_checkpoint_runs_nothing(kind, checkpoint, tmp_path, monkeypatch):
    import torch

    monkeypatch.chdir(tmp_path)
    path = tmp_path / "weights.pt"
    if kind == "pickle":
        path.write_bytes(pickle.dumps(RunsAtUnpickling()))
    elif kind == "torchscript":
        path.write_bytes(checkpoint.read_bytes())
    else:
        torch.save({"state_dict": RunsAtUnpickling() if kind == "torch" else 5}, path)
    with pytest.raises(PhotodupError, match=r"weights\.pt cannot be read as weights") as caught:
        load_model(pretrained=str(path), device="cpu")
    assert "\n" not in str(caught.value) and not (tmp_path / "owned").exists()


def published_way(network, image: Image.Image) -> np.ndarray:
    """The authors' `skew_320` and normalisation, by torchvision itself."""
    import torch
    from torchvision import transforms

    steps = transforms.Compose(
        [
            transforms.Resize([320, 320]),
            transforms.ToTensor(),
            transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
        ]
    )
    with torch.inference_mode():
        return network(steps(image)[None])[0].numpy()


def test_pictures_go_in_as_its_authors_say(network, checkpoint):
    model = load_model(pretrained=f"sscd:{checkpoint}", device="cpu")
    assert (model.name, model.dim, model.is_random) == ("sscd-unrecognised", 512, False)
    for name in ("coffee", "rocket"):
        found = model.embed_pixels(model.view.pixels(photo(name))[None])[0]
        np.testing.assert_allclose(found, published_way(network, photo(name)), atol=2e-5)
        clips = photo(name).resize((224, 224))
        assert np.abs(found - published_way(network, clips)).max() > 2e-4, "224 pixels would show"


def test_it_embeds_a_library_and_its_thresholds_say_that_they_were_not_measured(checkpoint, library):
    choice = choose(LibrarySettings(), EncoderRequest(weights=f"sscd:{checkpoint}"))
    with Catalogue(library) as catalogue, choice.connect() as embedder:
        assert embed_library(catalogue, embedder, progress=False).n_embedded == 6
        (model,) = catalogue.models()
    assert (model.name, model.dim) == ("sscd-unrecognised", 512) and len(model.digest) == 64
    assert model.name not in THRESHOLDS, "the file's name says sscd_disc_mixup, and its contents do not"


def test_the_published_file_is_known_by_its_contents_whatever_it_is_called(checkpoint, tmp_path, monkeypatch):
    """This file stands for the published one, which cannot be had here: its own digest is put into the list."""
    renamed = tmp_path / "weights"
    renamed.write_bytes(checkpoint.read_bytes())
    assert not sscd.is_published(str(renamed))
    monkeypatch.delenv("PHOTODUP_TRUSTED_TORCHSCRIPT")
    monkeypatch.setattr(sscd, "PUBLISHED", {file_sha256(checkpoint): "sscd_disc_mixup"})
    assert not sscd.is_published(str(renamed)), "a file of another size is not read"
    monkeypatch.setattr(sscd, "_PUBLISHED_BYTES", (renamed.stat().st_size,))
    assert sscd.is_published(str(renamed)) and not sscd.is_published("laion2b_s34b_b79k")
    for pretrained in (f"sscd:{renamed}", str(renamed)):
        model = load_model(pretrained=pretrained, device="cpu")
        assert (model.name, model.engine, model.size) == ("sscd_disc_mixup", "pytorch", 320)
    assert THRESHOLDS[model.name].measured.startswith("not measured here")
    with renamed.open("r+b") as file:  # one byte within
        file.seek(-1000, 2)
        byte = file.read(1)
        file.seek(-1000, 2)
        file.write(bytes([byte[0] ^ 1]))
    assert not sscd.is_published(str(renamed))


def small_onnx(path, *, uint8: bool, channels_last: bool, **notes: str) -> str:
    """Write an encoder of 320-pixel pictures: mean colours of a 4 × 4 grid, after ImageNet's normalisation."""
    tiles = {"kernel_shape": [80, 80], "strides": [80, 80]}
    nodes = [("AveragePool", ["image"], "grid", tiles), ("Flatten", ["grid"], "embedding")]
    save_graph(path, nodes, ("image", ["n", 3, 320, 320]), ("embedding", ["n", 48]), **notes)
    imagenet = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
    taking_pictures(path, path, uint8=uint8, channels_last=channels_last, size=320, **imagenet)
    return f"sscd:{path}"


def test_onnx_may_take_bytes_and_channels_last_and_say_what_it_was_made_from(tmp_path):
    pixels, found = None, []
    for i, (uint8, last) in enumerate(((False, False), (False, True), (True, False), (True, True))):
        # Whatever the file is called: it is no archive of PyTorch's.
        made = small_onnx(tmp_path / f"{i}.torchscript.pt", uint8=uint8, channels_last=last)
        model = load_model(pretrained=made, device="cpu")
        assert (model.engine, model.name, model.size) == ("onnx", "sscd-unrecognised", 320)
        if pixels is None:
            pixels = np.stack([model.view.pixels(photo(name)) for name in ("coffee", "rocket")])
        found.append(model.embed_pixels(pixels))
    for others in found[1:]:
        np.testing.assert_allclose(others, found[0], atol=1e-5)
    published = next(iter(sscd.PUBLISHED))
    named = small_onnx(tmp_path / "a.onnx", uint8=False, channels_last=False, source_sha256=published)
    assert load_model(pretrained=named, device="cpu").name == "sscd_disc_mixup"


@pytest.mark.long
def test_onnx_made_from_it_gives_the_same_and_is_another_digest(network, checkpoint, tmp_path):
    import torch

    path = tmp_path / "sscd_disc_mixup.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations inside the exporter
        torch.onnx.export(
            network, (torch.zeros(2, 3, 288, 288),), path, input_names=["image"], output_names=["embedding"],
            dynamic_shapes=({0: torch.export.Dim("n")},), dynamo=True, external_data=False, verbose=False,
        )  # fmt: skip
    model = load_model(pretrained=f"sscd:{path}", device="cpu")
    assert model.size == 288, "the file decides"
    pixels = np.stack([model.view.pixels(photo(name)) for name in ("coffee", "rocket")])
    given = (pixels.astype(np.float32) / 255 - np.array([0.485, 0.456, 0.406], np.float32)[:, None, None]) / (
        np.array([0.229, 0.224, 0.225], np.float32)[:, None, None]
    )
    with torch.inference_mode():
        expected = network(torch.from_numpy(given)).numpy()
    np.testing.assert_allclose(model.embed_pixels(pixels), expected, atol=1e-4)
    assert model.digest != load_model(pretrained=f"sscd:{checkpoint}", device="cpu").digest
    with pytest.raises(PhotodupError, match=r"write sscd:.*sscd_disc_mixup\.onnx"):
        load_model(pretrained=f"onnx:{path}")


def test_what_cannot_be_is_one_sentence(checkpoint, tmp_path):
    broken = tmp_path / "broken.torchscript.pt"
    broken.write_bytes(b"no zip file")
    no_graph = tmp_path / "broken.onnx"
    no_graph.write_bytes(b"no graph")
    for pretrained, words in (
        ("sscd:nowhere.pt", "No SSCD file"),
        (f"sscd:{broken}", r"cannot load .*torchscript.pt"),
        (f"sscd:{no_graph}", r"cannot load .*broken\.onnx.*torchscript.pt"),
    ):
        with pytest.raises(PhotodupError, match=words) as caught:
            load_model(pretrained=pretrained)
        assert "\n" not in str(caught.value)
    with pytest.raises(PhotodupError, match="not exported here"):
        connect(backend="local-onnx-fp32", pretrained=f"sscd:{checkpoint}")
    with pytest.raises(PhotodupError, match="224"):
        load_model(pretrained=f"sscd:{checkpoint}").embed_pixels(np.zeros((1, 3, 224, 224), np.uint8))
    with pytest.raises(PhotodupError, match="leave the server out"):
        choose(LibrarySettings(), EncoderRequest(weights=f"sscd:{checkpoint}", url="http://gpu:8002"))


def test_the_service_refuses_it_in_words(checkpoint):
    env = os.environ | {"MODEL_PRETRAINED": f"sscd:{checkpoint}", "PORT": str(free_port())}
    command = [sys.executable, "-m", "photodup.serving.service"]
    with running(command, env=env, stderr=subprocess.STDOUT) as service:
        said = service.communicate(timeout=300)[0]
    assert "run it in this process" in said
