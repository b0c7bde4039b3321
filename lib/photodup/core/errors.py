"""`PhotodupError`, whose sentence a user can act on, and which other exceptions are expected."""

import subprocess
import sys
from concurrent.futures import BrokenExecutor
from http.client import HTTPException


class PhotodupError(Exception):
    """Something the user can act on: one sentence that names the thing and the remedy.

    The command line prints the message without a traceback and exits with status 2.
    """


class ServerError(PhotodupError):
    """A server that does not answer, is another server, or has an address that cannot work."""


_EXPECTED = (PhotodupError, OSError, EOFError, HTTPException, subprocess.SubprocessError, BrokenExecutor)
# Libraries' own errors of a network or a process; only modules that are loaded are looked at.
_OF_LIBRARIES = {
    "grpc": "RpcError",
    "httpx": "HTTPError",
    "psutil": "Error",
    "tritonclient.utils": "InferenceServerException",
}


def is_expected(error: BaseException) -> bool:
    """Return whether an exception comes from a server, a network, a file or a process, or is a `PhotodupError`.

    A measurement records it as its result. Any other exception is a bug and must end the program.
    """
    loaded = ((sys.modules.get(module), name) for module, name in _OF_LIBRARIES.items())
    kinds = [getattr(module, name) for module, name in loaded if hasattr(module, name)]
    return isinstance(error, (*_EXPECTED, *kinds))
