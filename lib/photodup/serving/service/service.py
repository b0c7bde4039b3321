"""The FastAPI service: encoded images in, embeddings out.

Stateless. A request goes through the event loop (body), a pool of threads or processes (decode), one thread that
owns the model (queue, compute) and back. The event loop never computes, so `/healthz` answers under load; what
would wait too long is refused, and the work of a client that has left is dropped.
`BATCH_MAX=1` is the published service: one request at a time. Settings are read from the environment.

    MODEL_PRETRAINED=random:0 PORT=8002 python -m photodup.serving.service
"""

import asyncio
import base64
import contextlib
import logging
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Literal

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic_core import to_json

from photodup.embedding.decode_pool import Cancelled
from photodup.embedding.engines.encoder import ImageModel, load_encoder
from photodup.embedding.engines.reduced import verdict_on
from photodup.errors import PhotodupError
from photodup.serving.service import bodies
from photodup.serving.service.admission import Admission, Place, Refused
from photodup.serving.service.answers import FILES, RESPONSES, Embeddings, Info, Limits, Status
from photodup.serving.service.batching import Batcher, Computed
from photodup.serving.service.bodies import Base64Request, Problem, RequestError
from photodup.serving.service.decoding import Decoder, Work
from photodup.serving.service.gate import Gate, is_loopback
from photodup.serving.service.settings import Settings, read_settings
from photodup.serving.service.slow_clients import ImpatientProtocol
from photodup.serving.service.stages import Stages

log = logging.getLogger("photodup.service")


class Service:
    """State of a running service: model, threads, counters."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.stages = Stages()
        self.budget = bodies.Budget(int(settings.max_buffered_mb * 1e6))
        self.admission = Admission(
            max_requests=settings.max_in_flight,
            max_wait_s=settings.max_wait_s,
            lanes=settings.decode_threads,
        )
        self.decoder = Decoder(
            threads=settings.decode_threads,
            max_pixels=settings.max_pixels,
            deadline_s=settings.decode_seconds,
            admission=self.admission,
        )
        self.model: ImageModel | None = None
        self.batcher: Batcher | None = None
        self.failure: str | None = None

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
        for _ in range(2):  # the first pays for what is set up once, the second is a first guess at the pace
            started = time.perf_counter()
            model.embed_pixels(np.zeros((1, 3, 224, 224), np.uint8))
        self.admission.computing.add(1, time.perf_counter() - started)
        log.info("%s/%s is ready, digest %s", model.name, model.pretrained, model.digest[:12])
        self.model = model
        self.batcher = Batcher(
            model.embed_pixels,
            batch_max=s.batch_max,
            delay_s=s.batch_delay_ms / 1000,
            on_execution=self._executed,
        )

    def _executed(self, images: int, requests: int, seconds: float) -> None:
        self.admission.computing.add(images, seconds)
        self.stages.execution(images, requests, seconds)

    def close(self) -> None:
        self.decoder.close()
        if self.batcher:
            self.batcher.close()

    async def embed(self, request: Request, read: "Reader", encoding: str) -> Response:
        """Serve one request for embeddings."""
        if self.batcher is None:
            raise RequestError(503, self.failure or "The model is still loading: retry when /readyz says so.")
        self.stages.in_flight.inc()
        try:
            with self.budget.open() as share:
                started = time.perf_counter()
                images = await read(request, share)
                received = time.perf_counter()
                work = Work(images, self.settings.max_request_pixels)
                del images
                with self.admission.enter(len(work.images)) as place:
                    computed, decoded = await self._while_wanted(request, work, place)
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
        except Refused as error:
            raise RequestError(503, error.sentence, retry_after_s=error.retry_after_s) from None
        finally:
            self.stages.in_flight.dec()

    async def _while_wanted(self, request: Request, work: Work, place: Place) -> tuple[Computed, float]:
        """Decode and compute; return the answer and when decoding was done. Ends as soon as the client leaves."""
        has_left = False

        async def watch() -> None:
            nonlocal has_left
            while (await request.receive())["type"] != "http.disconnect":
                pass
            has_left = True
            work.cancel()

        watching = asyncio.create_task(watch())
        try:
            await asyncio.wrap_future(self.decoder.usual(work))
            if work.costly:
                self.admission.check_costly()
                place.go_on_to("costly", len(work.costly))
                await asyncio.wrap_future(self.decoder.costly(work))
            pixels = work.pixels()
            place.go_on_to("computing")
            decoded = time.perf_counter()
            return await asyncio.wrap_future(work.follow(self.batcher.submit(pixels))), decoded
        except (asyncio.CancelledError, Cancelled):
            if has_left:
                raise RequestError(400, "The client closed the connection before the answer.") from None
            if isinstance(sys.exception(), Cancelled):
                raise RequestError(503, "The service is being stopped.") from None
            raise
        finally:
            watching.cancel()
            work.cancel()

    def _stream(self, request: Request, share: bodies.Share) -> AsyncIterator[bytes]:
        s = self.settings
        return bodies.stream(
            request,
            int(s.max_body_mb * 1e6),
            share,
            max_s=s.body_seconds,
            min_bytes_per_s=s.min_body_rate,
        )

    async def read_files(self, request: Request, share: bodies.Share) -> list[bytes]:
        _require(request, "multipart/form-data")
        chunks = self._stream(request, share)
        return await bodies.read_multipart(request.headers, chunks, self.settings.max_images)

    async def read_json(self, request: Request, share: bodies.Share) -> list[bytes]:
        _require(request, "application/json")
        max_images = self.settings.max_images
        body = bytearray()
        async for chunk in self._stream(request, share):
            body += chunk
        if len(body) < 1 << 18:
            return bodies.read_base64(bytes(body), max_images)
        return await asyncio.wrap_future(self.decoder.run(bodies.read_base64, bytes(body), max_images))


Reader = Callable[[Request, bodies.Share], "asyncio.Future[list[bytes]]"]
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
    app.add_middleware(
        Gate,
        api_key=key.get_secret_value() if key else None,
        check=lambda: service.batcher and service.admission.check(),
        count=service.stages.request,
    )

    @app.exception_handler(RequestError)
    async def refuse(request: Request, error: RequestError) -> JSONResponse:
        service.stages.request(error.status)
        # The rest of a body that came too slowly is not waited for.
        headers = {503: {"Retry-After": str(error.retry_after_s)}, 408: {"Connection": "close"}}.get(
            error.status
        )
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

    multipart = {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": FILES}}}}
    as_json = {"application/json": {"schema": Base64Request.model_json_schema()}}

    @app.post("/embed", response_model=Embeddings, responses=RESPONSES, openapi_extra=multipart)
    async def embed(request: Request, encoding: Encoding = "float") -> Response:
        """Embed the files of a form, one or many, whatever the field is called."""
        return await service.embed(request, service.read_files, encoding)

    @app.post(
        "/embed/base64",
        response_model=Embeddings,
        responses=RESPONSES,
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
    if not is_loopback(settings.host) and not settings.api_key:
        log.warning(
            "The service listens at %s and asks for no key, so everybody who reaches this machine can use it: "
            "set API_KEY, or HOST=127.0.0.1.",
            settings.host or "all addresses",
        )
    failures: list[str] = []

    def stop(sentence: str) -> None:
        failures.append(sentence)
        server.should_exit = True

    app = create_app(settings, stop)

    class Server(uvicorn.Server):
        def handle_exit(self, *signal: object) -> None:
            app.state.service.decoder.hurry()
            super().handle_exit(*signal)

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
    server.run()
    if failures:
        print(f"photodup: {failures[0]}", file=sys.stderr)
    return 2 if failures else 0
