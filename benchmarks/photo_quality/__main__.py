"""The command line of `benchmarks.photo_quality`; the package says what it measures."""

import json
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from benchmarks.photo_quality.drawn import judge_all, measured, photographs_of, plant_all
from benchmarks.photo_quality.drawn_kinds import ADDED_KINDS, KINDS
from benchmarks.photo_quality.edits import REFERENCE, named
from benchmarks.photo_quality.pairs import measure_pairs, originals_of
from photodup.core.errors import PhotodupError
from photodup.core.paths import build_dir

SEED = 20261127  # of the draws
LISTS = Path(__file__).parents[2] / "tools" / "photographs"
DRAWS = {"drawn": KINDS, "drawn-again": (*KINDS, *ADDED_KINDS)}  # the kinds of each list of photographs


def pairs(folder: Path | None, edits: list[str], names: list[str]) -> dict[str, Any]:
    """Measure pairs with the encoder of MODEL_PRETRAINED, else the EfficientNet-Lite0 stand-in."""
    from photodup.embedding.client.embedder import connect
    from photodup.photos.demo.encoder import export_stand_in
    from photodup.study.notebook.weights import trained_weights

    originals = [each for each in originals_of(folder) if not names or each.name in names]
    with connect(mode="local", pretrained=trained_weights() or export_stand_in()) as embedder:
        return measure_pairs(originals, named(edits), embedder.embed, embedder.model_name)


def of_own(folder: Path, per_kind: int) -> dict[str, Any]:
    """Measure the kinds on the photographs of a folder; print each."""
    with tempfile.TemporaryDirectory() as libraries:
        plant_all(photographs_of(folder), Path(libraries), SEED, per_kind)
        judge_all(Path(libraries))
        return measured(Path(libraries))


def record_drawn(draw: str, backwards: bool) -> dict[str, Any]:
    """Write, judge and record the kinds of a draw in results/DRAW; what was done before is not done again."""
    from photodup.study.notebook.run import open_run

    if draw not in DRAWS:
        raise PhotodupError(f"There is no draw {draw}: give {' or '.join(DRAWS)}.")
    photographs, libraries = build_dir() / "photographs" / draw, build_dir() / draw
    if not photographs.is_dir():
        raise PhotodupError(f"There are no drawn photographs here: run tools/photographs/get.py {draw}.")
    listed = photographs_of(photographs, LISTS / f"{draw.replace('-', '_')}.csv")
    plant_all(listed, libraries, SEED, kinds=DRAWS[draw])
    judge_all(libraries, backwards=backwards)
    figures = measured(libraries)
    n_planted = sum(bool(json.loads(path.read_text())["cases"]) for path in libraries.glob("*.json"))
    if len(figures["kinds"]) == n_planted:  # else another process judges the others
        with open_run(draw).store as store:
            store.measure_or_load("copies-drawn", lambda: figures, config={"seed": SEED})
    return figures


def main(
    folder: Annotated[
        Path | None, Argument(help="different photographs; default the demonstration's")
    ] = None,
    edit: Annotated[list[str] | None, Option(help="an edit, for pairs; repeat; default the ten")] = None,
    photograph: Annotated[list[str] | None, Option(help="only this one, for pairs; repeat")] = None,
    per_kind: Annotated[int, Option(min=1, help="photographs for each kind")] = 2,
    as_pairs: Annotated[bool, Option("--pairs", help="only the curves of pairs, as JSON")] = False,
    drawn: Annotated[
        str,
        Option(metavar="LIST", help=f"kinds and photographs of a draw, as a record: {' or '.join(DRAWS)}"),
    ] = "",
    backwards: Annotated[
        bool, Option("--backwards", help="with --drawn: from the last kind, as a second process")
    ] = False,
) -> None:
    """Count which copies of each kind are suggested and what was lost with them; or compare edits with originals."""
    if as_pairs:
        print(json.dumps(pairs(folder, edit or list(REFERENCE), photograph or [])))
        return
    if not drawn and folder is None:
        raise PhotodupError("Name a folder of photographs, or measure a draw with --drawn LIST.")
    figures = record_drawn(drawn, backwards) if drawn or folder is None else of_own(folder, per_kind)
    lists = "kinds", "beside"
    print("\n".join(f"{name}: {number}" for name, number in figures.items() if name not in lists))


if __name__ == "__main__":
    try:
        typer.run(main)
    except PhotodupError as error:
        raise SystemExit(str(error)) from None
