"""Notebook 01 and `photodup review --demo`: the demonstration library, made ready for the review page."""

from pathlib import Path

from photodup.demo.encoder import export_stand_in
from photodup.demo.photographs import build_demo
from photodup.embedding.client.client import connect
from photodup.errors import PhotodupError
from photodup.paths import build_dir
from photodup.photos.embed.embed import embed_library
from photodup.photos.library.catalogue import Catalogue
from photodup.photos.library.scan import scan
from photodup.settings import environment


def review_library() -> Path:
    """Return a demonstration library of its own for the page, scanned and, where that works, embedded.

    The encoder is the one MODEL_PRETRAINED names, else the EfficientNet-Lite0 stand-in; where neither is
    at hand copies are found by hash and pixels alone.
    """
    root = build_dir() / "review-demo"
    if not (root / "ground_truth.json").is_file():
        build_demo(root)
    scan(root)
    try:
        named = environment().model_pretrained or "random:"
        weights = export_stand_in() if named.startswith("random:") else named
        with Catalogue(root) as catalogue, connect(mode="local", pretrained=weights) as embedder:
            embed_library(catalogue, embedder)
    except PhotodupError as error:
        print(f"Without embeddings ({error}): copies are found by hash and pixels.")
    return root
