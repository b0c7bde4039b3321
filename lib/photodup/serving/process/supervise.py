"""Run a command that ends with the process that started it. Standard library only.

    python supervise.py COMMAND [ARG...]        stdin: a pipe from the starting process

The command gets its own process group. When the pipe closes (the starter ended, even by kill -9) or SIGTERM arrives, the
command is asked to stop; after GRACE_S seconds its group is killed. If this process dies first, the kernel kills the
command (Linux only; the rest also works on macOS).
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading

GRACE_S, POLL_S = 5.0, 0.2
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # <sys/prctl.h>


def _prctl(option: int, argument: int) -> None:
    with contextlib.suppress(AttributeError):  # Linux only; elsewhere the pipe alone does the work
        ctypes.CDLL(None).prctl(option, argument)


def main() -> int:
    """Supervise `sys.argv[1:]`; return its exit status."""
    starter, is_over = os.getppid(), threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the starter, which closes the pipe
    signal.signal(signal.SIGTERM, lambda *_: is_over.set())
    # Orphans of the command become our children: the init of a container often does not reap zombies.
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    command = subprocess.Popen(
        sys.argv[1:],
        preexec_fn=lambda: _prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )

    def wait_for_pipe() -> None:
        os.read(sys.stdin.fileno(), 1)  # nothing is written to it
        is_over.set()

    threading.Thread(target=wait_for_pipe, daemon=True).start()
    # The last condition is for a starter whose forked worker inherited the pipe.
    while command.poll() is None and not is_over.wait(POLL_S) and os.getppid() == starter:
        pass
    command.terminate()  # it stops its children; those that are left are killed
    with contextlib.suppress(subprocess.TimeoutExpired):
        command.wait(GRACE_S)
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS says EPERM for a group of zombies
        os.killpg(command.pid, signal.SIGKILL)
    command.wait()
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-command.pid, 0)
    return command.returncode


if __name__ == "__main__":
    sys.exit(main())
