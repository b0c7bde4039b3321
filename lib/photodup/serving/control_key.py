"""The key that a Triton's control needs: model loading, shared memory, tracing and logging.

Whoever may load a model runs Python as the server's user, and a web page can send such a request to loopback.
So every Triton of this project starts with these parts restricted: a request without the key gets 403 over HTTP
and UNAVAILABLE over gRPC. Inference, health, metadata, configuration (to read) and statistics stay open.

Who knows the key of a Triton:

* an embedded server makes a new one at each start, and keeps it in a file that only this user can read
  (`build/triton/control/`, gone with the server), so that notebooks and commands of this user find it;
* an endpoints file may carry that of a server elsewhere (`triton_control_key`);
* the environment variable `PHOTODUP_TRITON_CONTROL_KEY` is used for any other that is told to load or change a model,
  and is not sent to a server that is merely asked what it has.
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
"""What the key opens. docker/start-triton.sh and k8s/ name the same parts (tests/servers/test_triton_deployed.py)."""

_KEY = re.compile(r"[A-Za-z0-9_-]{16,256}")  # what Triton's own parser of options splits at must not occur
_of_endpoints: dict[str, str] = {}


def new_key() -> str:
    """Return 256 random bits in hexadecimal."""
    return secrets.token_hex(32)


def restriction(key: str) -> str:
    """Return the value of `--http-restricted-api` and `--grpc-restricted-protocol`.

    The separator before the header is a colon. The help of Triton 2.51 shows a comma, which it refuses.
    """
    return f"{','.join(RESTRICTED)}:{HEADER}={check_key(key)}"


def http_headers(address: str, *, environment: bool = True) -> dict[str, str]:
    """Return the headers that a control request over HTTP to `address` needs; none for an unknown key."""
    key = key_for(address, environment=environment)
    return {HEADER: key} if key else {}


def grpc_metadata(address: str, *, environment: bool = True) -> dict[str, str] | None:
    """Return the metadata that a control request over gRPC to `address` needs; None for an unknown key."""
    key = key_for(address, environment=environment)
    return {f"triton-grpc-protocol-{HEADER}": key} if key else None


def check_key(key: str, where: str = "The control key of Triton") -> str:
    """Return `key`; its value is never part of the error.

    Raises:
        PhotodupError: it is too short or has characters that Triton's options cannot hold.
    """
    if not _KEY.fullmatch(key):
        raise PhotodupError(
            f"{where} should be 16 to 256 letters, digits, '-' and '_': make one with `openssl rand -hex 32`."
        )
    return key


def use(addresses: Iterable[str], reference: str) -> None:
    """Use the key of an endpoints file for these addresses, in this process.

    Args:
        addresses: `host:port` or `http://host:port` of Tritons.
        reference: the key, or `env:NAME` for the environment variable that holds it, read when it is needed.
    """
    for address in addresses:
        _of_endpoints[_normal(address)] = reference


def key_for(address: str, *, environment: bool = True) -> str | None:
    """Return the key for the Triton at `address` (`host:port` or a URL); None if no one was given.

    Args:
        environment: whether to fall back on the key in the environment, which belongs to no certain address.

    Raises:
        PhotodupError: the endpoints file names an environment variable that is not set, or the key cannot be one.
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
def kept(addresses: Iterable[str], key: str):
    """Keep `key` in files for the length of a `with` block, for other processes of this user on this machine."""
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
    """Say whether the process that wrote this file still runs: a server does not outlive it."""
    owner = file.stem.rpartition("~")[2]
    return owner.isdigit() and Path(f"/proc/{owner}").exists()
