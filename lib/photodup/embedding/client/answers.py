"""What every server's transport shares: errors, patience, and what a server says about itself."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from photodup.errors import PhotodupError

Answer = TypeVar("Answer")


class ServerError(PhotodupError):
    """A server that does not answer, or is not the one that was meant."""


class Transient(Exception):
    """A failure that a second attempt may not meet."""

    def __init__(self, message: str, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.wait_s = wait_s


@dataclass(frozen=True)
class Remote:
    """What a server says about itself; None where it says nothing."""

    digest: str | None = None
    name: str | None = None
    pretrained: str | None = None
    dim: int | None = None
    precision: str | None = None
    gate: str | None = None
    max_images: int = 32
    max_bytes: int = 1 << 60


@dataclass(frozen=True)
class Patience:
    """Limits of one request.

    Attributes:
        connect_s: until the connection is there.
        request_s: from the last byte sent to the answer.
        attempts: tries in all; embedding twice gives the same answer, so a retry is safe.
        pause_s: before the second try, doubled before each further one.
    """

    connect_s: float = 5.0
    request_s: float = 60.0
    attempts: int = 3
    pause_s: float = 0.2

    def retry(self, what: Callable[[], Answer]) -> Answer:
        for attempt in range(1, self.attempts + 1):
            try:
                return what()
            except Transient as error:
                if attempt == self.attempts:
                    tries = f" ({attempt} attempts)" if attempt > 1 else ""
                    raise ServerError(f"{error}{tries}") from error
                time.sleep(max(error.wait_s, self.pause_s * 2 ** (attempt - 1)))
        raise AssertionError("attempts must be at least 1")
