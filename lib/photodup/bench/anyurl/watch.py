"""Show a load while it runs: a line every few seconds."""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

import numpy as np

from photodup.bench.load.workers import COLUMNS, Observer, Window

EVERY_S = 5.0
_RECENT = 200


class Watcher(Observer):
    """Shows the progress of windows, lets Ctrl-C end them, and keeps the single requests of the last.

    Args:
        stream: where to write; None writes nothing.

    Attributes:
        is_stopped: somebody pressed Ctrl-C.
        is_dead: in the last window more requests failed than were answered.
        opened_s: when the last window was opened, by `workers.clock`.
        rows, errors: of the last window.
    """

    def __init__(self, stream: TextIO | None = sys.stderr) -> None:
        super().__init__()
        self._stream, self.is_stopped, self.is_dead, self.opened_s = stream, False, False, 0.0
        self._label, self._seconds, self._shown = "", 0.0, 0.0

    def begin(self, label: str, seconds: float) -> None:
        self._label, self._seconds, self._shown = label, seconds, time.monotonic()
        super().__init__()

    def see(self, window: Window, elapsed_s: float) -> bool:
        now = time.monotonic()
        if now - self._shown >= EVERY_S and elapsed_s > 0:
            self._shown = now
            self._show(window, elapsed_s)
        self.is_dead, self.opened_s = len(window.errors) > max(20, window.n_answered()), window.started_at
        return self.is_stopped or self.is_dead

    def say(self, line: str) -> None:
        """Print a line."""
        if self._stream is not None:
            print(line, file=self._stream, flush=True)

    def _show(self, window: Window, elapsed_s: float) -> None:
        parts = [f"{elapsed_s:.0f} of {self._seconds:.0f} s", f"{window.n_answered():,} answers"]
        latest = [row for samples in window.samples for row in samples[-_RECENT:]]
        if latest:
            latency_ms = [1000 * (row[COLUMNS.index("done")] - row[COLUMNS.index("due")]) for row in latest]
            parts.append(f"median {np.median(latency_ms):,.1f} ms now")
        if window.errors:
            parts.append(f"{len(window.errors)} failed")
        self.say(f"{self._label}: {', '.join(parts)}")


@contextmanager
def stoppable(watcher: Watcher) -> Iterator[None]:
    """Let the first Ctrl-C end what is measured and keep it; the second one ends the program."""

    def first_interrupt(number: int, frame: object) -> None:
        watcher.is_stopped = True
        watcher.say("Ending; what was measured is kept (Ctrl-C again: end at once).")
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, first_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
