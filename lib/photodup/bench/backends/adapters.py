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
    requested = parse_backend(backend)
    if requested.is_local:
        if requested.engine == DUMMY:
            return Dummy(**options)
        if requested.engine not in ("pytorch", "onnx") or requested.precision != "fp32":
            raise PhotodupError(
                f"{requested} cannot be measured in this process: use local-pytorch-fp32 or local-onnx-fp32."
            )
        return Local(requested, **options)
    if not url:
        raise PhotodupError(f"The backend {requested} needs the address of its server.")
    if requested.server == "fastapi":
        return server_adapters.fastapi(requested, url, **options)
    return server_adapters.triton(requested, url, **options)


def answers_to(under_test: Adapter, items: Sequence[Any]) -> list[np.ndarray]:
    """Return the answer to each item [dim], requested one at a time."""
    with contextlib.closing(under_test.open()) as connection:
        return [connection.decode(connection.request(under_test.prepare([item])))[0] for item in items]


def lowest_cosine(a: np.ndarray, b: np.ndarray) -> float:
    """Return the lowest cosine of two matrices' rows [n, dim]; a row of zeros has 0."""
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return float(np.min(np.sum(a * b, axis=1) / np.where(norms > 0, norms, 1)))


def check_embeddings(
    under_test: Adapter, photos: Sequence[bytes], reference: np.ndarray, least: float, *, name: str
) -> float:
    """Return the lowest cosine between what a backend answers and the reference, one photograph at a time; it is closed.

    Args:
        reference: float32 [len(photos), dim]; 16 photographs at most are compared, spread evenly.

    Raises:
        PhotodupError: it is below `least`, so nothing that the server answers may be timed.
    """
    chosen = np.unique(np.linspace(0, len(photos) - 1, min(16, len(photos))).astype(int))
    with contextlib.closing(under_test):
        embeddings = np.asarray(answers_to(under_test, [photos[i] for i in chosen]), dtype=np.float64)
    expected = np.asarray(reference, dtype=np.float64)[chosen]
    if embeddings.shape != expected.shape:
        shapes = f"{embeddings.shape[1:]}, the reference is {expected.shape[1:]}"
        raise PhotodupError(f"{name} answers embeddings of shape {shapes}.")
    cosine = lowest_cosine(embeddings, expected)
    if not cosine >= least:  # also true for NaN
        raise PhotodupError(f"{name} embeds otherwise: cosine {cosine:.6f}, at least {least} is needed.")
    return cosine
