"""The command line in this process: what `photodup ...` does where a process of its own is not the point."""

import contextlib
import io
import os
import sys
from unittest import mock

from photodup.cli import main


def run_command(*arguments: object, status: int = 0, **environment: str) -> str:
    """Run one command and return all that it printed. Another exit status is a failure, and so is a traceback."""
    ended, printed = 0, io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["photodup", *map(str, arguments)]),
        mock.patch.dict(os.environ, environment),
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
    ):
        try:
            main()
        except SystemExit as end:
            ended = end.code or 0
    assert ended == status, printed.getvalue()
    assert "Traceback" not in printed.getvalue()
    return printed.getvalue()
