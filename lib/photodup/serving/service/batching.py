"""Micro-batching: requests that wait at the same time are computed together.

One thread owns the model. When the model is free, the thread takes the queued requests, up to `batch_max` images. Requests
are never split.

Triton's queue delay is fixed, and a single request waits it out. Here the thread waits for as many requests as were in
flight before, for at most `delay_s`. So clients that send an image after each answer share a batch, and a single client
never waits.
"""

import collections
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from photodup.serving.service.admission import Admission, too_late
from photodup.serving.service.settings import ServiceSettings


@dataclass(frozen=True)
class Computed:
    """Answer to one request: embeddings float32 [n, dim], and seconds in the queue and in the model."""

    embeddings: np.ndarray
    queue_s: float
    compute_s: float


@dataclass(eq=False)
class _Request:
    images: np.ndarray
    deadline: float
    arrived: float = field(default_factory=time.perf_counter)
    future: "Future[Computed]" = field(default_factory=Future)


class Batcher:
    """Runs the model in a thread of its own.

    Args:
        compute: uint8 [n, 3, h, w] -> float32 [n, dim]; called in that thread only.
        admission: limits the images of an execution, and gets its time.
        on_execution: called with the number of images after each execution, in that thread.
    """

    def __init__(
        self,
        compute: Callable[[np.ndarray], np.ndarray],
        settings: ServiceSettings,
        admission: Admission,
        on_execution: Callable[[int], None],
    ) -> None:
        self._compute, self._admission, self._on_execution = compute, admission, on_execution
        self._batch_max, self._delay_s = settings.batch_max, settings.batch_delay_ms / 1000
        self._waiting: collections.deque[_Request] = collections.deque()
        self._changed = threading.Condition()
        self._in_flight_before = 1
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="compute", daemon=True)
        self._thread.start()

    def submit(self, images: np.ndarray, deadline: float = math.inf) -> "Future[Computed]":
        """Queue a request of one or more images, uint8 [n, 3, h, w]; never blocks.

        Args:
            deadline: by `time.perf_counter()`. If waiting and the other images of its batch would take longer, the
                request is not computed and the future raises `Overloaded`.
        """
        request = _Request(images, deadline)
        with self._changed:
            if self._closed:
                raise RuntimeError("the batcher is closed")
            self._waiting.append(request)
            self._changed.notify()
        return request.future

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        """Compute the queued requests, then end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while batch := self._take():
            started = time.perf_counter()
            try:
                images = batch[0].images if len(batch) == 1 else np.concatenate([r.images for r in batch])
                embeddings = self._compute(images)
            except Exception as error:  # such as GPU memory: these requests fail, the next are served
                for request in batch:
                    request.future.set_exception(error)
                continue
            seconds = time.perf_counter() - started
            self._admission.computing.add(len(images), seconds)
            self._on_execution(len(images))  # before the answers: counters never lag
            first = 0
            for request in batch:
                last = first + len(request.images)
                computed = Computed(embeddings[first:last], started - request.arrived, seconds)
                request.future.set_result(computed)
                first = last
            self._in_flight_before = len(batch) + len(self._waiting)

    def _take(self) -> list[_Request]:
        """Wait for the requests of the next execution; return an empty list once closed and done."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._batch_max > 1 and self._delay_s > 0:
                    self._changed.wait_for(self._enough, timeout=self._delay_s)
                if (batch := self._pop()) or (self._closed and not self._waiting):
                    return batch

    def _pop(self) -> list[_Request]:
        batch: list[_Request] = []
        n_images, limit = 0, self._admission.batch_limit
        while self._waiting and (not batch or n_images + len(self._waiting[0].images) <= limit):
            request = self._waiting.popleft()
            # False: the caller has left.
            if request.future.set_running_or_notify_cancel():
                batch.append(request)
                n_images += len(request.images)
        pace, now = self._admission.computing.seconds_per_image, time.perf_counter()
        late = [r for r in batch if now + (n_images - len(r.images)) * pace > r.deadline]
        for request in late:
            request.future.set_exception(too_late())
        return [request for request in batch if request not in late]

    def _enough(self) -> bool:
        return (
            self._closed
            or len(self._waiting) >= self._in_flight_before
            or sum(len(r.images) for r in self._waiting) >= self._batch_max
        )
