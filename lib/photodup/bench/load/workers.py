"""The timed loop: one worker, one connection, one request at a time.

A request is timed in four readings of one clock: `begun` (photographs in hand), `prepared`, `answered`, `done` (embedding in
hand). Before them: when it was `due`, and when a worker `picked` it. A failure of the server or the network is a failed
request. Any other exception is a bug: it ends the window, and `window.measure` raises it.
"""

import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from photodup.bench.backends.adapters import Adapter, Connection
from photodup.bench.stats.metrics import Load
from photodup.core.errors import is_expected
from photodup.embedding.wire.http import AnswerError

clock = time.perf_counter
READINGS = ("due", "picked", "begun", "prepared", "answered", "done")
COLUMNS = ("payload_bytes", *READINGS)


class Observer:
    """Watches a window while it is measured, and keeps its single requests.

    With an observer a window goes on whatever fails; without one, many failed requests end it.

    Attributes:
        rows: the answered requests (columns `COLUMNS`), times since the window opened.
        errors: the failed ones, likewise.
    """

    def __init__(self) -> None:
        self.rows = np.empty((0, len(COLUMNS)))
        self.errors: list[tuple[float, str]] = []

    @property
    def latency_ms(self) -> np.ndarray:
        """Latency of each answer, from when its request was due."""
        return (self.rows[:, COLUMNS.index("done")] - self.rows[:, COLUMNS.index("due")]) * 1000

    def see(self, window: "Window", elapsed_s: float) -> bool:
        """Return True to end the window; called about fifty times a second while it is open."""
        return False

    def keep(self, rows: np.ndarray, errors: list[tuple[float, str]]) -> None:
        """Called once, at the end."""
        self.rows, self.errors = rows, errors


@dataclass
class Window:
    """State that the workers of one window share, without locks: each has its own list in `samples`."""

    adapter: Adapter
    load: Load
    requests: list[Any]  # photographs of each request, or requests prepared ahead
    schedule_s: np.ndarray | None = None  # open loop: when each request is due, seconds after `started_at`
    started_at: float = 0.0
    stop_at: float | None = None  # a closed loop begins nothing after this; an open loop, nothing due later
    give_up_at: float = float("inf")  # an open loop's backlog is not worked off beyond this
    samples: list[list[tuple[float, ...]]] = field(default_factory=list)  # rows of `COLUMNS`
    errors: list[tuple[float, str]] = field(default_factory=list)
    fatal_error: BaseException | None = None  # of this program; ends the window
    observer: Observer | None = None
    longest_pause_s: float = 0.5  # of a worker whose requests fail
    # next() of a count is atomic in CPython
    request_numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def is_prepared(self) -> bool:
        return self.load.span == "prepared"

    def add(self, samples: list[tuple[float, ...]], row: tuple[float, ...]) -> None:
        """Note an answered request in a worker's list."""
        samples.append(row)

    def n_answered(self) -> int:
        return sum(map(len, self.samples))

    def next_due(self) -> tuple[int, float]:
        """Return the next request's number and when it is due: now, in a closed loop."""
        number = next(self.request_numbers)
        if self.schedule_s is None:
            return number, clock()
        if number >= len(self.schedule_s):
            return number, float("inf")
        return number, self.started_at + float(self.schedule_s[number])

    def is_over(self, due: float) -> bool:
        """Return True where a request due then is no longer part of the window."""
        stopped = self.stop_at is not None and due >= self.stop_at
        return stopped or self.fatal_error is not None or clock() >= self.give_up_at

    def decode(self, connection: Connection, answer: Any) -> None:
        """Read an answer as the client would, and check that it holds what was asked for.

        Raises:
            AnswerError: it does not.
        """
        embedding = connection.decode(answer)
        check_rows(embedding, self.load.batch)

    def note_failure(self, error: Exception) -> bool:
        """Note a failed request; return False for a bug of this program, which ends the window."""
        if is_expected(error):
            self.errors.append((clock(), describe_error(error)))
            return True
        self.fatal_error = self.fatal_error or error
        return False


def check_rows(rows: np.ndarray, batch: int) -> None:
    """Raise an `AnswerError` unless an answer is rows of numbers, one for each item that was sent."""
    if rows.ndim != 2 or len(rows) != batch:
        raise AnswerError(f"{batch} embeddings were asked for, the shape is {rows.shape}.")
    if not np.isfinite(rows).all():
        raise AnswerError("The answer holds null, NaN or infinity among its numbers.")


def run_worker(window: Window, connection: Connection, samples: list, ready: threading.Barrier) -> None:
    """Send requests, one at a time, until the window is over."""
    adapter, is_prepared, failures = window.adapter, window.is_prepared, 0
    is_new = window.load.connection == "new"
    ready.wait()
    while True:
        number, due = window.next_due()
        picked = clock()
        while (left := due - clock()) > 0 and not window.is_over(due):
            time.sleep(min(left, 0.1))
        if window.is_over(due):
            return
        begun_s = clock()
        request = window.requests[number % len(window.requests)]
        try:
            if not is_prepared:
                request = adapter.prepare(request)
            prepared_s = clock()
            answer = connection.request(request)
            answered_s = clock()
            window.decode(connection, answer)
            done_s = clock()
            size = adapter.payload_bytes(request)
            window.add(samples, (size, due, picked, begun_s, prepared_s, answered_s, done_s))
            failures = 0
        except Exception as error:
            if not window.note_failure(error):
                return
            connection.close()
            failures += 1
            time.sleep(min(0.01 * 2**failures, window.longest_pause_s))
        if is_new:
            connection.close()


def common_error(errors: Sequence[tuple[float, str]]) -> str:
    """Return the most frequent error of failed requests; empty without any."""
    return Counter(text for _, text in errors).most_common(1)[0][0] if errors else ""


def describe_error(error: BaseException) -> str:
    """Return an error as one line for a record."""
    details = getattr(error, "details", None)  # gRPC keeps its sentence there
    text = details() if callable(details) else str(error)
    return f"{type(error).__name__}: {' '.join(str(text).split())[:300]}"
