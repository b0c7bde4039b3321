"""The command line in this process: what `photodup ...` does where a process of its own is not the point."""

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple
from unittest import mock

import pytest
from support.paths import ROOT

from photodup.cli import main
from photodup.core.errors import PhotodupError


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def photodup(*arguments: object, **environment: str) -> Done:
    """Run one command. A traceback is a failure, and so is text that a terminal's UTF-8 does not encode."""
    ended, out, err = 0, *(io.TextIOWrapper(io.BytesIO(), "utf-8", newline="") for _ in range(2))
    with (
        mock.patch.object(sys, "argv", ["photodup", *map(str, arguments)]),
        mock.patch.dict(os.environ, environment),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            ended = end.code or 0
    said = []
    for stream in (out, err):
        stream.flush()
        said.append(stream.buffer.getvalue().decode())
    assert "Traceback" not in said[1], said[1]
    return Done(ended, *said)


def run_command(*arguments: object, status: int = 0, **environment: str) -> str:
    """Run one command and return all that it printed. Another exit status is a failure."""
    done = photodup(*arguments, **environment)
    assert done.returncode == status, done
    return done.stdout + done.stderr


def run_python(program: str, *arguments: object, **options: object) -> subprocess.CompletedProcess:
    """Run a program text in a Python of its own; what it prints is kept, as text."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, **options)


def run_benchmark(name: str, *arguments: object) -> str:
    """Run `python -m benchmarks.NAME` in a process of its own and return what it printed."""
    command = [sys.executable, "-m", f"benchmarks.{name}".rstrip("."), *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextlib.contextmanager
def running(command: list[str], **options: object) -> Iterator[subprocess.Popen]:
    """Run a program beside the test and kill it in the end; what it prints is piped, as text, unless told otherwise."""
    with subprocess.Popen(command, **{"stdout": subprocess.PIPE, "text": True, **options}) as process:
        try:
            yield process
        finally:
            process.kill()


def run_program(name: str, *arguments: object, within: tuple[str, ...] = ()) -> str:
    """Run a program of this folder in a process of its own, which may fork; return what it printed."""
    command = [*within, sys.executable, "-m", f"support.{name}", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT / "tests", capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextlib.contextmanager
def one_sentence(said: str | None = None) -> Iterator[pytest.ExceptionInfo]:
    """Expect a refusal that says this, in one line that gives a terminal no orders."""
    with pytest.raises(PhotodupError, match=said) as raised:
        yield raised
    assert "\n" not in str(raised.value) and "\x1b" not in str(raised.value)
