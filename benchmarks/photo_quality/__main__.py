"""The command line of `benchmarks.photo_quality`; the package says what it measures."""

import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer
from typer import Argument, Option

from benchmarks.photo_quality.drawn import judge_all, measured, photographs_of, plant_all
from benchmarks.photo_quality.drawn_kinds import KINDS
from benchmarks.photo_quality.edits import LOOK_ALIKES, REFERENCE, named
from benchmarks.photo_quality.pairs import measure_pairs, originals_of
from benchmarks.photo_quality.shown import OfKind, measure_families, measure_kinds, summary
from photodup.core.errors import PhotodupError
from photodup.core.paths import build_dir

SEED = 20261127  # of the draw
DRAWN = Path(__file__).parents[2] / "tools" / "photographs" / "drawn.csv"
PER_KIND = 12  # pairs of each kind on held-out photographs


def pairs(folder: Path | None, edits: list[str], names: list[str]) -> dict[str, Any]:
    """Measure pairs with the encoder of MODEL_PRETRAINED, else the EfficientNet-Lite0 stand-in."""
    from photodup.embedding.client.embedder import connect
    from photodup.photos.demo.encoder import export_stand_in
    from photodup.study.notebook.weights import trained_weights

    originals = [each for each in originals_of(folder) if not names or each.name in names]
    with connect(mode="local", pretrained=trained_weights() or export_stand_in()) as embedder:
        return measure_pairs(originals, named(edits), embedder.embed, embedder.model_name)


def families(folder: Path | None, edits: list[str]) -> dict[str, Any]:
    """Measure what is shown of each photograph with all these edits."""
    with tempfile.TemporaryDirectory() as library:
        return measure_families(originals_of(folder), named(edits), Path(library))


def by_kind(folder: Path | None, n: int) -> list[OfKind]:
    """Measure every kind of edit and of look-alikes, `n` photographs for each."""
    with tempfile.TemporaryDirectory() as library:
        return measure_kinds(originals_of(folder), [*named(), *LOOK_ALIKES], n, Path(library))


def record_held_out() -> None:
    """Measure the held-out photographs and record it in results/held-out and results/kinds, where it is not yet."""
    from photodup.study.notebook.run import open_run

    folder, reference = build_dir() / "photographs" / "held-out", list(REFERENCE)
    if not any(folder.glob("*.jpg")):
        raise PhotodupError(
            "There are no held-out photographs here: run tools/photographs/get.py, which fetches them."
        )
    for run, key, config, measure in (
        ("kinds", "copies-by-kind", {"pairs": PER_KIND},
         lambda: {"kinds": list(map(asdict, by_kind(folder, PER_KIND)))}),
        ("held-out", "copies-held-out", {"edits": "reference"},
         lambda: {"quality": pairs(folder, reference, []), "shown": families(folder, reference)}),
    ):  # fmt: skip
        with open_run(run).store as store:
            store.measure_or_load(key, measure, config=config)
        print(f"results/{run} has {key}; notebook 01 shows it.")


def record_drawn(backwards: bool) -> None:
    """Write, judge and record the drawn kinds in results/drawn; what was done before is not done again."""
    from photodup.study.notebook.run import open_own_run

    photographs, libraries = build_dir() / "photographs" / "drawn", build_dir() / "drawn"
    if not photographs.is_dir():
        raise PhotodupError("There are no drawn photographs here: run tools/photographs/get.py drawn.")
    plant_all(photographs_of(photographs, DRAWN), libraries, SEED)
    judge_all(libraries, backwards=backwards)
    figures = measured(libraries)
    if len(figures["kinds"]) == len(KINDS):  # else another process judges the others
        with open_own_run("drawn").store as store:
            store.measure_or_load("copies-drawn", lambda: figures, config={"seed": SEED})
    print(
        "\n".join(f"{name}: {number}" for name, number in figures.items() if name not in ("kinds", "beside"))
    )


def main(
    folder: Annotated[
        Path | None, Argument(help="different photographs; default the demonstration's")
    ] = None,
    edit: Annotated[
        list[str] | None, Option(help="an edit, for families and pairs; repeat; default the ten")
    ] = None,
    photograph: Annotated[list[str] | None, Option(help="only this one, for pairs; repeat")] = None,
    per_kind: Annotated[int, Option(min=0, help="photographs for each kind; 0: not by kind")] = 2,
    as_pairs: Annotated[bool, Option("--pairs", help="only the curves of pairs, as JSON")] = False,
    held_out: Annotated[
        bool, Option("--held-out", help="the held-out photographs, as records; an hour")
    ] = False,
    drawn: Annotated[bool, Option("--drawn", help="the drawn kinds and photographs, as a record")] = False,
    backwards: Annotated[
        bool, Option("--backwards", help="with --drawn: from the last kind, as a second process")
    ] = False,
) -> None:
    """Count which copies are suggested and which wrongly: of each kind of edit made alone, and of families of ten edits."""
    edits = edit or list(REFERENCE)
    if drawn:
        record_drawn(backwards)
    elif held_out:
        record_held_out()
    elif as_pairs:
        print(json.dumps(pairs(folder, edits, photograph or [])))
    else:
        if per_kind:
            kinds = by_kind(folder, per_kind)
            print(
                pd.DataFrame([{**asdict(kind), "wrong": len(kind.wrong)} for kind in kinds]).to_string(
                    index=False
                )
            )
            print("\n".join(f"{name}: {number:.4g}" for name, number in summary(kinds).items()))
        print("\n".join(f"families, {name}: {value}" for name, value in families(folder, edits).items()))


if __name__ == "__main__":
    try:
        typer.run(main)
    except PhotodupError as error:
        raise SystemExit(str(error)) from None
