"""The fastest precision that this machine may embed photographs with: what passed the gate, and no other."""

from collections.abc import Collection, Iterator
from importlib import util
from pathlib import Path

from photodup.embedding.engines.model import SUPPORTED, digest_at
from photodup.embedding.engines.processor import can_compute
from photodup.embedding.engines.reduced import (
    FASTEST_FIRST,
    Notes,
    WeightsSource,
    has_passed,
    read_notes,
    source_of,
)
from photodup.embedding.vectors import is_among
from photodup.errors import PhotodupError
from photodup.paths import build_dir
from photodup.settings import environment

_PACKAGES = {"openvino": "openvino", "onnx": "onnxruntime"}
_NOT_HERE = ("random:", "sscd:")


def fastest(
    weights: str | None, digests: Collection[str] = (), directory: Path | None = None
) -> tuple[str, str] | None:
    """Return the backend of the fastest precision that passed the gate on this processor, and why in words.

    A library that has embeddings of these weights already goes on in their precision: vectors of two precisions are of
    two models, and half of each would be no search.

    Args:
        weights: as MODEL_PRETRAINED; default that variable.
        digests: models that have embeddings in the library.
        directory: where reduced files are; default build/models.

    Returns:
        None where nothing but FP32 may be used, or a GPU computes.
    """
    weights = weights or environment().weights
    if weights.startswith(_NOT_HERE) or _has_gpu():
        return None
    try:
        found = list(_passed(weights, directory or build_dir() / "models"))
    except PhotodupError:
        return None
    known = [notes for notes in found if is_among(_digest(notes), digests)]
    if any(is_among(notes.model_digest, digests) for notes in found) and not known:
        return None
    for notes in known or found:
        why = "the precision of this library's embeddings" if known else "the fastest that passed the gate"
        return f"local-{notes.engine}-{notes.precision}", why
    return None


def _passed(weights: str, folder: Path) -> Iterator[Notes]:
    """Yield what passed the gate, of these weights and possible on this machine, the fastest first."""
    name = environment().architecture
    source = source_of(Path(weights.removeprefix("onnx:"))) if weights.startswith("onnx:") else None
    notes = [found for path in sorted(folder.glob("*.json")) if (found := read_notes(path))]
    for precision in FASTEST_FIRST[:-1]:
        for one in notes:
            of_these = (
                one.model_digest == source.model_digest
                if source
                else (one.model_name, one.model_pretrained) == (name, weights)
            )
            if (
                of_these
                and not one.draft_size
                and one.precision == precision
                and precision in SUPPORTED.get(one.engine, ())
                and can_compute(precision)
                and util.find_spec(_PACKAGES.get(one.engine, one.engine))
                and has_passed(_source(one), one.engine, precision, folder)
            ):
                yield one


def _source(notes: Notes) -> WeightsSource:
    return WeightsSource(Path(), notes.model_name, notes.model_pretrained, notes.model_digest)


def _digest(notes: Notes) -> str:
    return digest_at(notes.precision, notes.model_digest, notes.sha256)


def _has_gpu() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())
