"""Which weights the study runs on, and everything that has to exist before a server can start."""

from __future__ import annotations

import os
from pathlib import Path

from photodup.errors import PhotodupError
from photodup.paths import build_dir

STAND_IN = "random:0"


def choose_weights(wanted: str | None = None) -> str:
    """Return the weights to use: `wanted`, else `MODEL_PRETRAINED`, else `random:0`.

    The study's default is random weights, said openly in every record: no timing depends on their values,
    and nobody should download 600 MB to read a latency. Name real ones to study similarities as well.
    """
    return wanted or os.environ.get("MODEL_PRETRAINED") or STAND_IN


def prepare_model(wanted: str | None = None) -> str:
    """Set `MODEL_PRETRAINED` for this process and its children, and make sure the weights can be had.

    Raises:
        PhotodupError: the weights cannot be loaded; the message names `random:0` as the way on.
    """
    weights = choose_weights(wanted)
    os.environ["MODEL_PRETRAINED"] = weights
    return weights


def demo_library() -> Path:
    """Return the demonstration library under build/demo, built on first use."""
    from photodup.photos.demo import build_demo

    directory = build_dir() / "demo"
    if not (directory / "ground_truth.json").is_file():
        build_demo(directory)
    return directory


def payload_photos(n: int) -> list[bytes]:
    """Return the bytes of `n` different photographs, as a camera or phone would hand them over.

    They are the JPEG files of the demonstration library, in the order of their paths, so every run and
    every backend is sent the same ones.

    Raises:
        PhotodupError: the library holds fewer than `n`.
    """
    files = sorted(p for p in demo_library().rglob("*") if p.suffix.lower() in {".jpg", ".jpeg"})
    if len(files) < n:
        raise PhotodupError(
            f"The demonstration library holds {len(files)} JPEG photographs, {n} were asked for."
        )
    return [path.read_bytes() for path in files[:n]]
