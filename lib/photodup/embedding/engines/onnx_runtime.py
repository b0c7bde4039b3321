"""ONNX Runtime: sessions in this process, and an encoder that runs in one."""

import hashlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from photodup.core.errors import PhotodupError
from photodup.core.files import available_cores
from photodup.embedding.engines.cpu import describe_onnx, onnx_options
from photodup.embedding.engines.model import check_choice, check_images, check_processor, digest_at
from photodup.embedding.engines.weights import is_random
from photodup.embedding.imaging import IMAGE_SIZE, denormalize, normalize

if TYPE_CHECKING:
    import onnxruntime

CPU = ("CPUExecutionProvider",)


def open_session(
    path: Path,
    *,
    providers: Sequence[str] = CPU,
    provider_options: Mapping[str, Mapping[str, str]] | None = None,
    threads: int | None = None,
    optimize: bool = True,
    profile_prefix: str | None = None,
) -> "onnxruntime.InferenceSession":
    """Open a session with the servers' settings.

    Args:
        providers: in order of preference; the first must run. ONNX Runtime itself skips one that does not load, with
            only a warning.
        provider_options: by provider.
        threads: CPU threads; default one for each available core.
        profile_prefix: path prefix of the operator profiler's trace; None for no trace.

    Raises:
        PhotodupError: no such file or no model in it, or a provider does not load.
    """
    import onnxruntime

    if missing := set(providers) - set(onnxruntime.get_available_providers()):
        raise PhotodupError(
            f"This ONNX Runtime has no {', '.join(sorted(missing))}: install the build that has it, such as onnxruntime-gpu."
        )
    existing(path)
    if "CUDAExecutionProvider" in providers:
        _load_cuda_libraries()
    options = onnx_options(threads or available_cores())
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimize else level.ORT_DISABLE_ALL
    if profile_prefix:
        options.enable_profiling, options.profile_file_prefix = True, profile_prefix
    configured = [(name, dict((provider_options or {}).get(name, {}))) for name in providers]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a skipped provider is checked below
            session = onnxruntime.InferenceSession(path, options, providers=configured)
    except Exception as error:  # ONNX Runtime's exceptions share no public base class
        reason = str(error).splitlines()[0][:200]
        raise PhotodupError(
            f"ONNX Runtime cannot load {path}, it may be cut short or not a model: delete it and run `photodup export` "
            f"again ({reason})."
        ) from error
    if (runs := session.get_providers()[0]) != providers[0]:
        raise PhotodupError(
            f"{providers[0]} does not start here, and ONNX Runtime would compute with {runs} instead: install the "
            "driver and the libraries that this build needs (compare `pip list`), or ask for the cpu."
        )
    return session


def existing(path: Path) -> Path:
    """Return the path of an ONNX file.

    Raises:
        PhotodupError: no such file.
    """
    if path.is_file():
        return path
    raise PhotodupError(
        f"No ONNX file at {path}: make one with `photodup export`, or correct the path (MODEL_PRETRAINED)."
    )


def _load_cuda_libraries() -> None:
    """Load CUDA and cuDNN before ONNX Runtime looks for them.

    The GPU image gets CUDA from torch's wheels, so importing torch loads it. Without torch ONNX Runtime loads NVIDIA's
    wheels itself.
    """
    import onnxruntime

    try:
        import torch  # noqa: F401
    except ImportError:
        if hasattr(onnxruntime, "preload_dlls"):
            onnxruntime.preload_dlls()


def providers_for(device: str | None) -> list[str]:
    """Return the execution providers for `cpu`, `cuda` or None (the best available); `open_session` checks them."""
    import onnxruntime

    has_cuda = "CUDAExecutionProvider" in onnxruntime.get_available_providers()
    is_cuda = device.startswith("cuda") if device else has_cuda
    return ["CUDAExecutionProvider", *CPU] if is_cuda else [*CPU]


_DTYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(uint8)": np.uint8}


def input_dtype(kind: str, shape: Sequence[object]) -> type | None:
    """Return the type of an input that takes images [n, 3, 224, 224]; None for any other input.

    Args:
        kind: as ONNX Runtime writes it, such as `tensor(float)`.
        shape: an int for each fixed axis. The first axis must be free; height and width may be.
    """
    is_image = len(shape) == 4 and not isinstance(shape[0], int) and shape[1] == 3
    sides = {side for side in shape[2:] if isinstance(side, int)}
    return _DTYPES.get(kind) if is_image and sides <= {IMAGE_SIZE} else None


def no_encoder(path: Path, tensors: Sequence[str]) -> PhotodupError:
    """Return the refusal of a graph with other tensors than an image encoder has."""
    return PhotodupError(
        f"{path} is no image encoder from float32, float16 or uint8 [n, 3, {IMAGE_SIZE}, {IMAGE_SIZE}] to [n, dim]: its "
        f"tensors are {' and '.join(tensors)}."
    )


class ExportedModel:
    """Base of the encoders outside PyTorch; each adds `_run`.

    The input `_dtype` is float32 or float16 for normalised pixels, and uint8 if the graph normalises.
    """

    _dtype: type
    _run: Callable[[np.ndarray], np.ndarray]

    def _set_origin(
        self, path: Path, notes: Mapping[str, str], engine: str, precision: str | None, name: str
    ):
        """Set name, weights and precision from the file's notes.

        Raises:
            PhotodupError: the engine lacks the precision, or the file has another.
        """
        file_precision = notes.get("precision", "fp32")
        self.path, self._notes, self.engine, self.precision = path, notes, engine, precision or file_precision
        check_choice(engine, self.precision)
        if (file_precision == "int8") != (self.precision == "int8"):
            raise PhotodupError(
                f"{path} is {'' if file_precision == 'int8' else 'not '}quantised to int8, and {self.precision} was asked "
                "for: give the other file or the other precision."
            )
        self.name = notes.get("model_name", name)
        self.pretrained = notes.get("model_pretrained", f"onnx:{path}")
        self.is_random = is_random(self.pretrained)

    def embed(self, images: np.ndarray) -> np.ndarray:
        check_images(images)
        return self._run(denormalize(images) if self._dtype is np.uint8 else images)

    def embed_pixels(self, pixels: np.ndarray) -> np.ndarray:
        check_images(pixels, np.uint8)
        return self._run(pixels if self._dtype is np.uint8 else normalize(pixels))

    @cached_property
    def source_digest(self) -> str:
        """The exported model's digest, or the file's if it records none."""
        return self._notes.get("model_digest") or file_sha256(self.path)

    @cached_property
    def digest(self) -> str:
        """At FP32 `source_digest`; every other precision and INT8 file has its own."""
        file = model_sha256(self.path) if self.precision == "int8" else ""
        return digest_at(self.precision, self.source_digest, file)


class OnnxModel(ExportedModel):
    """An exported encoder run by ONNX Runtime.

    `embed` converts normalised float32 to the graph's input type, exactly for float32 and for normalised uint8.
    """

    def __init__(
        self,
        path: Path,
        *,
        name: str = "",
        device: str | None = None,
        threads: int | None = None,
        precision: str | None = None,
    ) -> None:
        """Open a session.

        Args:
            path: an exported or a quantised encoder (`quantise.py`).
            name: the architecture, if the file does not state it.
            device: `cpu` or `cuda`; default the best available.
            threads: CPU threads.
            precision: one of the engine's; default the file's own, which is `fp32` or `int8`.

        Raises:
            PhotodupError: a provider, a precision or a file is not available.
        """
        providers = providers_for(device)
        self.device = "cpu" if providers[0] == CPU[0] else "cuda"
        # The CUDA provider uses TF32 by default.
        options = {"CUDAExecutionProvider": {"use_tf32": str(int(precision == "tf32"))}}
        self.session = open_session(path, providers=providers, provider_options=options, threads=threads)
        self._set_origin(path, self.session.get_modelmeta().custom_metadata_map, "onnx", precision, name)
        if self.precision == "tf32" and self.device == "cpu":
            raise PhotodupError("tf32 is computed by NVIDIA GPUs: use fp32 or int8 on a CPU.")
        if self.device == "cpu":
            check_processor(self.precision)
        inputs, outputs = self.session.get_inputs(), self.session.get_outputs()
        dtype = input_dtype(inputs[0].type, inputs[0].shape) if len(inputs) == 1 else None
        answer = outputs[0].shape
        if dtype is None or len(answer) != 2 or not isinstance(answer[1], int):
            raise no_encoder(path, [f"{tensor.type} {tensor.shape}" for tensor in (*inputs, *outputs)])
        self._dtype, self._input, self._output = dtype, inputs[0].name, outputs[0].name
        self.dim = answer[1]

    def _run(self, images: np.ndarray) -> np.ndarray:
        (embedding,) = self.session.run(
            [self._output], {self._input: np.ascontiguousarray(images, self._dtype)}
        )
        # Our exports have length 1 already; other encoders may not.
        return embedding / np.linalg.norm(embedding, axis=-1, keepdims=True)

    def runtime(self) -> dict[str, str]:
        """Return the session's library, version, threads and so on."""
        return describe_onnx(self.session)


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, hex (0.3 s for 350 MB)."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def model_sha256(path: Path) -> str:
    """Return the SHA-256 of a model: an ONNX file, or an IR's `.xml` and `.bin` together."""
    if path.suffix != ".xml":
        return file_sha256(path)
    digests = file_sha256(path) + file_sha256(path.with_suffix(".bin"))
    return hashlib.sha256(digests.encode()).hexdigest()
