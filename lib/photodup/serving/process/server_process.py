"""Server processes under a supervisor: each has a log, and ends with this process."""

import contextlib
import shlex
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, TypeVar

from photodup.core.errors import PhotodupError
from photodup.core.paths import build_dir
from photodup.core.settings import inherited
from photodup.serving.process.ports import claim_ports

Ready = TypeVar("Ready")


class ServerProcess:
    """A command under `supervise.py`, with its output in a log file. A context manager that stops it.

    Args:
        name: for messages: `Triton`.
        command: program and arguments.
        log_path: file for stdout and stderr, overwritten.
        env: the whole environment; None inherits ours.

    Attributes:
        ready_s: seconds that entering a `with` block took.
    """

    ready_s: float

    def __init__(
        self, name: str, command: Sequence[str], log_path: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.name, self.log_path = name, log_path
        log_path.parent.mkdir(parents=True, exist_ok=True)
        _prune(log_path.parent)
        with open(log_path, "wb") as log:
            self._process = subprocess.Popen(
                # -I: the supervisor needs only the standard library.
                [sys.executable, "-I", str(Path(__file__).with_name("supervise.py")), *command],
                stdin=subprocess.PIPE,  # it ends when our end of this pipe closes
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(env) if env is not None else None,
            )

    @property
    def is_running(self) -> bool:
        """Whether the process is alive."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """The supervisor's process id; the server and its processes are its children."""
        return self._process.pid

    def wait_ready(
        self,
        is_ready: Callable[[], bool],
        timeout_s: float,
        progress: Callable[[str], None] | None = None,
        explain: Callable[[str], str] = lambda log: "",
    ) -> float:
        """Wait until `is_ready()`; return the seconds.

        Args:
            is_ready: cheap check, called about twenty times a second; False or an OSError means not yet.
            timeout_s: after this the process is stopped and an error raised.
            progress: called with a line of text at the start, every five seconds, and when ready.
            explain: returns a cause or remedy from the log of a failed start, or "".

        Raises:
            PhotodupError: it ended or was not ready in time; quotes the log's last error.
        """
        started, reported_s = time.monotonic(), 0.0
        if progress:
            progress(f"Starting {self.name} (log: {self.log_path})")
        while True:
            waited = time.monotonic() - started
            has_ended = not self.is_running
            if has_ended or waited > timeout_s:
                self.stop()
                log = self.log_text()
                outcome = "ended while it started" if has_ended else f"was not ready after {timeout_s:.0f} s"
                reason = f"{outcome}: {last_error(log)} {explain(log)}".rstrip()
                raise PhotodupError(f"{self.name} {reason} The whole log: {self.log_path}")
            with contextlib.suppress(OSError):
                if is_ready():
                    if progress:
                        progress(f"{self.name} is ready" + (f" after {waited:.1f} s" if waited > 0.1 else ""))
                    return waited
            if progress and waited - reported_s >= 5:
                reported_s = waited
                progress(f"Waiting for {self.name}: {waited:.0f} s")
            time.sleep(0.05)

    def log_text(self) -> str:
        """Return the process's output so far."""
        return self.log_path.read_text(errors="replace")

    def stop(self) -> None:
        """Stop the process and all its children; a second call does nothing."""
        if self._process.stdin and not self._process.stdin.closed:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def wait_until_ready(self) -> float:
        """Return the seconds until the server was ready. Subclasses wait for theirs; this returns 0 at once."""
        return 0.0

    def __enter__(self) -> Self:
        try:
            self.ready_s = self.wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


@dataclass
class Command:
    """A user's command that starts a server on a free port, which replaces `{port}` in it and is in the variable PORT.

    Args:
        command_line: as it is typed.
        start_s: longest wait until the server is ready.
    """

    command_line: str
    start_s: float
    port: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.port = claim_ports("127.0.0.1", {self.command_line: 0})[self.command_line]

    @contextlib.contextmanager
    def started(self, ready: Callable[[], Ready]) -> Iterator[Ready]:
        """Run it during a block; yield the value of `ready` once that raises no `PhotodupError`.

        Raises:
            PhotodupError: it ended or was not ready in time; quotes `ready` and the log.
        """
        results, reason = list[Ready](), ""

        def is_ready() -> bool:
            nonlocal reason
            try:
                results.append(ready())
            except PhotodupError as error:
                reason = str(error)
            return bool(results)

        command = shlex.split(self.command_line.replace("{port}", str(self.port)))
        log = build_dir() / "logs" / f"command-{self.port}.log"
        with ServerProcess(repr(self.command_line), command, log, inherited(PORT=str(self.port))) as process:
            process.wait_ready(is_ready, self.start_s, explain=lambda log: reason)
            yield results[0]


def _prune(folder: Path) -> None:
    """Keep the newest 40 logs: each server on a free port adds one."""
    with contextlib.suppress(OSError):  # another process prunes as well
        for old in sorted(folder.glob("*-*.log"), key=lambda path: path.stat().st_mtime)[:-40]:
            old.unlink(missing_ok=True)


def is_answering(url: str) -> bool:
    """Return whether the server at `url` answers a GET with 200; another status means that it is loading.

    Raises:
        OSError: no answer yet.
    """
    try:
        # No proxy for this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=2) as answer:
            return answer.status == 200
    except urllib.error.HTTPError:
        return False


def last_error(log: str) -> str:
    """Return the last error in a server's log, else its last line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if _is_error(line)]
    picked = (errors or lines or ["it printed nothing"])[-1]
    return picked if picked.endswith((".", "!")) else picked + "."


def _is_error(line: str) -> bool:
    if any(word in line for word in ("NVML", "CudaDriverHelper", "CUDA driver version")):  # no GPU, no harm
        return False
    return (
        line[:2] in ("E0", "E1")  # Triton's errors: E, then the month
        or "error" in line.lower()
        or line.startswith("CRITICAL")
    )
