"""The methods of every adapter of a backend, and the dummy whose answer and delay are known.

The timed span is the same for all: encoded photographs in hand → embeddings in hand, in three stages.
`prepare` is the client's own work (decode, resize, encode the wire), `request` goes from the first byte sent
to the last byte received, `decode` turns the answer into float32 [batch, dim].
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self

import numpy as np

from photodup.embedding.backends import DUMMY, Backend
from photodup.embedding.imaging import normalize
from photodup.embedding.wire import wires

DIM = 512


class Connection(Protocol):
    """The connection of one worker. `request` opens it when it is closed; an adapter says if it may be closed."""

    def request(self, prepared: Any) -> Any: ...

    def decode(self, answer: Any) -> np.ndarray: ...

    def close(self) -> None: ...


class Adapter(Protocol):
    """One backend under test.

    `can_reconnect`: each worker has a connection of its own, so the policy `new` has a meaning.
    """

    backend: Backend
    can_reconnect: bool

    def describe(self) -> dict[str, Any]:
        """Return the columns of the backend and `channel`."""

    def prepare(self, photos: Sequence[bytes]) -> Any: ...

    def payload_bytes(self, prepared: Any) -> int: ...

    def open(self) -> Connection: ...

    def close(self) -> None: ...


class InProcess:
    """A system under test in this process: nothing is connected, and the model is the caller's or goes with this object."""

    can_reconnect = False
    backend: Backend

    def describe(self) -> dict[str, Any]:
        return {**self.backend.columns(), "channel": None}

    def open(self) -> Self:
        return self

    def close(self) -> None:
        """Nothing was opened."""


class Local(InProcess):
    """An engine in this process: what a server is compared with when it costs nothing to reach it.

    Args:
        model: an `ImageModel`; without it the one in the environment, on the CPU under ONNX Runtime.
    """

    def __init__(self, backend: Backend, model: Any = None) -> None:
        if model is None:
            from photodup.embedding.engines.encoder import load_model

            model = load_model(engine=backend.engine, device="cpu" if backend.engine == "onnx" else None)
        self.backend, self._model = backend, model

    def prepare(self, photos: Sequence[bytes]) -> np.ndarray:
        return normalize(wires.pixels(photos))

    def payload_bytes(self, prepared: np.ndarray) -> int:
        return 0  # nothing crosses a network

    def request(self, prepared: np.ndarray) -> np.ndarray:
        return self._model.embed(prepared)

    def decode(self, answer: np.ndarray) -> np.ndarray:
        return answer


class Dummy(InProcess):
    """In-process system under test: the answer follows from the bytes, the delay is what was asked for.

    Args:
        delay_ms: slept by every request.
        delay_of: overrides it: request number (from 0) → milliseconds. Also the place to raise an error.
    """

    backend, can_reconnect = Backend("local", DUMMY), True

    def __init__(self, delay_ms: float = 0.0, delay_of: Callable[[int], float] | None = None) -> None:
        self._delay_of = delay_of or (lambda number: delay_ms)
        self.n_requests = 0

    def prepare(self, photos: Sequence[bytes]) -> list[bytes]:
        return list(photos)

    def payload_bytes(self, prepared: list[bytes]) -> int:
        return sum(map(len, prepared))

    def request(self, prepared: list[bytes]) -> list[bytes]:
        number, self.n_requests = self.n_requests, self.n_requests + 1
        delay = self._delay_of(number)
        if delay > 0:
            time.sleep(delay / 1000)
        return prepared

    def decode(self, answer: list[bytes]) -> np.ndarray:
        return np.stack([known_embedding(photo) for photo in answer])


def known_embedding(photo: bytes) -> np.ndarray:
    """Return the dummy's answer to a photograph: float32 [512], unit length, from a hash of the bytes."""
    seed = hashlib.shake_128(photo).digest(DIM)
    vector = np.frombuffer(seed, np.uint8).astype(np.float32) - 127.5
    return vector / np.linalg.norm(vector)
