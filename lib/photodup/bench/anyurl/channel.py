"""A gRPC channel to a target: one TCP connection of its own, TLS and headers as asked."""

from typing import Any

from photodup.bench.anyurl.target import Target
from photodup.errors import PhotodupError

_LARGEST_MESSAGE = 2**31 - 1


def grpc_channel(target: Target) -> Any:
    """Return a channel with a connection of its own.

    Raises:
        PhotodupError: a certificate file cannot be read, or the check of certificates is to be left out.
    """
    import grpc

    options = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.max_send_message_length", _LARGEST_MESSAGE),
        ("grpc.max_receive_message_length", _LARGEST_MESSAGE),
    ]
    if not target.is_tls:
        return grpc.insecure_channel(target.base, options=options)
    security = target.security
    if not security.verify:
        raise PhotodupError("gRPC always checks the server's certificate: name its authority with --ca.")
    try:
        parts = [
            path.read_bytes() if path else None for path in (security.ca, security.key, security.certificate)
        ]
    except OSError as error:
        raise PhotodupError(f"A certificate file cannot be read: {error}.") from None
    return grpc.secure_channel(target.base, grpc.ssl_channel_credentials(*parts), options=options)


def grpc_metadata(target: Target) -> list[tuple[str, str]]:
    return [(name.lower(), value) for name, value in target.security.headers.items()]
