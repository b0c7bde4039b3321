"""Decode in a process that can be killed. `decode_pool` starts it; the pipes carry one image at a time.

    python -m photodup.embedding.decode_worker MODULE:FUNCTION

The function takes (data, limits) and returns bytes. A request is two lengths, the limits as JSON and the image;
a reply is a status, a length and bytes. Nothing that an image could shape is unpickled in the parent.
"""

import contextlib
import importlib
import json
import math
import os
import signal
import struct
import sys
from typing import BinaryIO

REQUEST, REPLY = struct.Struct("<IQ"), struct.Struct("<BQ")
OK, REFUSED, FAILED = 0, 1, 2
# After the parent's own deadline: the kernel ends a worker whose parent died in the middle of an image.
_GRACE_S = 5
# Bytes that a worker may hold: some for Python and the libraries, and for each pixel two copies as RGBA and as floats.
_BASE_BYTES, _BYTES_PER_PIXEL = 1_000_000_000, 32


def main() -> None:
    """Serve requests from standard input until it closes."""
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints must not look like a reply
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which decides
    with contextlib.suppress(AttributeError, OSError):
        os.nice(5)  # honest requests are computed in the parent
    from photodup.embedding.imaging import MAX_PIXELS, ImageError

    module, _, name = sys.argv[1].partition(":")
    job = getattr(importlib.import_module(module), name)
    _reply(replies, OK, b"ready")
    while header := requests.read(REQUEST.size):
        n_limits, n_bytes = REQUEST.unpack(header)
        limits, data = json.loads(requests.read(n_limits)), requests.read(n_bytes)
        deadline_s = limits.pop("deadline_s")
        _limit_memory(limits.get("max_pixels", MAX_PIXELS))
        if hasattr(signal, "alarm"):  # not on Windows; without a handler the signal ends the process
            signal.alarm(math.ceil(deadline_s) + _GRACE_S)
        try:
            status, answer = OK, job(data, **limits)
        except ImageError as error:
            status, answer = REFUSED, error.reason.encode(errors="replace")
        except Exception as error:
            status, answer = FAILED, f"{type(error).__name__}: {error}".encode(errors="replace")
        if hasattr(signal, "alarm"):
            signal.alarm(0)
        del data
        _reply(replies, status, answer)


def _limit_memory(max_pixels: int) -> None:
    with contextlib.suppress(ImportError, OSError, ValueError):  # Windows; a system with another idea of it
        import resource

        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        wanted = _BASE_BYTES + _BYTES_PER_PIXEL * max_pixels
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _reply(replies: BinaryIO, status: int, answer: bytes) -> None:
    try:
        replies.write(REPLY.pack(status, len(answer)) + answer)
        replies.flush()
    except BrokenPipeError:  # the parent has gone
        os._exit(0)


if __name__ == "__main__":
    main()
