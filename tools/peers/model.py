"""What every peer's server here computes: open_clip's ViT-B/32 on JPEG bytes, as its own documentation shows.

PEER_WEIGHTS names the checkpoint, PEER_DTYPE what it computes in (default `float32`). Nothing of photodup is imported: these
are the servers that a user would write.
"""

import io
import os
import sys

import torch


def _open_clip():
    try:
        import torchvision  # noqa: F401
    except RuntimeError:  # its build for CUDA beside a CPU build of PyTorch: no operator of it is used here
        library = torch.library.Library("torchvision", "DEF")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _open_clip.library = library
        for module in [m for m in sys.modules if m.split(".")[0] == "torchvision"]:
            del sys.modules[module]
    import open_clip

    return open_clip


class Model:
    """The image tower: `prepare` makes a tensor of a JPEG, `embed` unit vectors of a batch."""

    def __init__(self) -> None:
        name, weights = os.environ.get("PEER_MODEL", "ViT-B-32"), os.environ["PEER_WEIGHTS"]
        open_clip = _open_clip()
        model, _, self.transform = open_clip.create_model_and_transforms(name, pretrained=weights)
        self.dtype = getattr(torch, os.environ.get("PEER_DTYPE", "float32"))
        self.visual = model.visual.eval().to(self.dtype)

    def prepare(self, data: bytes) -> torch.Tensor:
        from PIL import Image

        return self.transform(Image.open(io.BytesIO(data)))

    def embed(self, images: list[torch.Tensor]) -> list[list[float]]:
        with torch.inference_mode():
            features = self.visual(torch.stack(images).to(self.dtype)).float()
            return torch.nn.functional.normalize(features, dim=-1).tolist()
