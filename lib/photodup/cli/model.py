"""The `export` command: the model as files that servers take."""

from pathlib import Path
from typing import Annotated

import typer


def export(
    directory: Annotated[Path | None, typer.Argument(help="default build/models")] = None,
    variant: Annotated[list[str] | None, typer.Option(help="fp32, uint8 or fp16; repeat for more")] = None,
    again: Annotated[bool, typer.Option(help="also what is there already")] = False,
) -> None:
    """Export the model that MODEL_NAME and MODEL_PRETRAINED choose to ONNX, verified against PyTorch."""
    from photodup.embedding.engines.encoder import load_model
    from photodup.embedding.engines.export import VARIANTS, export
    from photodup.paths import build_dir

    model = load_model(device="cpu")
    for path in export(model, directory or build_dir() / "models", variant or VARIANTS, force=again).values():
        print(path)
