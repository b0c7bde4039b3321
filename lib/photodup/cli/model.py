"""The `export` command: the model as files that servers take."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option

from photodup.core.errors import PhotodupError


def export(
    directory: Annotated[Path | None, Argument(help="folder of the files; default build/models")] = None,
    variant: Annotated[list[str] | None, Option(help="fp32, uint8 or fp16; repeat for more")] = None,
    again: Annotated[bool, Option(help="export again what is there already")] = False,
    precision: Annotated[
        str | None, Option(help="int8 or bf16: make it and judge it by photo decisions; fp32: with --draft")
    ] = None,
    engine: Annotated[str, Option(help="with --precision: openvino or onnx")] = "openvino",
    photos: Annotated[
        Path | None, Option(help="with --precision: your photographs; default the demo's")
    ] = None,
    draft: Annotated[
        bool, Option("--draft", help="with --precision: also check JPEGs decoded at a reduced scale")
    ] = False,
) -> None:
    """Export the model that MODEL_NAME and MODEL_PRETRAINED choose to ONNX, verified against PyTorch.

    With --precision: make an INT8 file, or try BF16, and count the copy and similar decisions that flip on photographs
    that it was not calibrated on; with --draft also those that flip when JPEGs are decoded at a reduced scale. Where
    that passes, `photodup scan --embed` decodes so. Exits 1 unless the check passes.
    """
    from photodup.core.paths import build_dir

    if draft and not precision:
        raise PhotodupError("--draft asks about a precision: add --precision fp32, bf16 or int8.")
    if precision:
        from photodup.study.accuracy.export_command import export_precision

        result = export_precision(
            None,
            precision,
            engine=engine,
            folder=photos,
            directory=directory,
            draft=draft,
            say=print,
        )
        print(result)
        if result.verdict != "passed":
            raise Exit(1)
        return
    from photodup.embedding.engines.encoder import load_model
    from photodup.embedding.engines.export import VARIANTS, export

    model = load_model(device="cpu")
    for path in export(model, directory or build_dir() / "models", variant or VARIANTS, force=again).values():
        print(path)
