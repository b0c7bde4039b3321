"""The `export` command: the model as files that servers take."""

from pathlib import Path
from typing import Annotated

import typer


def export(
    directory: Annotated[Path | None, typer.Argument(help="default build/models")] = None,
    variant: Annotated[list[str] | None, typer.Option(help="fp32, uint8 or fp16; repeat for more")] = None,
    again: Annotated[bool, typer.Option(help="also what is there already")] = False,
    precision: Annotated[
        str | None, typer.Option(help="int8 or bf16: make it and judge it by photo decisions")
    ] = None,
    engine: Annotated[str, typer.Option(help="with --precision: openvino or onnx")] = "openvino",
    photos: Annotated[
        Path | None, typer.Option(help="with --precision: your photographs; default the demo's")
    ] = None,
    keep_float: Annotated[
        list[str] | None, typer.Option(help="int8: layers to leave in float (regular expression); repeat")
    ] = None,
) -> None:
    """Export the model that MODEL_NAME and MODEL_PRETRAINED choose to ONNX, verified against PyTorch.

    With --precision: make an INT8 file, or try BF16, and count the duplicate and similar decisions that flip on
    photographs that it was not calibrated on. Exits 1 unless it passes.
    """
    from photodup.paths import build_dir

    if precision:
        from photodup.tune.export_command import export_precision

        options = {"engine": engine, "folder": photos, "directory": directory, "keep_float": keep_float or ()}
        result = export_precision(None, precision, say=print, **options)
        print(result)
        if result.verdict != "passed":
            raise typer.Exit(1)
        return
    from photodup.embedding.engines.encoder import load_model
    from photodup.embedding.engines.export import VARIANTS, export

    model = load_model(device="cpu")
    for path in export(model, directory or build_dir() / "models", variant or VARIANTS, force=again).values():
        print(path)
