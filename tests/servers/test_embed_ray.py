"""Ray Data over the real `Embedder`: a model in the workers, and a real service. Skipped without Ray."""

import importlib.util
import os
import signal
import sys

import numpy as np
import pytest
from support.review_library import make_library

from photodup.errors import PhotodupError
from photodup.photos.embed import over_ray
from photodup.photos.embed.choose import ChosenEncoder, EncoderRequest
from photodup.photos.embed.command import embed_and_print
from photodup.photos.embed.embed import embed_library
from photodup.photos.library.catalogue import Catalogue

HAS_RAY = all(importlib.util.find_spec(name) for name in ("ray", "pyarrow"))
needs_ray = pytest.mark.skipif(not HAS_RAY, reason="Ray Data is not installed: pip install 'photodup[ray]'")
# Ray's own warnings (deprecations inside it, sockets it leaves to its processes) are not ours to raise.
quiet = pytest.mark.filterwarnings("default")


@pytest.fixture
def library(tmp_path, monkeypatch, tiny_onnx):
    for name in ("INFERENCE_BACKEND", "INFERENCE_SERVICE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MODEL_PRETRAINED", tiny_onnx)
    return make_library(tmp_path / "library")


def vectors(library):
    with Catalogue(library) as catalogue:
        (model,) = catalogue.models()
        return model, *catalogue.load_embeddings(model.digest)


LOCAL = ChosenEncoder("local-pytorch-fp32", None, "local", "test")


@pytest.mark.skipif(HAS_RAY, reason="Ray is installed")
def test_without_ray_it_is_one_sentence(library):
    with pytest.raises(PhotodupError, match=r"photodup\[ray\]"):
        embed_and_print(library, engine="ray")


def test_an_unknown_engine_is_refused(library):
    with pytest.raises(PhotodupError, match="no engine 'spark'"):
        embed_and_print(library, engine="spark")


@needs_ray
@quiet
def test_a_cluster_that_is_not_there_is_one_sentence(library, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(PhotodupError, match=r"no Ray cluster at RAY_ADDRESS=127\.0\.0\.1:1 \(.*leave out"):
        embed_and_print(library, engine="ray")


@pytest.mark.parametrize(
    ("machines", "workers", "each"),
    [
        ([8], 1, 8),
        ([8], 2, 4),
        ([8], 3, 2),
        ([1, 1, 1], 1, 1),  # not the cores of the machine that asks: no node has them
        ([8, 8], 3, 4),
        ([8, 2], 2, 4),
        ([2, 2], 9, 1),
        ([], 2, 1),  # a cluster that starts its machines when they are asked for
    ],
)
def test_every_worker_asks_for_cores_that_some_machine_has(machines, workers, each):
    assert over_ray.cores_each(machines, workers) == each


@needs_ray
@quiet
def test_ray_gives_the_vectors_of_this_process(library, tmp_path):
    from photodup.photos.embed.over_ray import embed_with_ray

    other = make_library(tmp_path / "other")
    with Catalogue(other) as catalogue, LOCAL.connect() as embedder:
        embed_library(catalogue, embedder, progress=False)
    (library / "lone.jpg").write_bytes(b"changed since the scan")
    with Catalogue(library) as catalogue, LOCAL.connect() as embedder:
        report = embed_with_ray(catalogue, LOCAL, embedder, 2, progress=False)
        assert (report.n_embedded, [str(p) for p in report.problems]) == (
            5,
            ["lone.jpg: changed since the scan: scan again"],
        )
        again = embed_with_ray(catalogue, LOCAL, embedder, 2, progress=False)
        assert (again.n_before, again.n_embedded) == (5, 0)
    model, md5s, rows = vectors(library)
    expected_model, expected_md5s, expected = vectors(other)
    assert model.digest == expected_model.digest and len(md5s) == 5
    order = [expected_md5s.index(md5) for md5 in md5s]
    np.testing.assert_allclose(rows, expected[order], atol=1e-5)


@needs_ray
@quiet
def test_ray_through_a_server_and_the_command(library, capsys, monkeypatch, small_service):
    monkeypatch.delenv("MODEL_PRETRAINED")
    url = small_service().url
    request = EncoderRequest(url=url, backend="pytorch")
    embed_and_print(library, request=request, batch=3, engine="ray", workers=2)
    said = capsys.readouterr().out
    assert f"fastapi-pytorch-fp32-http-jpeg at {url}" in said and "6 photographs embedded" in said
    assert vectors(library)[0].n_embeddings == 6


@needs_ray
@quiet
def test_a_server_that_dies_is_one_sentence_and_keeps_what_came(library, monkeypatch, launch):
    from photodup.photos.embed.over_ray import embed_with_ray

    service = launch()
    service.wait()
    choice = ChosenEncoder("fastapi-pytorch-fp32-http-jpeg", service.url, "remote", "test")
    with Catalogue(library) as catalogue, choice.connect() as embedder:
        service.process.send_signal(signal.SIGKILL)
        service.process.wait()
        with pytest.raises(PhotodupError) as caught:
            embed_with_ray(catalogue, choice, embedder, 2, workers=1, progress=False)
    assert "\n" not in str(caught.value) and str(service.url).split("//")[1] in str(caught.value)


@needs_ray
@quiet
def test_another_model_in_a_worker_is_refused(library, monkeypatch):
    from photodup.photos.embed.over_ray import embed_with_ray

    with Catalogue(library) as catalogue, LOCAL.connect() as embedder:
        embedder.model_digest = "f" * 64
        with pytest.raises(PhotodupError, match="another model"):
            embed_with_ray(catalogue, LOCAL, embedder, 2, progress=False)


def test_importing_it_imports_no_ray():
    import subprocess

    code = "import sys, photodup.photos.embed.over_ray; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=os.environ, check=False).returncode == 0
