"""The owner's settings of a library: `settings.json` in its own folder, written by the settings page.

The file may come with a foreign library. So it names no server: photographs are sent only where the command line, the
environment or the page of this run says.
"""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from photodup.core.errors import PhotodupError
from photodup.core.files import is_spelled_so, parse_json, real_path
from photodup.core.names import escaped, printable
from photodup.core.safe_open import open_file, opened
from photodup.photos.state.own_folder import OwnFolder

# To choose a keeper, in the default order, with the words of the settings page; `groups.keepers` has the values.
RULES = {
    "resolution": "more pixels, where they hold more",
    "format": "RAW or a JPEG with its RAW, then what cameras write, then WebP and its like",
    "metadata": "date, place, camera, rating, title and keywords, in the file or its XMP sidecar; then the most EXIF fields",
    "oldest": "taken first",
    "size": "largest file",
    "folder": "in the first of the folders below",
}
DEFAULT_RULES = tuple(RULES)
LEAST_THRESHOLD = 0.01
_MOST_BYTES = 1_000_000  # of the file, which may be foreign; a longer one is no valid JSON


@dataclass(frozen=True)
class LibrarySettings:
    """Choices of one library.

    Attributes:
        keep: rules to choose a keeper, most important first.
        folders: folders by priority, relative to the library, for the rule `folder`.
        protected: folders, relative to the library, from which nothing is suggested or removed.
        not_within: folders, relative to the library, whose photos are not compared with each other.
        threshold: smallest cosine of similar pictures; None for the model's default.
    """

    keep: tuple[str, ...] = DEFAULT_RULES
    folders: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    not_within: tuple[str, ...] = ()
    threshold: float | None = None

    def __post_init__(self) -> None:
        for folders in (self.folders, self.protected, self.not_within):
            if not isinstance(folders, tuple) or not all(map(_can_be_a_name, folders)):
                raise PhotodupError("folders must be a list of names")
        if self.threshold is not None and not (
            isinstance(self.threshold, int | float) and LEAST_THRESHOLD <= self.threshold <= 1
        ):
            raise PhotodupError(f"the threshold of similar pictures must lie between {LEAST_THRESHOLD} and 1")
        if not self.keep:
            raise PhotodupError(f"Name at least one keep rule: {', '.join(RULES)}.")
        if unknown := [rule for rule in self.keep if rule not in DEFAULT_RULES]:
            raise PhotodupError(f"No keep rule {', '.join(unknown)}: choose from {', '.join(RULES)}.")

    def with_rules(self, keep: str | None, folders: Sequence[str] | None) -> "LibrarySettings":
        """Return these settings with the command line's rules (`resolution,format`) and folders."""
        order = tuple(rule.strip() for rule in keep.split(",") if rule.strip()) if keep else self.keep
        return replace(self, keep=order, folders=tuple(folders) if folders else self.folders)


def _can_be_a_name(name: object) -> bool:
    with suppress(UnicodeEncodeError):
        return isinstance(name, str) and b"\0" not in os.fsencode(name)
    return False


def load_settings(folder: Path) -> LibrarySettings:
    """Read the settings in a library's own folder, or return the defaults.

    Raises:
        PhotodupError: they are unreadable or invalid; names the file.
    """
    path = OwnFolder(folder).settings
    try:
        with opened(path.parent, path.name) as place, open(open_file(place), "rb") as file:
            values = parse_json(file.read(_MOST_BYTES))
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        return LibrarySettings(**fields)
    except FileNotFoundError:
        return LibrarySettings()
    except (OSError, ValueError, TypeError, AttributeError, RecursionError, PhotodupError) as error:
        reason = escaped(str(error))
        raise PhotodupError(f"{printable(path)} cannot be used ({reason}): correct or delete it.") from None


def save_settings(folder: Path, settings: LibrarySettings) -> None:
    """Write settings atomically.

    Raises:
        PhotodupError: the folder is not photodup's or cannot be written.
    """
    home = OwnFolder(folder)
    try:
        home.write(home.settings.name, (json.dumps(asdict(settings), indent=1) + "\n").encode())
    except OSError as error:
        raise PhotodupError(f"{printable(home.settings)} cannot be written ({error.strerror}).") from None


def check_inside(folders: Sequence[str]) -> tuple[str, ...]:
    """Return normalised names of folders in the library.

    Raises:
        PhotodupError: one is absolute or leads out.
    """
    clean = [PurePosixPath(folder.strip()) for folder in folders if folder.strip()]
    for folder in clean:
        if folder.is_absolute() or ".." in folder.parts:
            raise PhotodupError(f"{folder} is outside the library: name folders as they are inside it.")
    return tuple(map(str, clean))


def check_folders(root: Path, names: Sequence[str]) -> tuple[str, ...]:
    """Return folders of a library, checked to be spelled as on the disk: another spelling would protect nothing.

    Args:
        root: the library.
        names: relative to it, or absolute.

    Raises:
        PhotodupError: one is missing, or outside the library.
    """
    names = [name.strip() for name in names]
    real = [os.path.relpath(real_path(name), root) if os.path.isabs(name) else name for name in names]
    relative = check_inside(real)
    for name in relative:
        if not has_folder(root, name, {}):
            raise PhotodupError(
                f"There is no folder {printable(name)} in {printable(root)}: write it as it is there."
            )
    return relative


def has_folder(root: Path, name: str, listing_cache: dict) -> bool:
    """Return whether a library has a folder of exactly this name, which is no link.

    `listing_cache` is the cache of `is_spelled_so`.
    """
    place = root / name
    with suppress(OSError):
        return (
            is_spelled_so(place, root, listing_cache) and os.path.isdir(place) and real_path(place) == place
        )
    return False
