"""SSCD, an encoder for copy detection (Pizzi et al., CVPR 2022), from its published TorchScript or from ONNX.

CLIP's vectors say what a picture shows, SSCD's whether two pictures are one. It looks at the whole
picture, squeezed to a square of 320 pixels (the authors' `skew_320`), normalised as ImageNet networks are,
not at the 224-pixel centre that CLIP sees and the servers here carry; so it runs in this process only. No
weights could be fetched where this was written: the loading was tested on a network of the same interface
with random weights, and no threshold was measured.

Licence: the authors' repository (facebookresearch/sscd-copy-detection) put its codebase under CC-NC 4.0 at
first and under MIT since 18 July 2022; for the weights that it links it names no licence of their own. None
are shipped here.
"""

import hashlib
import json
from functools import cached_property
from pathlib import Path

import numpy as np
from PIL import Image

from photodup.embedding.engines.onnx_runtime import open_session, providers_for
from photodup.embedding.engines.pytorch import torch_device
from photodup.errors import PhotodupError

PREFIX = "sscd:"
INPUT_SIZE = 320
_MEAN = np.array([0.485, 0.456, 0.406], np.float32)[:, None, None]
_STD = np.array([0.229, 0.224, 0.225], np.float32)[:, None, None]


class SscdModel:
    """`sscd:PATH`: a `.torchscript.pt` as the authors publish it, or an `.onnx` made from one.

    Takes uint8 [n, 3, 320, 320] from `prepare`; an ONNX file of another fixed square size decides the size.

    Args:
        path: the file.
        device: `cpu`, `cuda`, `mps`; default the best there is. ONNX: `cpu` or `cuda`.
        threads: CPU threads.

    Raises:
        PhotodupError: no such file, or no encoder of square pictures in it.
    """

    is_random, precision = False, "fp32"

    def __init__(self, path: Path, *, device: str | None = None, threads: int | None = None) -> None:
        if not path.is_file():
            raise PhotodupError(
                f"No SSCD file at {path}: download sscd_disc_mixup.torchscript.pt from the SSCD project, or "
                "correct MODEL_PRETRAINED."
            )
        self.path, self.size = path, INPUT_SIZE
        self.name, self.pretrained = path.name.split(".")[0], f"{PREFIX}{path}"
        self.engine = "onnx" if path.suffix == ".onnx" else "pytorch"
        load = self._load_onnx if path.suffix == ".onnx" else self._load_torchscript
        self._run = load(device, threads)
        answer = self._run(np.zeros((2, 3, self.size, self.size), np.float32))
        if answer.ndim != 2 or len(answer) != 2:
            raise PhotodupError(f"{path} answers {answer.shape} for two pictures: it is no image encoder.")
        self.dim = int(answer.shape[1])

    def prepare(self, image: Image.Image) -> np.ndarray:
        """Squeeze the whole picture to a square: uint8 [3, size, size], as torchvision's Resize does."""
        square = image.convert("RGB").resize((self.size, self.size), Image.Resampling.BILINEAR)
        return np.ascontiguousarray(np.asarray(square).transpose(2, 0, 1))

    def embed_pixels(self, pixels: np.ndarray) -> np.ndarray:
        """Map uint8 [n, 3, size, size] to float32 [n, dim] of length 1.

        Raises:
            PhotodupError: pixels that were cut for another encoder, as the servers do.
        """
        if pixels.shape[1:] != (3, self.size, self.size) or pixels.dtype != np.uint8:
            raise PhotodupError(
                f"SSCD looks at the whole picture at {self.size} pixels, not at {pixels.dtype} "
                f"{pixels.shape[1:]}: the servers carry 224, so run it in this process (local-pytorch-fp32)."
            )
        return self.embed((pixels.astype(np.float32) / 255 - _MEAN) / _STD)

    def embed(self, images: np.ndarray) -> np.ndarray:
        """Map float32 [n, 3, size, size], normalised as for ImageNet, to float32 [n, dim] of length 1."""
        found = self._run(np.ascontiguousarray(images, np.float32)).astype(np.float32)
        return found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the file and of what is done to a picture before it."""
        options = [self.size, _MEAN.ravel().tolist(), _STD.ravel().tolist(), "squeezed, bilinear"]
        digest = hashlib.sha256(json.dumps(options).encode())
        with self.path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()

    @property
    def source_digest(self) -> str:
        return self.digest

    def _load_torchscript(self, device: str | None, threads: int | None):
        import warnings

        import torch

        place = torch_device(device)
        if threads:
            torch.set_num_threads(threads)
        try:
            with warnings.catch_warnings():  # torch 2.13 calls TorchScript deprecated; the weights come so
                warnings.simplefilter("ignore", DeprecationWarning)
                network = torch.jit.load(str(self.path), map_location=place).eval()
        except (RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())[:160]
            raise PhotodupError(
                f"{self.path} is no TorchScript file ({reason}): of the published files take the one that "
                "ends in .torchscript.pt."
            ) from error

        def run(images: np.ndarray) -> np.ndarray:
            with torch.inference_mode():
                return network(torch.from_numpy(images).to(place)).float().cpu().numpy()

        return run

    def _load_onnx(self, device: str | None, threads: int | None):
        session = open_session(
            self.path,
            providers=providers_for(device),
            threads=threads,
            remedy="export it again, or take the published .torchscript.pt",
        )
        (entry, *others), output = session.get_inputs(), session.get_outputs()[0].name
        sides = [side for side in entry.shape[2:] if isinstance(side, int)]
        if others or len(entry.shape) != 4 or len(set(sides)) > 1 or entry.type != "tensor(float)":
            raise PhotodupError(
                f"{self.path} takes {entry.type} {entry.shape}: a float32 [n, 3, size, size] encoder is needed."
            )
        self.size = sides[0] if sides else INPUT_SIZE
        return lambda images: session.run([output], {entry.name: images})[0]
