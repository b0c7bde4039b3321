"""The key of a Triton's control: model loading, shared memory, tracing and logging.

Loading a model runs its Python code as the server's user, and any web page can send such a request to loopback. So all
our Tritons restrict these parts: a request without the key gets 403 over HTTP and UNAVAILABLE over gRPC. Inference,
health, metadata, statistics and reading configurations stay open.

Where the key of a Triton is found:

* an embedded server makes a new one at each start, in a file that only this user can read (`build/triton/control/`), for
  notebooks and commands, and deletes it at the end;
* an endpoints file can hold the key of a remote server (`triton_control_key`);
* `PHOTODUP_TRITON_CONTROL_KEY` in the environment is used for all others, when a model is loaded or changed. It is not
  sent with mere queries.
"""

import contextlib
import os
import re
import secrets
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

from photodup.core import settings
from photodup.core.errors import PhotodupError
from photodup.core.files import write_atomically
from photodup.core.paths import build_dir

HEADER = "photodup-control-key"
VARIABLE = "PHOTODUP_TRITON_CONTROL_KEY"
RESTRICTED = ("model-repository", "shared-memory", "trace", "logging")
"""The parts that need the key, the same as in docker/start-triton.sh (a test compares them)."""

_KEY = re.compile(r"[A-Za-z0-9_-]{16,256}")  # no character at which Triton's option parser splits
_of_endpoints: dict[str, str] = {}


def new_key() -> str:
    """Return 256 random bits in hexadecimal."""
    return secrets.token_hex(32)


def restriction(key: str) -> str:
    """Return the value of `--http-restricted-api` and `--grpc-restricted-protocol`.

    A colon precedes the header; Triton 2.51 refuses the comma that its help shows.
    """
    return f"{','.join(RESTRICTED)}:{HEADER}={check_key(key)}"


def http_headers(address: str) -> dict[str, str]:
    """Return the HTTP headers of a query about models; empty without a key. The environment's key is not sent."""
    key = key_for(address, environment=False)
    return {HEADER: key} if key else {}


def grpc_metadata(address: str) -> dict[str, str] | None:
    """Return the gRPC metadata of a control request to `address`; None without a key."""
    key = key_for(address)
    return {f"triton-grpc-protocol-{HEADER}": key} if key else None


def check_key(key: str, where: str = "The control key of Triton") -> str:
    """Return `key` if it is valid.

    Raises:
        PhotodupError: it is too short or has characters that Triton's options cannot hold; never shows the key.
    """
    if not _KEY.fullmatch(key):
        raise PhotodupError(
            f"{where} should be 16 to 256 letters, digits, '-' and '_': make one with `openssl rand -hex 32`."
        )
    return key


def use_key(addresses: Iterable[str], reference: str) -> None:
    """Use the key of an endpoints file for these addresses, in this process.

    Args:
        addresses: `host:port` or `http://host:port` of Tritons.
        reference: the key, or `env:NAME` for an environment variable that holds it.
    """
    for address in addresses:
        _of_endpoints[_normal(address)] = reference


def key_for(address: str, *, environment: bool = True) -> str | None:
    """Return the key for the Triton at `address` (`host:port` or a URL), or None.

    Args:
        environment: fall back on the key in the environment, which is for any address.

    Raises:
        PhotodupError: the endpoints file names an environment variable that is not set, or the key is invalid.
    """
    address = _normal(address)
    if reference := _of_endpoints.get(address):
        name = reference.removeprefix("env:")
        if name == reference:
            return check_key(reference, f"The key of {address} in the endpoints file")
        if not (key := settings.variable(name)):
            raise PhotodupError(
                f"The endpoints file says that the control key of Triton at {address} is in the environment "
                f"variable {name}: set it."
            )
        return check_key(key, f"The key in {name}")
    for file in sorted(_folder().glob(f"{_file_name(address)}~*.key")):
        if _is_alive(file):
            with contextlib.suppress(OSError):
                return file.read_text(encoding="ascii")
    if environment and (key := settings.environment().control_key):
        return check_key(key, f"The key in {VARIABLE}")
    return None


@contextlib.contextmanager
def stored_key(addresses: Iterable[str], key: str):
    """Store `key` in files during a `with` block, for this user's other processes on this machine."""
    folder = _folder()
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    for old in folder.glob("*.key"):
        if not _is_alive(old):  # its starter was killed
            old.unlink(missing_ok=True)
    files = [folder / f"{_file_name(_normal(address))}~{os.getpid()}.key" for address in addresses]
    try:
        for file in files:
            write_atomically(file, key, mode=0o600)
        yield
    finally:
        for file in files:
            file.unlink(missing_ok=True)


def _folder() -> Path:
    return build_dir() / "triton" / "control"


def _normal(address: str) -> str:
    parts = urlsplit(address if "://" in address else f"//{address}")
    host = "127.0.0.1" if parts.hostname == "localhost" else parts.hostname
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return f"[{host}]:{port}" if ":" in (host or "") else f"{host}:{port}"


def _file_name(address: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]", "_", address)


def _is_alive(file: Path) -> bool:
    """Return whether the process that wrote this file still runs; its server ends with it."""
    owner = file.stem.rpartition("~")[2]
    return owner.isdigit() and Path(f"/proc/{owner}").exists()
