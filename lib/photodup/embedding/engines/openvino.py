"""OpenVINO on the CPU, in FP32, BF16 or INT8."""

import functools
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from photodup.core.errors import PhotodupError
from photodup.core.extras import import_extra
from photodup.core.files import available_cores
from photodup.embedding.engines.cpu import HINTS, describe_openvino, openvino_settings
from photodup.embedding.engines.model import check_processor
from photodup.embedding.engines.onnx_runtime import ExportedModel, existing, input_dtype, no_encoder
from photodup.embedding.imaging import IMAGE_SIZE

if TYPE_CHECKING:
    import openvino

NOTES = "photodup"  # key in an IR's rt_info for quantise.py's notes


class OpenVinoModel(ExportedModel):
    """An exported encoder compiled by OpenVINO for this processor.

    Args:
        path: an ONNX export with a float32 input, or the `.xml` of a quantised one.
        precision: `fp32`, `bf16` or `int8`; default the file's own.
        threads: CPU threads; default one for each core.

    Raises:
        PhotodupError: OpenVINO is missing, the file is no encoder or has another precision, or the processor lacks
            the instructions.
    """

    device = "cpu"

    def __init__(
        self, path: Path, *, name: str = "", precision: str | None = None, threads: int | None = None
    ) -> None:
        network = read_network(path)
        self._set_origin(path, read_metadata(network), "openvino", precision, name)
        check_processor(self.precision)
        self._dtype, self.dim = _check_shapes(network, path)
        self._compiled = _core().compile_model(
            network, "CPU", openvino_settings(self.precision, threads or available_cores())
        )
        self._request, self._lock = self._compiled.create_infer_request(), threading.Lock()

    def _run(self, images: np.ndarray) -> np.ndarray:
        images = np.ascontiguousarray(images, self._dtype)
        with self._lock:  # an infer request serves one caller at a time
            self._request.infer([images], share_inputs=True)
            embedding = np.array(self._request.get_output_tensor(0).data, np.float32)
        return embedding / np.linalg.norm(embedding, axis=-1, keepdims=True)

    def runtime(self) -> dict[str, str]:
        """Return the compiled model's library, version, threads and so on."""
        return describe_openvino(self._compiled)


def compile_graph(path: Path, cache: str, sizes: str) -> "openvino.CompiledModel":
    """Return an export compiled for this processor in FP32, to time it alone.

    Args:
        path: an encoder with a float32 input.
        cache: folder of compiled models; empty builds anew.
        sizes: fixes (`4`) or bounds (`1..8`) the batch.

    Raises:
        PhotodupError: OpenVINO is missing, or the file is no model.
    """
    network = read_network(path)
    network.reshape(f"[{sizes},3,{IMAGE_SIZE},{IMAGE_SIZE}]")
    options = {"INFERENCE_PRECISION_HINT": HINTS["fp32"], **({"CACHE_DIR": cache} if cache else {})}
    return _core().compile_model(network, "CPU", options)


def read_metadata(network: "openvino.Model") -> dict[str, str]:
    """Return an ONNX file's metadata, and the notes that `quantise.py` wrote into an IR."""
    notes: dict[str, str] = {}
    for place in ("framework", NOTES):
        if network.has_rt_info([place]):
            entries = network.get_rt_info([place]).value.items()
            notes |= {key: str(getattr(value, "value", value)) for key, value in entries}
    return notes


def read_network(path: Path) -> "openvino.Model":
    """Read an ONNX file or an IR.

    Raises:
        PhotodupError: OpenVINO is not installed, no such file, or a file that is cut short or no model.
    """
    core = _core()
    try:
        return core.read_model(existing(path))
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:160]
        raise PhotodupError(
            f"OpenVINO cannot load {path}, it may be cut short or not a model: delete it and run `photodup export` "
            f"again ({reason})."
        ) from error


@functools.cache
def _core() -> Any:
    return import_extra("openvino").Core()


_KINDS = {"f32": "tensor(float)", "u8": "tensor(uint8)"}  # in ONNX Runtime's words


def _check_shapes(network: Any, path: Path) -> tuple[type, int]:
    """Return the type of a network's image input, and the embedding's length; refuse one that is no image encoder."""
    shapes = [port.partial_shape.to_string() for port in (*network.inputs, *network.outputs)]
    is_single = len(network.inputs) == len(network.outputs) == 1
    dtype = None
    if is_single and network.output(0).partial_shape.rank.get_length() == 2:
        axes = [axis.get_length() if axis.is_static else None for axis in network.input(0).partial_shape]
        dtype = input_dtype(_KINDS.get(network.input(0).element_type.get_type_name(), ""), axes)
    if dtype is None:
        raise no_encoder(path, shapes)
    return dtype, network.output(0).partial_shape[1].get_length()
