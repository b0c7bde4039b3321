"""Paths as they are followed and as they are printed."""

import os
from pathlib import Path


def real_path(folder: Path | str) -> Path:
    """Return where a path leads, `~` and links followed; unlike `Path.resolve`, a loop of links is no error."""
    return Path(os.path.realpath(os.path.expanduser(folder)))


def printable(path: Path | bytes) -> str:
    """Return a path for a report: bytes that are not UTF-8 become U+FFFD instead of breaking print()."""
    return os.fsencode(path).decode("utf-8", "replace")
