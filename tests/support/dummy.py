"""A system under test in this process whose answer and delay are known."""

import hashlib
import time

import numpy as np

from photodup.embedding.backends import Backend


class Dummy:
    """Answers what follows from the bytes, after a delay.

    Args:
        delay_ms: slept by every request.
        delay_of: overrides it: request number (from 0) → milliseconds. Also the place to raise an error.
    """

    backend, can_reconnect = Backend("local", "pytorch"), True

    def __init__(self, delay_ms=0.0, delay_of=None):
        self._delay_of = delay_of or (lambda number: delay_ms)
        self.n_requests = 0

    def describe(self):
        return {**self.backend.columns(), "channel": None}

    def prepare(self, photos):
        return list(photos)

    def payload_bytes(self, prepared):
        return sum(map(len, prepared))

    def open(self):
        return self

    def request(self, prepared):
        number, self.n_requests = self.n_requests, self.n_requests + 1
        delay = self._delay_of(number)
        if delay > 0:
            time.sleep(delay / 1000)
        return prepared

    def decode(self, answer):
        return np.stack([known_embedding(photo) for photo in answer])

    def close(self):
        """Nothing was opened."""


def known_embedding(photo):
    """Return the dummy's answer to a photograph: float32 [512], unit length, from a hash of the bytes."""
    seed = hashlib.shake_128(photo).digest(512)
    vector = np.frombuffer(seed, np.uint8).astype(np.float32) - 127.5
    return vector / np.linalg.norm(vector)
