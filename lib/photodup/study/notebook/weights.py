"""The weights that the study runs on, its demonstration library, and the photographs that requests carry."""

from __future__ import annotations

from pathlib import Path

from photodup.core.errors import PhotodupError
from photodup.core.paths import build_dir
from photodup.core.settings import environment, set_variables

STAND_IN = "random:0"


def choose_weights(weights: str | None = None) -> str:
    """Return the weights to use: `weights`, else `MODEL_PRETRAINED`, else `random:0`.

    The default is random weights, and every record names them: no timing depends on their values. Name real ones to
    study similarities as well.
    """
    return weights or environment().model_pretrained or STAND_IN


def prepare_model(weights: str | None = None) -> str:
    """Set `MODEL_PRETRAINED` for this process and its children to `choose_weights(weights)`, and return it."""
    weights = choose_weights(weights)
    set_variables(MODEL_PRETRAINED=weights)
    return weights


def demo_library(name: str = "demo") -> Path:
    """Return a demonstration library in a folder of build/, built on first use."""
    from photodup.photos.demo.photographs import build_demo

    directory = build_dir() / name
    if not (directory / "ground_truth.json").is_file():
        build_demo(directory)
    return directory


def review_library() -> Path:
    """Return a demonstration library of its own for the page, scanned and, where that works, embedded.

    The encoder is the one MODEL_PRETRAINED names, else the EfficientNet-Lite0 stand-in; where neither is
    at hand copies are found by hash and pixels alone.
    """
    from photodup.embedding.client.embedder import connect
    from photodup.photos.demo.encoder import export_stand_in
    from photodup.photos.embed.batches import embed_library
    from photodup.photos.library.catalogue import Catalogue
    from photodup.photos.library.scan import scan

    root = demo_library("review-demo")
    scan(root)
    try:
        weights = trained_weights() or export_stand_in()
        with Catalogue(root) as catalogue, connect(mode="local", pretrained=weights) as embedder:
            embed_library(catalogue, embedder)
    except PhotodupError as error:
        print(f"Without embeddings ({error}): copies are found by hash and pixels.")
    return root


def trained_weights() -> str | None:
    """Return what MODEL_PRETRAINED names; None for random weights, whose similarities mean nothing."""
    weights = environment().model_pretrained
    return None if not weights or weights.startswith("random") else weights


def payload_photos(n: int) -> list[bytes]:
    """Return the bytes of `n` different photographs as JPEG files, the same ones for every run and backend.

    Originals of the demonstration library come first, then their edited copies: still different bytes,
    which is what caches, compressors and decoders see.

    Raises:
        PhotodupError: the library holds fewer than `n`.
    """
    from photodup.photos.demo.photographs import load_ground_truth

    library = demo_library()
    truths = [t for t in load_ground_truth(library / "ground_truth.json") if t.path.endswith(".jpg")]
    truths.sort(key=lambda truth: (truth.transformation != "original", truth.path))
    payloads = list(dict.fromkeys((library / truth.path).read_bytes() for truth in truths))
    if len(payloads) < n:
        raise PhotodupError(
            f"The demonstration library holds {len(payloads)} JPEG files, {n} were asked for."
        )
    return payloads[:n]
