"""Programs of the checkout, each run in a process of its own."""

import json
import subprocess
import sys
from typing import Any

from photodup.core.errors import PhotodupError
from photodup.core.paths import project_root
from photodup.core.settings import inherited


def benchmark(name: str, *arguments: object) -> Any:
    """Run `python -m benchmarks.NAME`; see `run_module`."""
    return run_module(f"benchmarks.{name}", *arguments)


def run_module(name: str, *arguments: object) -> Any:
    """Run `python -m NAME` in the checkout, and return the JSON that it prints.

    Raises:
        PhotodupError: it failed; the last line that it wrote says why.
    """
    command = [sys.executable, "-P", "-m", name, *map(str, arguments)]
    variables = inherited(PYTHONPATH=str(project_root()))
    process = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if process.returncode:
        reason = (process.stderr.strip().splitlines() or ["no message"])[-1]
        raise PhotodupError(f"python -m {name} failed: {reason}")
    return json.loads(process.stdout)
