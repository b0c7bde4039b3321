"""Decode untrusted images under a deadline, in worker processes that are killed when they take too long.

A thread cannot be stopped in the middle of libjpeg. Cheap JPEGs (`imaging.is_bounded`) are better decoded in the
caller's thread, which saves the pipe.

A worker is this module as a program, with a socket as its standard input:

    python -m photodup.embedding.decode_pool MODULE:FUNCTION

The function takes (data, limits) and returns bytes. A request is two messages, the limits as JSON and the image; a reply
is one, a status byte and the answer. Nothing is unpickled, since a hostile image could shape the reply.
"""

import contextlib
import importlib
import json
import math
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection

from PIL import Image

from photodup.core.errors import PhotodupError
from photodup.embedding.imaging import MAX_PIXELS, ImageError

OK, REFUSED, FAILED = 0, 1, 2
# Seconds after the deadline at which the kernel ends a worker whose parent died.
_GRACE_S = 5
# Memory limit of a worker, bytes: Python and libraries, and for each pixel two copies as RGBA and as floats.
_BASE_BYTES, _BYTES_PER_PIXEL = 1_000_000_000, 32


class TooSlow(ImageError):
    """An image took longer than its deadline; on a less busy machine it may pass."""


class Cancelled(PhotodupError):
    """The caller cancelled this image, or the pool is closed."""


class Cancellation:
    """Lets another thread end a decode: `cancel` kills the worker."""

    def __init__(self) -> None:
        self.is_cancelled = False
        self._lock = threading.Lock()
        self._kill: Callable[[], None] | None = None

    def cancel(self) -> None:
        with self._lock:
            self.is_cancelled = True
            if self._kill:
                self._kill()

    @contextlib.contextmanager
    def _watching(self, kill: Callable[[], None]):
        with self._lock:
            if self.is_cancelled:
                raise Cancelled("The decoding is stopped.")
            self._kill = kill
        try:
            yield
        finally:
            with self._lock:
                self._kill = None


class DecodePool:
    """Worker processes, started on demand; `run` is thread-safe.

    Args:
        job: `module:function` that the workers run, called as (data, **limits) -> bytes.
        size: maximum number of workers; further calls wait.
        deadline_s: wall-clock seconds for one image, not counting the wait for a worker.
        remedy: end of the error sentence for a slow image, such as the setting to raise.
    """

    def __init__(self, job: str, *, size: int, deadline_s: float, remedy: str) -> None:
        self._job, self.deadline_s, self._remedy = job, deadline_s, remedy
        self._slots = threading.BoundedSemaphore(size)
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._alive: set[_Worker] = set()
        self._closed = False

    def run(
        self,
        data: bytes,
        cancellation: Cancellation | None = None,
        *,
        deadline_s: float | None = None,
        **limits: object,
    ) -> bytes:
        """Run the job on one image and return its bytes; `deadline_s` is the pool's by default.

        Raises:
            ImageError: the job refused it, or it crashed the decoder.
            TooSlow: the deadline passed; the worker is gone.
            Cancelled: by `cancellation`, or by `close`.
        """
        cancellation, deadline_s = cancellation or Cancellation(), deadline_s or self.deadline_s
        with self._slots:
            if cancellation.is_cancelled or self._closed:
                raise Cancelled("The decoding is stopped.")
            worker = self._take()
            try:
                with cancellation._watching(worker.kill):
                    status, answer = worker.ask(data, limits, deadline_s)
            except (OSError, EOFError):
                if cancellation.is_cancelled or self._closed:
                    raise Cancelled("The decoding is stopped.") from None
                if worker.was_late:
                    raise TooSlow(
                        f"it takes longer than {deadline_s:.3g} seconds to decode: open it in an image "
                        f"editor and save it again, or {self._remedy}"
                    ) from None
                raise ImageError("cannot be decoded: the decoder crashed on it") from None
            finally:
                self._give_back(worker)
        if status == OK:
            return answer
        text = answer.decode(errors="replace")
        raise ImageError(text if status == REFUSED else f"cannot be decoded: {text}")

    def close(self) -> None:
        """Kill all workers, also busy ones; pending calls raise `Cancelled`."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            busy = self._alive.difference(idle)
            self._alive.clear()
        for worker in busy:
            worker.kill()  # the call that uses it disposes of it
        for worker in idle:
            worker.dispose()

    def _take(self) -> "_Worker":
        with self._lock:
            if self._idle:
                return self._idle.pop()
        worker = _Worker(self._job)
        with self._lock:
            if not self._closed:
                self._alive.add(worker)
                return worker
        worker.dispose()
        raise Cancelled("The decoding is stopped.")

    def _give_back(self, worker: "_Worker") -> None:
        with self._lock:
            if worker.is_usable and not self._closed:
                self._idle.append(worker)
                return
            self._alive.discard(worker)
        worker.dispose()


class _Worker:
    def __init__(self, job: str) -> None:
        # -P: do not import from the current folder, which may be a stranger's.
        command = [sys.executable, "-P", "-m", "photodup.embedding.decode_pool", job]
        ours, theirs = socket.socketpair()
        self._pipe = Connection(ours.detach())
        try:
            with theirs:
                self._process = subprocess.Popen(command, stdin=theirs.fileno())
        except OSError as error:
            raise PhotodupError(
                f"A process to decode images in cannot be started ({error.strerror}): end other programs."
            ) from None
        self.was_late, self.is_usable, self._is_killed = False, True, False
        try:
            self._pipe.recv_bytes()  # its imports do not count against an image
        except (EOFError, OSError):
            raise PhotodupError(
                f"The process to decode images in ended while it started (status {self._process.wait()}): "
                "its message is above."
            ) from None

    def ask(self, data: bytes, limits: dict[str, object], deadline_s: float) -> tuple[int, bytes]:
        """Send one image and wait for the reply; raise OSError or EOFError if the worker ended."""
        self.is_usable = False
        timer = threading.Timer(deadline_s, self._late)
        timer.daemon = True
        timer.start()
        try:
            header = json.dumps(limits | {"deadline_s": deadline_s}).encode()
            self._pipe.send_bytes(header)
            self._pipe.send_bytes(data)
            reply = self._pipe.recv_bytes()
        finally:
            timer.cancel()
        self.is_usable = not self._is_killed
        return reply[0], reply[1:]

    def kill(self) -> None:
        """End the process; its reader gets an EOFError."""
        self.is_usable, self._is_killed = False, True
        self._process.kill()

    def dispose(self) -> None:
        """End the process and close its pipe; only for the thread that owns the worker."""
        self.kill()
        self._process.wait()
        self._pipe.close()

    def _late(self) -> None:
        self.was_late = True
        self.kill()


def main() -> None:
    """Serve requests from standard input until the parent ends."""
    pipe = Connection(os.dup(sys.stdin.fileno()))
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # keeps libraries' prints out of the parent's output
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which decides
    with contextlib.suppress(OSError):
        os.nice(5)  # the parent decodes ordinary images and goes first
    module, _, name = sys.argv[1].partition(":")
    job = getattr(importlib.import_module(module), name)
    Image.init()  # imports Pillow's plugins, which must not count against the first image
    with contextlib.suppress(EOFError, ConnectionError):  # the parent has gone
        pipe.send_bytes(b"ready")
        while True:
            limits, data = json.loads(pipe.recv_bytes()), pipe.recv_bytes()
            deadline_s = limits.pop("deadline_s")
            _limit_memory(limits.get("max_pixels", MAX_PIXELS))
            signal.alarm(math.ceil(deadline_s) + _GRACE_S)  # without a handler the signal ends the process
            try:
                status, answer = OK, job(data, **limits)
            except ImageError as error:
                status, answer = REFUSED, error.reason.encode(errors="replace")
            except Exception as error:
                status, answer = FAILED, f"{type(error).__name__}: {error}".encode(errors="replace")
            signal.alarm(0)
            del data
            pipe.send_bytes(bytes([status]) + answer)


def _limit_memory(max_pixels: int) -> None:
    with contextlib.suppress(OSError, ValueError):  # a system without this limit
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        limit = _BASE_BYTES + _BYTES_PER_PIXEL * max_pixels
        soft = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


if __name__ == "__main__":
    main()
