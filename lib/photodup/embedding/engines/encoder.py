"""The image encoder: OpenCLIP's image tower, or any exported one.

`MODEL_PRETRAINED` (or the `pretrained` argument) chooses the weights:

- `laion2b_s34b_b79k` (the default): downloaded once from the Hugging Face hub by open_clip;
- a path to a checkpoint (`.pt`, `.bin`, `.safetensors`): read from disk, no network needed;
- `random:SEED`: seeded random weights. Costs and shapes are real, the embeddings mean nothing. The values
  repeat from run to run with one version of PyTorch;
- `onnx:PATH`: an exported encoder with tensors `image` and `embedding`, run by ONNX Runtime;
- `sscd:PATH`: the copy-detection encoder SSCD, with its own preprocessing; see `photodup.embedding.engines.sscd`.

Threads: PyTorch uses one thread per core. `threads` (or `OMP_NUM_THREADS`) changes that for the whole
process, since PyTorch has one pool; two models that compute at once share it.
"""

import contextlib
import hashlib
import json
import logging
import os
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

from photodup.embedding.engines.onnx_runtime import open_session, providers_for
from photodup.embedding.imaging import IMAGE_SIZE, MEAN, STD, normalize, to_uint8
from photodup.errors import PhotodupError

DEFAULT_NAME = "ViT-B-32"
DEFAULT_PRETRAINED = "laion2b_s34b_b79k"


class ImageModel(Protocol):
    """An encoder in this process."""

    name: str
    pretrained: str
    dim: int
    is_random: bool

    @property
    def digest(self) -> str:
        """Hex of weights and options: embeddings are comparable if and only if their digests are equal."""

    def prepare(self, image: Image.Image) -> np.ndarray:
        """Return the uint8 [3, h, w] that `embed_pixels` takes of an upright RGB image."""

    def embed(self, images: np.ndarray) -> np.ndarray:
        """Map float32 [n, 3, 224, 224], normalised, to float32 [n, dim] of length 1. Blocks; thread-safe."""

    def embed_pixels(self, pixels: np.ndarray) -> np.ndarray:
        """Do the same from uint8 [n, 3, 224, 224]; normalised where it is computed, a quarter to transfer."""


def load_model(
    name: str | None = None,
    pretrained: str | None = None,
    device: str | None = None,
    *,
    threads: int | None = None,
) -> ImageModel:
    """Load an image encoder.

    Args:
        name: an open_clip architecture; default `MODEL_NAME`, else ViT-B-32.
        pretrained: where the weights come from, see above; default `MODEL_PRETRAINED`.
        device: `cpu`, `cuda`, `cuda:1` or `mps`; default the best there is. ONNX: `cpu` or `cuda`.
        threads: CPU threads for the computation.

    Raises:
        PhotodupError: unknown name, missing file, weights that cannot be downloaded, missing device.
    """
    name = name or os.environ.get("MODEL_NAME") or DEFAULT_NAME
    pretrained = pretrained or os.environ.get("MODEL_PRETRAINED") or DEFAULT_PRETRAINED
    if pretrained.startswith("sscd:"):
        from photodup.embedding.engines.sscd import SscdModel

        return SscdModel(Path(pretrained.removeprefix("sscd:")), device=device, threads=threads)
    if pretrained.startswith("onnx:"):
        return OnnxModel(Path(pretrained.removeprefix("onnx:")), name=name, device=device, threads=threads)
    return TorchModel(name, pretrained, device=device, threads=threads)


def import_open_clip() -> Any:
    """Import open_clip also where torchvision's compiled operators do not match the PyTorch build.

    open_clip imports torchvision, and torchvision fails on import if `nms` was never registered, which is
    what happens when a CUDA build of it meets a CPU build of PyTorch. The image tower uses no torchvision
    operator, so declaring the two that are looked up at import is enough.
    """
    import torch

    try:
        import torchvision  # noqa: F401
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        library = torch.library.Library("torchvision", "DEF")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import_open_clip.library = library  # type: ignore[attr-defined]  # dropping it would undo the definition
        import sys

        for module in [m for m in sys.modules if m == "torchvision" or m.startswith("torchvision.")]:
            del sys.modules[module]  # half-imported
    import open_clip

    return open_clip


class TorchModel:
    """OpenCLIP's image tower in PyTorch, float32; the text tower is dropped after loading."""

    prepare = staticmethod(to_uint8)

    def __init__(
        self, name: str, pretrained: str, *, device: str | None = None, threads: int | None = None
    ) -> None:
        import torch

        self.name, self.pretrained = name, pretrained
        self.is_random = pretrained.startswith("random:")
        self.device = _torch_device(device)
        if threads:
            torch.set_num_threads(threads)
        clip = _random_clip(name, pretrained) if self.is_random else _pretrained_clip(name, pretrained)
        visual = clip.visual
        _check_preprocessing(name, visual)
        self.visual = visual.to(self.device).eval().requires_grad_(False)
        self.dim = int(visual.output_dim)
        self._mean, self._std = (
            torch.from_numpy(a[:, None, None].copy()).to(self.device) for a in (MEAN, STD)
        )

    def embed(self, images: np.ndarray) -> np.ndarray:
        import torch

        _check_input(images)
        with torch.inference_mode():
            features = self.visual(torch.from_numpy(np.ascontiguousarray(images)).to(self.device))
            return torch.nn.functional.normalize(features.float(), dim=-1).cpu().numpy()

    def embed_pixels(self, pixels: np.ndarray) -> np.ndarray:
        import torch

        _check_input(pixels, np.uint8)
        with torch.inference_mode():
            images = torch.from_numpy(np.ascontiguousarray(pixels)).to(self.device).float()
            images = images.div_(255).sub_(self._mean).div_(self._std)
            return torch.nn.functional.normalize(self.visual(images).float(), dim=-1).cpu().numpy()

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the weights and of the options that change an embedding (0.3 s, then kept)."""
        digest = hashlib.sha256(json.dumps([self.name, IMAGE_SIZE, MEAN.tolist(), STD.tolist()]).encode())
        for key, tensor in sorted(self.visual.state_dict().items()):
            digest.update(f"{key}{tuple(tensor.shape)}{tensor.dtype}".encode())
            digest.update(np.ascontiguousarray(tensor.cpu().numpy()).data)
        return digest.hexdigest()


class OnnxModel:
    """An exported encoder run by ONNX Runtime.

    The input may be float32, float16 or (with the normalisation folded in) uint8; `embed` takes the
    normalised float32 images of every other model and converts, exactly for float32 and uint8.
    """

    prepare = staticmethod(to_uint8)

    def __init__(
        self, path: Path, *, name: str = "", device: str | None = None, threads: int | None = None
    ) -> None:
        self.session = open_session(path, providers=providers_for(device), threads=threads)
        inputs, outputs = self.session.get_inputs(), self.session.get_outputs()
        if len(inputs) != 1 or list(inputs[0].shape[1:]) != [3, IMAGE_SIZE, IMAGE_SIZE]:
            shapes = {i.name: i.shape for i in inputs}
            raise PhotodupError(
                f"{path} is no image encoder for [n, 3, {IMAGE_SIZE}, {IMAGE_SIZE}]: its inputs are {shapes}. "
                f"If it is SSCD, write sscd:{path}."
            )
        self._input, self._output = inputs[0].name, outputs[0].name
        dtypes = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(uint8)": np.uint8}
        self._dtype = dtypes.get(inputs[0].type)
        if self._dtype is None:
            raise PhotodupError(f"{path} takes {inputs[0].type}: float32, float16 or uint8 is needed.")
        self.path = path
        self._meta = self.session.get_modelmeta().custom_metadata_map
        self.name = self._meta.get("model_name", name)
        self.pretrained = self._meta.get("model_pretrained", f"onnx:{path}")
        self.is_random = self.pretrained.startswith("random:")
        self.dim = int(outputs[0].shape[-1])

    def embed(self, images: np.ndarray) -> np.ndarray:
        _check_input(images)
        if self._dtype == np.uint8:
            pixels = (images * STD[:, None, None] + MEAN[:, None, None]) * np.float32(255)
            images = np.clip(np.rint(pixels), 0, 255)
        return self._run(images)

    def embed_pixels(self, pixels: np.ndarray) -> np.ndarray:
        _check_input(pixels, np.uint8)
        return self._run(pixels if self._dtype == np.uint8 else normalize(pixels))

    def _run(self, images: np.ndarray) -> np.ndarray:
        batch = np.ascontiguousarray(images, self._dtype)
        (embedding,) = self.session.run([self._output], {self._input: batch})
        # Our own exports are of length 1 already; an encoder from elsewhere may not be.
        return embedding / np.linalg.norm(embedding, axis=-1, keepdims=True)

    @cached_property
    def digest(self) -> str:
        """The digest of the model that was exported, or of the file when that is not recorded in it."""
        if digest := self._meta.get("model_digest"):
            return digest
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def _random_clip(name: str, pretrained: str) -> Any:
    import torch

    try:
        seed = int(pretrained.removeprefix("random:"))
    except ValueError:
        raise PhotodupError(f"MODEL_PRETRAINED={pretrained} needs a whole number, as in random:0.") from None
    with torch.random.fork_rng(devices=[]), _quiet_logging():
        torch.manual_seed(seed)
        return _create(name, None, load_weights=False)


def _pretrained_clip(name: str, pretrained: str) -> Any:
    looks_like_path = os.sep in pretrained or pretrained.endswith((".pt", ".bin", ".safetensors"))
    if looks_like_path and not Path(pretrained).is_file():
        raise PhotodupError(
            f"No checkpoint at {pretrained}: correct MODEL_PRETRAINED, or unset it to download weights."
        )
    known = import_open_clip().list_pretrained_tags_by_model(name)
    if not looks_like_path and not Path(pretrained).is_file() and known and pretrained not in known:
        raise PhotodupError(
            f"{name} has no weights called {pretrained}: use one of {', '.join(known)}, a checkpoint path, "
            "random:SEED or onnx:PATH."
        )
    try:
        return _create(name, pretrained, require_pretrained=True)
    except PhotodupError:
        raise
    except Exception as error:  # Network, hub, pickle and shape errors come from four libraries.
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        if looks_like_path or Path(pretrained).is_file():
            raise PhotodupError(f"{pretrained} cannot be read as weights of {name} ({reason}).") from error
        raise PhotodupError(
            f"The weights {name}/{pretrained} could not be downloaded ({reason}): connect this machine to "
            "huggingface.co once, or copy the checkpoint here and set MODEL_PRETRAINED to its path, or, for "
            "timings only, set MODEL_PRETRAINED=random:0."
        ) from error


def _create(name: str, pretrained: str | None, **options: Any) -> Any:
    open_clip = import_open_clip()
    if name not in open_clip.list_models():
        raise PhotodupError(
            f"open_clip has no model {name}: set MODEL_NAME to one it lists, for example ViT-B-32."
        )
    return open_clip.create_model(name, pretrained=pretrained, precision="fp32", device="cpu", **options)


def _check_preprocessing(name: str, visual: Any) -> None:
    config = getattr(visual, "preprocess_cfg", None) or {}
    size = config.get("size", IMAGE_SIZE)
    mean, std = config.get("mean", MEAN), config.get("std", STD)
    same = np.allclose(mean, MEAN) and np.allclose(std, STD) and np.all(np.equal(size, IMAGE_SIZE))
    if not same or config.get("resize_mode", "shortest") != "shortest":
        raise PhotodupError(
            f"{name} wants other pixels ({config}) than the 224-pixel CLIP preprocessing used here: "
            "choose a ViT-B-32, ViT-B-16 or ViT-L-14 of OpenAI or LAION."
        )


def _check_input(images: np.ndarray, dtype: type = np.float32) -> None:
    if images.ndim != 4 or images.shape[1:] != (3, IMAGE_SIZE, IMAGE_SIZE) or images.dtype != dtype:
        wanted = f"{np.dtype(dtype)} [n, 3, {IMAGE_SIZE}, {IMAGE_SIZE}]"
        raise ValueError(f"images must be {wanted}, not {images.dtype} {images.shape}")


def _torch_device(device: str | None) -> str:
    import torch

    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if device is None:
        return next(d for d in ("cuda", "mps", "cpu") if available[d])
    if not available.get(device.split(":")[0]):
        usable = [d for d, there in available.items() if there]
        raise PhotodupError(f"PyTorch has no device {device} here: use {' or '.join(usable)}.")
    return device


@contextlib.contextmanager
def _quiet_logging():
    """Hold back open_clip's warning that no weights were loaded: with random:SEED that is the request."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
