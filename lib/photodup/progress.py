"""How far something is: a bar on a terminal, a line now and then in a log, or told to whoever watches."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, Self

EVERY_S = 15.0

# What is done, how many are done, how many there are. It may raise, and what it raises ends the work.
Tell = Callable[[str, int, int], None]
_watcher: ContextVar[Tell | None] = ContextVar("watcher", default=None)


@contextmanager
def watched_by(tell: Tell) -> Iterator[None]:
    """Let every `bar` of this thread tell someone how far it is, in place of writing to stderr.

    Args:
        tell: called with what is done, how many are done and how many there are, at the begin and after each.
    """
    token = _watcher.set(tell)
    try:
        yield
    finally:
        _watcher.reset(token)


def unseen() -> AbstractContextManager[None]:
    """Let the bars of this thread show nothing."""
    return watched_by(lambda what, done, total: None)


def bar(items: Iterable | None = None, *, total: int, desc: str, unit: str, disable: bool = False) -> Any:
    """Wrap `items` so that going through them shows how far it is; both kinds write to stderr.

    Args:
        items: what to go through; None where the caller says `update(n)` himself.
        total: how many there are.
        desc: what is done, such as `scan`.
        unit: what is counted, in the singular.
        disable: write nothing; who watches (`watched_by`) is told all the same.

    Returns:
        An iterable and context manager with `update(n)`: tqdm's bar, or `Lines` where stderr is no terminal.
    """
    if tell := _watcher.get():
        return Told(items, total, desc, tell)
    if disable or not sys.stderr.isatty():
        return Lines(items, total, desc, unit, is_silent=disable)
    from tqdm import tqdm

    return tqdm(items, total=total, desc=desc, unit=unit)


class _Loop:
    """Counts what is done of `items`; its kinds say so in `_report`."""

    def __init__(self, items: Iterable | None, total: int, desc: str) -> None:
        self._items, self._total, self._desc = items or (), total, desc
        self._done = 0

    def update(self, n: int = 1) -> None:
        """Count `n` more as done."""
        self._done += n
        self._report()

    def _report(self) -> None:
        raise NotImplementedError

    def __iter__(self) -> Iterator:
        for item in self._items:
            yield item
            self.update()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass


class Lines(_Loop):
    """Prints `scan: 120 of 375 photos, 32 s` when it starts, at most every 15 seconds, and when all is done.

    In between also how many a second, and how many seconds are left at that rate.
    """

    def __init__(self, items: Iterable | None, total: int, desc: str, unit: str, *, is_silent: bool = False):
        super().__init__(items, total, desc)
        self._unit, self._is_silent = unit, is_silent or not total
        self._started = time.monotonic()
        self._last = self._started
        self._print()

    def _report(self) -> None:
        if self._done >= self._total or time.monotonic() - self._last >= EVERY_S:
            self._print()

    def _print(self) -> None:
        self._last = time.monotonic()
        if not self._is_silent:
            seconds = self._last - self._started
            rate = self._done / seconds if seconds else 0.0
            spent = f", {seconds:.0f} s" if self._done else ""
            left = f", {rate:.1f} a second, {(self._total - self._done) / rate:.0f} s left" if rate else ""
            said = f"{self._desc}: {self._done} of {self._total} {self._unit}s{spent}"
            said += left if self._done < self._total else ""
            print(said, file=sys.stderr, flush=True)


class Told(_Loop):
    """Tells a watcher how far it is; what the watcher raises comes out of the loop, after a whole item."""

    def __init__(self, items: Iterable | None, total: int, desc: str, tell: Tell) -> None:
        super().__init__(items, total, desc)
        self._tell = tell
        self._report()

    def _report(self) -> None:
        self._tell(self._desc, self._done, self._total)
