"""The FastAPI service: encoded images in, embeddings out.

Stateless. A request goes through the event loop (body), a pool of threads (decode), one thread that owns the
model (queue, compute) and back. The event loop never computes, so `/healthz` answers under load.
`BATCH_MAX=1` is the published service: one request at a time. Settings are read from the environment.

    MODEL_PRETRAINED=random:0 PORT=8002 python -m photodup.serving.service
"""

import asyncio
import base64
import contextlib
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field, ValidationError
from pydantic_core import to_json
from pydantic_settings import BaseSettings, SettingsConfigDict

from photodup.embedding.engines.encoder import DEFAULT_NAME, DEFAULT_PRETRAINED, ImageModel, load_encoder
from photodup.embedding.engines.reduced import verdict_on
from photodup.embedding.imaging import ImageError, decode, to_uint8
from photodup.errors import PhotodupError
from photodup.serving.service import bodies
from photodup.serving.service.batching import Batcher
from photodup.serving.service.bodies import Base64Request, ImageProblem, Problem, RequestError
from photodup.serving.service.stages import Stages

log = logging.getLogger("photodup.service")


class Settings(BaseSettings):
    """Each field is an environment variable of the same name in capitals."""

    model_config = SettingsConfigDict(protected_namespaces=(), extra="ignore")

    model_name: str = DEFAULT_NAME
    model_pretrained: str = DEFAULT_PRETRAINED
    device: str | None = Field(None, description="cpu, cuda, mps; the best there is by default")
    engine: str | None = Field(
        None, description="pytorch, compile, onnx or openvino; by default as the weights come"
    )
    precision: str = Field("fp32", description="fp32, bf16 or int8, as far as the engine has it")
    threads: int | None = Field(None, ge=1, description="CPU threads of the model; all cores by default")
    streams: int = Field(1, ge=1, description="OpenVINO: inferences at once, which share the threads")
    host: str = Field("127.0.0.1", description="0.0.0.0 to be reachable from other machines")
    port: int = Field(8002, ge=0, le=65535)
    log_level: str = Field("info", pattern="(?i)^(critical|error|warning|info|debug|trace)$")
    batch_max: int = Field(32, ge=1, description="images computed together across requests; 1 is off")
    batch_delay_ms: float = Field(5.0, ge=0, description="longest wait for requests to compute together")
    max_images: int = Field(64, ge=1, description="images in one request")
    max_body_mb: float = Field(100, gt=0, description="body of one request")
    max_buffered_mb: float = Field(512, gt=0, description="bodies of all requests in flight")
    max_in_flight: int = Field(256, ge=1, description="requests in flight; more are answered 503")
    max_pixels: int = Field(50_000_000, ge=1, description="width × height of one image")
    decode_threads: int = Field(default_factory=lambda: min(8, os.cpu_count() or 1), ge=1)


class Embeddings(BaseModel):
    """One embedding per image, in the order sent, of length 1.

    Numbers by default; with `?encoding=base64` each is the base64 of its float32 values, little-endian.
    """

    embeddings: list[list[float]] | list[str]


class Limits(BaseModel):
    max_images: int
    max_body_bytes: int
    max_pixels: int
    batch_max: int
    batch_delay_ms: float


class Info(BaseModel):
    """What the service computes. Embeddings are comparable if their `digest` is the same."""

    name: str
    pretrained: str
    digest: str
    is_random: bool
    dim: int
    device: str
    engine: str
    precision: str
    gate: str = Field(
        description="of a reduced precision: passed, refused, undecided or not asked; else not needed"
    )
    limits: Limits


class Status(BaseModel):
    status: str


class Service:
    """State of a running service: model, threads, counters."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.stages = Stages()
        self.budget = bodies.Budget(int(settings.max_buffered_mb * 1e6))
        self.in_flight = 0
        self.model: ImageModel | None = None
        self.batcher: Batcher | None = None
        self.failure: str | None = None
        self.pool = ThreadPoolExecutor(settings.decode_threads, thread_name_prefix="decode")

    def load(self) -> None:
        """Load and warm the model; takes seconds, in a thread."""
        s = self.settings
        model = load_encoder(
            s.model_pretrained,
            engine=s.engine or None,
            precision=s.precision,
            threads=s.threads,
            streams=s.streams,
            device=s.device,
            name=s.model_name,
        )
        model.embed_pixels(np.zeros((1, 3, 224, 224), np.uint8))
        log.info("%s/%s is ready, digest %s", model.name, model.pretrained, model.digest[:12])
        self.model = model
        self.batcher = Batcher(
            model.embed_pixels,
            batch_max=s.batch_max,
            delay_s=s.batch_delay_ms / 1000,
            on_execution=self.stages.execution,
        )

    def close(self) -> None:
        if self.batcher:
            self.batcher.close()
        self.pool.shutdown(cancel_futures=True)

    def pixels(self, images: list[bytes]) -> np.ndarray:
        """Decode the images of one request to uint8 [n, 3, 224, 224], in one thread: requests share the pool."""
        decoded, problems = [], []
        for index, data in enumerate(images):
            try:
                decoded.append(to_uint8(decode(data, max_pixels=self.settings.max_pixels)))
            except ImageError as error:
                problems.append(ImageProblem(index=index, reason=error.reason))
        if problems:
            raise bodies.bad_images(problems)
        return np.stack(decoded)

    async def embed(self, request: Request, read: "Reader", encoding: str) -> Response:
        """Serve one request for embeddings."""
        if self.batcher is None:
            raise RequestError(503, self.failure or "The model is still loading: retry when /readyz says so.")
        if self.in_flight >= self.settings.max_in_flight:
            raise RequestError(503, f"{self.in_flight} requests are in flight already: retry in a second.")
        self.in_flight += 1
        self.stages.in_flight.inc()
        try:
            with self.budget.open() as share:
                started = time.perf_counter()
                images = await read(request, share)
                received = time.perf_counter()
                loop = asyncio.get_running_loop()
                pixels = await loop.run_in_executor(self.pool, self.pixels, images)
                del images
            decoded = time.perf_counter()
            computed = await asyncio.wrap_future(self.batcher.submit(pixels))
            before = time.perf_counter()
            body = _encode(computed.embeddings, encoding)
            for name, seconds in (
                ("receive", received - started),
                ("decode", decoded - received),
                ("queue", computed.queue_s),
                ("compute", computed.compute_s),
                ("respond", time.perf_counter() - before),
            ):
                self.stages.stage(name, seconds)
            self.stages.request(200)
            return Response(
                body, media_type="application/json", headers={"X-Model-Digest": self.model.digest}
            )
        finally:
            self.in_flight -= 1
            self.stages.in_flight.dec()

    async def read_files(self, request: Request, share: bodies.Share) -> list[bytes]:
        _require(request, "multipart/form-data")
        s = self.settings
        chunks = bodies.stream(request, int(s.max_body_mb * 1e6), share)
        return await bodies.read_multipart(request.headers, chunks, s.max_images)

    async def read_json(self, request: Request, share: bodies.Share) -> list[bytes]:
        _require(request, "application/json")
        s = self.settings
        body = bytearray()
        async for chunk in bodies.stream(request, int(s.max_body_mb * 1e6), share):
            body += chunk
        if len(body) < 1 << 18:
            return bodies.read_base64(bytes(body), s.max_images)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.pool, bodies.read_base64, bytes(body), s.max_images)


Reader = Callable[[Request, bodies.Share], "asyncio.Future[list[bytes]]"]
Encoding = Literal["float", "base64"]

_ERRORS = {
    400: "An image cannot be read, or is too large once decoded; or the body is cut short",
    413: "Too many images, or too large a body",
    415: "Another content type is needed",
    422: "The body has another form",
    503: "Not ready, or too much at a time: retry",
}
_RESPONSES = {status: {"model": Problem, "description": text} for status, text in _ERRORS.items()}
_FILES = {
    "type": "object",
    "properties": {
        "files": {"type": "array", "items": {"type": "string", "format": "binary"}, "minItems": 1}
    },
    "required": ["files"],
}


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

    @app.exception_handler(RequestError)
    async def refuse(request: Request, error: RequestError) -> JSONResponse:
        service.stages.request(error.status)
        headers = {"Retry-After": "1"} if error.status == 503 else None
        return JSONResponse(error.problem.model_dump(), error.status, headers)

    @app.exception_handler(RequestValidationError)
    async def refuse_parameter(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        service.stages.request(422)
        return JSONResponse(Problem(detail=f"{first['loc'][-1]}: {first['msg']}.").model_dump(), 422)

    @app.exception_handler(Exception)
    async def fail(request: Request, error: Exception) -> JSONResponse:
        service.stages.request(500)
        return JSONResponse(Problem(detail="The service failed; its log says why.").model_dump(), 500)

    multipart = {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _FILES}}}}
    as_json = {"application/json": {"schema": Base64Request.model_json_schema()}}

    @app.post("/embed", response_model=Embeddings, responses=_RESPONSES, openapi_extra=multipart)
    async def embed(request: Request, encoding: Encoding = "float") -> Response:
        """Embed the files of a form, one or many, whatever the field is called."""
        return await service.embed(request, service.read_files, encoding)

    @app.post(
        "/embed/base64",
        response_model=Embeddings,
        responses=_RESPONSES,
        openapi_extra={"requestBody": {"required": True, "content": as_json}},
    )
    async def embed_base64(request: Request, encoding: Encoding = "float") -> Response:
        """Embed images given as base64 in JSON."""
        return await service.embed(request, service.read_json, encoding)

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


def _require(request: Request, content_type: str) -> None:
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != content_type:
        other = "/embed/base64" if content_type.startswith("multipart") else "/embed"
        raise RequestError(
            415,
            f"{request.url.path} takes {content_type}, not {given or 'an untyped body'}; see also {other}.",
        )


def _encode(embeddings: np.ndarray, encoding: str) -> bytes:
    if encoding == "base64":
        rows = [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in embeddings]
        return to_json({"embeddings": rows})
    return to_json({"embeddings": embeddings.tolist()})  # ten times faster than json.dumps for floats


def read_settings() -> Settings:
    """Read the environment.

    Raises:
        PhotodupError: a variable has a value that makes no sense; it is named.
    """
    try:
        return Settings()
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]).upper()
        raise PhotodupError(f"{name}={first['input']}: {first['msg']}.") from None


def main() -> int:
    """Serve until SIGINT or SIGTERM; return 2 when it could not."""
    import uvicorn

    from photodup.serving.process.ports import claim_ports

    try:
        settings = read_settings()
        port = claim_ports(settings.host, {"the FastAPI service (PORT)": settings.port})
        settings.port = next(iter(port.values()))
    except PhotodupError as error:
        print(f"photodup: {error}", file=sys.stderr)
        return 2
    level = settings.log_level.lower()
    logging.basicConfig(
        level=level.upper().replace("TRACE", "DEBUG"), format="%(levelname)s %(name)s: %(message)s"
    )
    failures: list[str] = []

    def stop(sentence: str) -> None:
        failures.append(sentence)
        server.should_exit = True

    config = uvicorn.Config(
        create_app(settings, stop),
        host=settings.host,
        port=settings.port,
        log_level=level,
        access_log=level in ("debug", "trace"),  # a line per request costs as much as encoding the answer
        timeout_keep_alive=75,  # longer than the pauses of a measurement with idle connections
    )
    server = uvicorn.Server(config)
    server.run()
    if failures:
        print(f"photodup: {failures[0]}", file=sys.stderr)
    return 2 if failures else 0
