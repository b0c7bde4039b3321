"""Which Triton model answers for a backend name."""

from photodup.bench.adapters import split_backend
from photodup.errors import PhotodupError

_BASE = "openclip_vit_b32"
_BY_ENGINE = {"onnx": _BASE, "openvino": f"{_BASE}_openvino", "trt": f"{_BASE}_trt"}
_BY_WIRE = {wire: f"{_BASE}_{wire}" for wire in ("uint8", "fp16", "jpeg")}


def model_name(backend: str) -> str:
    """Return the model of model_repository/ behind `triton-ENGINE-PROTOCOL-WIRE`.

    Raises:
        PhotodupError: no model takes this wire on this engine.
    """
    parts = split_backend(backend)
    engine, wire = parts["engine"], parts["wire"]
    if engine.startswith("emulated-"):
        return engine.replace("-", "_") + ("" if wire in ("fp32", "json") else f"_{wire}")
    if engine in _BY_ENGINE and wire in ("fp32", "json"):
        return _BY_ENGINE[engine]
    if engine == "onnx" and wire in _BY_WIRE:
        return _BY_WIRE[wire]
    raise PhotodupError(f"No Triton model answers {backend}: give its name with model=.")


def served_models(backend: str) -> list[str]:
    """Return the models whose counters account for a request: the one asked, then an ensemble's steps."""
    asked = model_name(backend)
    if split_backend(backend)["wire"] != "jpeg":
        return [asked]
    return [asked, f"{_BASE}_preprocess", asked.removesuffix("_jpeg") + "_uint8"]
