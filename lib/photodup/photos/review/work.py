"""Long work behind the page: one task at a time, in a thread of its own, with its progress and a clean stop."""

import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from photodup.errors import PhotodupError
from photodup.progress import watched_by

# What the bars of the parts that work call themselves, in the words of the page.
_WORDS = {
    "scan": "Reading the photos",
    "embed": "Looking at what each photo shows",
    "compare": "Laying pictures that look alike over each other",
    "move": "Moving to the trash",
    "restore": "Putting files back",
    "delete": "Deleting for good",
}
_SURE_AFTER_S = 3.0  # before that, a guess of the time that is left would be wrong more often than right


class Stopped(BaseException):
    """Somebody asked the work to stop. Like Ctrl-C it is no error, and nothing may take it for one."""


@dataclass(frozen=True)
class Finished:
    """What a task led to.

    Attributes:
        path: the address of the page to show; empty for a page that says the sentence.
        title: of that page.
        sentence: what was done, shown there or on top of the page at `path`.
        notes: more sentences, one for each file that could not be dealt with.
    """

    path: str = ""
    title: str = ""
    sentence: str = ""
    notes: tuple[str, ...] = ()


class Task:
    """One piece of long work, and how far it is.

    Args:
        title: what is done, in words.
        do: does it; it runs in a thread of its own and calls `step` between its parts.
        can_stop: whether it may be stopped between two photos; what moves files may not.
        is_exclusive: whether the groups change under it, so that no other page can be shown meanwhile.
    """

    def __init__(
        self,
        title: str,
        do: Callable[["Task"], Finished],
        *,
        can_stop: bool = True,
        is_exclusive: bool = True,
    ) -> None:
        self.title, self.doing, self.can_stop, self.is_exclusive = title, title, can_stop, is_exclusive
        self.done = self.total = 0
        self.error: str | None = None
        self.finished: Finished | None = None
        self.ended = threading.Event()
        self._do, self._stop = do, threading.Event()
        self._step_begun = time.monotonic()

    def step(self, doing: str, *, is_exclusive: bool | None = None) -> None:
        """Say what is done now, before it is known how much there is.

        Args:
            doing: in words.
            is_exclusive: from now on; None for as before.

        Raises:
            Stopped: somebody asked for it.
        """
        if is_exclusive is not None:
            self.is_exclusive = is_exclusive
        self.doing, self.done, self.total = doing, 0, 0
        self._check()

    def stop(self) -> None:
        """Ask it to stop at the next photo."""
        if self.can_stop:
            self._stop.set()

    @property
    def is_stopping(self) -> bool:
        """Whether somebody asked it to stop."""
        return self._stop.is_set()

    @property
    def time_left(self) -> str:
        """How long the step at hand will take, in words; empty while that is not known."""
        spent = time.monotonic() - self._step_begun
        if not self.done or spent < _SURE_AFTER_S or self.done >= self.total:
            return ""
        left = spent / self.done * (self.total - self.done)
        if left < 60:
            return "less than a minute left"
        minutes = round(left / 60)
        hours = round(left / 3600)
        if minutes < 90:
            return f"about {minutes} minute{'s' if minutes > 1 else ''} left"
        return f"about {hours} hours left"

    def run(self) -> None:
        """Do it; what it fails with becomes one sentence."""
        try:
            with watched_by(self._tell):
                self.finished = self._do(self)
        except Stopped:
            kept = "What was done so far is kept; starting again goes on from there."
            self.finished = Finished(title="Stopped", sentence=kept)
        except PhotodupError as error:
            self.error = str(error)
        except (OSError, MemoryError) as error:
            self.error = f"{self.title} failed ({getattr(error, 'strerror', None) or type(error).__name__}): try it again."
        except Exception as error:  # a mistake of ours: the page must not wait for ever
            traceback.print_exc(file=sys.stderr)
            fault = type(error).__name__
            self.error = (
                f"{self.title} failed by a fault in photodup ({fault}); the terminal has the details."
            )
        finally:
            self.ended.set()

    def _tell(self, what: str, done: int, total: int) -> None:
        if done == 0:
            self._step_begun = time.monotonic()
        self.doing, self.done, self.total = _WORDS.get(what, self.title), done, total
        self._check()

    def _check(self) -> None:
        if self._stop.is_set():
            raise Stopped


class TaskRunner:
    """The task that is running, and the last one that has ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.last: Task | None = None

    @property
    def running(self) -> Task | None:
        """The task that is running; None if none is."""
        task = self.last
        return task if task and not task.ended.is_set() else None

    def begin(self, task: Task) -> None:
        """Start a task in a thread of its own.

        Raises:
            PhotodupError: another one is running.
        """
        with self._lock:
            if running := self.running:
                doing = running.title[0].lower() + running.title[1:]
                raise PhotodupError(f"photodup is still busy ({doing}): wait until that is done, or stop it.")
            self.last = task
            threading.Thread(target=task.run, name="review work", daemon=True).start()

    def stop(self, finish_s: float, stop_s: float) -> None:
        """End what is running.

        Args:
            finish_s: how long to wait for what may not be stopped.
            stop_s: how long for what may. What waits for a server or a download hears nothing until that answers;
                it has written what was done before.
        """
        if task := self.running:
            task.stop()
            task.ended.wait(stop_s if task.can_stop else finish_s)
