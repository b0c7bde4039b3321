"""Reduced precision: FP16 and BF16 graphs of an exported encoder, and INT8 ones, whole or one part at a time.

What a GPU computes in FP16 cannot be had by running an FP16 file on a CPU: ONNX Runtime's CPU provider
has few FP16 kernels, computes the rest in float32 and drops the casts between, so that little more than the
weights is rounded and the answers look better than a GPU's. `rounded` therefore writes the rounding into a
float32 graph: weights and every operator's result are rounded to the format, sums stay float32. That is
what tensor cores do (FP16 or BF16 in, FP32 accumulators), up to the order of the sums and to fusions, which
round less often.
"""

import copy
import re
from collections.abc import Collection, Sequence
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
# Results of these are numbers that were rounded before.
_MOVES = {
    "Concat", "Expand", "Flatten", "Gather", "Identity",
    "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze",
}  # fmt: skip
# ONNX Runtime 1.31 dies (segmentation fault) when this pass meets an FP16 graph that goes convolution, reshape,
# transpose, layer normalisation, transpose, matrix product: every vision transformer does. It changes only the
# order in which a convolution's channels lie in memory, never an answer.
_CRASHES_ON_FP16 = ["NchwcTransformer"]
_BLOCK = re.compile(r"'([^']*\.\d+)'")


def parts(graph: "onnx.ModelProto") -> dict[str, set[str]]:
    """Name the network's parts in order: stem, one for each block, head; with the names of their nodes.

    The names are the modules' that PyTorch's exporter left at each node; without them all is one part.
    """
    nodes: dict[str, set[str]] = {}
    for node in graph.graph.node:
        block = _BLOCK.search(_scopes(node))
        # `visual.transformer.resblocks.3` becomes `block 3`; what follows the blocks is the head.
        name = f"block {block[1].rsplit('.', 1)[1]}" if block else "head" if set(nodes) - {"stem"} else "stem"
        nodes.setdefault(name, set()).add(node.name)
    return nodes


def layers(graph: "onnx.ModelProto", within: Collection[str]) -> dict[str, set[str]]:
    """Name the modules that the nodes `within` came from, in order, with the names of their nodes.

    A batch normalisation that the exporter folded into the convolution before it gives that one its name. What
    belongs to no inner module goes by the name of its operation.
    """
    nodes: dict[str, set[str]] = {}
    for node in graph.graph.node:
        if node.name in within:
            scopes = [scope for scope in re.findall(r"'([^']*)'", _scopes(node)) if scope]
            modules = [scope.split(".", 1)[1] for scope in scopes if "." in scope]
            name = (modules or scopes or [node.op_type])[-1]
            nodes.setdefault(name, set()).add(node.name)
    return nodes


def rounded(
    graph: "onnx.ModelProto", precision: str, nodes: Collection[str] | None = None
) -> "onnx.ModelProto":
    """Return a float32 graph that rounds as a device computing in `precision` does.

    Args:
        graph: an exported encoder; it is not changed.
        precision: `fp16` (10 bits of fraction, overflows above 65,504) or `bf16` (7 bits, float32's range).
        nodes: names of the nodes that compute in `precision`; the others stay float32. None: all.
    """
    from onnx import TensorProto, helper

    if precision not in ROUNDED:
        raise PhotodupError(f"Cannot round to {precision!r}: use {' or '.join(ROUNDED)}, or quantize().")
    low = TensorProto.FLOAT16 if precision == "fp16" else TensorProto.BFLOAT16
    changed = copy.deepcopy(graph)
    body = changed.graph
    floats = _float_tensors(graph)
    weights = {w.name: w for w in body.initializer if w.data_type == TensorProto.FLOAT}
    new_nodes: list[Any] = []
    new_weights: dict[str, Any] = {}
    inputs = {i.name for i in body.input}

    def round_trip(source: str, target: str) -> list[Any]:
        return [
            helper.make_node("Cast", [source], [f"{target}_low"], to=low, name=f"{target}_down"),
            helper.make_node("Cast", [f"{target}_low"], [target], to=TensorProto.FLOAT, name=f"{target}_up"),
        ]

    entered: set[str] = set()
    for node in body.node:
        if nodes is not None and node.name not in nodes:
            new_nodes.append(node)
            continue
        for i, name in enumerate(node.input):
            if name in weights:
                if f"{name}_rounded" not in new_weights:
                    new_weights[f"{name}_rounded"] = _round_weight(weights[name], precision)
                node.input[i] = f"{name}_rounded"
            elif name in inputs and node.op_type != "Shape":
                if name not in entered:
                    new_nodes += round_trip(name, f"{name}_rounded")
                    entered.add(name)
                node.input[i] = f"{name}_rounded"
        new_nodes.append(node)
        if node.op_type not in _MOVES:
            for i, name in enumerate(node.output):
                if name in floats:
                    node.output[i] = f"{name}_exact"
                    new_nodes += round_trip(f"{name}_exact", name)
    _fill(body.node, new_nodes)
    used = {name for node in body.node for name in node.input}
    _fill(body.initializer, [w for w in (*body.initializer, *new_weights.values()) if w.name in used])
    return changed


def fp16_file(source: Path, directory: Path) -> Path:
    """Write the graph with FP16 tensors inside and float32 at both ends, for a GPU. Half the size."""
    import onnx
    from onnxruntime.transformers import float16

    path = directory / f"{source.stem}-compute-fp16.onnx"
    with quiet_tools(), replacing(path) as scratch:
        onnx.save(float16.convert_float_to_float16(load_graph(source), keep_io_types=True), scratch)
    return path


def quantized_only(
    quantized: "onnx.ModelProto", source: "onnx.ModelProto", nodes: Collection[str]
) -> "onnx.ModelProto":
    """Return the INT8 graph with all but `nodes` put back to float32, from the graph it was made from."""
    import onnx

    changed = copy.deepcopy(quantized)
    body = changed.graph
    weights = {w.name: w for w in source.graph.initializer}
    producers = {output: node for node in body.node for output in node.output}
    exact: dict[str, str] = {}
    for name, node in producers.items():
        if node.op_type == "DequantizeLinear" and name not in weights:  # biases keep name and 32 bits
            before = producers.get(node.input[0])
            exact[name] = before.input[0] if before is not None else node.input[0].removesuffix("_quantized")
    present = {w.name for w in body.initializer} | set(producers)
    for node in body.node:
        if node.op_type == "DequantizeLinear" and node.output[0] in {o.name for o in body.output}:
            before = producers[node.input[0]].input[0]
            if producers[before].name not in nodes:
                node.CopyFrom(onnx.helper.make_node("Identity", [before], [node.output[0]], name=node.name))
        if node.name in nodes or node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            continue
        for i, name in enumerate(node.input):
            while name in exact:  # the tool may put two pairs in a row
                name = exact[name]
            node.input[i] = name
            if name in weights and name not in present:
                body.initializer.append(weights[name])
                present.add(name)
    return changed


def embeddings_of(graph: "onnx.ModelProto | Path", images: np.ndarray, *, batch: int = 8) -> np.ndarray:
    """Run a graph with ONNX Runtime's CPU provider.

    Args:
        graph: in memory, or a file.
        images: float32 [n, 3, 224, 224], normalised.
        batch: images per run; an INT8 or rounded answer does not depend on it.

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
    split: Sequence[np.ndarray] = np.array_split(images, -(-len(images) // batch))
    return np.concatenate([session.run(["embedding"], {"image": some})[0] for some in split])


def value_range(graph: "onnx.ModelProto", node: str, images: np.ndarray) -> tuple[float, float]:
    """Return the smallest and largest value that the node named `node` gives for `images`."""
    import onnx
    import onnxruntime

    watched = copy.deepcopy(graph)
    name = next(n.output[0] for n in graph.graph.node if n.name == node)
    watched.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    session = onnxruntime.InferenceSession(watched.SerializeToString(), providers=["CPUExecutionProvider"])
    values = session.run([name], {"image": images})[0]
    return float(values.min()), float(values.max())


def _fill(field: Any, messages: Sequence[Any]) -> None:
    """Put messages into a repeated field in place of what it holds; they may be some of those."""
    copies = [copy.deepcopy(message) for message in messages]
    del field[:]
    field.extend(copies)


def _scopes(node: Any) -> str:
    """Return the modules around a node as PyTorch's exporter wrote them, outermost first, or nothing."""
    return next((p.value for p in node.metadata_props if p.key.endswith("name_scopes")), "")


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


def _round_weight(weight: Any, precision: str) -> Any:
    import ml_dtypes
    from onnx import numpy_helper

    dtype = np.float16 if precision == "fp16" else ml_dtypes.bfloat16
    with np.errstate(over="ignore"):  # an infinity is the finding, not an accident
        values = numpy_helper.to_array(weight).astype(dtype).astype(np.float32)
    return numpy_helper.from_array(values, f"{weight.name}_rounded")
