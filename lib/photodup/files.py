"""What is done with files everywhere, once for all."""

import os
from pathlib import Path


def real_path(folder: Path | str) -> Path:
    """Return where a path leads, `~` and links followed; unlike `Path.resolve`, a loop of links is no error."""
    return Path(os.path.realpath(os.path.expanduser(folder)))
