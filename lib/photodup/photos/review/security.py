"""Who may ask the review page anything: it listens on this machine, where other programs and pages run too."""

import hmac
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from fastapi import Request
from fastapi.responses import Response

MAX_BODY_BYTES = 1_000_000


class Guard:
    """Refuses requests that do not come from this session's own page; gives every answer its headers.

    The Host header keeps out names that were made to point here (DNS rebinding), the token keeps out other
    programs and pages, and Origin keeps out forms on other sites even if they know the token.

    Args:
        token: the first part of every address.
        port: where the page listens.
        frame_ancestors: who may show it in a frame, as CSP writes it.
    """

    def __init__(self, token: str, port: int, frame_ancestors: str) -> None:
        self._token, self._port = token, port
        self._hosts = frozenset(f"{name}:{port}" for name in ("127.0.0.1", "localhost"))
        self._headers = {
            "Content-Security-Policy": "default-src 'none'; img-src 'self'; style-src 'self'; script-src 'self'; "
            "connect-src 'self'; "
            f"form-action 'self'; base-uri 'none'; frame-ancestors {frame_ancestors}",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "same-origin",  # with no-referrer a browser sends no usable Origin
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cache-Control": "no-store",
        }

    async def __call__(
        self, request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        """Answer a request, or say why not: a middleware of FastAPI."""
        try:
            refused = self._refusal(request)
        except ValueError:  # a Content-Length that is no number
            refused = 400, "The request cannot be understood."
        if refused:
            response = Response(refused[1], refused[0], media_type="text/plain")
        else:
            response = await call_next(request)
        for name, value in self._headers.items():
            response.headers.setdefault(name, value)
        return response

    def _refusal(self, request: Request) -> tuple[int, str] | None:
        """Return the status and the sentence with which a request is refused; None if it is not."""
        if request.headers.get("host", "").lower() not in self._hosts:
            return 421, f"This page answers only as 127.0.0.1:{self._port} or localhost:{self._port}."
        given = request.scope["path"].removeprefix("/").split("/")[0]
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            return 403, "The address lacks this session's token: use the one that `photodup review` printed."
        return None if request.method in ("GET", "HEAD") else self._refusal_of_change(request)

    def _refusal_of_change(self, request: Request) -> tuple[int, str] | None:
        origin = urlsplit(request.headers.get("origin", ""))
        if origin.scheme != "http" or origin.netloc.lower() not in self._hosts:
            return 403, "The request comes from another page and was refused."
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return 403, "The request comes from another site and was refused."
        if int(request.headers.get("content-length") or MAX_BODY_BYTES + 1) > MAX_BODY_BYTES:
            return 413, "The request is too large."
        return None
