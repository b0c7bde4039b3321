"""The FastAPI application: routes, early refusals (API key, overload), and the server."""

import asyncio
import contextlib
import hmac
import logging
import sys
from collections.abc import AsyncIterator, Callable
from types import FrameType
from typing import Any, Literal

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from photodup.core.errors import PhotodupError
from photodup.core.http_protocol import ImpatientProtocol
from photodup.embedding.engines.reduced import verdict_on
from photodup.serving.process.ports import claim_ports, key_warning
from photodup.serving.service.bodies import Base64Request, RequestError, RequestProblem
from photodup.serving.service.handler import Service
from photodup.serving.service.settings import ServiceSettings, read_settings

log = logging.getLogger("photodup.service")

Encoding = Literal["float", "base64"]


class Embeddings(BaseModel):
    """One embedding per image, in the order sent, of length 1.

    Numbers by default; with `?encoding=base64` each is the base64 of its float32 values, little-endian.
    """

    embeddings: list[list[float]] | list[str]


class ServiceLimits(BaseModel):
    max_images: int
    max_body_bytes: int
    max_pixels: int
    max_request_pixels: int
    batch_max: int
    batch_delay_ms: float


class Info(BaseModel):
    """The model and its limits. Embeddings with equal `digest` are comparable."""

    name: str
    pretrained: str
    digest: str
    is_random: bool
    dim: int
    device: str
    gpus: list[str] = Field(description="model of each GPU that the driver lists, whether it is used or not")
    engine: str
    precision: str
    accuracy_check: str = Field(
        description="of a reduced precision: passed, refused, undecided, not asked; not needed at fp32"
    )
    jpeg_scale: str = Field(description="whole, or reduced: large JPEGs are decoded at a smaller size")
    runtime: dict[str, str] = Field(
        description="of the engine: library, version, threads, whether they spin while they wait; Pillow's version"
    )
    limits: ServiceLimits


class Status(BaseModel):
    status: str


def _taking(media_type: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {media_type: {"schema": schema}}}}


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": RequestProblem} for status in (400, 401, 408, 413, 415, 422, 500, 503)
}
FILES = {
    "type": "object",
    "properties": {
        "files": {"type": "array", "items": {"type": "string", "format": "binary"}, "minItems": 1}
    },
    "required": ["files"],
}

# Health checks, such as a cluster's, need no key.
OPEN_PATHS = frozenset({"/healthz", "/readyz", "/health"})
_WORK_PATHS = frozenset({"/embed", "/embed/base64"})
_NO_KEY = "This service asks for an API key: send it as X-API-Key, or as Authorization: Bearer KEY."


def refusal(service: Service, path: str, error: RequestError) -> JSONResponse:
    """Count a refused request and return its answer."""
    if path in _WORK_PATHS:
        service.counters.count_request(error.status)
    headers = {
        401: {"WWW-Authenticate": "Bearer"},
        408: {"Connection": "close"},  # do not wait for the rest of a slow body
        503: {"Retry-After": str(error.retry_after_s)},
    }.get(error.status)
    return JSONResponse(error.problem.model_dump(), error.status, headers)


class EarlyRefusal:
    """ASGI middleware that refuses requests before any work: without the API key, or if embeddings would wait too long.

    At ten times the load nine of ten requests end here.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        key = service.settings.api_key
        self._app, self._service = app, service
        self._api_key = key.get_secret_value().encode() if key else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # the server leaves the body out
        if scope["type"] == "http" and (answer := self._refuse(scope)):
            await answer(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _refuse(self, scope: Scope) -> JSONResponse | None:
        path = scope["path"]
        try:
            if self._api_key and path not in OPEN_PATHS and not self._has_key(Headers(scope=scope)):
                raise RequestError(401, _NO_KEY)
            if path in _WORK_PATHS and scope["method"] == "POST" and self._service.batcher:
                self._service.admission.check()
        except RequestError as error:
            return refusal(self._service, path, error)
        return None

    def _has_key(self, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        key = headers.get("x-api-key") or (token.strip() if scheme.lower() == "bearer" else "")
        return self._api_key is not None and hmac.compare_digest(key.encode(), self._api_key)


def create_app(settings: ServiceSettings, on_failure: Callable[[str], None] = log.error) -> FastAPI:
    """Build the application, which loads its model at the start, while `/healthz` answers.

    Args:
        on_failure: called with the error when the model cannot be loaded. Clients do not get it: it may name a path.
    """
    service = Service(settings)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        loading = asyncio.create_task(_load(service, on_failure))
        yield
        await loading
        service.close()

    app = FastAPI(
        title="photodup embedding service",
        description="OpenCLIP image embeddings of encoded images (JPEG, PNG, WebP, TIFF, HEIC, AVIF, GIF, BMP).",
        version="1",
        lifespan=lifespan,
    )
    app.state.service = service
    app.add_middleware(EarlyRefusal, service=service)

    @app.exception_handler(RequestError)
    async def refuse(request: Request, error: RequestError) -> JSONResponse:
        return refusal(service, request.url.path, error)

    @app.exception_handler(RequestValidationError)
    async def refuse_parameter(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        return await refuse(request, RequestError(422, f"{first['loc'][-1]}: {first['msg']}."))

    @app.exception_handler(Exception)
    async def fail(request: Request, error: Exception) -> JSONResponse:
        return await refuse(request, RequestError(500, "The service failed; its log says why."))

    form = _taking("multipart/form-data", FILES)
    as_json = _taking("application/json", Base64Request.model_json_schema())

    @app.post("/embed", response_model=Embeddings, responses=ERRORS, openapi_extra=form)
    async def embed(request: Request, encoding: Encoding = "float") -> Response:
        """Embed the files of a form, one or many, whatever the field is called."""
        return await service.embed(request, service.read_files, encoding)

    @app.post("/embed/base64", response_model=Embeddings, responses=ERRORS, openapi_extra=as_json)
    async def embed_base64(request: Request, encoding: Encoding = "float") -> Response:
        """Embed images given as base64 in JSON."""
        return await service.embed(request, service.read_json, encoding)

    @app.get("/healthz")
    async def healthz() -> Status:
        """Tell that the process is alive, also while the model is loading."""
        return Status(status="ok")

    @app.get("/readyz", response_model=Status, responses={503: {"model": Status}})
    @app.get("/health", response_model=Status, responses={503: {"model": Status}})
    async def readyz() -> Response:
        """Tell whether images can be embedded now."""
        if service.batcher is not None and service.batcher.is_alive():
            return JSONResponse({"status": "ok"})
        return JSONResponse({"status": "failed" if service.failure else "loading"}, 503)

    @app.get("/info", responses={503: {"model": RequestProblem}})
    async def info() -> Info:
        """Tell which model this is and what a request may hold."""
        if (model := service.model) is None:
            raise RequestError(503, service.failure or "The model is still loading.")
        s = service.settings
        stated_fields = ("name", "pretrained", "is_random", "dim", "engine", "precision")
        limits = s.model_dump(include=set(ServiceLimits.model_fields))
        return Info(
            **{name: getattr(model, name) for name in stated_fields},
            digest=service.digest,
            jpeg_scale="reduced" if service.decoder.draft_size else "whole",
            device=getattr(model, "device", "cpu"),
            gpus=service.counters.gpus.names(),
            accuracy_check=verdict_on(model),
            runtime=getattr(model, "runtime", dict)(),
            limits=ServiceLimits(**limits, max_body_bytes=int(s.max_body_mb * 1e6)),
        )

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """Give the counters as Prometheus text."""
        return Response(service.counters.page(), media_type=service.counters.content_type)

    return app


async def _load(service: Service, on_failure: Callable[[str], None]) -> None:
    try:
        await asyncio.to_thread(service.load)
    except PhotodupError as error:
        failure = str(error)
    except Exception as error:  # a defect: log the traceback, and do not hang half-started
        log.exception("the model cannot be loaded")
        failure = f"The model cannot be loaded ({type(error).__name__}: {error})."
    else:
        return
    service.failure = "The model cannot be loaded; the log of the service has the reason."
    on_failure(failure)


def main() -> int:
    """Serve until SIGINT or SIGTERM; return the exit status, 2 if the start failed."""
    try:
        settings = read_settings()
        (settings.port,) = claim_ports(settings.host, {"the FastAPI service (PORT)": settings.port}).values()
    except PhotodupError as error:
        print(f"photodup: {error}", file=sys.stderr)
        return 2
    level = settings.log_level.lower()
    logging.basicConfig(
        level=level.upper().replace("TRACE", "DEBUG"), format="%(levelname)s %(name)s: %(message)s"
    )
    if not settings.api_key and (warning := key_warning(settings.host, "The service", "API_KEY")):
        print(f"photodup: warning: {warning}", file=sys.stderr, flush=True)  # whatever LOG_LEVEL hides
    failures: list[str] = []

    def stop(sentence: str) -> None:
        failures.append(sentence)
        server.should_exit = True

    app = create_app(settings, stop)

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            app.state.service.decoder.hurry()
            super().handle_exit(sig, frame)

    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_level=level,
        access_log=level in ("debug", "trace"),  # a line per request costs as much as encoding the answer
        http=ImpatientProtocol,
        timeout_graceful_shutdown=settings.drain_seconds,
        timeout_keep_alive=75,  # longer than the pauses of a measurement with idle connections
    )
    server = Server(config)
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it again once all is answered
        server.run()
    if failures:
        print(f"photodup: {failures[0]}", file=sys.stderr)
    return 2 if failures else 0
