"""Progress: a bar on a terminal, a line now and then in a log, or calls of a function."""

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tqdm import tqdm

EVERY_S = 15.0

# Called with the task, how many are done and how many there are. It may raise, which ends the work.
Tell = Callable[[str, int, int], None]
_watcher: ContextVar[Tell | None] = ContextVar("watcher", default=None)


@contextmanager
def watched_by(tell: Tell) -> Iterator[None]:
    """Let every `bar` of this thread call `tell` at the start and after each item, instead of writing to stderr."""
    token = _watcher.set(tell)
    try:
        yield
    finally:
        _watcher.reset(token)


def unseen() -> AbstractContextManager[None]:
    """Let the bars of this thread show nothing."""
    return watched_by(lambda desc, n_done, total: None)


def bar(
    items: Iterable | None = None, *, total: int, desc: str, unit: str, disable: bool = False
) -> "Loop | tqdm":
    """Wrap `items` so that iterating over them shows progress on stderr.

    Args:
        items: what to iterate over; None if the caller calls `update(n)`.
        total: number of items.
        desc: the task, such as `scan`.
        unit: of an item, in the singular.
        disable: write nothing; `watched_by` still gets its calls.

    Returns:
        An iterable and context manager with `update(n)`: tqdm's bar, or a `Loop` where stderr is no terminal.
    """
    if tell := _watcher.get():
        return Loop(items, total, desc, tell)
    if disable or not sys.stderr.isatty():
        return Loop(items, total, desc, _lines(unit) if total and not disable else lambda *_: None)
    from tqdm import tqdm

    return tqdm(items, total=total, desc=desc, unit=unit)


class Loop(AbstractContextManager["Loop"]):
    """Calls `tell` at the start and after each item; an exception of `tell` ends the loop."""

    def __init__(self, items: Iterable | None, total: int, desc: str, tell: Tell) -> None:
        self._items, self._total, self._desc, self._tell = items or (), total, desc, tell
        self._done = 0
        self.update(0)

    def update(self, n: int = 1) -> None:
        """Count `n` more as done."""
        self._done += n
        self._tell(self._desc, self._done, self._total)

    def __iter__(self) -> Iterator:
        for item in self._items:
            yield item
            self.update()

    def __exit__(self, *exception: object) -> None:
        pass


def _lines(unit: str) -> Tell:
    """Return a `tell` that prints `scan: 120 of 375 photos, 32 s` at the start, at most every 15 seconds, and at the end.

    In between it adds the rate and the seconds left.
    """
    started, last = time.monotonic(), -math.inf

    def tell(desc: str, n: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if n < total and now - last < EVERY_S:
            return
        last, seconds = now, now - started
        rate = n / seconds if seconds else 0.0
        spent = f", {seconds:.0f} s" if n else ""
        left = f", {rate:.1f} a second, {(total - n) / rate:.0f} s left" if rate and n < total else ""
        print(f"{desc}: {n} of {total} {unit}s{spent}{left}", file=sys.stderr, flush=True)

    return tell
