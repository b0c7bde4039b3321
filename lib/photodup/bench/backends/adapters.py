"""One adapter per backend, all with the same methods, and the dummy whose answer and delay are known.

The timed span is the same for all: encoded photographs in hand → embeddings in hand, in three stages.
`prepare` is the client's own work (decode, resize, encode the wire), `request` goes from the first byte sent
to the last byte received, `decode` turns the answer into float32 [batch, dim].
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from photodup.embedding.backends import parse_backend
from photodup.errors import PhotodupError

DIM = 512


class Connection(Protocol):
    """What one worker owns. `request` opens it when it is closed; an adapter says if it may be closed."""

    def request(self, prepared: Any) -> Any: ...

    def decode(self, answer: Any) -> np.ndarray: ...

    def close(self) -> None: ...


class Adapter(Protocol):
    """One backend under test.

    `is_async`: `Connection.request` is a coroutine and `aclose` closes. `can_reconnect`: each worker has a
    connection of its own, so the policy `new` has a meaning.
    """

    backend: str
    is_async: bool
    can_reconnect: bool

    def describe(self) -> dict[str, Any]:
        """Return the columns `backend`, `server`, `engine`, `protocol`, `wire` and `channel`."""

    def prepare(self, photos: Sequence[bytes]) -> Any: ...

    def payload_bytes(self, prepared: Any) -> int: ...

    def open(self) -> Connection: ...

    def close(self) -> None: ...


def adapter(backend: str, url: str | None = None, **options: Any) -> Adapter:
    """Return the adapter of a backend name (`pytorch-http-jpeg`, `triton-onnx-grpc-fp32`, `local-onnx`, …).

    Args:
        url: `http://host:port`, for gRPC `host:port`; not needed in process.
        options: `timeout_s`; for HTTP also `congestion`; for gRPC also `channel` (`per-worker`, `shared`,
            `asyncio`); for Triton also `model` (another than the backend's own); for `local-pytorch`
            `model`, for `local-onnx` `path`; for `dummy` see `Dummy`.

    Raises:
        PhotodupError: no such backend, or a server backend without an address.
    """
    if backend == "dummy":
        return Dummy(**options)
    if backend in ("local-pytorch", "local-onnx"):
        from photodup.bench.backends import local_adapters

        return (
            local_adapters.LocalPyTorch(**options)
            if backend == "local-pytorch"
            else (local_adapters.LocalOnnx(**options))
        )
    parts = split_backend(backend)
    if not url:
        raise PhotodupError(f"The backend {backend} needs the address of its server.")
    if parts["server"] == "pytorch":
        from photodup.bench.backends.http_adapters import PyTorchHttp

        return PyTorchHttp(backend, url, **options)
    if parts["protocol"] == "http":
        from photodup.bench.backends.http_adapters import TritonHttp

        return TritonHttp(backend, url, **options)
    from photodup.bench.backends.grpc_adapters import TritonGrpc

    return TritonGrpc(backend, url, **options)


def split_backend(backend: str) -> dict[str, str | None]:
    """Return `server`, `engine`, `protocol` and `wire` of a backend name; None where it has none.

    The name `dummy` exists only for measuring.

    Raises:
        PhotodupError: no such backend.
    """
    if backend == "dummy":
        return {"server": "local", "engine": "dummy", "protocol": None, "wire": None}
    parts = parse_backend(backend)
    protocol, wire = parts.protocol or None, parts.wire or None
    return {"server": parts.server, "engine": parts.engine, "protocol": protocol, "wire": wire}


def cosine_to_reference(
    under_test: Adapter, photos: Sequence[bytes], reference: np.ndarray, *, at_most: int = 16
) -> float:
    """Return the lowest cosine between what a backend answers and the reference, one photograph at a time.

    Args:
        reference: float32 [len(photos), dim].
        at_most: photographs to compare, spread evenly.
    """
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    chosen = np.unique(np.linspace(0, len(photos) - 1, min(at_most, len(photos))).astype(int))

    def blocking() -> list[np.ndarray]:
        connection = under_test.open()
        try:
            requests = (under_test.prepare([photos[i]]) for i in chosen)
            return [connection.decode(connection.request(request))[0] for request in requests]
        finally:
            connection.close()

    async def in_loop() -> list[np.ndarray]:
        connection = under_test.open()
        try:
            return [
                connection.decode(await connection.request(under_test.prepare([photos[i]])))[0]
                for i in chosen
            ]
        finally:
            await connection.aclose()

    if under_test.is_async:  # in a thread, because a notebook's own event loop is already running
        with ThreadPoolExecutor(1) as pool:
            answers = pool.submit(lambda: asyncio.run(in_loop())).result()
    else:
        answers = blocking()
    found = np.asarray(answers, dtype=np.float64)
    wanted = np.asarray(reference, dtype=np.float64)[chosen]
    if found.shape != wanted.shape:
        shapes = f"{found.shape[1:]}, the reference is {wanted.shape[1:]}"
        raise PhotodupError(f"{under_test.backend} answers embeddings of shape {shapes}.")
    norms = np.linalg.norm(found, axis=1) * np.linalg.norm(wanted, axis=1)
    return float(np.min(np.sum(found * wanted, axis=1) / norms))


class Dummy:
    """In-process system under test: the answer follows from the bytes, the delay is what was asked for.

    Args:
        delay_ms: slept by every request.
        delay_of: overrides it: request number (from 0) → milliseconds. Also the place to raise an error.
    """

    backend, is_async, can_reconnect = "dummy", False, True

    def __init__(self, delay_ms: float = 0.0, delay_of: Callable[[int], float] | None = None) -> None:
        self._delay_of = delay_of or (lambda number: delay_ms)
        self.n_requests = self.n_opened = 0

    def describe(self) -> dict[str, Any]:
        return {"backend": self.backend, **split_backend(self.backend), "channel": None}

    def prepare(self, photos: Sequence[bytes]) -> list[bytes]:
        return list(photos)

    def payload_bytes(self, prepared: list[bytes]) -> int:
        return sum(map(len, prepared))

    def open(self) -> "Dummy":
        self.n_opened += 1
        return self

    def request(self, prepared: list[bytes]) -> list[bytes]:
        number, self.n_requests = self.n_requests, self.n_requests + 1
        delay = self._delay_of(number)
        if delay > 0:
            time.sleep(delay / 1000)
        return prepared

    def decode(self, answer: list[bytes]) -> np.ndarray:
        return np.stack([known_embedding(photo) for photo in answer])

    def close(self) -> None:
        pass


def known_embedding(photo: bytes) -> np.ndarray:
    """Return the dummy's answer to a photograph: float32 [512], unit length, from a hash of the bytes."""
    seed = hashlib.shake_128(photo).digest(DIM)
    vector = np.frombuffer(seed, np.uint8).astype(np.float32) - 127.5
    return vector / np.linalg.norm(vector)
