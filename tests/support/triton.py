"""A real Triton for the tests, with a tiny graph in place of the 350 MB one. Conftest's fixtures stop it."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from photodup.embedding import imaging

TINY_MODELS = [
    "openclip_vit_b32", "openclip_vit_b32_openvino", "openclip_vit_b32_fp16", "openclip_vit_b32_uint8",
    "openclip_vit_b32_jpeg", "openclip_vit_b32_preprocess",
]  # fmt: skip


def save_graph(path: Path, nodes: list[tuple], given: tuple, answered: tuple, weights=None, **metadata: str):
    """Write a graph of (operator, inputs, output, attributes); its ends are (name, shape) or (name, shape, type)."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    def end(name: str, shape: list, kind: str = "FLOAT"):
        return helper.make_tensor_value_info(name, getattr(TensorProto, kind), shape)

    made = [helper.make_node(kind, given_, [to], name=to, **dict(*more)) for kind, given_, to, *more in nodes]
    arrays = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(made, path.stem, [end(*given)], [end(*answered)], arrays)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    helper.set_model_props(model, metadata)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path


AS_FLOATS = {"to": 1}  # TensorProto.FLOAT


def tiny_graph(path: Path, variant: str = "fp32", seed: int = 0, **metadata: str) -> Path:
    """Write an encoder of 300 KB: mean colours of a 7 × 7 grid, a random projection, length 1. Black is no zero."""
    weights, bias = _weights(seed)
    nodes = [
        ("Cast", ["image"], "pixels", AS_FLOATS),
        ("AveragePool", ["pixels"], "grid", {"kernel_shape": [32, 32], "strides": [32, 32]}),
        ("Flatten", ["grid"], "colours"),
        ("MatMul", ["colours", "weights"], "projected"),
        ("Add", ["projected", "bias"], "moved"),
        ("LpNormalization", ["moved"], "embedding", {"axis": 1, "p": 2}),
    ]
    wire = {"fp32": "FLOAT", "fp16": "FLOAT16", "uint8": "UINT8"}[variant]
    ends = ("image", ["n", 3, 224, 224], wire), ("embedding", ["n", 512])
    return save_graph(path, nodes, *ends, {"weights": weights, "bias": bias}, **metadata)


def taking_pictures(
    path: Path, encoder: Path | None = None, *, uint8: bool = False, size: object = 224, n: object = "n", **notes: str,
) -> Path:  # fmt: skip
    """Write an encoder (the tiny one) so that it takes pictures otherwise, and answers the same."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    model = onnx.load(encoder or tiny_graph(path, **notes))
    graph, before, at = model.graph, [], "image"
    if uint8:
        before.append(helper.make_node("Cast", [at], ["as_floats"], to=TensorProto.FLOAT))
        at = "as_floats"
        for name, values in (("mean", imaging.MEAN), ("std", imaging.STD)):
            scaled = (np.asarray(values) * 255).reshape(1, 3, 1, 1).astype(np.float32)
            graph.initializer.append(numpy_helper.from_array(scaled, name))
        before.append(helper.make_node("Sub", [at, "mean"], ["centred"]))
        before.append(helper.make_node("Div", ["centred", "std"], ["normal"]))
        at = "normal"
    nodes = list(graph.node)
    nodes[0].input[0] = at
    del graph.node[:], graph.input[:]
    graph.node.extend([*before, *nodes])
    shape = [n, 3, size, size]
    kind = TensorProto.UINT8 if uint8 else TensorProto.FLOAT
    graph.input.append(helper.make_tensor_value_info("image", kind, shape))
    onnx.save(model, path)
    return path


def echo_graph(path: Path, shape: list, kind: str = "FLOAT") -> Path:
    """Write a graph that is no encoder of 224 pixels: it answers with what it is given."""
    return save_graph(path, [("Identity", ["given"], "out")], ("given", shape, kind), ("out", shape, kind))


def _weights(seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    return random.normal(size=(147, 512)).astype(np.float32), random.normal(size=512).astype(np.float32)


def tiny_embedding(images: np.ndarray, seed: int = 0) -> np.ndarray:
    """What `tiny_graph` computes, in NumPy."""
    weights, bias = _weights(seed)
    grid = images.astype(np.float32).reshape(len(images), 3, 7, 32, 7, 32).mean(axis=(3, 5))
    projected = grid.reshape(len(images), 147) @ weights + bias
    return projected / np.linalg.norm(projected, axis=1, keepdims=True)


def tiny_exports(folder: Path) -> dict[str, Path]:
    """Write a tiny graph for each precision, with the digest `tiny`."""
    return {v: tiny_graph(folder / f"{v}.onnx", v, model_digest="tiny") for v in ("fp32", "fp16", "uint8")}


def needs_triton():
    """Skip where no embedded Triton can exist; where it could, its absence is a failure."""
    import platform
    import sys

    possible = sys.platform == "linux" and platform.machine() == "x86_64"
    return pytest.mark.skipif(not possible, reason="the embedded Triton is for Linux on x86-64 only")


def render_tiny(folder: Path, exports: dict[str, Path], models: list[str]) -> Path:
    """A repository of tiny graphs in `folder`, for a server of a test's own."""
    from photodup.serving.triton.repository import render_repository

    return render_repository("cpu-embedded", folder, exports, models=models)


def render_shared(folder: Path, exports: dict[str, Path]) -> Path:
    """The repository of the shared server: tiny graphs and emulated models."""
    from photodup.serving.triton.repository import render_repository

    render_tiny(folder, exports, TINY_MODELS)
    emulated = [
        "emulated_zero", "emulated_a100_jpeg", "emulated_4080trt", "emulated_4090", "emulated_4090_jpeg",
    ]  # fmt: skip
    return render_repository("cpu-embedded", folder, {}, models=emulated)


def load(server, model: str, config=None) -> None:
    """Load or reload a model of a test's server, with the file's configuration unless another is given."""
    from photodup.serving.triton.config import read_config
    from photodup.serving.triton.control import load_triton_model

    file = server.repository / model / "config.pbtxt"
    load_triton_model(server.grpc_url, model, config or (read_config(file) if file.exists() else None))


@contextlib.contextmanager
def loaded(server, *models: str, config=None) -> Iterator:
    """Have the shared server serve more models for the length of a block, with a configuration other than the file's."""
    from photodup.serving.triton.control import unload_triton_model

    try:
        for model in models:
            load(server, model, config)
        yield
    finally:
        for model in reversed(models):
            unload_triton_model(server.grpc_url, model)


def infer(server, model: str, array: np.ndarray, protocol: str = "http", output: str = "embedding"):
    """One request with a client of its own; BYTES for object arrays."""
    from tritonclient.utils import np_to_triton_dtype

    if protocol == "http":
        import tritonclient.http as client_module

        url = server.http_url.removeprefix("http://")
    else:
        import tritonclient.grpc as client_module

        url = server.grpc_url
    name = "encoded" if array.dtype == object else "image"
    tensor = client_module.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    tensor.set_data_from_numpy(array)
    client = client_module.InferenceServerClient(url)
    try:
        return client.infer(model, [tensor]).as_numpy(output)
    finally:
        client.close()


def executions(server, model: str) -> tuple[int, int]:
    """Return (images answered, executions) of a model so far, over its versions.

    Triton counts a request after it has answered it, so the counters are read until they rest.
    """
    import tritonclient.grpc as client_module

    seen: list[tuple[int, int]] = []
    with client_module.InferenceServerClient(server.grpc_url) as client:
        while len(seen) < 3 or len(set(seen[-3:])) > 1:
            time.sleep(0.1)
            found = client.get_inference_statistics(model).model_stats
            seen.append((sum(s.inference_count for s in found), sum(s.execution_count for s in found)))
    return seen[-1]
