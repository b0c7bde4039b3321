"""The one exception that a user is meant to read, and which others say something about the world, not about us."""

import subprocess
import sys
from concurrent.futures import BrokenExecutor
from http.client import HTTPException


class PhotodupError(Exception):
    """Something the user can act on: one sentence that names the thing and the remedy.

    The command line prints the message without a traceback and exits with status 2.
    """


class ServerError(PhotodupError):
    """A server that does not answer, is not the one that was meant, or has an address that cannot work."""


_EXPECTED = (PhotodupError, OSError, EOFError, HTTPException, subprocess.SubprocessError, BrokenExecutor)
# Libraries' own errors of a network or a process; looked up only in a module that is loaded already.
_OF_LIBRARIES = {
    "grpc": "RpcError",
    "httpx": "HTTPError",
    "psutil": "Error",
    "requests": "RequestException",
    "tritonclient.utils": "InferenceServerException",
}


def is_expected(error: BaseException) -> bool:
    """Say whether an exception tells of a server, a network, a file or a process, or is a `PhotodupError`.

    A measurement records such a one as its result. Any other is a mistake in a program and must be seen as one.
    """
    loaded = ((sys.modules.get(module), name) for module, name in _OF_LIBRARIES.items())
    kinds = [getattr(module, name) for module, name in loaded if hasattr(module, name)]
    return isinstance(error, (*_EXPECTED, *kinds))
