"""This user's key, which tells photodup's own writes from what came with a folder.

A folder from somebody else can contain anything, such as a trash journal that moves and deletes files. So photodup
signs what it writes there (HMAC-SHA256) with a random key in the user's configuration folder: `PHOTODUP_CONFIG`, else
`$XDG_CONFIG_HOME/photodup`, else `~/.config/photodup`, readable by the user alone.

Protected: photodup does not act by itself on a line that this user's photodup never wrote.
Not protected: replay. A signature names no folder, so that a library can be moved, renamed or mounted elsewhere and still
be undone. So somebody can hand back this user's old lines, omit or repeat some, or put them beside other files. Other checks
bound this: the same operation, in the given folder, on files with the size and MD5 of that time. Programs of this user can
read the key. With a lost key, or on another computer, signed operations count as another user's: they are listed, and
restored only on request.
"""

import hmac
import json
import secrets
from contextlib import suppress
from pathlib import Path

from photodup.core.errors import PhotodupError
from photodup.core.files import write_atomically
from photodup.core.names import printable
from photodup.core.paths import folder_of_user
from photodup.core.settings import environment

_BYTES = 32


def config_folder() -> Path:
    """Return the folder of this user's configuration; it need not exist.

    Raises:
        PhotodupError: this user has no home folder.
    """
    if configured := environment().config:
        return Path(configured)
    purpose = "photodup's key: name a folder with PHOTODUP_CONFIG"
    return folder_of_user(environment().config_home, ".config", purpose)


def read_key() -> bytes | None:
    """Return the key; None if there is no valid one."""
    try:
        key = bytes.fromhex((config_folder() / "key").read_text("utf-8"))
    except (OSError, ValueError, PhotodupError):
        return None
    return key if len(key) == _BYTES else None


def own_key() -> bytes:
    """Return the key, and make it if there is none.

    Raises:
        PhotodupError: it cannot be made, or its file holds no key.
    """
    if key := read_key():
        return key
    path = config_folder() / "key"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileExistsError):  # another photodup was faster: its key counts
            write_atomically(path, f"{secrets.token_hex(_BYTES)}\n", mode=0o600, fsync=True, is_new=True)
    except OSError as error:
        raise PhotodupError(
            f"{printable(path)}, the key that signs removals, cannot be made ({error.strerror}): allow "
            "writing there, or name another folder with PHOTODUP_CONFIG."
        ) from None
    if key := read_key():
        return key
    raise PhotodupError(f"{printable(path)} is no key of photodup, or cannot be read: move it away.")


def signature(key: bytes, purpose: str, value: object) -> str:
    """Return the signature (hex) of a JSON value; `purpose` separates kinds of values."""
    plain = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hmac.digest(key, f"photodup {purpose}\n{plain}".encode(), "sha256").hex()


def is_signed(key: bytes | None, purpose: str, value: object, text: object) -> bool:
    """Return whether a signature is this user's."""
    if key is None or not isinstance(text, str) or not text.isascii():
        return False
    return hmac.compare_digest(signature(key, purpose, value), text)
