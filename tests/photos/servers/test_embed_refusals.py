"""What `photodup embed` never stores: vectors of another precision than FP32, and broken ones."""

from dataclasses import replace

import httpx
import numpy as np
import pytest
from PIL import Image
from support.command import one_sentence
from support.images import photographs
from support.processor import needs_int8
from support.triton import AS_FLOATS, save_graph, tiny_graph
from typer.testing import CliRunner

from photodup.cli import app
from photodup.core.errors import PhotodupError
from photodup.embedding.client.embedder import connect
from photodup.embedding.engines.quantise import quantise
from photodup.embedding.engines.reduced import read_notes, source_of, write_notes
from photodup.embedding.imaging import to_jpeg
from photodup.photos.embed.batches import embed_library
from photodup.photos.library.catalogue import Catalogue
from photodup.photos.library.scan import scan


@pytest.fixture
def library(tmp_path):
    folder = tmp_path / "library"
    folder.mkdir()
    for name, grey in (("bright.jpg", 220), ("dark.jpg", 20), ("white.jpg", 250)):
        noise = np.random.default_rng(grey).normal(grey, 3, (300, 400, 3)).clip(0, 255)
        Image.fromarray(noise.astype(np.uint8)).save(folder / name, quality=95)
    scan(folder, progress=False)
    return folder


def stored(library) -> dict[str, int]:
    with Catalogue(library) as catalogue:
        return {model.digest: model.n_embeddings for model in catalogue.models()}


@needs_int8
def test_vectors_of_another_precision_than_fp32_are_refused(library, tmp_path, launch):
    """A service in INT8, its accuracy check passed: neither it nor the same file in this process embeds a library."""
    graph = tiny_graph(tmp_path / "tiny.onnx")
    source, folder = source_of(graph), tmp_path / "build" / "models"
    file = quantise(source, photographs(40), engine="onnx", directory=folder)
    write_notes(file, replace(read_notes(file), accuracy_check={"verdict": "passed"}))
    settings = {"ENGINE": "onnx", "PRECISION": "int8", "PHOTODUP_ROOT": tmp_path}
    service = launch(MODEL_PRETRAINED=f"onnx:{graph}", **settings)
    service.wait()
    info = httpx.get(f"{service.url}/info").json()
    assert (info["precision"], info["accuracy_check"]) == ("int8", "passed")
    # A name that says FP32 does not hide what is served.
    for name in ("fastapi-onnx-int8-http-jpeg", "fastapi-pytorch-fp32-http-jpeg"):
        ran = CliRunner().invoke(app, ["embed", str(library), "--url", service.url, "--backend", name])
        assert "computes in int8" in str(ran.exception) and "use a server in fp32" in str(ran.exception)
    with (
        connect(backend="local-onnx-int8", pretrained=f"onnx:{graph}", directory=folder) as embedder,
        Catalogue(library) as catalogue,
        one_sentence("computes in int8"),
    ):
        embed_library(catalogue, embedder, progress=False)
    assert stored(library) == {}


def of_logarithms(path):
    """Write an encoder whose answer to a dark picture is NaN: logarithms of mean colours."""
    nodes = [
        ("Cast", ["image"], "pixels", AS_FLOATS),
        ("GlobalAveragePool", ["pixels"], "mean"),
        ("Flatten", ["mean"], "colours"),
        ("Log", ["colours"], "embedding"),
    ]
    return f"onnx:{save_graph(path, nodes, ('image', ['n', 3, 224, 224]), ('embedding', ['n', 3]))}"


def test_broken_embeddings_are_an_error_of_the_service_and_named_by_embed(library, tmp_path, launch):
    service = launch(MODEL_PRETRAINED=of_logarithms(tmp_path / "broken.onnx"))
    service.wait()
    pictures = [to_jpeg(Image.new("RGB", (224, 224), (grey,) * 3), 95) for grey in (220, 20)]
    files = [("files", ("a.jpg", picture, "image/jpeg")) for picture in pictures]
    answer = httpx.post(f"{service.url}/embed", files=files)
    assert answer.status_code == 500 and "1 of 2 images" in answer.json()["detail"]
    assert [problem["index"] for problem in answer.json()["errors"]] == [1]
    assert httpx.post(f"{service.url}/embed", files=files[:1]).status_code == 200
    with connect(service.url) as embedder, Catalogue(library) as catalogue:
        report = embed_library(catalogue, embedder, progress=False)
        assert report.n_embedded == 2
        assert [str(problem.path) for problem in report.problems] == ["dark.jpg"]
        assert "NaN or infinities" in report.problems[0].reason
        md5s = catalogue.contents_with_vectors(embedder.model_digest)
        vectors = catalogue.embeddings_of(embedder.model_digest, md5s)
    assert len(md5s) == 2 and np.isfinite(vectors).all()
    counted = service.metrics()
    assert counted["photodup_broken_embeddings_total"] == 2
    assert counted['photodup_requests_total{status="500"}'] == 2


@pytest.mark.parametrize("broken", [np.nan, np.inf, 0.0])
def test_a_model_that_gives_nothing_sound_stops_the_run(library, broken):
    class Broken:
        backend, model_name, model_digest, is_random = "test", "broken", "b" * 64, False
        precision, dim = "fp32", 3

        def embed(self, images):
            return np.full((len(images), 3), broken, np.float32)

    with Catalogue(library) as catalogue, pytest.raises(PhotodupError, match="so nothing of them was stored"):
        embed_library(catalogue, Broken(), progress=False)
    assert sum(stored(library).values()) == 0
