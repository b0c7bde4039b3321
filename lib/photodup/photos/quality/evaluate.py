"""What `photodup evaluate` does: measure and print."""

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from photodup.photos.quality.curves import Quality, demo_originals, evaluate, folder_originals, report
from photodup.photos.quality.edits import REFERENCE, named
from photodup.progress import bar

# Photos in a library: for what finding copies in it would be like.
LIBRARY_SIZES = tuple(round(10 ** (step / 4)) for step in range(8, 29))


def measure(
    directory: Path | None = None,
    *,
    weights: str | None = None,
    all_edits: bool = False,
    library: Path | None = None,
    names: Sequence[str] = (),
    edits: Sequence[str] = (),
) -> Quality:
    """Measure on the demonstration's photographs or on those of a folder.

    Args:
        directory: photographs, all of different things.
        weights: what MODEL_PRETRAINED takes; default that variable, else the EfficientNet-Lite0 stand-in.
            Random weights are used only where they are named here: a curve of theirs means nothing.
        all_edits: every graded edit instead of the reference's ten.
        library: one that was embedded with these weights and reviewed: its decisions join the curve.
        names: of the photographs; default all.
        edits: names of edits; default as `all_edits` says.
    """
    from photodup.demo.encoder import export_stand_in
    from photodup.embedding.client.client import connect

    weights = weights or _pretrained() or export_stand_in()
    originals = folder_originals(directory) if directory else demo_originals()
    originals = [original for original in originals if not names or original.name in names]
    with connect(mode="local", pretrained=weights) as embedder:
        model = f"{embedder.model_name}{' (random weights)' if embedder.is_random else ''}"
        return evaluate(
            originals,
            named(edits or (None if all_edits else REFERENCE)),
            embed=embedder.embed,
            model=model,
            labelled=labelled_cosines(library, embedder.model_digest) if library else (),
            progress=lambda queries, n: bar(queries, total=n, desc="compare", unit="edit"),
        )


def _pretrained() -> str | None:
    weights = os.environ.get("MODEL_PRETRAINED")
    return None if not weights or weights.startswith("random") else weights


def as_record(quality: Quality, most_points: int = 120) -> dict:
    """Return the measurement as JSON: all numbers, and each curve by at most `most_points` of its points."""
    curves = []
    for entry in quality.curves:
        # A curve turns where a copy is found; between those points precision only falls.
        turns = np.append(np.flatnonzero(np.diff(entry.recall, prepend=0) > 0), len(entry.recall) - 1)
        kept = np.unique(turns[np.linspace(0, len(turns) - 1, most_points).astype(int)])
        right, wrong = entry.at_default or (None, None)
        curves.append(
            {
                "detector": entry.name,
                "recall": np.round(entry.recall[kept], 4).tolist(),
                "precision": np.round(entry.precision[kept], 4).tolist(),
                "average_precision": entry.average_precision,
                "recall_at_precision_90": entry.recall_at_p90,
                "recall_at_zero_fp": entry.recall_at_zero_fp,
                "n_found_as_shipped": right,
                "n_false_as_shipped": wrong,
                "recall_by_edit": entry.recall_by_transform,
                "n_true_pairs": entry.n_positive,
                "n_false_pairs": entry.n_negative,
            }
        )
    return {
        "model": quality.model,
        "n_photos": quality.n_photos,
        "n_same_scene": quality.n_same_scene,
        "edits": list(quality.transforms),
        "curves": curves,
        "chaining": [asdict(entry) for entry in quality.chaining],
        "cosines": asdict(quality.cosines) if quality.cosines else None,
        "n_verified": quality.n_verified,
        "verify_ms": quality.verify_ms,
        "recall_by_library_size": [
            dict(zip(("photos", "hash_alone", "with_embedding"), (n, *quality.recall_among(n)), strict=True))
            for n in LIBRARY_SIZES
        ],
    }


def labelled_cosines(library: Path, digest: str) -> list[tuple[float, bool]]:
    """Return (cosine, same picture) for each pair that the owner decided on and that is embedded.

    Raises:
        PhotodupError: the library has no embeddings of this model, so its pairs cannot be placed.
    """
    from photodup.errors import PhotodupError
    from photodup.photos.library.catalogue import Catalogue
    from photodup.photos.library.feedback import Feedback

    with Catalogue(library) as catalogue:
        pairs = Feedback(catalogue.own.path).labelled_pairs()
        md5s, vectors = catalogue.load_embeddings(digest)
    if pairs and not md5s:
        raise PhotodupError(
            f"{library} has no embeddings of these weights ({digest[:12]}): run `photodup embed` with them first."
        )
    row = dict(zip(md5s, vectors, strict=True))
    there = {pair: same for pair, same in pairs.items() if pair <= row.keys()}
    return [(float(np.prod([row[md5] for md5 in pair], axis=0).sum()), same) for pair, same in there.items()]


def evaluate_and_print(
    directory: Path | None, *, weights: str | None, all_edits: bool, library: Path | None = None
) -> None:
    """Measure and print the table."""
    print(report(measure(directory, weights=weights, all_edits=all_edits, library=library)))
