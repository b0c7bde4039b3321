"""ONNX Runtime sessions in this process: one way to open a file, one sentence when that fails."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from photodup.errors import PhotodupError

if TYPE_CHECKING:
    import onnxruntime

CPU = ("CPUExecutionProvider",)


def open_session(
    path: Path,
    *,
    providers: Sequence[str] = CPU,
    threads: int | None = None,
    optimize: bool = True,
    profile_prefix: str | None = None,
    remedy: str = "delete it and run `photodup export` again",
) -> "onnxruntime.InferenceSession":
    """Open a session as the servers do, with or without graph optimisation.

    Args:
        providers: in order of preference. ONNX Runtime would leave out one that it lacks or whose libraries do
            not load, with a line in its log and no error; here the first of them must be the one that runs.
        threads: CPU threads; ONNX Runtime's own choice unless given.
        profile_prefix: where to write the operator profiler's trace, if anywhere.
        remedy: what to do about a file that cannot be loaded, for the error.

    Raises:
        PhotodupError: no such file, a provider that this ONNX Runtime lacks or cannot load, or a file that is no
            model.
    """
    import onnxruntime

    if missing := set(providers) - set(onnxruntime.get_available_providers()):
        raise PhotodupError(
            f"This ONNX Runtime has no {', '.join(sorted(missing))}: install the build that has it."
        )
    if not path.is_file():
        raise PhotodupError(
            f"No ONNX file at {path}: make one with `photodup export`, or correct the path (MODEL_PRETRAINED)."
        )
    if "CUDAExecutionProvider" in providers:
        _load_cuda_libraries()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if threads:
        options.intra_op_num_threads = threads
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimize else level.ORT_DISABLE_ALL
    if profile_prefix:
        options.enable_profiling, options.profile_file_prefix = True, profile_prefix
    try:
        session = onnxruntime.InferenceSession(path, options, providers=list(providers))
    except Exception as error:  # ONNX Runtime's exceptions share no public base class
        reason = str(error).splitlines()[0][:200]
        raise PhotodupError(
            f"ONNX Runtime cannot load {path}, it may be cut short or not a model: {remedy} ({reason})."
        ) from error
    if (runs := session.get_providers()[0]) != providers[0]:
        raise PhotodupError(
            f"ONNX Runtime would run {path.name} with {runs}, not with {providers[0]}, whose libraries did not load: "
            "compare `pip list` with the CUDA and cuDNN that this onnxruntime-gpu was built for, or choose the cpu."
        )
    return session


def _load_cuda_libraries() -> None:
    """Make CUDA and cuDNN known to this process before ONNX Runtime looks for them.

    The GPU image has no CUDA of its own: torch's wheels bring it, and importing torch loads it. Without torch
    ONNX Runtime can load NVIDIA's wheels itself.
    """
    import onnxruntime

    try:
        import torch  # noqa: F401
    except ImportError:
        if hasattr(onnxruntime, "preload_dlls"):
            onnxruntime.preload_dlls()


def providers_for(device: str | None) -> list[str]:
    """Return the execution providers for `cpu`, `cuda` or None (the best there is).

    Raises:
        PhotodupError: CUDA is wanted and this build has none.
    """
    import onnxruntime

    cuda = "CUDAExecutionProvider" in onnxruntime.get_available_providers()
    if device and device.startswith("cuda") and not cuda:
        raise PhotodupError(
            "This ONNX Runtime has no CUDA: install onnxruntime-gpu instead of onnxruntime, or use cpu."
        )
    return (["CUDAExecutionProvider"] if cuda and device != "cpu" else []) + ["CPUExecutionProvider"]
