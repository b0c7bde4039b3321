"""The owner's settings of a library: `settings.json` in its own folder, written by the settings page.

The file may come with a foreign library, and photographs are sent to the server's address in it. So an address counts only
if this user chose it on this machine: the page signs it with the user's key (`photodup.photos.state.own_key`). Any other
address is shown but not used until it is chosen. This includes loopback, where any service or a tunnel may listen.
"""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, cast

from photodup.core.addresses import grpc_address, http_address
from photodup.core.errors import PhotodupError
from photodup.core.files import is_spelled_so, parse_json, real_path
from photodup.core.names import escaped, printable
from photodup.core.safe_open import PathInFolder, open_file, opened
from photodup.embedding.backends import parse_backend
from photodup.photos.state.own_folder import OwnFolder
from photodup.photos.state.own_key import is_signed, own_key, read_key, signature

AUTO = "auto"
DEFAULT_RULES = ("resolution", "format", "metadata", "oldest", "size", "folder")  # to choose a keeper
LEAST_THRESHOLD = 0.01
_MOST_BYTES = 1_000_000  # of the file, which may be foreign; a longer one is no valid JSON

_PURPOSE = "address 1"


@dataclass(frozen=True)
class LibrarySettings:
    """Choices of one library.

    Attributes:
        backend: `auto`, or a backend's name as in `triton-onnx-fp32-grpc-fp32`.
        url: its server's address; None for `auto` and for models in this process.
        keep: rules to choose a keeper, most important first.
        folders: folders by priority, relative to the library, for the rule `folder`.
        protected: folders, relative to the library, from which nothing is suggested or removed.
        not_within: folders, relative to the library, whose photos are not compared with each other.
        ignored: backend and address in the file that this user did not choose; never used.
        threshold: smallest cosine of similar pictures; None for the model's default.
    """

    backend: str = AUTO
    url: str | None = None
    keep: tuple[str, ...] = DEFAULT_RULES
    folders: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    not_within: tuple[str, ...] = ()
    ignored: tuple[str, str] | None = None
    threshold: float | None = None

    def __post_init__(self) -> None:
        check_address(self.backend, self.url)
        if self.backend != AUTO:  # one way to write it, however it was stored
            object.__setattr__(self, "backend", parse_backend(self.backend).name)
        for folders in (self.folders, self.protected, self.not_within):
            if not isinstance(folders, tuple) or not all(map(_can_be_a_name, folders)):
                raise PhotodupError("folders must be a list of names")
        if self.threshold is not None and not (
            isinstance(self.threshold, int | float) and LEAST_THRESHOLD <= self.threshold <= 1
        ):
            raise PhotodupError(f"the threshold of similar pictures must lie between {LEAST_THRESHOLD} and 1")
        check_rules(self.keep)

    @property
    def warning(self) -> str | None:
        """A sentence about an unused address, or None."""
        if not self.ignored:
            return None
        name, url = (escaped(text) for text in self.ignored)
        return (
            f"The settings of this library name the server {url} ({name}), which you did not choose on this "
            "machine: it is not used; choose it on the review's settings page, or with --backend and --url."
        )

    def with_rules(self, keep: str | None, folders: Sequence[str] | None) -> "LibrarySettings":
        """Return these settings with the command line's rules (`resolution,format`) and folders."""
        order = tuple(rule.strip() for rule in keep.split(",") if rule.strip()) if keep else self.keep
        return replace(self, keep=order, folders=tuple(folders) if folders else self.folders)


def _can_be_a_name(name: object) -> bool:
    with suppress(UnicodeEncodeError):
        return isinstance(name, str) and b"\0" not in os.fsencode(name)
    return False


def check_rules(order: Sequence[str]) -> None:
    """Refuse an empty order of keep rules, and an unknown rule.

    Raises:
        PhotodupError: names the rules that there are.
    """
    if not order:
        raise PhotodupError(f"Name at least one keep rule: {', '.join(DEFAULT_RULES)}.")
    if unknown := [rule for rule in order if rule not in DEFAULT_RULES]:
        raise PhotodupError(f"No keep rule {', '.join(unknown)}: choose from {', '.join(DEFAULT_RULES)}.")


def check_address(backend: str, url: str | None) -> None:
    """Refuse an invalid backend or address.

    Raises:
        PhotodupError: names it and the cause.
    """
    if backend == AUTO:
        return
    parsed = parse_backend(backend)
    if parsed.is_local:
        return
    if not url:
        raise PhotodupError(f"{backend} needs the address of its server, such as http://127.0.0.1:8002.")
    # From an http:// address the port of gRPC is derived (`photodup.embedding.client.embedder.connect`).
    is_grpc = parsed.protocol == "grpc" and not url.startswith(("http://", "https://"))
    (grpc_address if is_grpc else http_address)(url, backend)


def load_settings(folder: Path) -> LibrarySettings:
    """Read the settings in a library's own folder, or return the defaults.

    An address that this user did not choose is moved to `ignored`; the backend is then `auto`.

    Raises:
        PhotodupError: they are unreadable or invalid; names the file.
    """
    path = OwnFolder(folder).settings
    try:
        with (
            opened(path.parent, path.name) as place,
            open(open_file(cast(PathInFolder, place)), "rb") as file,
        ):
            values = parse_json(file.read(_MOST_BYTES))
        mark = values.pop("signature", None)
        if "ignored" in values:
            raise ValueError("unknown key ignored")
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        settings = LibrarySettings(**fields)
    except FileNotFoundError:
        return LibrarySettings()
    except (OSError, ValueError, TypeError, AttributeError, RecursionError, PhotodupError) as error:
        reason = escaped(str(error))
        raise PhotodupError(f"{printable(path)} cannot be used ({reason}): correct or delete it.") from None
    if not settings.url or is_signed(read_key(), _PURPOSE, [settings.backend, settings.url], mark):
        return settings
    return replace(settings, backend=AUTO, url=None, ignored=(settings.backend, settings.url))


def save_settings(folder: Path, settings: LibrarySettings) -> None:
    """Write settings atomically; their address then counts as chosen by this user.

    Raises:
        PhotodupError: the folder is not photodup's or cannot be written, or this user's key cannot be made.
    """
    values = asdict(settings)
    if ignored := values.pop("ignored"):  # keep the address in the file, unsigned
        values["backend"], values["url"] = ignored
    elif settings.url:
        values["signature"] = signature(own_key(), _PURPOSE, [settings.backend, settings.url])
    home = OwnFolder(folder)
    try:
        home.write(home.settings.name, (json.dumps(values, indent=1) + "\n").encode())
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


def has_folder(root: Path, name: str, listed: dict) -> bool:
    """Return whether a library has a folder of exactly this name, which is no link.

    `listed` is the cache of `is_spelled_so`.
    """
    place = root / name
    with suppress(OSError):
        return is_spelled_so(place, root, listed) and os.path.isdir(place) and real_path(place) == place
    return False
