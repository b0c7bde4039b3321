"""What `photodup evaluate` does: measure and print."""

import os
from pathlib import Path

import numpy as np
from tqdm import tqdm

from photodup.photos.quality import Quality, demo_originals, evaluate, folder_originals, report
from photodup.photos.transforms import REFERENCE, named


def measure(
    directory: Path | None = None,
    *,
    weights: str | None = None,
    all_edits: bool = False,
    library: Path | None = None,
) -> Quality:
    """Measure on the demonstration's photographs or on those of a folder.

    Args:
        directory: photographs, all of different things.
        weights: what MODEL_PRETRAINED takes; default that variable, else the EfficientNet-Lite0 stand-in.
        all_edits: every graded edit instead of the reference's ten.
        library: one that was embedded with these weights and reviewed: its decisions join the curve.
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
            labelled=labelled_cosines(library, embedder.model_digest) if library else (),
            progress=lambda queries, n: tqdm(queries, total=n, desc="compare", unit="edit"),
        )


def labelled_cosines(library: Path, digest: str) -> list[tuple[float, bool]]:
    """Return (cosine, same picture) for each pair that the owner decided on and that is embedded.

    Raises:
        PhotodupError: the library has no embeddings of this model, so its pairs cannot be placed.
    """
    from photodup.errors import PhotodupError
    from photodup.photos.catalogue import Catalogue
    from photodup.photos.feedback import Feedback

    with Catalogue(library) as catalogue:
        pairs = Feedback(catalogue.path.parent).labelled_pairs()
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
