"""Makes the adapter of a backend, and holds its answers against the reference before anything is timed."""

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from photodup.bench.backends import server_adapters
from photodup.bench.backends.adapter import Adapter, Dummy, Local
from photodup.core.errors import PhotodupError
from photodup.embedding.backends import DUMMY, Backend, parse_backend


def adapter(backend: str | Backend, url: str | None = None, **options: Any) -> Adapter:
    """Return the adapter of a backend (`fastapi-pytorch-fp32-http-jpeg`, `local-onnx-fp32`, …).

    Args:
        url: `http://host:port`, for gRPC `host:port`; not needed in process.
        options: `timeout_s`; for gRPC also `channel` (`per-worker`, `shared`); for Triton also `model`
            (another than the backend's own); in process see `Local` and `Dummy`.

    Raises:
        PhotodupError: no such backend, one that cannot be measured, or a server backend without an address.
    """
    asked = parse_backend(backend)
    if asked.is_local:
        if asked.engine == DUMMY:
            return Dummy(**options)
        if asked.engine not in ("pytorch", "onnx") or asked.precision != "fp32":
            raise PhotodupError(
                f"{asked} cannot be measured in this process: use local-pytorch-fp32 or local-onnx-fp32."
            )
        return Local(asked, **options)
    if not url:
        raise PhotodupError(f"The backend {asked} needs the address of its server.")
    if asked.server == "fastapi":
        return server_adapters.fastapi(asked, url, **options)
    return server_adapters.triton(asked, url, **options)


def answers_to(under_test: Adapter, items: Sequence[Any]) -> list[np.ndarray]:
    """Return the answer to each item [dim], requested one at a time."""
    with contextlib.closing(under_test.open()) as connection:
        return [connection.decode(connection.request(under_test.prepare([item])))[0] for item in items]


def lowest_cosine(a: np.ndarray, b: np.ndarray) -> float:
    """Return the lowest cosine of two matrices' rows [n, dim]; a row of zeros has 0."""
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return float(np.min(np.sum(a * b, axis=1) / np.where(norms > 0, norms, 1)))


def cosine_to_reference(under_test: Adapter, photos: Sequence[bytes], reference: np.ndarray) -> float:
    """Return the lowest cosine between what a backend answers and the reference, one photograph at a time.

    Args:
        reference: float32 [len(photos), dim]; 16 photographs at most are compared, spread evenly.
    """
    chosen = np.unique(np.linspace(0, len(photos) - 1, min(16, len(photos))).astype(int))

    answers = answers_to(under_test, [photos[i] for i in chosen])
    found = np.asarray(answers, dtype=np.float64)
    wanted = np.asarray(reference, dtype=np.float64)[chosen]
    if found.shape != wanted.shape:
        shapes = f"{found.shape[1:]}, the reference is {wanted.shape[1:]}"
        raise PhotodupError(f"{under_test.backend} answers embeddings of shape {shapes}.")
    return lowest_cosine(found, wanted)


def check_embeddings(
    under_test: Adapter, photos: Sequence[bytes], reference: np.ndarray, least: float, *, name: str
) -> float:
    """Return the lowest cosine to the reference; the adapter is closed.

    Raises:
        PhotodupError: it is below `least`, so nothing that the server answers may be timed.
    """
    try:
        cosine = cosine_to_reference(under_test, photos, reference)
    finally:
        under_test.close()
    if not cosine >= least:  # also true for NaN
        raise PhotodupError(f"{name} embeds otherwise: cosine {cosine:.6f}, at least {least} is needed.")
    return cosine
