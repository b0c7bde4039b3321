"""Rendering of the encoder that PyTorch runs in Triton's Python backend, on a GPU or a CPU."""

from pathlib import Path
from typing import TYPE_CHECKING

from photodup.errors import PhotodupError
from photodup.files import write_atomically
from photodup.paths import project_root
from photodup.serving.triton.config import set_parameter

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig

TORCH = "openclip_vit_b32_pytorch_uint8"
PRECISIONS = ("fp32", "tf32", "fp16", "bf16")


def fill_in(
    config: "ModelConfig",
    version_dir: Path,
    on_gpu: bool,
    precision: str = "fp32",
    pretrained: str = "",
    model_digest: str = "",
) -> None:
    """Fill in what a target decides, and put the code into the version's folder.

    Args:
        config: the committed configuration; changed.
        on_gpu: False counts the instance on the CPU and computes there.
        precision: one of `PRECISIONS`.

    Raises:
        PhotodupError: no such precision, or one that a CPU has not.
    """
    from tritonclient.grpc.model_config_pb2 import ModelInstanceGroup

    if precision not in PRECISIONS or (precision == "tf32" and not on_gpu):
        raise PhotodupError(
            f"Precision {precision!r} is unknown here: use {', '.join(PRECISIONS)}; tf32 on a GPU only."
        )
    set_parameter(
        config,
        precision=precision,
        device="cuda" if on_gpu else "cpu",
        library=str(Path(__file__).resolve().parents[3]),
        pretrained=pretrained or "unset",
        model_digest=model_digest or "unset",
    )
    if not on_gpu:
        config.instance_group[0].kind = ModelInstanceGroup.KIND_CPU
        del config.model_warmup[1:]
    code = (project_root() / "model_repository" / TORCH / "1" / "model.py").read_text()
    target = version_dir / "model.py"
    if not target.exists() or target.read_text() != code:
        write_atomically(target, code)
