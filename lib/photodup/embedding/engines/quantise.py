"""Quantise a float32 export to INT8 on photographs: for OpenVINO with NNCF, for ONNX Runtime with its own tool.

NNCF knows vision transformers: SmoothQuant moves large activation channels into the weights, residual additions
stay float, and biases are corrected on the calibration photographs. Depthwise convolutions stay float too: INT8 makes them
less exact and no faster. ONNX Runtime's tool has none of this; it is there for comparison.

Calibration sets the ranges, so the photographs must be of the kind that will be embedded. `photodup.study.accuracy.flips`
decides whether a file may be used.
"""

import contextlib
import hashlib
import io
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from photodup.core.errors import PhotodupError
from photodup.core.extras import import_extra
from photodup.core.files import replacing
from photodup.core.settings import variables
from photodup.embedding.engines.onnx_runtime import model_sha256
from photodup.embedding.engines.openvino import NOTES, read_network
from photodup.embedding.engines.reduced import WeightsSource, load_graph, reduced_path, write_notes
from photodup.embedding.engines.weights import quiet_tools

MIN_PHOTOGRAPHS = 32
_BATCH = 8  # images per calibration run
QUANTIZED_OPERATORS = ("Conv", "Gemm", "MatMul")


def quantise(
    source: WeightsSource,
    images: np.ndarray,
    *,
    engine: str = "openvino",
    directory: Path | None = None,
) -> Path:
    """Write the INT8 file of some weights, and its notes beside it.

    Args:
        source: the float32 export; its input must be float32.
        images: at least `MIN_PHOTOGRAPHS` calibration photographs, normalised float32 [n, 3, 224, 224].
        engine: `openvino` (an IR by NNCF) or `onnx` (QDQ by ONNX Runtime's tool).
        directory: where the file goes; default build/models.

    Returns:
        The `.xml` (its weights in a `.bin` beside it) or the `.onnx`.

    Raises:
        PhotodupError: too few photographs, no NNCF, or a graph that cannot be quantised.
    """
    if len(images) < MIN_PHOTOGRAPHS:
        raise PhotodupError(
            f"INT8 needs at least {MIN_PHOTOGRAPHS} photographs to calibrate with, and there are {len(images)}: give a "
            "folder with more, or use bf16, which needs none."
        )
    path = reduced_path(source, engine, "int8", directory)
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = images_digest(images)
    calibration = {"photographs": len(images), "digest": digest}
    notes = source.notes(engine, "int8", calibration=calibration)
    inside = {key: value for key, value in vars(notes).items() if value and isinstance(value, str)}
    inside |= {"calibration_digest": digest, "calibration_photographs": str(len(images))}
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".quantise-") as folder:
        scratch = Path(folder) / path.name
        try:
            if engine == "openvino":
                _with_nncf(source, images, inside, scratch)
            else:
                _with_onnx_runtime(source, images, inside, scratch)
        except PhotodupError:
            raise
        except Exception as error:  # the tools' errors share no base class
            reason = " ".join(str(error).split())[:160] or type(error).__name__
            tool, alternative = ("NNCF", "bf16 or fp32") if engine == "openvino" else ("ONNX Runtime", "fp32")
            raise PhotodupError(
                f"{tool} cannot quantise {source.path.name} ({reason}): use {alternative} for these weights."
            ) from error
        # The notes first: a file with another digest in its notes does not count as intact.
        write_notes(path, replace(notes, sha256=model_sha256(scratch)))
        for part in sorted(scratch.parent.glob(f"{scratch.stem}.*")):
            os.replace(part, path.with_name(part.name))
    return path


def images_digest(images: np.ndarray) -> str:
    """Return the SHA-256 of a set of images in any order."""
    each = sorted(hashlib.sha256(np.ascontiguousarray(image).data).digest() for image in images)
    return hashlib.sha256(b"".join(each)).hexdigest()


def _with_nncf(source: WeightsSource, images: np.ndarray, notes: dict[str, str], path: Path) -> None:
    nncf = _import_nncf()
    from openvino import save_model

    network = read_network(source.path)
    kinds = {node.get_friendly_name(): node.get_type_name() for node in network.get_ops()}
    depthwise = [name for name, kind in kinds.items() if kind == "GroupConvolution"]
    overflow = nncf.OverflowFix.DISABLE  # `check_processor` allows INT8 only where sums have 32 bits
    smooth = nncf.AdvancedSmoothQuantParameters(matmul=0.5)  # the default, .95, burdens the weights
    advanced = nncf.AdvancedQuantizationParameters(overflow_fix=overflow, smooth_quant_alphas=smooth)
    with quiet_tools(), contextlib.redirect_stdout(io.StringIO()):  # its progress bars; errors are exceptions
        quantised = nncf.quantize(
            network,
            nncf.Dataset([image[None] for image in images]),
            model_type=nncf.ModelType.TRANSFORMER if "Softmax" in kinds.values() else None,
            preset=nncf.QuantizationPreset.MIXED,
            subset_size=len(images),
            ignored_scope=nncf.IgnoredScope(names=depthwise),
            advanced_parameters=advanced,
        )
    for key, value in notes.items():
        quantised.set_rt_info(value, [NOTES, key])
    save_model(quantised, path, compress_to_fp16=False)


def _with_onnx_runtime(source: WeightsSource, images: np.ndarray, notes: dict[str, str], path: Path) -> None:
    import onnx

    quantised = int8_file(source.path, path.parent, images)
    graph = onnx.load(quantised)
    del graph.metadata_props[:]
    onnx.helper.set_model_props(graph, notes)
    onnx.save(graph, path)
    quantised.unlink()


def int8_file(source: Path, directory: Path, images: np.ndarray) -> Path:
    """Quantise weights (per channel) and activations (per tensor) to INT8 with ONNX Runtime, in QDQ form.

    Args:
        source: an exported encoder, float32 at its input.
        directory: where the file goes; it has a quarter of the size.
        images: normalised float32 [n, 3, 224, 224]; their smallest and largest activations set the ranges.
    """
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.batches: Iterator[np.ndarray] = iter(np.array_split(images, -(-len(images) // _BATCH)))

        def get_next(self) -> dict[str, np.ndarray] | None:
            images = next(self.batches, None)
            return None if images is None else {"image": images}

    if not len(images):
        raise PhotodupError("INT8 needs photographs to calibrate with: give at least one.")
    path = directory / f"{source.stem}-compute-int8.onnx"
    with quiet_tools(), replacing(path) as scratch:
        quantize_static(
            load_graph(source),
            str(scratch),
            Reader(),
            op_types_to_quantize=list(QUANTIZED_OPERATORS),
            per_channel=True,
            activation_type=QuantType.QUInt8,  # x86 multiplies unsigned by signed
            weight_type=QuantType.QInt8,
        )
    return path


def _import_nncf() -> Any:
    # NNCF reports its use to Google Analytics without asking; this variable of its own tests prevents that.
    with variables(NNCF_CI="1"):
        return import_extra("nncf")
