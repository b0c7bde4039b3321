"""A server process that is watched while it starts and that never outlives us."""

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
    """A command under `supervise.py`, with its output in a log file; as a context manager it is stopped with the block.

    Args:
        name: What it is, for messages: `Triton`.
        command: Program and arguments.
        log_path: File for stdout and stderr, started afresh.
        env: The whole environment; None inherits ours.

    Attributes:
        ready_s: seconds that the start of a `with` block took.
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
                # -I: the supervisor uses the standard library alone, whatever is on the path.
                [sys.executable, "-I", str(Path(__file__).with_name("supervise.py")), *command],
                stdin=subprocess.PIPE,  # the other end of this pipe is what ties its life to ours
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(env) if env is not None else None,
            )

    @property
    def running(self) -> bool:
        """Whether the process is alive."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """The watchman's process id; the server and all it started are its children."""
        return self._process.pid

    def wait_ready(
        self,
        is_ready: Callable[[], bool],
        timeout_s: float,
        progress: Callable[[str], None] | None = None,
        explain: Callable[[str], str] = lambda log: "",
    ) -> float:
        """Wait until `is_ready()`; returns the seconds it took.

        Args:
            is_ready: Cheap check, called about twenty times a second; False or an OSError means not yet.
            timeout_s: After this the process is stopped and an error raised.
            progress: Called with a line of text when waiting starts, every five seconds, and when ready.
            explain: Turns the log of a failed start into a reason or a remedy, or "".

        Raises:
            PhotodupError: it ended or did not become ready; quotes the last error of the log.
        """
        started, reported_s = time.monotonic(), 0.0
        if progress:
            progress(f"Starting {self.name} (log: {self.log_path})")
        while True:
            waited = time.monotonic() - started
            has_ended = not self.running
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
        """What the process has printed so far."""
        return self.log_path.read_text(errors="replace")

    def stop(self) -> None:
        """Stop the process and everything it started. Calling it again does nothing."""
        if self._process.stdin and not self._process.stdin.closed:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def wait_until_ready(self) -> float:
        """Wait until a `with` block may use it; return the seconds. Each kind of server has its own way."""
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
    """A command of a user's that starts a server; `{port}` in it is a free port, which the variable PORT holds too."""

    words: str
    start_s: float
    port: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.port = claim_ports("127.0.0.1", {self.words: 0})[self.words]

    @contextlib.contextmanager
    def running(self, ready: Callable[[], Ready]) -> Iterator[Ready]:
        """Run it for the length of a block, which gets what `ready` returns once it no longer raises a `PhotodupError`.

        Raises:
            PhotodupError: it ended, or was not ready in time; with what `ready` said and its last error.
        """
        results, reason = list[Ready](), ""

        def is_ready() -> bool:
            nonlocal reason
            try:
                results.append(ready())
            except PhotodupError as error:
                reason = str(error)
            return bool(results)

        command = shlex.split(self.words.replace("{port}", str(self.port)))
        log = build_dir() / "logs" / f"command-{self.port}.log"
        with ServerProcess(repr(self.words), command, log, inherited(PORT=str(self.port))) as process:
            process.wait_ready(is_ready, self.start_s, explain=lambda log: reason)
            yield results[0]


def _prune(folder: Path, keep: int = 40) -> None:
    """Delete the oldest logs: servers on free ports leave a new name every time."""
    with contextlib.suppress(OSError):  # another process prunes as well
        for old in sorted(folder.glob("*-*.log"), key=lambda path: path.stat().st_mtime)[:-keep]:
            old.unlink(missing_ok=True)


def answers(url: str) -> bool:
    """Say whether the server at `url` answers a GET with 200 by now; another status means that it still loads.

    Raises:
        OSError: nothing answers there yet.
    """
    try:
        # A proxy of the environment is for other machines.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=2) as answer:
            return answer.status == 200
    except urllib.error.HTTPError:
        return False


def last_error(log: str) -> str:
    """Return the line of a server's log that says what went wrong: the last error, else the last line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if _is_error(line)]
    picked = (errors or lines or ["it printed nothing"])[-1]
    return picked if picked.endswith((".", "!")) else picked + "."


def _is_error(line: str) -> bool:
    if any(word in line for word in ("NVML", "CudaDriverHelper", "CUDA driver version")):  # no GPU, no harm
        return False
    return (
        line[:2] in ("E0", "E1")  # Triton: level, month
        or "error" in line.lower()
        or line.startswith("CRITICAL")
    )
