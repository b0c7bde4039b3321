"""Check addresses of servers, and say why one cannot be listened on."""

import errno
import ipaddress
import re
import socket
from urllib.parse import urlsplit

from photodup.core.errors import ServerError


def http_address(url: str, name: str = "") -> str:
    """Return `url` without a final slash.

    Args:
        url: `http://host:port`, or `https://host`; a port that is left out is the scheme's own.
        name: of the server, for the message, such as a backend's name.

    Raises:
        ServerError: `url` is written otherwise.
    """
    scheme, host, port = _parts(url)
    if scheme not in ("http", "https") or not host or port is False:
        raise ServerError(_refusal(url, "HTTP", name, "http://host:port"))
    return url.rstrip("/")


def grpc_address(url: str, name: str = "") -> str:
    """Return `url` as `host:port`, the form that gRPC takes; a `grpc://` before it is removed.

    Raises:
        ServerError: `url` is written otherwise.
    """
    scheme, host, port = _parts(url)
    if scheme not in ("", "grpc") or not host or not port:
        raise ServerError(_refusal(url, "gRPC", name, "host:port, without http://"))
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def masked(url: str) -> str:
    """Return a URL as it may be shown and kept: without user and password, and without the values of its query."""
    address, mark, query = re.sub(r"(?<=//).*@", "…@", url).partition("?")
    return address + mark + re.sub(r"(?<==)[^&]+|(?<![^&])[^&=]+(?![^&])", "…", query)


def is_loopback(url: str) -> bool:
    """Return whether an address (`host:port` or a URL) is this machine's own."""
    host = _parts(url)[1].lower().rstrip(".")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified


def cannot_listen(error: OSError, host: str, port: int, name: str) -> str:
    """Say in one sentence why `name` cannot listen on `host` and `port`, and what to do."""
    if error.errno == errno.EADDRINUSE:
        return (
            f"Port {port} for {name} is in use: stop what listens there "
            f"(`ss -ltnp 'sport = :{port}'` names it) or choose another port, 0 for any free one."
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return (
            f"{host} is no address of this machine, so {name} cannot listen there: use 127.0.0.1, 0.0.0.0 for all "
            "addresses, or one that `ip addr` shows."
        )
    if isinstance(error, socket.gaierror):
        return f"{host!r} is no address and no known host name, so {name} cannot listen there: use 127.0.0.1."
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"Port {port} for {name} needs rights that you do not have: choose one from 1024 to 65535."
    return f"{name} cannot listen on {host}, port {port}: {error.strerror or error}."


def _parts(url: str) -> tuple[str, str, int | bool | None]:
    """Return scheme, host and port: None where there is none, False where it is no number from 1 to 65535."""
    try:
        parts = urlsplit(url if "://" in url else f"//{url}")
        port = parts.port
        (parts.hostname or "").encode("idna")
    except ValueError:  # no number, one beyond 65535, an open bracket, a part of a name empty or too long
        return "", "", False
    return parts.scheme, parts.hostname or "", False if port == 0 else port


def _refusal(url: str, kind: str, name: str, form: str) -> str:
    return f"{masked(url)!r} is no {kind} address{f' for {name}' if name else ''}: use {form}."
