"""How far something is: a bar on a terminal, a line now and then in a log."""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

EVERY_S = 15.0


def bar(items: Iterable | None = None, *, total: int, desc: str, unit: str, disable: bool = False) -> Any:
    """Wrap `items` so that going through them shows how far it is; both kinds write to stderr.

    Args:
        items: what to go through; None where the caller says `update(n)` himself.
        total: how many there are.
        desc: what is done, such as `scan`.
        unit: what is counted, in the singular.
        disable: show nothing.

    Returns:
        An iterable and context manager with `update(n)`: tqdm's bar, or `Lines` where stderr is no terminal.
    """
    if disable or not sys.stderr.isatty():
        return Lines(items, total, desc, unit, is_silent=disable)
    from tqdm import tqdm

    return tqdm(items, total=total, desc=desc, unit=unit)


class Lines:
    """Prints `scan: 120 of 375 photos, 32 s` when it starts, at most every 15 seconds, and when all is done.

    In between also how many a second, and how many seconds are left at that rate.
    """

    def __init__(self, items: Iterable | None, total: int, desc: str, unit: str, *, is_silent: bool = False):
        self._items, self._total, self._desc, self._unit = items or (), total, desc, unit
        self._is_silent = is_silent or not total
        self._done, self._started = 0, time.monotonic()
        self._last = self._started
        self._print()

    def update(self, n: int = 1) -> None:
        """Count `n` more as done."""
        self._done += n
        if self._done >= self._total or time.monotonic() - self._last >= EVERY_S:
            self._print()

    def __iter__(self) -> Iterator:
        for item in self._items:
            yield item
            self.update()

    def __enter__(self) -> "Lines":
        return self

    def __exit__(self, *exception: object) -> None:
        pass

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
