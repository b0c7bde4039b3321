"""Make the adapter of a backend, and compare its answers with the reference before anything is timed.

The timed span is the same for all: encoded photographs in hand → embeddings in hand, in three stages. An adapter's `prepare`
is the client's own work (decode, resize, encode the wire). `request` of one of its connections goes from the first byte sent
to the last byte received, and opens a connection that is closed. `decode` turns the answer into float32 [batch, dim].
"""

import contextlib
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from photodup.bench import Columns, Item
from photodup.bench.backends import server_adapters
from photodup.bench.backends.server_adapters import GrpcAdapter, GrpcClient, HttpAdapter, HttpClient
from photodup.core.errors import PhotodupError
from photodup.embedding.backends import Backend, parse_backend
from photodup.embedding.imaging import normalize
from photodup.embedding.wire import wires


class LocalAdapter:
    """An engine in this process: the baseline without any server.

    Args:
        model: an `ImageModel`; without it the one in the environment, on the CPU under ONNX Runtime.
    """

    can_reconnect = False

    def __init__(self, backend: Backend, model: Any = None) -> None:
        if model is None:
            from photodup.embedding.engines.encoder import load_model

            model = load_model(engine=backend.engine, device="cpu" if backend.engine == "onnx" else None)
        self.backend, self._model = backend, model

    def describe(self) -> Columns:
        return {**self.backend.columns(), "channel": None}

    def prepare(self, photos: Sequence[bytes]) -> np.ndarray:
        return normalize(wires.pixels(photos))

    def payload_bytes(self, prepared: object) -> int:
        return 0  # nothing crosses a network

    def open(self) -> Self:
        return self

    def request(self, prepared: np.ndarray) -> np.ndarray:
        return self._model.embed(prepared)

    def decode(self, answer: np.ndarray) -> np.ndarray:
        return answer

    def close(self) -> None:
        """The model is the caller's, or goes with this object."""


Adapter = LocalAdapter | HttpAdapter | GrpcAdapter
Connection = LocalAdapter | HttpClient | GrpcClient  # of one worker of a load


def adapter(backend: str | Backend, url: str | None = None, **options: Any) -> Adapter:
    """Return the adapter of a backend (`fastapi-pytorch-fp32-http-jpeg`, `local-onnx-fp32`, …).

    Args:
        url: `http://host:port`, for gRPC `host:port`; not needed in process.
        options: `timeout_s`; for gRPC also `channel` (`per-worker`, `shared`); for Triton also `model`
            (another than the backend's own); in process see `LocalAdapter`.

    Raises:
        PhotodupError: no such backend, one that cannot be measured, or a server backend without an address.
    """
    requested = parse_backend(backend)
    if requested.is_local:
        if requested.engine not in ("pytorch", "onnx") or requested.precision != "fp32":
            raise PhotodupError(
                f"{requested} cannot be measured in this process: use local-pytorch-fp32 or local-onnx-fp32."
            )
        return LocalAdapter(requested, **options)
    if not url:
        raise PhotodupError(f"The backend {requested} needs the address of its server.")
    if requested.server == "fastapi":
        return server_adapters.fastapi(requested, url, **options)
    return server_adapters.triton(requested, url, **options)


def answers_to(under_test: Adapter, items: Sequence[Item]) -> list[np.ndarray]:
    """Return the answer to each item [dim], requested one at a time."""
    client: Any = under_test  # what one kind prepares, only its own connection takes
    with contextlib.closing(client.open()) as connection:
        return [connection.decode(connection.request(client.prepare([item])))[0] for item in items]


def lowest_cosine(a: np.ndarray, b: np.ndarray) -> float:
    """Return the lowest cosine of two matrices' rows [n, dim]; a row of zeros has 0."""
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return float(np.min(np.sum(a * b, axis=1) / np.where(norms > 0, norms, 1)))


def check_embeddings(
    under_test: Adapter, photos: Sequence[bytes], reference: np.ndarray, least: float, *, name: str
) -> float:
    """Return the lowest cosine between a backend's embeddings and the reference; close the adapter.

    Args:
        reference: float32 [len(photos), dim]; 16 photographs at most are compared, spread evenly.

    Raises:
        PhotodupError: it is below `least`, or shapes differ: the backend may not be timed.
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
