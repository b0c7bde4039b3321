"""Where the project's files are."""

import os
from pathlib import Path

from photodup.core.errors import PhotodupError
from photodup.core.settings import environment


class NoCheckoutError(PhotodupError):
    """Something needs the notebooks, results or models of a checkout, and there is none."""


def project_root() -> Path:
    """Return the folder that holds notebooks/, results/ and model_repository/.

    `PHOTODUP_ROOT` wins; otherwise the nearest parent of the working directory with photodup's
    pyproject.toml, so that notebooks and the shell agree wherever they are started.

    Raises:
        PhotodupError: neither is there.
    """
    if configured := environment().root:
        return Path(configured).resolve()
    here = Path.cwd().resolve()
    for folder in (here, *here.parents):
        if (folder / "lib" / "photodup").is_dir() and (folder / "pyproject.toml").is_file():
            return folder
    raise NoCheckoutError(
        f"No photodup checkout at or above {here}: change into your clone or set PHOTODUP_ROOT to it."
    )


def build_dir() -> Path:
    """Return the folder for what can be made again: exported models, logs, the demonstration of the review.

    In a checkout that is `build/`, which git ignores; away from one, `photodup/` in this user's cache folder.

    Raises:
        PhotodupError: neither is there: no checkout, and no home folder.
    """
    try:
        return project_root() / "build"
    except NoCheckoutError as error:
        try:
            return cache_dir()
        except PhotodupError:
            raise error from None


def cache_dir() -> Path:
    """Return photodup's folder in this user's cache.

    Raises:
        PhotodupError: the user has no home folder, and `XDG_CACHE_HOME` is not an absolute path.
    """
    cache = environment().cache_home
    try:
        return (Path(cache) if os.path.isabs(cache) else Path.home() / ".cache") / "photodup"
    except RuntimeError:
        raise PhotodupError("There is no home folder for a cache: set XDG_CACHE_HOME to a folder.") from None
