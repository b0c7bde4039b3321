"""Each row of README's decision table starts: its server answers, its manifests agree, its commands find the copies."""

import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.command import run_command
from support.images import photo, photographs
from support.triton import infer

from photodup.bench.pairs.declared import SETTINGS, declarations
from photodup.core.errors import PhotodupError
from photodup.embedding.client.embedder import connect
from photodup.embedding.imaging import encode
from photodup.serving.triton.copies import configure, model_copy
from photodup.study.kubernetes import tool
from tools.readme import decisions

PHOTOS = [encode(photo(280, 250, seed), "JPEG") for seed in range(2)]
ROWS = decisions()["rows"]
of = {
    kind: [pytest.param(r, id=r["have"]) for r in ROWS if kind in r["start"]]
    for kind in ("service", "side", "backend", "overlay")
}
pytestmark = pytest.mark.long


def test_the_table_has_rows_and_each_is_started():
    assert 8 <= len(ROWS) <= 10 and sum(map(len, of.values())) == len(ROWS)


@pytest.mark.parametrize("row", of["service"])
def test_the_service_of_a_row_answers(row, launch, tiny_onnx):
    settings = row["start"]["service"]
    written = dict(re.findall(r"([A-Z_]+)=(\w+)", row["use"]))
    assert written == {name: str(value) for name, value in settings.items()}, "the row says what is started"
    if settings.get("PRECISION") == "int8":
        from photodup.embedding.engines.quantise import quantise
        from photodup.embedding.engines.reduced import source_of

        source = source_of(Path(tiny_onnx.removeprefix("onnx:")))
        quantise(source, photographs(40), engine=settings["ENGINE"])
    service = launch(**settings)
    service.wait()
    backend = f"fastapi-{settings.get('ENGINE', 'onnx')}-{settings.get('PRECISION', 'fp32')}-http-jpeg"
    with connect(service.url, backend) as embedder:
        assert embedder.embed(PHOTOS).shape == (2, 512)


@pytest.mark.parametrize("row", of["side"])
def test_the_configuration_of_a_row_is_served(row, tiny_triton, tiny_repository):
    settings = dict(declarations().sides[row["start"]["side"]].settings)
    assert settings and set(settings) <= set(SETTINGS)
    change, place = partial(configure, **settings), (tiny_triton.grpc_url, tiny_repository)
    with model_copy(*place, "openclip_vit_b32", "as_the_row_says", change) as name:
        assert infer(tiny_triton, name, np.zeros((1, 3, 224, 224), np.float32)).shape == (1, 512)


@pytest.mark.parametrize("row", of["backend"])
def test_the_wire_of_a_row_is_answered_on_a_connection_that_stays(row, tiny_triton):
    with connect(tiny_triton.http_url, row["start"]["backend"]) as embedder:
        assert embedder.embed(PHOTOS).shape == embedder.embed(PHOTOS).shape == (2, 512)


@pytest.mark.parametrize("row", of["overlay"])
def test_the_manifests_of_a_row_do_not_contradict_each_other(row):
    try:
        tool("kubectl")
    except PhotodupError as reason:
        pytest.skip(str(reason))
    overlay = row["start"]["overlay"]
    assert f"kubectl apply -k {overlay}" in row["use"]
    assert "nothing found" in run_command("kube", "check", overlay)
