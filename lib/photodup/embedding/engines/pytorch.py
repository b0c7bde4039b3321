"""PyTorch: OpenCLIP's image tower."""

import hashlib
import json
from functools import cached_property
from typing import Any

import numpy as np

from photodup.core.errors import PhotodupError
from photodup.core.settings import variable
from photodup.embedding.engines.cpu import versions
from photodup.embedding.engines.model import check_images, check_processor, digest_at
from photodup.embedding.engines.weights import is_random, load_visual
from photodup.embedding.imaging import IMAGE_SIZE, MEAN, STD


class TorchModel:
    """OpenCLIP's image tower in PyTorch; the text tower is dropped after loading.

    Args:
        name: an open_clip architecture.
        pretrained: where the weights come from; see `encoder.py`.
        device: `cpu`, `cuda`, `cuda:1` or `mps`; None takes the best available.
        threads: CPU threads, for the whole process; None leaves PyTorch's.
        precision: `fp32`, `bf16`; on a GPU also `tf32` and `fp16`. BF16 and FP16 use autocast: matrix products in
            low precision, sums and normalisations in float32.

    Raises:
        PhotodupError: weights, a device or a precision is not available.
    """

    engine, precision = "pytorch", "fp32"

    def __init__(
        self, name: str, pretrained: str, *, device: str | None, threads: int | None, precision: str
    ) -> None:
        import torch

        self.name, self.pretrained, self.is_random = name, pretrained, is_random(pretrained)
        self.precision, self.device = precision, torch_device(device)
        if precision in ("tf32", "fp16") and not self.device.startswith("cuda"):
            raise PhotodupError(
                f"{precision} is computed by NVIDIA GPUs, and PyTorch would run on {self.device}: use bf16 or fp32 here."
            )
        if self.device == "cpu":
            check_processor(precision)
        if threads:
            torch.set_num_threads(threads)
        self.visual = load_visual(name, pretrained).to(self.device).eval().requires_grad_(False)
        self.dim = int(self.visual.output_dim)  # type: ignore[arg-type]
        self._mean, self._std = (
            torch.from_numpy(a[:, None, None].copy()).to(self.device) for a in (MEAN, STD)
        )

    def embed(self, images: np.ndarray) -> np.ndarray:
        import torch

        check_images(images)
        with torch.inference_mode():
            return self._embed(torch.from_numpy(np.ascontiguousarray(images)).to(self.device))

    def embed_pixels(self, pixels: np.ndarray) -> np.ndarray:
        import torch

        check_images(pixels, np.uint8)
        with torch.inference_mode():
            images = torch.from_numpy(np.ascontiguousarray(pixels)).to(self.device).float()
            return self._embed(images.div_(255).sub_(self._mean).div_(self._std))

    def _embed(self, images: Any) -> np.ndarray:
        import torch

        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.precision)
        if dtype is not None:
            with torch.autocast(torch.device(self.device).type, dtype=dtype):
                features = self.visual(images)
        elif self.device.startswith("cuda"):
            features = _with_tf32(self.precision == "tf32", self.visual, images)
        else:
            features = self.visual(images)
        return torch.nn.functional.normalize(features.float(), dim=-1).cpu().numpy()

    def runtime(self) -> dict[str, str]:
        """Return the library, its version, its threads, and whether OpenMP's threads spin."""
        import torch

        spins = variable("OMP_WAIT_POLICY").upper() != "PASSIVE"
        return versions(torch) | {
            "threads": str(torch.get_num_threads()),
            "spinning": "on" if spins else "off",
        }

    @cached_property
    def source_digest(self) -> str:
        """SHA-256 of the weights and the options that change an embedding (0.3 s, then cached)."""
        digest = hashlib.sha256(json.dumps([self.name, IMAGE_SIZE, MEAN.tolist(), STD.tolist()]).encode())
        for key, tensor in sorted(self.visual.state_dict().items()):
            digest.update(f"{key}{tuple(tensor.shape)}{tensor.dtype}".encode())
            digest.update(np.ascontiguousarray(tensor.cpu().numpy()).data)
        return digest.hexdigest()

    @property
    def digest(self) -> str:
        """At FP32 `source_digest`; every other precision has its own."""
        return digest_at(self.precision, self.source_digest)


def torch_device(device: str | None) -> str:
    """Return the device; for None CUDA, else MPS, else the CPU.

    Raises:
        PhotodupError: PyTorch has no such device here.
    """
    import torch

    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if device is None:
        return next(d for d in ("cuda", "mps", "cpu") if available[d])
    if not available.get(device.split(":")[0]):
        usable = [d for d, is_available in available.items() if is_available]
        raise PhotodupError(f"PyTorch has no device {device} here: use {' or '.join(usable)}.")
    return device


def _with_tf32(allowed: bool, run: Any, images: Any) -> Any:
    """Run with or without TF32 in matrix products and convolutions; the switch is global to the process."""
    import torch

    places: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)  # type: ignore[attr-defined]
    before = [place.fp32_precision for place in places]
    for place in places:
        place.fp32_precision = "tf32" if allowed else "ieee"
    try:
        return run(images)
    finally:
        for place, setting in zip(places, before, strict=True):
            place.fp32_precision = setting
