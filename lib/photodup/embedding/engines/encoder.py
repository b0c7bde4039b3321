"""Load the image encoder: OpenCLIP's image tower or an exported one, on an engine, in a precision.

`MODEL_PRETRAINED` (or the `pretrained` argument) chooses the weights:

- `laion2b_s34b_b79k` (the default): open_clip downloads it once from the Hugging Face hub;
- a path to a checkpoint (`.pt`, `.bin`, `.safetensors`);
- `random:SEED`: random weights with real costs and meaningless embeddings, equal from run to run with one version of
  PyTorch;
- `onnx:PATH`: an exported encoder of 224-pixel pictures, run by ONNX Runtime or OpenVINO: normalised float32 or float16,
  or uint8. MODEL_NAME names the architecture if the file does not.

Engine and precision are independent of the weights (`model.SUPPORTED`). ONNX Runtime and OpenVINO run an export, which is
made if it is missing. INT8 files need photographs, so `photodup export --precision int8` makes them.

PyTorch uses one thread per core. `threads` (or `OMP_NUM_THREADS`) changes that for the whole process: all models share one
pool.
"""

from pathlib import Path

from photodup.core.errors import PhotodupError
from photodup.core.paths import build_dir
from photodup.core.settings import environment
from photodup.embedding.engines.export import export_apart, known_export
from photodup.embedding.engines.model import ImageModel, check_choice, check_processor
from photodup.embedding.engines.onnx_runtime import OnnxModel, existing
from photodup.embedding.engines.openvino import OpenVinoModel
from photodup.embedding.engines.pytorch import TorchModel
from photodup.embedding.engines.reduced import find_int8
from photodup.embedding.engines.weights import UNNAMED


def load_model(
    pretrained: str | None = None,
    *,
    engine: str | None = None,
    precision: str = "fp32",
    threads: int | None = None,
    device: str | None = None,
    name: str | None = None,
    directory: Path | None = None,
) -> ImageModel:
    """Load an encoder: weights × engine × precision.

    Args:
        pretrained: where the weights come from, see above; default `MODEL_PRETRAINED`.
        engine: `pytorch`, `onnx` or `openvino`; default `pytorch`, and `onnx` for exported weights.
        precision: `fp32`, `tf32`, `bf16`, `fp16` or `int8`, as far as the engine has it.
        threads: CPU threads for the computation.
        device: `cpu`, `cuda`, `cuda:1` or `mps`; default the best there is.
        name: an open_clip architecture; default `MODEL_NAME`, else ViT-B-32.
        directory: where exports and quantised files are; default build/models.

    Raises:
        PhotodupError: a choice, weights, a device, instructions or a file is not available, or an INT8 file was made
            from other weights; names the next best choice.
    """
    name = name or environment().architecture
    weights = pretrained or environment().weights
    exported = weights.startswith("onnx:")
    engine = engine or ("onnx" if exported else "pytorch")
    if exported:  # the file has its own architecture
        name = environment().model_name or UNNAMED
    check_choice(engine, precision)
    if engine == "pytorch":
        if exported:
            raise PhotodupError(f"{weights} is exported already: run it with the engine onnx or openvino.")
        return TorchModel(name, weights, device=device, threads=threads, precision=precision)
    if engine == "openvino" and device not in (None, "cpu"):
        raise PhotodupError(f"The engine openvino computes on the CPU here, not on {device}: use onnx.")
    if (engine == "openvino" or device == "cpu") and precision != "tf32":
        check_processor(precision)  # before minutes of exporting
    path = export_of(weights, name=name, directory=directory, is_read=precision != "int8")
    if precision == "int8":
        path = find_int8(path, engine, directory)
    if engine == "openvino":
        return OpenVinoModel(path, name=name, precision=precision, threads=threads)
    return OnnxModel(path, name=name, device=device, threads=threads, precision=precision)


def export_of(
    weights: str, *, name: str | None = None, directory: Path | None = None, is_read: bool = True
) -> Path:
    """Return the float32 ONNX file of some weights, exported first if needed (a minute, once).

    Args:
        is_read: of `known_export`.

    Raises:
        PhotodupError: the weights or the file are missing.
    """
    if weights.startswith("onnx:"):
        return existing(Path(weights.removeprefix("onnx:")))
    name = name or environment().architecture
    if path := known_export(name, weights, directory or build_dir() / "models", is_read=is_read):
        return path
    chosen = {"MODEL_PRETRAINED": weights, "MODEL_NAME": name}
    return export_apart(directory=directory, env=chosen)["fp32"]
