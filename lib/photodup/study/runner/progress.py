"""How far a study is: bars on a terminal; in a log a line when a notebook starts, goes on and ends."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

EVERY_S = 30.0


@contextmanager
def study_progress() -> Iterator["Bars | Lines"]:
    """Yield what shows the notebooks one after the other: `start`, `cells` as they finish, `end`."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console()
    if not console.is_terminal:
        yield Lines()
        return
    columns = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()]
    with Progress(*columns, console=console) as progress:
        yield Bars(progress)


class Bars:
    """One bar a notebook."""

    def __init__(self, progress) -> None:
        self._progress, self._name, self._bar = progress, "", None

    def start(self, notebook: str) -> None:
        self._name, self._bar = notebook, self._progress.add_task(notebook, total=None)

    def cells(self, done: int, total: int) -> None:
        self._progress.update(self._bar, completed=done, total=total or None)

    def end(self, status: str, error: str = "") -> None:
        colour = {"passed": "green", "done before": "dim"}.get(status, "red")
        said = f"{self._name} [{colour}]{status}[/]"
        self._progress.update(self._bar, description=said, total=1, completed=1)
        if error:
            options = {"style": "red", "highlight": False, "markup": False}
            self._progress.console.print(f"{self._name}\n{error}", **options)


class Lines:
    """A line a notebook when it starts and ends, and every half minute one between."""

    def start(self, notebook: str) -> None:
        self._name, self._started = notebook, time.monotonic()
        self._last = self._started
        print(f"{notebook} …", flush=True)

    def cells(self, done: int, total: int) -> None:
        if time.monotonic() - self._last >= EVERY_S:
            self._last = time.monotonic()
            so_far = f"{done} of {total} cells, " if total else ""
            print(f"{self._name} … {so_far}{self._last - self._started:.0f} s", flush=True)

    def end(self, status: str, error: str = "") -> None:
        print(f"{self._name} {status} after {time.monotonic() - self._started:.0f} s", flush=True)
        if error:
            print(error, flush=True)
