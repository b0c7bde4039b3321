"""What `photodup evaluate` does: measure and print."""

import os
from pathlib import Path

from tqdm import tqdm

from photodup.photos.quality import Quality, demo_originals, evaluate, folder_originals, report
from photodup.photos.transforms import REFERENCE, named


def measure(directory: Path | None = None, *, weights: str | None = None, all_edits: bool = False) -> Quality:
    """Measure on the demonstration's photographs or on those of a folder.

    Args:
        directory: photographs, all of different things.
        weights: what MODEL_PRETRAINED takes; default that variable, else the EfficientNet-Lite0 stand-in.
        all_edits: every graded edit instead of the reference's ten.
    """
    from photodup.embedding.clients import connect
    from photodup.photos.standin import export_stand_in

    weights = weights or os.environ.get("MODEL_PRETRAINED") or export_stand_in()
    originals = folder_originals(directory) if directory else demo_originals()
    with connect(mode="local", pretrained=weights) as embedder:
        model = f"{embedder.model_name}{' (random weights)' if embedder.is_random else ''}"
        return evaluate(
            originals,
            named(None if all_edits else REFERENCE),
            embed=embedder.embed,
            model=model,
            progress=lambda queries, n: tqdm(queries, total=n, desc="compare", unit="edit"),
        )


def evaluate_and_print(directory: Path | None, *, weights: str | None, all_edits: bool) -> None:
    """Measure and print the table."""
    print(report(measure(directory, weights=weights, all_edits=all_edits)))
