"""TCP ports for the servers that are started here."""

import errno
import socket

from photodup.errors import PhotodupError


def claim_ports(host: str, wanted: dict[str, int]) -> dict[str, int]:
    """Return a port for each name; 0 is replaced by a free one, all different.

    Args:
        host: Address that the server will listen on.
        wanted: What listens there, in words a user knows -> port or 0.

    Raises:
        PhotodupError: a port is in use, outside 1–65535, or asked for twice; or the address is not this machine's.
    """
    fixed = [port for port in wanted.values() if port]
    if len(set(fixed)) != len(fixed):
        raise PhotodupError(f"Two servers cannot share a port: {wanted}.")
    sockets: list[socket.socket] = []
    try:
        ports = {}
        for what, port in wanted.items():
            if not 0 <= port <= 65535:
                raise PhotodupError(f"{port} is no port for {what}: use 1 to 65535, or 0 for a free one.")
            probe = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            sockets.append(probe)  # held until all are found, so that two zeros give two ports
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
                probe.listen(1)  # with SO_REUSEADDR, bind alone succeeds beside some listeners
            except OSError as error:
                raise PhotodupError(why_not(error, host, port, what)) from None
            ports[what] = probe.getsockname()[1]
        return ports
    finally:
        for probe in sockets:
            probe.close()


def why_not(error: OSError, host: str, port: int, what: str) -> str:
    """Say in one sentence why `what` cannot listen on `host` and `port`, and what to do."""
    if error.errno == errno.EADDRINUSE:
        return (
            f"Port {port} for {what} is in use: stop what listens there "
            f"(`ss -ltnp 'sport = :{port}'` names it) or choose another port, 0 for any free one."
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return (
            f"{host} is no address of this machine, so {what} cannot listen there: use 127.0.0.1, 0.0.0.0 for all "
            "addresses, or one that `ip addr` shows."
        )
    if isinstance(error, socket.gaierror):
        return f"{host!r} is no address and no known host name, so {what} cannot listen there: use 127.0.0.1."
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"Port {port} for {what} needs rights that you do not have: choose one from 1024 to 65535."
    return f"{what} cannot listen on {host}, port {port}: {error.strerror or error}."
