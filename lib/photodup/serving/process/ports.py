"""TCP ports for servers that we start."""

import socket

from photodup.core.addresses import cannot_listen
from photodup.core.errors import PhotodupError


def reachable_host(host: str) -> str:
    """Return the address at which this machine reaches a server listening on `host`."""
    return "127.0.0.1" if host in ("", "0.0.0.0") else host


def key_warning(host: str, service: str, variable: str) -> str:
    """Return a warning about a server without a key; empty on loopback."""
    if host in ("localhost", "::1") or host.startswith("127."):
        return ""
    return (
        f"{service} listens at {host or 'all addresses'} and asks for no key, so everybody who reaches this machine can "
        f"use it: set {variable}, or listen at 127.0.0.1."
    )


def claim_ports(host: str, requested: dict[str, int]) -> dict[str, int]:
    """Return a port for each name; 0 becomes a free one.

    Args:
        host: address to listen on.
        requested: name of a server, as a user knows it -> port or 0.

    Raises:
        PhotodupError: a port is in use, outside 1–65535, or given twice, or the address is not this machine's.
    """
    fixed = [port for port in requested.values() if port]
    if len(set(fixed)) != len(fixed):
        raise PhotodupError(f"Two servers cannot share a port: {requested}.")
    sockets: list[socket.socket] = []
    try:
        ports = {}
        for name, port in requested.items():
            if not 0 <= port <= 65535:
                raise PhotodupError(f"{port} is no port for {name}: use 1 to 65535, or 0 for a free one.")
            probe = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            sockets.append(probe)  # kept open until the end, so that two zeros give two ports
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
                probe.listen(1)  # with SO_REUSEADDR, bind alone succeeds beside some listeners
            except OSError as error:
                raise PhotodupError(cannot_listen(error, host, port, name)) from None
            ports[name] = probe.getsockname()[1]
        return ports
    finally:
        for probe in sockets:
            probe.close()
