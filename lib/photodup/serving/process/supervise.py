"""Run a command that ends with the process that started it. Standard library only.

    python supervise.py COMMAND [ARG...]        stdin: a pipe from the starting process

The command gets its own process group. When the pipe closes (the starter ended, even by kill -9) or SIGTERM arrives, the
command is asked to stop; after GRACE_S seconds its group is killed. If this process dies first, the kernel kills the
command (Linux only; the rest also works on macOS).
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time

GRACE_S = 5.0
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # <sys/prctl.h>


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(Exception):  # Linux only; elsewhere the pipe alone does the work
        import ctypes

        ctypes.CDLL(None).prctl(option, value)


def _start(command: list[str]) -> subprocess.Popen:
    def prepare() -> None:
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    return subprocess.Popen(command, preexec_fn=prepare, stdin=subprocess.DEVNULL, start_new_session=True)


class ProcessGroup:
    """The command and everything it starts, in a process group of its own."""

    status: int | None

    def __init__(self, command: list[str]) -> None:
        # Orphans of the command become our children and are reaped here: the init of a container often does not reap
        # zombies.
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        # Deleting the object would collect the status of an ended command before `reap` does.
        self._process = _start(command)
        self.pid, self.status = self._process.pid, None

    def reap(self) -> None:
        """Reap ended children; set `status` once the command has ended."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self.pid:
                    self.status = os.waitstatus_to_exitcode(ended[1])

    def lives(self) -> bool:
        """Whether any process of the group is left."""
        self.reap()
        try:
            os.killpg(self.pid, 0)
        except (ProcessLookupError, PermissionError):  # macOS says EPERM for a group of zombies
            return False
        return True

    def stop(self) -> None:
        """Ask the command to stop with its children, then kill the rest."""
        for target, sign, patience in (
            (lambda sign: os.kill(self.pid, sign), signal.SIGTERM, GRACE_S),
            (lambda sign: os.killpg(self.pid, sign), signal.SIGKILL, 2.0),
        ):
            self.reap()
            if not (self.status is not None and sign == signal.SIGTERM):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    target(sign)
            deadline = time.monotonic() + patience
            while self.lives() and time.monotonic() < deadline:
                if self.status is not None and sign == signal.SIGTERM:
                    break  # the command has ended without its children
                time.sleep(0.02)


def main() -> int:
    """Supervise `sys.argv[1:]`; returns its exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the starter, which closes the pipe
    stopping = False
    wake_read, wake_write = os.pipe()

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True
        os.write(wake_write, b"x")

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGCHLD, lambda *_: os.write(wake_write, b"x"))
    starter = os.getppid()
    group = ProcessGroup(sys.argv[1:])
    while not stopping and os.getppid() == starter:
        group.reap()
        if group.status is not None:
            break
        # The timeout is for a starter whose forked worker inherited the pipe.
        ready, _, _ = select.select([sys.stdin.fileno(), wake_read], [], [], 1.0)
        if sys.stdin.fileno() in ready and not os.read(sys.stdin.fileno(), 1):
            break
        if wake_read in ready:
            os.read(wake_read, 64)
    group.stop()
    return group.status if group.status is not None else 1


if __name__ == "__main__":
    sys.exit(main())
