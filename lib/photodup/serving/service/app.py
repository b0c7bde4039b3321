"""The routes of the FastAPI service, and what its faults are answered with."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Literal

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from photodup.embedding.engines.reduced import verdict_on
from photodup.errors import PhotodupError
from photodup.serving.service.answers import (
    FILES,
    OPENAI_RESPONSES,
    RESPONSES,
    Embeddings,
    Info,
    Limits,
    Status,
)
from photodup.serving.service.bodies import Base64Request, Problem, RequestError
from photodup.serving.service.gate import Gate
from photodup.serving.service.openai_form import (
    EmbeddingsAnswer,
    EmbeddingsRequest,
    Models,
    OpenAiProblem,
    error_body,
    models_of,
)
from photodup.serving.service.service import Service, encode
from photodup.serving.service.settings import Settings, read_settings

log = logging.getLogger("photodup.service")

Encoding = Literal["float", "base64"]


def create_app(settings: Settings | None = None, on_failure: Callable[[str], None] | None = None) -> FastAPI:
    """Build the application; the model is loaded when it starts, while `/healthz` answers already.

    Args:
        settings: read from the environment by default.
        on_failure: told the sentence when the model cannot be loaded.
    """
    service = Service(settings or read_settings())

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
    key = service.settings.api_key

    def check() -> None:
        if service.batcher:
            service.admission.check()

    app.add_middleware(
        Gate,
        api_key=key.get_secret_value() if key else None,
        check=check,
        count=service.stages.request,
    )

    @app.exception_handler(RequestError)
    async def refuse(request: Request, error: RequestError) -> JSONResponse:
        service.stages.request(error.status)
        # The rest of a body that came too slowly is not waited for.
        headers = {503: {"Retry-After": str(error.retry_after_s)}, 408: {"Connection": "close"}}.get(
            error.status
        )
        body = error_body(request.url.path, error.status, str(error), error.problem.model_dump)
        return JSONResponse(body, error.status, headers)

    @app.exception_handler(RequestValidationError)
    async def refuse_parameter(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        service.stages.request(422)
        return JSONResponse(Problem(detail=f"{first['loc'][-1]}: {first['msg']}.").model_dump(), 422)

    @app.exception_handler(Exception)
    async def fail(request: Request, error: Exception) -> JSONResponse:
        service.stages.request(500)
        said = Problem(detail="The service failed; its log says why.")
        return JSONResponse(error_body(request.url.path, 500, said.detail, said.model_dump), 500)

    multipart = {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": FILES}}}}
    as_json = {"application/json": {"schema": Base64Request.model_json_schema()}}

    @app.post("/embed", response_model=Embeddings, responses=RESPONSES, openapi_extra=multipart)
    async def embed(request: Request, encoding: Encoding = "float") -> Response:
        """Embed the files of a form, one or many, whatever the field is called."""
        return await service.embed(request, service.read_files, partial(encode, encoding=encoding))

    @app.post(
        "/embed/base64",
        response_model=Embeddings,
        responses=RESPONSES,
        openapi_extra={"requestBody": {"required": True, "content": as_json}},
    )
    async def embed_base64(request: Request, encoding: Encoding = "float") -> Response:
        """Embed images given as base64 in JSON."""
        return await service.embed(request, service.read_json, partial(encode, encoding=encoding))

    asked = {"application/json": {"schema": EmbeddingsRequest.model_json_schema()}}

    @app.post(
        "/v1/embeddings",
        response_model=EmbeddingsAnswer,
        responses=OPENAI_RESPONSES,
        openapi_extra={"requestBody": {"required": True, "content": asked}},
    )
    async def embed_openai(request: Request) -> Response:
        """Embed images given as data URIs, in OpenAI's form."""
        return await service.embed_openai(request)

    @app.get("/v1/models", response_model=Models, responses={503: {"model": OpenAiProblem}})
    async def models() -> Response:
        """List the one model, in OpenAI's form."""
        return JSONResponse(models_of(service.ready()[0]))

    @app.get("/healthz", response_model=Status)
    async def healthz() -> dict:
        """Tell that the process is alive, also while the model is loading."""
        return {"status": "ok"}

    @app.get("/readyz", response_model=Status, responses={503: {"model": Status}})
    @app.get("/health", response_model=Status, responses={503: {"model": Status}})
    async def readyz() -> Response:
        """Tell whether images can be embedded now."""
        if service.batcher is not None and service.batcher.is_alive():
            return JSONResponse({"status": "ok"})
        return JSONResponse({"status": service.failure or "loading"}, 503)

    @app.get("/info", response_model=Info, responses={503: {"model": Problem}})
    async def info() -> Info:
        """Tell which model this is and what a request may hold."""
        if (model := service.model) is None:
            raise RequestError(503, service.failure or "The model is still loading.")
        s = service.settings
        return Info(
            name=model.name,
            pretrained=model.pretrained,
            digest=model.digest,
            is_random=model.is_random,
            dim=model.dim,
            device=getattr(model, "device", "cpu"),
            engine=model.engine,
            precision=model.precision,
            gate=verdict_on(model),
            limits=Limits(
                max_images=s.max_images,
                max_body_bytes=int(s.max_body_mb * 1e6),
                max_pixels=s.max_pixels,
                max_request_pixels=s.max_request_pixels,
                batch_max=s.batch_max,
                batch_delay_ms=s.batch_delay_ms,
            ),
        )

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """Give the counters as Prometheus text."""
        return Response(service.stages.page(), media_type=service.stages.content_type)

    return app


async def _load(service: Service, on_failure: Callable[[str], None] | None) -> None:
    try:
        await asyncio.to_thread(service.load)
    except PhotodupError as error:
        service.failure = str(error)
    except Exception as error:  # Anything else is a defect: keep the traceback, but do not hang half-started.
        log.exception("the model cannot be loaded")
        service.failure = f"The model cannot be loaded ({type(error).__name__}: {error})."
    if service.failure and on_failure:
        on_failure(service.failure)
