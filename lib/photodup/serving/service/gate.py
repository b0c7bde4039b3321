"""Before a request reaches the application: the API key, and the refusal of what would wait too long.

Pure ASGI, because under ten times the load nine of ten requests end here, and must cost next to nothing.
"""

import hmac
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from photodup.serving.service import openai_form
from photodup.serving.service.admission import Refused
from photodup.serving.service.bodies import Problem

# Asked by whoever watches the service, a cluster say, and without a secret.
OPEN_PATHS = frozenset({"/healthz", "/readyz", "/health"})
_WORK_PATHS = frozenset({"/embed", "/embed/base64", openai_form.PATH})


def refusal(path: str, status: int, sentence: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """Return the answer of a 4xx or 503."""
    body = openai_form.error_body(path, status, sentence, lambda: Problem(detail=sentence).model_dump())
    return JSONResponse(body, status, headers)


class Gate:
    """ASGI middleware.

    Args:
        app: the application.
        api_key: asked of every path but the health checks; None asks for none.
        check: raises Refused when a request for embeddings would wait too long.
        count: told the status of each request for embeddings that is refused here.
    """

    def __init__(
        self, app: ASGIApp, *, api_key: str | None, check: Callable[[], None], count: Callable[[int], None]
    ) -> None:
        self._app, self._check, self._count = app, check, count
        self._api_key = api_key.encode() if api_key else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (answer := self._refuse(scope)):
            await answer(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _refuse(self, scope: Scope) -> JSONResponse | None:
        path = scope["path"]
        if self._api_key and path not in OPEN_PATHS and not self._is_known(Headers(scope=scope)):
            if path in _WORK_PATHS:
                self._count(401)
            return refusal(
                path,
                401,
                "This service asks for an API key: send it as X-API-Key, or as Authorization: Bearer KEY.",
                {"WWW-Authenticate": "Bearer"},
            )
        if path in _WORK_PATHS and scope["method"] == "POST":
            try:
                self._check()
            except Refused as error:
                self._count(503)
                return refusal(path, 503, error.sentence, {"Retry-After": str(error.retry_after_s)})
        return None

    def _is_known(self, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = headers.get("x-api-key") or (token.strip() if scheme.lower() == "bearer" else "")
        return self._api_key is not None and hmac.compare_digest(given.encode(), self._api_key)
