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
    return folder_of_user(environment().cache_home, ".cache", "a cache: set XDG_CACHE_HOME to a folder")


def folder_of_user(base: str, name: str, purpose: str) -> Path:
    """Return photodup's folder in one of this user's; neither need exist.

    Args:
        base: the folder that the environment names; one that is not absolute does not count.
        name: of the folder at home that is used without one.
        purpose: what it is for, and the remedy.

    Raises:
        PhotodupError: there is no home folder.
    """
    try:
        return (Path(base) if os.path.isabs(base) else Path.home() / name) / "photodup"
    except RuntimeError:
        raise PhotodupError(f"There is no home folder for {purpose}.") from None
