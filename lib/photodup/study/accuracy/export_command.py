"""`photodup export --precision`: make the file, run the accuracy check, and write its verdict beside the file."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from photodup.core.errors import PhotodupError
from photodup.core.settings import environment
from photodup.embedding.engines.encoder import export_of
from photodup.embedding.engines.model import check_choice, check_processor
from photodup.embedding.engines.reduced import (
    CHECKED,
    WeightsSource,
    draft_path,
    read_notes,
    reduced_path,
    source_of,
    write_notes,
)
from photodup.embedding.imaging import DRAFT_SIZE, normalize
from photodup.study.accuracy.flips import AccuracyCheck, count_flips
from photodup.study.accuracy.pictures import Pictures, choose_pictures

_FEW_EDITS = ("jpeg q 30", "crop 70%", "mirror")


def export_precision(
    weights: str | None,
    precision: str,
    *,
    engine: str = "openvino",
    folder: Path | None = None,
    directory: Path | None = None,
    draft: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> AccuracyCheck:
    """Make weights ready to serve at a precision, and check whether that changes the decisions about photographs.

    Args:
        weights: as `MODEL_PRETRAINED`; default that variable.
        precision: `int8` or `bf16`; `fp32` only with `draft`.
        engine: `openvino`, or `onnx` for INT8 by ONNX Runtime's own tool.
        folder: the owner's photographs; default the demonstration's.
        directory: where files are; default build/models.
        draft: then check JPEGs decoded at a reduced scale too, as `photodup scan --embed` decodes them where that passes.
        say: receives lines of progress.

    Raises:
        PhotodupError: the processor, the weights or the photographs do not allow it.
    """
    if precision not in CHECKED and not (precision == "fp32" and draft):
        raise PhotodupError(
            f"`photodup export --precision` makes int8 or bf16, not {precision}; of fp32 only --draft is a question."
        )
    check_choice(engine, precision)
    check_processor(precision)
    weights = weights or environment().weights
    source = source_of(export_of(weights, directory=directory))
    # With random weights the verdict is `undecided`, whatever the pictures.
    pictures = choose_pictures(folder, edits=_FEW_EDITS if source.is_random else ())
    if precision == "int8":
        from photodup.embedding.engines.quantise import quantise

        say(f"Quantising {source.model_name} on {len(pictures.calibration)} pictures ({pictures.source})")
        quantise(source, normalize(pictures.calibration), engine=engine, directory=directory)
    check = partial(check_decisions, source, precision, pictures, engine=engine, directory=directory, say=say)
    if precision != "fp32":
        accuracy = check()
        if not draft or accuracy.verdict != "passed":
            return accuracy
        say(str(accuracy))
    return check(draft=True)


def check_decisions(
    source: WeightsSource,
    precision: str,
    pictures: Pictures,
    *,
    engine: str,
    directory: Path | None = None,
    draft: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> AccuracyCheck:
    """Count the decisions that a precision flips, and write the verdict beside its file (`reduced_path`).

    With `draft`, `precision` gets JPEGs decoded at a reduced scale, and the verdict is written beside `draft_path`.
    """
    decoding = ", of JPEGs decoded whole and at a reduced scale," if draft else ""
    say(f"Embedding {len(pictures.held_out)} held-out pictures{decoding} at fp32 and {precision} in {engine}")
    accuracy = count_flips(source, precision, pictures, engine=engine, directory=directory, is_drafted=draft)
    path = reduced_path(source, engine, precision, directory)
    notes = (read_notes(path) if precision == "int8" else None) or source.notes(engine, precision)
    if draft:
        path = draft_path(source, engine, precision, directory)
        notes = replace(notes, draft_size=DRAFT_SIZE)
    write_notes(path, replace(notes, accuracy_check=accuracy.as_record()))
    return accuracy
