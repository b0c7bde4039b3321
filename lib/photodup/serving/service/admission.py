"""Admission: refuse a request at once if its expected wait is longer than a bound.

Without a bound the queue grows under overload: every answer comes too late, and much work is for clients that have left.
The wait is predicted from the work ahead and its recent pace. If the prediction was too short, the request is refused
when its turn comes (`decoding.py`, `batching.py`). A wait is the time from the complete request to its answer, without the
work on its own images.
"""

import contextlib
import math
import threading
from collections.abc import Iterator

from photodup.serving.service.bodies import RequestError
from photodup.serving.service.settings import ServiceSettings

# Half-life of past work in the estimate, in seconds of work: it follows a change of load within seconds.
_HALF_LIFE_S = 1.0

# Share of the bound that a new request may expect to wait. The pace may change meanwhile, and few should be refused late.
_EXPECTED_SHARE = 0.8

# Share of the bound that one execution may take: a request may wait for two batches ahead and the rest of its own.
_EXECUTION_SHARE = 0.25


class Pace:
    """Recent seconds per image of one stage; thread-safe."""

    def __init__(self) -> None:
        self._images = self._seconds = 0.0
        self._lock = threading.Lock()

    def add(self, images: int, seconds: float) -> None:
        with self._lock:
            decay = 0.5 ** (seconds / _HALF_LIFE_S)
            self._images = self._images * decay + images
            self._seconds = self._seconds * decay + seconds

    @property
    def seconds_per_image(self) -> float:
        """0 before the first measurement."""
        return self._seconds / self._images if self._images else 0.0


class Overloaded(RequestError):
    """The expected wait exceeds the bound, for about `retry_after_s` more seconds."""

    def __init__(self, sentence: str, retry_after_s: float) -> None:
        super().__init__(503, sentence, retry_after_s=max(1, math.ceil(retry_after_s)))


def too_late() -> Overloaded:
    """Return the refusal of a request that waited too long."""
    return Overloaded("The wait was longer than expected and than the limit (MAX_WAIT_S): retry later.", 1)


class QueuePlace:
    """One admitted request and the stage of its images. For the event loop only."""

    def __init__(self, admission: "Admission", images: int) -> None:
        self._admission, self._images, self._stage, self._counted = admission, images, "", 0
        self.move_to("decoding")

    def move_to(self, stage: str, images: int | None = None) -> None:
        """Move `images`, by default all, to "decoding", "costly" or "computing"; "" leaves the queue."""
        ahead = self._admission._ahead
        if self._stage:
            ahead[self._stage] -= self._counted
        self._stage, self._counted = stage, self._images if images is None else images
        if stage:
            ahead[stage] += self._counted


class Admission:
    """Counts the images of complete requests in the queue; arriving bodies do not count."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._settings = settings
        self._requests = 0
        self._ahead = {"decoding": 0, "costly": 0, "computing": 0}
        self.decoding, self.costly, self.computing = Pace(), Pace(), Pace()

    @property
    def batch_limit(self) -> int:
        """Images in one execution: `batch_max`, or as many as take a quarter of the bound."""
        limit, pace = self._settings.batch_max, self.computing.seconds_per_image
        if pace:
            limit = min(limit, int(_EXECUTION_SHARE * self._settings.max_wait_s / pace))
        return max(1, limit)

    @property
    def expected_wait_s(self) -> float:
        """Seconds until the work ahead of an ordinary request is done, in the slowest stage.

        Its batch may include later images: as many as are ahead, up to a full batch. Images that need a deadline do
        not count while they are decoded, since they delay no other request then.
        """
        decoding = self._ahead["decoding"]
        computing = decoding + self._ahead["computing"]
        return max(
            decoding * self.decoding.seconds_per_image / self._settings.decode_threads,
            (computing + min(computing, self.batch_limit - 1)) * self.computing.seconds_per_image,
        )

    def check(self) -> None:
        """Raise Overloaded if a new request would wait too long."""
        if self._requests >= self._settings.max_in_flight:
            raise Overloaded(f"{self._requests} requests are in flight already: retry in a second.", 1)
        self._refuse_beyond(self.expected_wait_s)

    def check_costly(self) -> None:
        """Raise Overloaded if an image that needs a deadline would wait too long for a process."""
        ahead_s = self._ahead["costly"] * self.costly.seconds_per_image
        self._refuse_beyond(ahead_s / self._settings.decode_threads)

    def _refuse_beyond(self, wait_s: float) -> None:
        if wait_s > _EXPECTED_SHARE * self._settings.max_wait_s:
            raise Overloaded(
                f"The expected wait is {wait_s:.1f} s, too long for the limit of {self._settings.max_wait_s:g} s "
                "(MAX_WAIT_S): retry later.",
                wait_s - self._settings.max_wait_s,
            )

    @contextlib.contextmanager
    def enter(self, images: int) -> Iterator[QueuePlace]:
        """Admit a complete request of so many images, or raise Overloaded."""
        self.check()
        self._requests += 1
        place = QueuePlace(self, images)
        try:
            yield place
        finally:
            place.move_to("")
            self._requests -= 1
