"""Where the project's files are."""

import os
from pathlib import Path

from photodup.errors import PhotodupError


def project_root() -> Path:
    """Return the folder that holds notebooks/, results/ and model_repository/.

    `PHOTODUP_ROOT` wins; otherwise the nearest parent of the working directory with photodup's
    pyproject.toml, so that notebooks and the shell agree wherever they are started.

    Raises:
        PhotodupError: neither is there.
    """
    if configured := os.environ.get("PHOTODUP_ROOT"):
        return Path(configured).resolve()
    here = Path.cwd().resolve()
    for folder in (here, *here.parents):
        if (folder / "lib" / "photodup").is_dir() and (folder / "pyproject.toml").is_file():
            return folder
    raise PhotodupError(
        f"No photodup checkout at or above {here}: change into your clone or set PHOTODUP_ROOT to it."
    )


def build_dir() -> Path:
    """Return the folder for what can be made again (exported models, logs, demo photos). Git ignores it."""
    return project_root() / "build"
