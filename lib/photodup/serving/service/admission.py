"""Admission: a request whose expected wait is longer than a stated bound is refused at once.

A queue that grows with the load serves nobody: each answer comes too late, and the work for those who gave up
is done for nothing. The wait is predicted from what is ahead and from how long such work took lately. Where the
prediction was wrong, the request is refused when its turn comes (`decoding.py`, `batching.py`).
A wait is all time from the complete request to its answer but for the work on its own images.
"""

import contextlib
import math
import threading
from collections.abc import Iterator

from photodup.serving.service.bodies import RequestError

# Work of this many seconds ago counts half: after a change of load the estimate follows within seconds.
_HALF_LIFE_S = 1.0

# The rest of the bound is for a pace that changes while a request waits: few are refused after they waited.
_EXPECTED_SHARE = 0.8

# One execution may take this share of the bound: who joins a batch keeps its first request waiting, and while it runs
# two more of its size may wait.
_EXECUTION_SHARE = 0.25


class Pace:
    """Seconds per image of one stage, over the last seconds that it worked; safe in several threads."""

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
        """0 before anything was measured."""
        return self._seconds / self._images if self._images else 0.0


class Overloaded(RequestError):
    """More is in the queue than the bound allows, and is expected to until `retry_after_s` whole seconds are over."""

    def __init__(self, sentence: str, retry_after_s: float) -> None:
        super().__init__(503, sentence, retry_after_s=max(1, math.ceil(retry_after_s)))


def too_late() -> Overloaded:
    """Return the refusal of a request that has waited too long when its turn comes."""
    return Overloaded("The wait was longer than expected and than the limit (MAX_WAIT_S): retry later.", 1)


class QueuePlace:
    """One admitted request: where its images are. Used in the event loop only."""

    def __init__(self, admission: "Admission", images: int) -> None:
        self._admission, self._images, self._stage, self._counted = admission, images, "", 0
        self.go_on_to("decoding")

    def go_on_to(self, stage: str, images: int | None = None) -> None:
        """Enter "decoding", "costly" (with how many images), "computing" or "" (left)."""
        ahead = self._admission._ahead
        if self._stage:
            ahead[self._stage] -= self._counted
        self._stage, self._counted = stage, self._images if images is None else images
        if stage:
            ahead[stage] += self._counted


class Admission:
    """Counts what complete requests have in the queue; bodies that are still arriving take no place.

    Args:
        max_requests: complete requests at a time, whatever their expected wait.
        max_wait_s: longest expected wait.
        lanes: images that are decoded at the same time.
        batch_max: images in one execution at most.
    """

    def __init__(self, *, max_requests: int, max_wait_s: float, lanes: int, batch_max: int = 1) -> None:
        self._max_requests, self._max_wait_s, self._lanes = max_requests, max_wait_s, lanes
        self._batch_max = batch_max
        self._requests = 0
        self._ahead = {"decoding": 0, "costly": 0, "computing": 0}
        self.decoding, self.costly, self.computing = Pace(), Pace(), Pace()

    @property
    def batch_limit(self) -> int:
        """Images in one execution: `batch_max`, or fewer where these would take a quarter of the bound."""
        pace = self.computing.seconds_per_image
        fitting = int(_EXECUTION_SHARE * self._max_wait_s / pace) if pace else self._batch_max
        return max(1, min(self._batch_max, fitting))

    @property
    def expected_wait_s(self) -> float:
        """Seconds until the work that is ahead of a usual request is done: its slowest stage decides.

        As many images as are ahead are expected behind it, and its batch may take these in.
        Images that need a deadline are left out until they are decoded: they may take long, and hold up nobody.
        """
        decoding = self._ahead["decoding"]
        computing = decoding + self._ahead["computing"]
        return max(
            decoding * self.decoding.seconds_per_image / self._lanes,
            (computing + min(computing, self.batch_limit - 1)) * self.computing.seconds_per_image,
        )

    def check(self) -> None:
        """Raise Overloaded if a request that comes now would wait too long."""
        if self._requests >= self._max_requests:
            raise Overloaded(f"{self._requests} requests are in flight already: retry in a second.", 1)
        self._refuse_beyond(self.expected_wait_s)

    def check_costly(self) -> None:
        """Raise Overloaded if an image that needs a deadline would wait too long for its process."""
        self._refuse_beyond(self._ahead["costly"] * self.costly.seconds_per_image / self._lanes)

    def _refuse_beyond(self, wait_s: float) -> None:
        if wait_s > _EXPECTED_SHARE * self._max_wait_s:
            raise Overloaded(
                f"The expected wait is {wait_s:.1f} s, too long for the limit of {self._max_wait_s:g} s "
                "(MAX_WAIT_S): retry later.",
                wait_s - self._max_wait_s,
            )

    @contextlib.contextmanager
    def enter(self, images: int) -> Iterator[QueuePlace]:
        """Hold a place for a complete request of so many images; Overloaded if the wait is too long by now."""
        self.check()
        self._requests += 1
        place = QueuePlace(self, images)
        try:
            yield place
        finally:
            place.go_on_to("")
            self._requests -= 1
