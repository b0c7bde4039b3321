"""Evaluate on photographs whose copies are known, for `photodup evaluate` and notebook 01."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from photodup.errors import PhotodupError
from photodup.paths import build_dir
from photodup.photos.quality.edits import LOOK_ALIKES, REFERENCE, named
from photodup.photos.quality.pairs import Original, Quality, evaluate, folder_originals
from photodup.photos.quality.report import as_record, report
from photodup.photos.quality.shown import OfKind, Shown, kinds_lines, measure_kinds, measure_shown
from photodup.settings import environment
from photodup.study.notebook.weights import demo_library

if TYPE_CHECKING:
    from photodup.study.notebook.run import Run

PER_KIND = 12  # pairs of each kind on held-out photographs


def demo_originals() -> list[Original]:
    """Return the photographs that the demonstration library is made from, its hard negatives included."""
    from photodup.demo.photographs import SOURCES

    return [Original(source.name, source.open(), source.scene) for source in SOURCES]


def measure(
    directory: Path | None = None,
    *,
    weights: str | None = None,
    all_edits: bool = False,
    names: Sequence[str] = (),
    edits: Sequence[str] = (),
) -> Quality:
    """Measure on the demonstration's photographs or on those of a folder.

    Args:
        directory: photographs, all of different things.
        weights: what MODEL_PRETRAINED takes; default that variable, else the EfficientNet-Lite0 stand-in.
            Random weights are used only where they are named here: a curve of theirs means nothing.
        all_edits: every graded edit instead of the reference's ten.
        names: of the photographs; default all.
        edits: names of edits; default as `all_edits` says.
    """
    from photodup.demo.encoder import export_stand_in
    from photodup.embedding.client.client import connect

    weights = weights or _pretrained() or export_stand_in()
    originals = [one for one in originals_of(directory) if not names or one.name in names]
    with connect(mode="local", pretrained=weights) as embedder:
        model = f"{embedder.model_name}{' (random weights)' if embedder.is_random else ''}"
        chosen = named(edits or (None if all_edits else REFERENCE))
        return evaluate(originals, chosen, embed=embedder.embed, model=model)


def _pretrained() -> str | None:
    weights = environment().model_pretrained
    return None if not weights or weights.startswith("random") else weights


def originals_of(directory: Path | None) -> list[Original]:
    """Return the photographs of a folder, or the demonstration's."""
    return folder_originals(directory) if directory else demo_originals()


def shown(directory: Path | None = None, *, all_edits: bool = False) -> Shown:
    """Measure what the owner is shown, by hash and pixels alone; arguments as in `measure`."""
    with tempfile.TemporaryDirectory() as folder:
        chosen = named(None if all_edits else REFERENCE)
        return measure_shown(originals_of(directory), chosen, Path(folder))


def by_kind(directory: Path | None, n: int) -> list[OfKind]:
    """Measure every kind of edit and of look-alikes, `n` photographs for each; hash and pixels alone."""
    with tempfile.TemporaryDirectory() as folder:
        return measure_kinds(originals_of(directory), [*named(), *LOOK_ALIKES], n, Path(folder))


def evaluate_and_print(
    directory: Path | None, *, weights: str | None, all_edits: bool, per_kind: int, as_json: bool = False
) -> None:
    """Measure and print the tables: by kind first, then pairs, then what is shown of families; or one JSON object."""
    kinds = by_kind(directory, per_kind) if per_kind else []
    if as_json:
        quality = as_record(measure(directory, weights=weights, all_edits=all_edits))
        families = asdict(shown(directory, all_edits=all_edits))
        print(json.dumps({"kinds": [asdict(one) for one in kinds], "quality": quality, "shown": families}))
        return
    if kinds:
        print("\n".join(kinds_lines(kinds)))
    print(report(measure(directory, weights=weights, all_edits=all_edits)))
    print("\n".join(shown(directory, all_edits=all_edits).lines()))


def on_held_out(run: Run) -> dict[str, Any]:
    """Return both on photographs that set no threshold, as JSON: `quality` (see `as_record`) and `shown`.

    Read from the run's record, or measured with the ten edits and recorded; a `Gap` where there are no photographs.
    """

    def measure_both() -> dict[str, Any]:
        folder = _held_out()
        return {"quality": as_record(measure(folder), most_points=2), "shown": asdict(shown(folder))}

    return run.measure_or_load("copies-held-out", measure_both, config={"edits": "reference"}, may_fail=True)


def kinds_on_held_out(run: Run) -> list[OfKind]:
    """Return what is shown by kind on those photographs, recorded likewise; empty where it was not measured."""

    def measure_kinds_there() -> dict[str, Any]:
        return {"kinds": [asdict(one) for one in by_kind(_held_out(), PER_KIND)]}

    found = run.measure_or_load(
        "copies-by-kind", measure_kinds_there, config={"pairs": PER_KIND}, may_fail=True
    )
    return [OfKind(**one) for one in found.get("kinds", ())]


def _held_out() -> Path:
    folder = build_dir() / "photographs" / "held-out"
    if not any(folder.glob("*.jpg")):
        raise PhotodupError(
            "There are no held-out photographs here: `python3.11 tools/photographs/get.py` fetches some."
        )
    return folder


def review_library() -> Path:
    """Return a demonstration library of its own for the page, scanned and, where that works, embedded.

    The encoder is the one MODEL_PRETRAINED names, else the EfficientNet-Lite0 stand-in; where neither is
    at hand copies are found by hash and pixels alone.
    """
    from photodup.demo.encoder import export_stand_in
    from photodup.embedding.client.client import connect
    from photodup.photos.embed.embed import embed_library
    from photodup.photos.library.catalogue import Catalogue
    from photodup.photos.library.scan import scan

    root = demo_library("review-demo")
    scan(root)
    try:
        weights = _pretrained() or export_stand_in()
        with Catalogue(root) as catalogue, connect(mode="local", pretrained=weights) as embedder:
            embed_library(catalogue, embedder)
    except PhotodupError as error:
        print(f"Without embeddings ({error}): copies are found by hash and pixels.")
    return root
