"""SSCD, an encoder for copy detection (Pizzi et al., CVPR 2022), from its published TorchScript or from ONNX.

CLIP's vectors say what a picture shows, SSCD's whether two pictures are one. It looks at the whole
picture, squeezed to a square of 320 pixels (the authors' `skew_320`), normalised as ImageNet networks are,
not at the 224-pixel centre that CLIP sees and the servers here carry; so it runs in this process only. No
weights could be fetched where this was written: the loading was tested on a network of the same interface
with random weights, and no threshold was measured.

What a file is, is read from what is in it. `sscd_disc_mixup`, and with it the thresholds that its authors report, is
the file with the SHA-256 of the published one; others, an ONNX made from it too unless it says so in its metadata
(`source_sha256`), are `sscd-unrecognised`.

TorchScript is a program: it runs with the user's rights and can write files. Only the published file runs, and one whose
SHA-256 the user puts into PHOTODUP_TRUSTED_TORCHSCRIPT. An ONNX graph computes and does nothing else.

Licence: the authors' repository (facebookresearch/sscd-copy-detection) put its codebase under CC-NC 4.0 at
first and under MIT since 18 July 2022; for the weights that it links it names no licence of their own. None
are shipped here.
"""

import hashlib
import json
import zipfile
from functools import cached_property
from pathlib import Path

import numpy as np

from photodup.embedding.engines.onnx_runtime import (
    ImageInput,
    entry_of,
    file_sha256,
    open_session,
    providers_for,
)
from photodup.embedding.engines.pytorch import torch_device
from photodup.embedding.imaging import View
from photodup.errors import PhotodupError
from photodup.settings import environment

PREFIX = "sscd:"
UNRECOGNISED = "sscd-unrecognised"
# By SHA-256 and size: sscd_disc_mixup.torchscript.pt as dl.fbaipublicfiles.com has it, as four unrelated projects that
# pin it say. The size is asked first, so that no other checkpoint is read for it.
PUBLISHED = {"9f26bd4c848cc19b73d2ae92eea6e04886f61a7b764ceb7a13aeee62e6a6db56": "sscd_disc_mixup"}
_PUBLISHED_BYTES = (98_791_638,)
INPUT_SIZE = 320
_MEAN = np.array([0.485, 0.456, 0.406], np.float32)[:, None, None]
_STD = np.array([0.229, 0.224, 0.225], np.float32)[:, None, None]


def is_archive(path: Path) -> bool:
    """Tell whether a file is what PyTorch writes, TorchScript included; any other is taken for ONNX."""
    return zipfile.is_zipfile(path)


def is_published(weights: str) -> bool:
    """Tell whether weights are the path of a file that the authors publish, whatever it is called."""
    path = Path(weights.removeprefix(PREFIX))
    try:
        return path.stat().st_size in _PUBLISHED_BYTES and file_sha256(path) in PUBLISHED
    except OSError:
        return False


def _refuse_unknown_program(path: Path) -> None:
    found = file_sha256(path)
    if found not in PUBLISHED and found != environment().trusted_torchscript.lower():
        raise PhotodupError(
            f"{path} is not the TorchScript file that SSCD's authors publish, and TorchScript is a program that can "
            f"write your files: if you trust who made it, set PHOTODUP_TRUSTED_TORCHSCRIPT={found}."
        )


class SscdModel:
    """`sscd:PATH`: a `.torchscript.pt` as the authors publish it, or an `.onnx` made from one.

    Takes uint8 [n, 3, 320, 320] as its `view` gives them; an ONNX file of another fixed square size decides the size. ONNX
    may take float32, normalised as for ImageNet, or uint8 with that folded in, its channels first or last.

    Args:
        path: the file.
        device: `cpu`, `cuda`, `mps`; default the best there is. ONNX: `cpu` or `cuda`.
        threads: CPU threads.

    Raises:
        PhotodupError: no such file, TorchScript that nobody vouches for, or no encoder of square pictures in it.
    """

    is_random, precision = False, "fp32"

    def __init__(self, path: Path, *, device: str | None = None, threads: int | None = None) -> None:
        if not path.is_file():
            raise PhotodupError(
                f"No SSCD file at {path}: download sscd_disc_mixup.torchscript.pt from the SSCD project, or "
                "correct MODEL_PRETRAINED."
            )
        self.path, self.size = path, INPUT_SIZE
        self.pretrained, self._entry = f"{PREFIX}{path}", ImageInput(np.float32, False, self.size)
        self.engine, load = "onnx", self._load_onnx
        if is_archive(path):
            _refuse_unknown_program(path)
            self.engine, load = "pytorch", self._load_torchscript
        source, self._run = load(device, threads)
        self.name = PUBLISHED.get(source or file_sha256(path), UNRECOGNISED)
        answer = self._run(self._entry.fit(np.zeros((2, 3, self.size, self.size), np.float32)))
        if answer.ndim != 2 or len(answer) != 2:
            raise PhotodupError(f"{path} answers {answer.shape} for two pictures: it is no image encoder.")
        self.dim = int(answer.shape[1])

    @property
    def view(self) -> View:
        """The whole picture, squeezed to a square as torchvision's Resize does."""
        return View(self.size, whole=True)

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
        return self._embed(pixels if self._entry.dtype is np.uint8 else self._normalized(pixels))

    @staticmethod
    def _normalized(pixels: np.ndarray) -> np.ndarray:
        return (pixels.astype(np.float32) / 255 - _MEAN) / _STD

    def embed(self, images: np.ndarray) -> np.ndarray:
        """Map float32 [n, 3, size, size], normalised as for ImageNet, to float32 [n, dim] of length 1."""
        if self._entry.dtype is np.uint8:
            images = np.clip(np.rint((images * _STD + _MEAN) * 255), 0, 255)
        return self._embed(images)

    def _embed(self, images: np.ndarray) -> np.ndarray:
        found = self._run(self._entry.fit(images)).astype(np.float32)
        return found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the file and of what is done to a picture before it."""
        options = [self.size, _MEAN.ravel().tolist(), _STD.ravel().tolist(), "squeezed, bilinear"]
        digest = hashlib.sha256(json.dumps(options).encode())
        digest.update(bytes.fromhex(file_sha256(self.path)))
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

        return None, run

    def _load_onnx(self, device: str | None, threads: int | None):
        session = open_session(
            self.path,
            providers=providers_for(device),
            threads=threads,
            remedy="export it again, or take the published .torchscript.pt",
        )
        (entry, *others), output = session.get_inputs(), session.get_outputs()[0].name
        found = None if others else entry_of(entry.type, entry.shape, INPUT_SIZE)
        if found is None:
            raise PhotodupError(
                f"{self.path} takes {entry.type} {entry.shape}: an encoder of float32, float16 or uint8 "
                "[n, 3, size, size] or [n, size, size, 3] is needed."
            )
        self._entry, self.size = found, found.size
        source = session.get_modelmeta().custom_metadata_map.get("source_sha256")
        return source, lambda images: session.run([output], {entry.name: images})[0]
