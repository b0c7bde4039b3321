"""FP16 and BF16 graphs of an exported encoder.

What a GPU computes in FP16 cannot be had by running an FP16 file on a CPU: ONNX Runtime's CPU provider
has few FP16 kernels, computes the rest in float32 and drops the casts between, so that little more than the
weights is rounded and the answers look better than a GPU's. `rounded` therefore writes the rounding into a
float32 graph: weights and every operator's result are rounded to the format, sums stay float32. That is
what tensor cores do (FP16 or BF16 in, FP32 accumulators), up to the order of the sums and to fusions, which
round less often.
"""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from photodup.core.errors import PhotodupError
from photodup.core.files import replacing
from photodup.embedding.engines.reduced import load_graph
from photodup.embedding.engines.weights import quiet_tools

if TYPE_CHECKING:
    import onnx

ROUNDED = ("fp16", "bf16")
# These only move numbers that were rounded before.
_MOVES = {
    "Concat", "Expand", "Flatten", "Gather", "Identity",
    "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze",
}  # fmt: skip
# ONNX Runtime 1.31 dies (segmentation fault) when this pass meets an FP16 graph that goes convolution, reshape,
# transpose, layer normalisation, transpose, matrix product: every vision transformer does. It changes only the
# order in which a convolution's channels lie in memory, never an answer.
_CRASHES_ON_FP16 = ["NchwcTransformer"]


def rounded(graph: "onnx.ModelProto", precision: str) -> "onnx.ModelProto":
    """Return a float32 graph that rounds as a device computing in `precision` does.

    Args:
        graph: an exported encoder; it is not changed.
        precision: `fp16` (10 bits of fraction, overflows above 65,504) or `bf16` (7 bits, float32's range).

    Raises:
        PhotodupError: another precision, or tensors without a recorded type.
    """
    import ml_dtypes
    from onnx import TensorProto, helper, numpy_helper

    if precision not in ROUNDED:
        raise PhotodupError(
            f"Cannot round to {precision!r}: use {' or '.join(ROUNDED)}, or `photodup export --precision int8`."
        )
    is_fp16 = precision == "fp16"
    low, dtype = (TensorProto.FLOAT16, np.float16) if is_fp16 else (TensorProto.BFLOAT16, ml_dtypes.bfloat16)
    floats = _float_tensors(graph)
    changed = copy.deepcopy(graph)
    body = changed.graph

    def cast_nodes(source: str, target: str) -> list[Any]:
        return [
            helper.make_node("Cast", [source], [f"{target}_low"], to=low, name=f"{target}_down"),
            helper.make_node("Cast", [f"{target}_low"], [target], to=TensorProto.FLOAT, name=f"{target}_up"),
        ]

    for weight in body.initializer:
        if weight.data_type == TensorProto.FLOAT:
            with np.errstate(over="ignore"):  # an infinity is the finding, not an accident
                values = numpy_helper.to_array(weight).astype(dtype).astype(np.float32)
            weight.CopyFrom(numpy_helper.from_array(values, weight.name))
    inputs = {entry.name: f"{entry.name}_rounded" for entry in body.input}
    nodes = [node for names in inputs.items() for node in cast_nodes(*names)]
    for node in body.node:
        for i, name in enumerate(node.input):
            node.input[i] = inputs.get(name, name)
        nodes.append(node)
        for i, name in enumerate(node.output):
            if name in floats and node.op_type not in _MOVES:
                node.output[i] = f"{name}_exact"
                nodes += cast_nodes(f"{name}_exact", name)
    copies = [copy.deepcopy(node) for node in nodes]  # some are in the field that is emptied
    del body.node[:]
    body.node.extend(copies)
    return changed


def fp16_file(source: Path, directory: Path) -> Path:
    """Write the graph with FP16 tensors inside and float32 at both ends, for a GPU. Half the size."""
    import onnx
    from onnxruntime.transformers import float16

    path = directory / f"{source.stem}-compute-fp16.onnx"
    with quiet_tools(), replacing(path) as scratch:
        onnx.save(float16.convert_float_to_float16(load_graph(source), keep_io_types=True), scratch)
    return path


def embeddings_of(graph: "onnx.ModelProto | Path", images: np.ndarray) -> np.ndarray:
    """Run a graph with ONNX Runtime's CPU provider.

    Args:
        graph: in memory, or a file.
        images: float32 [n, 3, 224, 224], normalised.

    Returns:
        float32 [n, dim], as the graph gives them; not finite where it overflowed.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    source = str(graph) if isinstance(graph, Path) else graph.SerializeToString()
    session = onnxruntime.InferenceSession(
        source, options, providers=["CPUExecutionProvider"], disabled_optimizers=_CRASHES_ON_FP16
    )
    split: Sequence[np.ndarray] = np.array_split(images, -(-len(images) // 8))
    return np.concatenate([session.run(["embedding"], {"image": part})[0] for part in split])


def _float_tensors(graph: "onnx.ModelProto") -> set[str]:
    from onnx import TensorProto

    infos = [*graph.graph.value_info, *graph.graph.output]
    types = {i.name: i.type.tensor_type.elem_type for i in infos}
    outputs = [o for node in graph.graph.node for o in node.output]
    if missing := [o for o in outputs if o not in types]:
        raise PhotodupError(
            f"{len(missing)} tensors of the graph have no recorded type, such as {missing[0]}: export it again."
        )
    return {name for name in outputs if types[name] == TensorProto.FLOAT}
