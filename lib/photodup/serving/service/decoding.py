"""Decode the images of a request in bounded time, until the client leaves.

Ordinary JPEGs, which are cheap, are decoded in threads. Everything else goes to worker processes with a deadline
(`embedding.decode_pool`), which never hold up other requests' JPEGs.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import numpy as np

from photodup.embedding import imaging
from photodup.embedding.decode_pool import Cancellation, Cancelled, DecodePool
from photodup.embedding.imaging import ImageError
from photodup.serving.service.admission import Admission, Pace, too_late
from photodup.serving.service.bodies import ImageProblem, RequestError, bad_images
from photodup.serving.service.settings import ServiceSettings

# Longest decoding of one request's costly images, in deadlines of one image.
_DEADLINES_PER_REQUEST = 2

# Seconds until the worker processes are killed once the service is stopping.
_LAST_SECONDS = 3.0


class RequestWork:
    """One request's images on their way through decoder and model; `cancel` drops them at any stage.

    Attributes:
        deadline: end of the allowed wait, by `time.perf_counter()`; work on its own images extends it.
    """

    def __init__(self, images: list[bytes], settings: ServiceSettings) -> None:
        self.deadline = time.perf_counter() + settings.max_wait_s
        self.images = list(images)
        self.cancellation = Cancellation()
        self.costly: list[int] = []
        self.problems: list[ImageProblem] = []
        self._decoded: dict[int, np.ndarray] = {}
        self._limit, self._pixels = settings.max_request_pixels, 0
        self._future: Future | None = None
        self._lock = threading.Lock()

    def follow(self, future: Future) -> Future:
        """Return `future`, which `cancel` will cancel."""
        with self._lock:
            self._future = future
            if self.cancellation.is_cancelled:
                future.cancel()
        return future

    def cancel(self) -> None:
        self.cancellation.cancel()
        with self._lock:
            if self._future:
                self._future.cancel()

    def check_in_time(self) -> None:
        """Raise Overloaded after the deadline, or Cancelled if the client has left."""
        if self.cancellation.is_cancelled:
            raise Cancelled("The client has left.")
        if time.perf_counter() > self.deadline:
            raise too_late()

    def decode(self, index: int, decode: Callable[[bytes], tuple[int, np.ndarray]], pace: Pace) -> None:
        """Decode one image and release its bytes; note a bad one. `pace` gets the time.

        Raises:
            RequestError: 413 if the images together have too many pixels.
        """
        started = time.perf_counter()
        try:
            n_pixels, pixels = decode(self.images[index])
        except ImageError as error:
            self.problems.append(ImageProblem(index=index, reason=error.reason))
            return
        finally:
            self.images[index] = b""
            seconds = time.perf_counter() - started
            self.deadline += seconds
            pace.add(1, seconds)
        self._pixels += n_pixels
        if self._pixels > self._limit:
            raise RequestError(
                413,
                f"The images of this request have more than {self._limit / 1e6:,.4g} megapixels together: "
                "send fewer in a request (MAX_REQUEST_PIXELS).",
            )
        self._decoded[index] = pixels

    def pixels(self) -> np.ndarray:
        """Return uint8 [n, 3, 224, 224]; RequestError 400 if an image was bad."""
        if self.problems:
            raise bad_images(sorted(self.problems, key=lambda problem: problem.index))
        return np.stack([self._decoded[index] for index in range(len(self.images))])


class Decoder:
    """The threads and processes that decode for the service: `decode_threads` of each.

    Attributes:
        draft_size: of `imaging.decode`, set once the model is loaded.
    """

    def __init__(self, settings: ServiceSettings, admission: Admission) -> None:
        self._max_pixels, self._deadline_s = settings.max_pixels, settings.decode_seconds
        self._admission, threads = admission, settings.decode_threads
        self.draft_size: int | None = None
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="decode")
        self._callers = ThreadPoolExecutor(threads, thread_name_prefix="costly")
        self._processes = DecodePool(
            "photodup.embedding.imaging:packed_model_input",
            size=threads,
            deadline_s=self._deadline_s,
            remedy="raise DECODE_SECONDS",
        )

    def decode_usual(self, work: RequestWork) -> Future:
        """Decode the ordinary JPEGs; `work.costly` then lists the other images."""
        return work.follow(self._threads.submit(self._usual, work))

    def decode_costly(self, work: RequestWork) -> Future:
        """Decode the other images, each in a process with a deadline."""
        return work.follow(self._callers.submit(self._costly, work))

    def hurry(self) -> None:
        """Kill the worker processes in three seconds, as the service is stopping. Safe in a signal handler."""
        timer = threading.Timer(_LAST_SECONDS, self._processes.close)
        timer.daemon = True
        timer.start()

    def close(self) -> None:
        """Kill the processes, drop queued work, and let the threads finish their image."""
        self._processes.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._callers.shutdown(wait=True, cancel_futures=True)
        self._threads.shutdown(wait=True)

    def _usual(self, work: RequestWork) -> None:
        for index, data in enumerate(work.images):
            work.check_in_time()
            if not imaging.is_bounded(data):
                work.costly.append(index)
                continue
            read = partial(imaging.model_input, max_pixels=self._max_pixels, draft_size=self.draft_size)
            work.decode(index, read, self._admission.decoding)

    def _costly(self, work: RequestWork) -> None:
        work.check_in_time()
        end = time.monotonic() + _DEADLINES_PER_REQUEST * self._deadline_s
        for index in work.costly:
            left_s = end - time.monotonic()
            if left_s <= 0:
                raise RequestError(
                    413,
                    f"The images of this request take longer than {_DEADLINES_PER_REQUEST * self._deadline_s:g} "
                    "seconds to decode: send fewer in a request, or raise DECODE_SECONDS.",
                )
            work.decode(index, partial(self._in_a_process, work=work, left_s=left_s), self._admission.costly)

    def _in_a_process(self, data: bytes, work: RequestWork, left_s: float) -> tuple[int, np.ndarray]:
        packed = self._processes.run(
            data,
            work.cancellation,
            deadline_s=min(left_s, self._deadline_s),
            max_pixels=self._max_pixels,
            draft_size=self.draft_size,
        )
        return imaging.unpack_model_input(packed)
