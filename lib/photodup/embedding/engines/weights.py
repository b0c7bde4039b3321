"""Load the weights of an image tower: by open_clip's name, from a file, or random."""

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from photodup.core.errors import PhotodupError
from photodup.core.names import escaped
from photodup.embedding.imaging import IMAGE_SIZE, MEAN, STD

if TYPE_CHECKING:
    import open_clip
    import torch

# Name of an exported encoder that states none, so that it gets no other model's thresholds.
UNNAMED = "unnamed-encoder"


def load_visual(name: str, pretrained: str) -> "torch.nn.Module":
    """Return open_clip's image tower with its weights, float32, on the CPU; the text tower is dropped.

    Raises:
        PhotodupError: unknown name, missing or unreadable file, failed download, or a tower with other preprocessing
            than CLIP at 224 pixels.
    """
    clip = load_clip(name, pretrained)
    _check_preprocessing(name, clip.visual)
    return clip.visual


def load_clip(name: str, pretrained: str) -> "open_clip.CLIP":
    """Return the whole open_clip model with its weights, as `load_visual` does."""
    return random_clip(name, pretrained) if is_random(pretrained) else _pretrained_clip(name, pretrained)


def is_random(pretrained: str) -> bool:
    """Tell whether these weights are seeded random ones (`random:SEED`)."""
    return pretrained.startswith("random:")


def import_open_clip() -> ModuleType:
    """Import open_clip, also where torchvision does not match the PyTorch build.

    A CUDA build of torchvision fails on import beside a CPU build of PyTorch, because its operator `nms` is not
    registered. The image tower uses no torchvision operator, so declaring the two looked up at import is enough.
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


def random_clip(name: str, pretrained: str) -> "open_clip.CLIP":
    """Return the whole open_clip model with the seeded weights of `random:SEED`."""
    import torch

    try:
        seed = int(pretrained.removeprefix("random:"))
    except ValueError:
        raise PhotodupError(f"MODEL_PRETRAINED={pretrained} needs a whole number, as in random:0.") from None
    with torch.random.fork_rng(devices=[]), quiet_tools():  # it warns that no weights were loaded
        torch.manual_seed(seed)
        return _create(name, None, load_weights=False)


def _pretrained_clip(name: str, pretrained: str) -> "open_clip.CLIP":
    looks_like_path = os.sep in pretrained or pretrained.endswith((".pt", ".bin", ".safetensors"))
    if looks_like_path and not Path(pretrained).is_file():
        raise PhotodupError(
            f"No checkpoint at {pretrained}: correct MODEL_PRETRAINED, or unset it to download weights."
        )
    tags = import_open_clip().list_pretrained_tags_by_model(name)
    if not looks_like_path and not Path(pretrained).is_file() and tags and pretrained not in tags:
        raise PhotodupError(
            f"{name} has no weights called {pretrained}: use one of {', '.join(tags)}, a checkpoint path, "
            "random:SEED or onnx:PATH."
        )
    try:
        # The hub's client and open_clip log what they raise, each retry twice.
        with quiet_tools(logging.ERROR):
            return _create(name, pretrained, require_pretrained=True)
    except PhotodupError:
        raise
    except Exception as error:  # Network, hub, pickle and shape errors come from four libraries.
        first: BaseException = error  # the original cause
        while not looks_like_path and (cause := first.__cause__ or first.__context__):
            first = cause
        reason = escaped(" ".join(str(first).split()))[:160] or type(first).__name__
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


@contextlib.contextmanager
def quiet_tools(level: int = logging.WARNING) -> Iterator[None]:
    """Suppress what libraries log up to `level`, and their warnings about intended settings."""
    before = logging.root.manager.disable
    logging.disable(level)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
