"""The name of a backend and the object say the same, and what the first edition wrote is still read."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from photodup.bench.backends.adapters import adapter
from photodup.embedding.backends import (
    ENGINES,
    PRECISIONS,
    PROTOCOLS,
    WIRES,
    Backend,
    backend_of,
    emulated_engine,
    engine_family,
    parse_backend,
)
from photodup.embedding.client.client import connect
from photodup.errors import PhotodupError
from photodup.serving.endpoints import load_endpoints

WORD = st.text("abcrtx0149", min_size=1, max_size=6)
GPU = WORD | st.tuples(WORD, WORD).map("-".join)


@st.composite
def backends(draw):
    server = draw(st.sampled_from(sorted(WIRES)))
    engine = st.sampled_from(ENGINES)
    engine = draw(engine | GPU.map("emulated-{}".format) if server == "triton" else engine)
    wire = draw(st.sampled_from(WIRES[server]))
    protocol = "http" if wire == "json" else draw(st.sampled_from(PROTOCOLS[server]))
    return Backend(server, engine, draw(st.sampled_from(PRECISIONS)), protocol, wire)


@given(backends())
def test_a_name_is_its_parts(backend):
    assert parse_backend(backend.name) == backend == parse_backend(backend)
    assert str(backend) == backend.name == backend.columns()["backend"]
    assert [v for k, v in backend.columns().items() if k != "backend" and v] == [
        *filter(None, (backend.server, backend.engine, backend.precision, backend.protocol, backend.wire))
    ]


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("pytorch", "fastapi-pytorch-fp32-http-jpeg"),
        ("triton", "triton-onnx-fp32-http-fp32"),
        ("triton_http", "triton-onnx-fp32-http-fp32"),
        ("triton_grpc", "triton-onnx-fp32-grpc-fp32"),
        ("local", "local-pytorch-fp32"),
        ("local-onnx", "local-onnx-fp32"),
        ("pytorch-http-jpeg", "fastapi-pytorch-fp32-http-jpeg"),
        ("pytorch-http-base64", "fastapi-pytorch-fp32-http-base64"),
        ("triton-onnx-grpc-fp32", "triton-onnx-fp32-grpc-fp32"),
        ("triton-onnx-http-fp16", "triton-onnx-fp32-http-fp16"),
        ("triton-onnx-http-json", "triton-onnx-fp32-http-json"),
        ("triton-openvino-http-fp32", "triton-openvino-fp32-http-fp32"),
        ("triton-trt-grpc-fp32", "triton-trt-fp16-grpc-fp32"),
        ("triton-emulated-a100-http-uint8", "triton-emulated-a100-fp32-http-uint8"),
        ("triton-emulated-rtx-4090-grpc-fp32", "triton-emulated-rtx-4090-fp32-grpc-fp32"),
        ("dummy", "local-dummy-fp32"),
    ],
)
def test_names_of_the_first_edition_are_read(written, name):
    assert parse_backend(written).name == name


@pytest.mark.parametrize(
    "name",
    [
        *(
            "",
            "onnx",
            "triton-",
            "triton-onnx-fp32",
            "triton-onnx-fp32-http",
            "fastapi-pytorch-fp32-grpc-jpeg",
        ),
        *("triton-onnx-grpc-json", "triton-onnx-fp32-grpc-json", "local-onnx-fp32-http-jpeg", "local-dog"),
        *(
            "fastapi-emulated-a100-fp32-http-jpeg",
            "triton-dummy-fp32-http-fp32",
            "triton-onnx-fp64-http-fp32",
        ),
    ],
)
def test_other_names_are_refused_with_the_pattern(name):
    with pytest.raises(
        PhotodupError, match=r"names no backend: use local-ENGINE-PRECISION, .*such as triton-"
    ):
        parse_backend(name)


@pytest.mark.parametrize("part", ["server", "engine", "precision", "protocol", "wire"])
def test_no_object_can_hold_what_no_name_says(part):
    good = {"server": "triton", "engine": "onnx", "precision": "fp32", "protocol": "http", "wire": "fp32"}
    Backend(**good)
    with pytest.raises(PhotodupError, match=r"names no backend"):
        Backend(**good | {part: "nothing"})


def test_what_computes_otherwise_is_another_model_of_triton():
    """One model for two of them would answer a question about one with the other."""
    parts = itertools.product((*ENGINES, "emulated-a100"), PRECISIONS, ("fp32", "fp16", "uint8", "jpeg"))
    models = [
        Backend("triton", engine, precision, "http", wire).triton_model for engine, precision, wire in parts
    ]
    assert len(set(models)) == len(models)
    assert Backend("triton", "onnx", "fp32", "http", "json").triton_model == "openclip_vit_b32"
    assert backend_of("trt", "grpc", "fp32").triton_model == "openclip_vit_b32_trt"
    assert (
        Backend("triton", "openvino", "bf16", "http", "fp32").triton_model == "openclip_vit_b32_openvino_bf16"
    )
    assert Backend("fastapi", "onnx", "int8", "http", "jpeg").triton_model == ""


@given(GPU, st.sampled_from(["fp32", "fp16", "uint8", "jpeg"]))
def test_an_emulated_gpu_is_known_by_its_model(gpu, wire):
    backend = backend_of(f"emulated-{gpu}", "http", wire)
    if "-" not in gpu or gpu.rsplit("-", 1)[1] not in WIRES["triton"]:
        assert emulated_engine(backend.triton_model) == backend.engine
    assert backend.emulated_device == gpu and engine_family(backend.engine) == "emulated"
    assert emulated_engine("openclip_vit_b32_uint8") == "" and engine_family("onnx") == "onnx"


def test_a_file_of_the_first_edition_gives_todays_endpoints(tmp_path):
    file = tmp_path / "old.yaml"
    file.write_text(
        "name: old\nbackends:\n  pytorch-http-jpeg: http://h:1\n  triton-trt-grpc-fp32: h:2\n"
        "metrics:\n  pytorch: http://h:1/metrics\n"
    )
    found = load_endpoints(file)
    assert found.backends == {
        "fastapi-pytorch-fp32-http-jpeg": "http://h:1",
        "triton-trt-fp16-grpc-fp32": "h:2",
    }
    assert found.metrics == {"fastapi": "http://h:1/metrics"}
    file.write_text(
        "name: twice\nbackends:\n  pytorch-http-jpeg: http://h:1\n  fastapi-pytorch-fp32-http-jpeg: http://h:2\n"
    )
    with pytest.raises(PhotodupError, match="listed twice, with two addresses"):
        load_endpoints(file)


def test_what_this_process_cannot_compute_is_refused():
    for name in ("local-trt-fp16", "local-onnx-int8"):
        with pytest.raises(PhotodupError, match=f"{name} cannot be measured in this process"):
            adapter(name)
    with pytest.raises(PhotodupError, match="local-trt-fp16 cannot embed"):
        connect(backend="local-trt-fp16")
