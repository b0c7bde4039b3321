"""What `photodup embed` never stores: vectors of a precision that has not passed the gate, and broken ones."""

import httpx
import numpy as np
import pytest
from PIL import Image
from support.processor import needs_bf16
from support.triton import AS_FLOATS, save_graph, tiny_graph
from typer.testing import CliRunner

from photodup.cli import app
from photodup.embedding.client.client import connect
from photodup.embedding.engines.reduced import reduced_path, source_of, write_notes
from photodup.embedding.imaging import to_jpeg
from photodup.errors import PhotodupError
from photodup.photos.embed.embed import embed_library
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


@needs_bf16
def test_a_served_precision_needs_its_gate(library, tmp_path, launch, monkeypatch):
    """The laboratory serves it ungated; `photodup embed` refuses whatever the gate did not let through."""
    graph = tiny_graph(tmp_path / "tiny.onnx")
    settings = {"ENGINE": "openvino", "PRECISION": "bf16", "PHOTODUP_ROOT": tmp_path}
    service = launch(MODEL_PRETRAINED=f"onnx:{graph}", **settings)
    service.wait()
    assert httpx.get(f"{service.url}/info").json()["gate"] == "not asked"
    told = service.log.read_text()
    assert "WARNING" in told and "the gate was never asked about it: use fp32" in told
    name = "fastapi-openvino-bf16-http-jpeg"
    source = source_of(graph)
    path = reduced_path(source, "openvino", "bf16", tmp_path / "build" / "models")
    path.parent.mkdir(parents=True, exist_ok=True)
    for verdict, said in (
        (None, "the gate was never asked about it"),
        ("refused", "the gate refused it"),
        ("undecided", "the gate could not decide about it"),
    ):
        if verdict:
            write_notes(path, source.notes("openvino", "bf16", gate={"verdict": verdict}))
        ran = CliRunner().invoke(app, ["embed", str(library), "--url", service.url, "--backend", name])
        assert ran.exit_code != 0
        sentence = str(ran.exception) if isinstance(ran.exception, PhotodupError) else ran.output
        assert said in sentence and "use fp32" in sentence
        assert stored(library) == {}
    write_notes(path, source.notes("openvino", "bf16", gate={"verdict": "passed"}))
    with connect(service.url, name) as embedder, Catalogue(library) as catalogue:
        assert (embedder.precision, embedder.gate) == ("bf16", "passed")
        assert embed_library(catalogue, embedder, progress=False).n_embedded == 3
    # A name that says FP32 does not hide what is served.
    write_notes(path, source.notes("openvino", "bf16", gate={"verdict": "refused"}))
    with (
        connect(service.url, "fastapi-pytorch-fp32-http-jpeg") as embedder,
        Catalogue(library) as catalogue,
        pytest.raises(PhotodupError, match="computes in bf16, and the gate refused it"),
    ):
        embed_library(catalogue, embedder, progress=False)


@needs_bf16
def test_in_this_process_too(library, tmp_path, monkeypatch):
    graph = tiny_graph(tmp_path / "tiny.onnx", seed=1)
    with (
        connect(backend="local-openvino-bf16", pretrained=f"onnx:{graph}") as embedder,
        Catalogue(library) as catalogue,
        pytest.raises(PhotodupError, match="never asked"),
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
        md5s = catalogue.embedded(embedder.model_digest)
        vectors = catalogue.embeddings_of(embedder.model_digest, md5s)
    assert len(md5s) == 2 and np.isfinite(vectors).all()
    counted = service.metrics()
    assert counted["photodup_broken_embeddings_total"] == 2
    assert counted['photodup_requests_total{status="500"}'] == 2


@pytest.mark.parametrize("broken", [np.nan, np.inf, 0.0])
def test_a_model_that_gives_nothing_sound_stops_the_run(library, broken):
    class Broken:
        backend, model_name, model_digest, is_random = "test", "broken", "b" * 64, False
        precision, gate, dim = "fp32", "not needed", 3

        def embed(self, images):
            return np.full((len(images), 3), broken, np.float32)

    with Catalogue(library) as catalogue, pytest.raises(PhotodupError, match="so nothing of them was stored"):
        embed_library(catalogue, Broken(), progress=False)
    assert sum(stored(library).values()) == 0
