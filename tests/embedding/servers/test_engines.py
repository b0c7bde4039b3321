"""Engine and precision: every pair gives the embeddings it should, or one sentence with the next best thing."""

import json
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image
from support.command import one_sentence
from support.images import photographs
from support.processor import needs_bf16
from support.triton import infer, needs_triton, tiny_embedding, tiny_graph

from photodup.core.errors import PhotodupError
from photodup.embedding.client.embedder import connect
from photodup.embedding.engines import model as engines
from photodup.embedding.engines import onnx_runtime
from photodup.embedding.engines.encoder import load_model
from photodup.embedding.engines.quantise import quantise
from photodup.embedding.engines.reduced import source_of
from photodup.embedding.imaging import decode, normalize, to_jpeg, to_uint8
from photodup.serving.triton.repository import render_repository
from photodup.serving.triton.server import EmbeddedTriton

COLOURS = np.random.default_rng(3).integers(0, 256, (7, 3, 7, 7), dtype=np.uint8)
PIXELS = COLOURS.repeat(32, axis=2).repeat(32, axis=3)  # noise would be one grey to the tiny encoder


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(axis=1)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return tiny_graph(tmp_path_factory.mktemp("tiny") / "tiny.onnx")


@pytest.mark.parametrize(
    ("engine", "precision"),
    [("onnx", "fp32"), ("openvino", "fp32"), pytest.param("openvino", "bf16", marks=needs_bf16)],
)
def test_an_exported_encoder_runs_in_each_engine(tiny, engine, precision):
    model = load_model(f"onnx:{tiny}", engine=engine, precision=precision, device="cpu", threads=1)
    wanted = tiny_embedding(normalize(PIXELS))
    found = model.embed_pixels(PIXELS)
    assert (model.engine, model.precision, model.dim) == (engine, precision, 512)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    if precision == "fp32":
        np.testing.assert_allclose(found, wanted, atol=1e-5)
    else:
        assert cosines(found, wanted).min() > 0.999
        assert np.abs(found - wanted).max() > 1e-6, "nothing was rounded: this is fp32 under another name"
    np.testing.assert_allclose(model.embed(normalize(PIXELS)), found, atol=1e-6)


@needs_bf16
def test_digests_differ_by_precision_and_not_by_engine(tiny):
    loaded = {
        (engine, precision): load_model(f"onnx:{tiny}", engine=engine, precision=precision)
        for engine, precision in [("onnx", "fp32"), ("openvino", "fp32"), ("openvino", "bf16")]
    }
    digests = {key: model.digest for key, model in loaded.items()}
    assert digests["onnx", "fp32"] == digests["openvino", "fp32"] != digests["openvino", "bf16"]
    assert len({model.source_digest for model in loaded.values()}) == 1


def test_several_callers_at_once_get_their_own_embeddings(tiny):
    model = load_model(f"onnx:{tiny}", engine="openvino", threads=2)
    wanted = model.embed_pixels(PIXELS)
    with ThreadPoolExecutor(6) as callers:
        for first, found in callers.map(
            lambda i: (i % 7, model.embed_pixels(PIXELS[i % 7 :][:3])), range(60)
        ):
            np.testing.assert_allclose(found, wanted[first : first + 3], atol=1e-6)


@pytest.mark.parametrize(("options", "words"), [
    ({"engine": "abacus"}, "no engine 'abacus'.*pytorch.*openvino"),
    ({"precision": "int4"}, "no precision 'int4'"),
    ({"engine": "onnx", "precision": "bf16"}, "onnx does not compute in bf16.*openvino"),
    ({"engine": "openvino", "precision": "fp16"}, "use fp32, bf16, int8, or fp16 with"),
    ({"engine": "openvino", "device": "cuda"}, "on the CPU here, not on cuda"),
    ({"engine": "pytorch"}, "exported already: run it with the engine onnx or openvino"),
    ({"engine": "onnx", "precision": "int8"}, "no INT8 file.*photodup export --precision int8 --engine onnx"),
    ({"engine": "onnx", "precision": "tf32", "device": "cpu"}, "tf32 is computed by NVIDIA GPUs"),
    ({"engine": "trt"}, "no engine 'trt'.*pytorch.*openvino"),
])  # fmt: skip
def test_what_cannot_be_had_is_one_sentence_with_a_remedy(tiny, tmp_path, options, words):
    with pytest.raises(PhotodupError, match=words) as raised:
        load_model(f"onnx:{tiny}", directory=tmp_path, **options)
    assert str(raised.value).count(". ") == 0


def test_pytorch_has_no_tf32_or_fp16_without_a_gpu():
    with pytest.raises(PhotodupError, match=r"fp16 is computed by NVIDIA GPUs.*bf16 or fp32"):
        load_model("random:0", engine="pytorch", precision="fp16", device="cpu")


@pytest.mark.parametrize(("precision", "flags", "next_best"), [
    ("bf16", {"avx2"}, "fp32"),
    ("bf16", {"avx2", "avx512_vnni"}, "int8"),
    ("int8", {"avx2", "avx512f"}, "fp32"),
    ("int8", {"avx2", "amx_bf16"}, "bf16"),
])  # fmt: skip
def test_a_processor_without_the_instructions_is_told_the_next_best(precision, flags, next_best, monkeypatch):
    monkeypatch.setattr(engines, "processor_flags", lambda: frozenset(flags))
    with one_sentence(rf"none of the instructions for {precision} \(.*use {next_best}\."):
        engines.check_processor(precision)
    engines.check_processor("fp32")
    for enough in ("avx_vnni", "amx_bf16"):
        monkeypatch.setattr(engines, "processor_flags", lambda enough=enough: frozenset({enough}))
        engines.check_processor({"avx_vnni": "int8", "amx_bf16": "bf16"}[enough])


def test_a_provider_that_would_be_left_out_silently_is_an_error(tiny, monkeypatch):
    """This build really leaves it out: only our own look at the list of providers is kept from seeing it first."""
    import onnxruntime

    wanted = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fallen = onnxruntime.InferenceSession(tiny, providers=wanted).get_providers()
    assert fallen == ["CPUExecutionProvider"], "ONNX Runtime goes on with the CPU"
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: wanted)
    with one_sentence(r"CUDAExecutionProvider does not start here.*CPUExecutionProvider"):
        onnx_runtime.open_session(tiny, providers=wanted)
    with pytest.raises(PhotodupError, match="ask for the cpu"):
        load_model(f"onnx:{tiny}", device="cuda")


@needs_bf16
def test_the_service_takes_engine_and_precision(tiny, launch):
    running = launch(MODEL_PRETRAINED=f"onnx:{tiny}", ENGINE="openvino", PRECISION="bf16")
    running.wait()
    info = httpx.get(f"{running.url}/info").json()
    assert [info[key] for key in ("engine", "precision", "accuracy_check")] == [
        "openvino",
        "bf16",
        "not asked",
    ]
    assert info["digest"] == load_model(f"onnx:{tiny}", engine="openvino", precision="bf16").digest
    running.stop()
    refused = launch(MODEL_PRETRAINED=f"onnx:{tiny}", ENGINE="openvino", PRECISION="fp16")
    assert refused.process.wait(60) == 2
    assert "openvino does not compute in fp16" in refused.log.read_text().splitlines()[-1]


@needs_bf16
def test_the_local_client_takes_engine_and_precision(tiny):
    options = {"engine": "openvino", "precision": "bf16"}
    with connect(mode="local", pretrained=f"onnx:{tiny}", **options) as embedder:
        of = embedder.model
        assert (of.engine, of.precision) == ("openvino", "bf16")
        found = embedder.embed([Image.fromarray(image.transpose(1, 2, 0)) for image in PIXELS])
        assert embedder.model_digest == load_model(f"onnx:{tiny}", engine="openvino", precision="bf16").digest
    assert cosines(found, tiny_embedding(normalize(PIXELS))).min() > 0.999


@pytest.mark.parametrize(("engine", "precision", "smallest"), [
    pytest.param("pytorch", "bf16", 0.999, marks=[needs_bf16, pytest.mark.long]),
    ("onnx", "fp32", 0.99999),
    pytest.param("openvino", "fp32", 0.99999, marks=pytest.mark.long),  # as is the tiny one above
    pytest.param("openvino", "bf16", 0.999, marks=[needs_bf16, pytest.mark.long]),
])  # fmt: skip
def test_openclip_in_each_engine_is_openclip(engine, precision, smallest, real_model, real_exports):
    """The real ViT-B/32; INT8 has its own in test_int8.py, since it must be made first."""
    wanted = real_model.embed_pixels(PIXELS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's own
        folder = real_exports["fp32"].parent
        model = load_model("random:0", engine=engine, precision=precision, device="cpu", directory=folder)
        found = model.embed_pixels(PIXELS)
    assert cosines(found, wanted).min() > smallest
    assert model.source_digest == real_model.digest and model.is_random and model.name == "ViT-B-32"
    if precision == "fp32":
        assert model.digest == real_model.digest
    else:
        assert model.digest != real_model.digest and np.abs(found - wanted).max() > 1e-5


@needs_triton()
@needs_bf16
def test_triton_runs_each_engine_and_precision_behind_every_wire(tmp_path, tiny_exports):
    source = source_of(tiny_exports["fp32"])
    files = {
        f"{engine}-int8": quantise(source, photographs(32), engine=engine, directory=tmp_path / "models")
        for engine in ("openvino", "onnx")
    }
    names = [
        "openclip_vit_b32_openvino_bf16",
        "openclip_vit_b32_openvino_int8",
        "openclip_vit_b32_openvino_int8_fp16",
        "openclip_vit_b32_openvino_int8_jpeg",
        "openclip_vit_b32_int8",
        "openclip_vit_b32_int8_uint8",
    ]
    exported = tiny_exports | files
    repository = render_repository("cpu-embedded", tmp_path / "models-rendered", exported, models=names)
    weights = f"onnx:{source.path}"
    ours = {
        (engine, precision): load_model(
            weights, engine=engine, precision=precision, device="cpu", directory=tmp_path / "models"
        )
        for engine, precision in [("openvino", "bf16"), ("openvino", "int8"), ("onnx", "int8")]
    }
    images = normalize(PIXELS)
    with EmbeddedTriton(repository, names) as server:
        for name, sent, key in [
            (names[0], images, ("openvino", "bf16")),
            (names[1], images, ("openvino", "int8")),
            (names[2], images.astype(np.float16), ("openvino", "int8")),
            ("openclip_vit_b32_openvino_int8_uint8", PIXELS, ("openvino", "int8")),
            (names[4], images, ("onnx", "int8")),
            (names[5], PIXELS, ("onnx", "int8")),
        ]:
            found = infer(server, name, sent)
            # Rounding to FP16 moves some values over a step of INT8.
            smallest = 0.999 if sent.dtype == np.float16 else 0.9999
            assert cosines(found, ours[key].embed_pixels(PIXELS)).min() > smallest, name
            config = json.loads(
                httpx.get(
                    f"{server.http_url}/v2/models/{name}/config", headers=getattr(server, "headers", None)
                ).text
            )
            assert config["parameters"]["model_digest"]["string_value"] == ours[key].digest, name
            assert config["parameters"]["precision"]["string_value"] == key[1], name
            assert config["parameters"]["accuracy_check"]["string_value"] == "not asked", name
        jpegs = [to_jpeg(Image.fromarray(image.transpose(1, 2, 0)), 95) for image in PIXELS]
        found = infer(server, names[3], np.array(jpegs, object).reshape(-1, 1))
        decoded = np.stack([to_uint8(decode(jpeg)) for jpeg in jpegs])
        assert cosines(found, ours["openvino", "int8"].embed_pixels(decoded)).min() > 0.9999


def test_triton_refuses_an_int8_file_of_other_weights(tmp_path, tiny_exports):
    other = source_of(tiny_graph(tmp_path / "other.onnx", seed=1))
    file = quantise(other, photographs(32), directory=tmp_path)
    name = "openclip_vit_b32_openvino_int8"
    exported = tiny_exports | {"openvino-int8": file}
    with pytest.raises(PhotodupError, match="not made from these weights"):
        render_repository("cpu-embedded", tmp_path / "r", exported, models=[name])
    with pytest.raises(PhotodupError, match=r"'openvino-int8': run `photodup export --precision int8"):
        render_repository("cpu-embedded", tmp_path / "r", tiny_exports, models=[name])
    with pytest.raises(PhotodupError, match="cpu-embedded only"):
        render_repository("cuda", tmp_path / "r", exported, models=[name])
