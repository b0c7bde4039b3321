"""Start a program with arguments that its command line does not show. Standard library only; Linux on x86-64.

`tritonserver` takes the key of its control as an argument and in no other way, and every user of a machine can
read everybody's arguments (`ps`, `/proc/PID/cmdline`). The environment of a process is for its own user alone.
So the argument is `hidden:NAME`, its text is the environment variable NAME, and between the start of the program
and its first instruction the program's pointer to the argument is set to that variable: `ps` goes on showing
`hidden:NAME`, at every moment.
"""

import ctypes
import os
import platform
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import Any

PREFIX = "hidden:"
WARNING = "its control key is on its command line, where other users of this machine can read it"
_TRACEME, _PEEKUSER, _DETACH = 0, 3, 17  # <sys/ptrace.h>
_RSP = 19 * 8  # offset of the stack pointer in struct user_regs_struct, x86-64


def start(command: list[str], prepare: Callable[[], None], **options: Any) -> subprocess.Popen:
    """Start `command`, in which `hidden:NAME` stands for the environment variable NAME.

    Where the system allows no tracing of an own child (Yama's strictest modes, some sandboxes), the arguments are
    given openly, and a line on stdout says so.

    Args:
        command: program and arguments; NAME must be set in this process's environment.
        prepare: called in the child before the program.
        options: for `subprocess.Popen`.
    """
    if platform.machine() == "x86_64" and sys.platform == "linux":
        try:
            return _start_traced(command, prepare, **options)
        except (OSError, subprocess.SubprocessError) as error:
            reason = str(error)
    else:
        reason = "this works on Linux and x86-64 only"
    print(f"Triton: {WARNING} ({reason}).", flush=True)
    shown = [os.environ[a.removeprefix(PREFIX)] if a.startswith(PREFIX) else a for a in command]
    return subprocess.Popen(shown, preexec_fn=prepare, **options)


def _ptrace(request: int, pid: int, address: int = 0) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.restype = ctypes.c_long
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    ctypes.set_errno(0)
    answer = libc.ptrace(request, pid, address, None)
    if ctypes.get_errno():
        raise OSError(ctypes.get_errno(), f"ptrace: {os.strerror(ctypes.get_errno())}")
    return answer


def _start_traced(command: list[str], prepare: Callable[[], None], **options: Any) -> subprocess.Popen:
    def be_traced() -> None:
        prepare()
        _ptrace(_TRACEME, 0)  # the program then stops before its first instruction

    process = subprocess.Popen(command, preexec_fn=be_traced, **options)
    try:
        if not os.WIFSTOPPED(os.waitpid(process.pid, 0)[1]):
            raise OSError("the program ended before it began")
        _point_to_the_environment(process.pid)
        _ptrace(_DETACH, process.pid)
    except BaseException:
        process.kill()
        process.wait()
        raise
    return process


def _point_to_the_environment(pid: int) -> None:
    """Rewrite argv of a stopped program. Its stack: argc, argv pointers, 0, environment pointers, 0."""
    stack = _ptrace(_PEEKUSER, pid, _RSP) & (2**64 - 1)
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:

        def word(index: int) -> int:
            memory.seek(stack + 8 * index)
            return struct.unpack("Q", memory.read(8))[0]

        def text(address: int, length: int) -> bytes:
            memory.seek(address)
            return memory.read(length)

        count = word(0)
        variables, index = [], count + 2
        while address := word(index):
            variables.append(address)
            index += 1
        for place in range(1, count + 1):
            hidden = text(word(place), 256).split(b"\0")[0]
            if not hidden.startswith(PREFIX.encode()):
                continue
            start = hidden.removeprefix(PREFIX.encode()) + b"="
            value = next(v + len(start) for v in variables if text(v, len(start)) == start)
            memory.seek(stack + 8 * place)
            memory.write(struct.pack("Q", value))
