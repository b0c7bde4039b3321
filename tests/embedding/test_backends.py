"""The name of a backend and the object say the same, and the source documents' short names are read."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.command import one_sentence

from photodup.bench.backends.adapters import adapter
from photodup.core.errors import PhotodupError
from photodup.embedding.backends import (
    ENGINES,
    PRECISIONS,
    PROTOCOLS,
    Backend,
    backend_of,
    backend_of_model,
    engine_family,
    parse_backend,
    wires_of,
)
from photodup.embedding.client.embedder import connect
from photodup.serving.endpoints import load_endpoints

WORD = st.text("abcrtx0149", min_size=1, max_size=6)
MODELS = [wire for wire in wires_of("triton") if wire != "json"]  # each has a model of its own
GPU = WORD | st.tuples(WORD, WORD).map("-".join)


@st.composite
def backends(draw):
    server = draw(st.sampled_from(sorted({*PROTOCOLS} - {"peer"})))  # which no name means
    engine = st.sampled_from(ENGINES)
    engine = draw(engine | GPU.map("emulated-{}".format) if server == "triton" else engine)
    wire = draw(st.sampled_from(wires_of(server)))
    protocol = "http" if wire == "json" else draw(st.sampled_from(PROTOCOLS[server]))
    return Backend(server, engine, draw(st.sampled_from(PRECISIONS)), protocol, wire)


@given(backends())
def test_a_name_is_its_parts(backend):
    assert parse_backend(backend.name) == backend == parse_backend(backend)
    assert str(backend) == backend.name == backend.columns()["backend"]
    parts = backend.server, backend.engine, backend.precision, backend.protocol, backend.wire
    assert [v for k, v in backend.columns().items() if k != "backend" and v] == [*filter(None, parts)]


@pytest.mark.parametrize(("written", "name"), [
    ("pytorch", "fastapi-pytorch-fp32-http-jpeg"),
    ("triton", "triton-onnx-fp32-http-fp32"),
    ("triton_grpc", "triton-onnx-fp32-grpc-fp32"),
    ("local", "local-pytorch-fp32"),
])  # fmt: skip
def test_short_names_of_the_source_documents_are_read(written, name):
    assert parse_backend(written).name == name


NAMES = """onnx triton- triton-onnx-fp32 triton-onnx-fp32-http pytorch-grpc-jpeg fastapi-pytorch-fp32-grpc-jpeg
triton-onnx-grpc-json triton-onnx-fp32-grpc-json local-onnx-fp32-http-jpeg local-dog triton_http pytorch-http-jpeg
triton-onnx-grpc-fp32 local-onnx dummy fastapi-emulated-a100-fp32-http-jpeg triton-dummy-fp32-http-fp32
triton-onnx-fp64-http-fp32 triton-onnx pytorch-grpc triton-onnx-udp-fp32"""


@pytest.mark.parametrize("name", ["", *NAMES.split()])
def test_other_names_are_refused_with_the_pattern(name):
    for read in (parse_backend, adapter):
        with one_sentence(rf"'{name}' names no backend: use local-ENGINE-PRECISION, .*such as triton-"):
            read(name)


@pytest.mark.parametrize("part", ["server", "engine", "precision", "protocol", "wire"])
def test_no_object_can_hold_what_no_name_says(part):
    good = {"server": "triton", "engine": "onnx", "precision": "fp32", "protocol": "http", "wire": "fp32"}
    Backend(**good)
    with pytest.raises(PhotodupError, match=r"names no backend"):
        Backend(**good | {part: "nothing"})


def test_what_computes_otherwise_is_another_model_of_triton():
    """One model for two of them would answer a question about one with the other."""
    parts = itertools.product((*ENGINES, "emulated-a100"), PRECISIONS, MODELS)
    models = [Backend("triton", e, precision, "http", wire).triton_model for e, precision, wire in parts]
    assert len(set(models)) == len(models)
    assert [backend_of_model(model).triton_model for model in models] == models
    for name, model in {
        "fastapi-onnx-int8-http-jpeg": "",
        "triton-onnx-fp32-http-json": "openclip_vit_b32",
        "triton-onnx-fp32-grpc-uint8": "openclip_vit_b32_uint8",
        "triton-onnx-fp32-http-jpeg": "openclip_vit_b32_jpeg",
        "triton-openvino-bf16-grpc-fp32": "openclip_vit_b32_openvino_bf16",
        "triton-trt-fp16-grpc-fp32": "openclip_vit_b32_trt",
        "triton-onnx-tf32-http-fp32": "openclip_vit_b32_tf32",
        "triton-emulated-4090trt-fp32-http-jpeg": "emulated_4090trt_jpeg",
    }.items():
        backend = parse_backend(name)
        assert backend.triton_model == model
        if model and backend.wire != "json":
            assert backend_of_model(model) == replace(backend, protocol="http")
    for model in ("preprocess", "onnx", "trt_half"):
        assert backend_of_model(f"openclip_vit_b32_{model}") is backend_of_model("resnet50") is None, model


@given(GPU, st.sampled_from(MODELS))
def test_an_emulated_gpu_is_known_by_its_model(gpu, wire):
    backend = backend_of(f"emulated-{gpu}", "http", wire)
    if "-" not in gpu or gpu.rsplit("-", 1)[1] not in wires_of("triton"):
        assert backend_of_model(backend.triton_model) == backend
    assert backend.emulated_device == gpu and engine_family(backend.engine) == "emulated"
    assert engine_family("onnx") == "onnx"


def test_an_endpoints_file_keeps_short_names_under_the_full_ones(tmp_path):
    file = tmp_path / "short.yaml"
    one = "name: short\nbackends:\n  pytorch: http://h:1\n"
    file.write_text(one + "  triton_grpc: h:2\n")
    wanted = {"fastapi-pytorch-fp32-http-jpeg": "http://h:1", "triton-onnx-fp32-grpc-fp32": "h:2"}
    assert load_endpoints(file).backends == wanted
    file.write_text(one + "  fastapi-pytorch-fp32-http-jpeg: http://h:2\n")
    with pytest.raises(PhotodupError, match="listed twice, with two addresses"):
        load_endpoints(file)


def test_what_this_process_cannot_compute_is_refused():
    for name in ("local-trt-fp16", "local-onnx-int8"):
        with pytest.raises(PhotodupError, match=f"{name} cannot be measured in this process"):
            adapter(name)
    with pytest.raises(PhotodupError, match="local-trt-fp16 cannot embed"):
        connect(backend="local-trt-fp16")
