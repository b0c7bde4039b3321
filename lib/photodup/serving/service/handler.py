"""The FastAPI service: encoded images in, embeddings out.

A request goes through the event loop (body), threads or processes (decode), the model's thread (queue, compute) and back.
The event loop never computes, so `/healthz` answers under load. A request that would wait too long is refused, and work
for a client that has left is dropped. `BATCH_MAX=1` is the published service: one request at a time.

    MODEL_PRETRAINED=random:0 PORT=8002 python -m photodup.serving.service
"""

import asyncio
import base64
import logging
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
from fastapi import Request, Response
from pydantic_core import to_json

from photodup.core.errors import ServerError
from photodup.embedding.decode_pool import Cancelled
from photodup.embedding.engines.encoder import ImageModel, load_model
from photodup.embedding.engines.reduced import draft_verdict_on, may_decide, verdict_on, why_not
from photodup.embedding.imaging import DRAFT_SIZE
from photodup.embedding.vectors import BROKEN, broken_rows, digest_drafted
from photodup.serving.service import bodies
from photodup.serving.service.admission import Admission, QueuePlace
from photodup.serving.service.batching import Batcher, Computed
from photodup.serving.service.bodies import RequestError
from photodup.serving.service.counters import ServiceCounters
from photodup.serving.service.decoding import Decoder, RequestWork
from photodup.serving.service.settings import ServiceSettings
from photodup.serving.service.triton_model import TritonModel

log = logging.getLogger("photodup.service")

WARM_UPS = 5

Reader = Callable[[Request, bodies.ReserveBytes], Awaitable[list[bytes]]]


class Service:
    """State of a running service: model, threads, counters."""

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings
        self.counters = ServiceCounters()
        self.budget = bodies.BodyBudget(int(settings.max_buffered_mb * 1e6))
        self.admission = Admission(settings)
        self.decoder = Decoder(settings, self.admission)
        self.model: ImageModel | None = None
        self.batcher: Batcher | None = None
        self.failure: str | None = None
        self.digest = ""  # of the model and the scale at which JPEGs are decoded

    def load(self) -> None:
        """Load and warm up the model; takes seconds, so call it in a thread."""
        s = self.settings
        model = _load(s)
        # The fastest of the first, slow runs is the initial pace: too high a value would refuse the first clients, and
        # their runs correct one that is too low.
        self.admission.computing.add(1, min(_seconds_of_one(model) for _ in range(WARM_UPS)))
        is_drafted = s.jpeg_scale == "reduced" or (
            s.jpeg_scale == "auto" and draft_verdict_on(model) == "passed"
        )
        self.decoder.draft_size = DRAFT_SIZE if is_drafted else None
        self.digest = digest_drafted(model.digest) if is_drafted else model.digest
        log.info("%s/%s is ready, digest %s", model.name, model.pretrained, self.digest[:12])
        if not may_decide(model.precision, verdict := verdict_on(model)):
            log.warning("%s %s.", model.name, why_not(model.precision, verdict))
        self.model = model
        self.batcher = Batcher(model.embed_pixels, s, self.admission, self.counters.count_execution)

    def close(self) -> None:
        self.decoder.close()
        if self.batcher:
            self.batcher.close()

    async def embed(self, request: Request, read: Reader, encoding: str) -> Response:
        """Answer one request for embeddings; `encoding` is that of `encode_answer`."""
        model, batcher = self.model, self.batcher
        if model is None or batcher is None:
            raise RequestError(503, self.failure or "The model is still loading: retry when /readyz says so.")
        self.counters.in_flight.inc()
        try:
            with self.budget.open() as reserve:
                started = time.perf_counter()
                images = await read(request, reserve)
                received = time.perf_counter()
                work = RequestWork(images, self.settings)
                del images
                with self.admission.enter(len(work.images)) as place:
                    computed, decoded = await self._compute_while_connected(request, work, place, batcher)
            self._require_sound(computed.embeddings, model.precision)
            before = time.perf_counter()
            body = encode_answer(computed.embeddings, encoding)
            for name, seconds in (
                ("receive", received - started),
                ("decode", decoded - received),
                ("queue", computed.queue_s),
                ("compute", computed.compute_s),
                ("respond", time.perf_counter() - before),
            ):
                self.counters.observe_stage(name, seconds)
            self.counters.count_request(200)
            return Response(body, media_type="application/json", headers={"X-Model-Digest": self.digest})
        except ServerError as error:  # of ENGINE=triton
            log.error("%s", error)
            raise RequestError(503, "The Triton behind this service does not answer: retry.") from None
        finally:
            self.counters.in_flight.dec()

    def _require_sound(self, embeddings: np.ndarray, precision: str) -> None:
        """Raise RequestError 500 for NaN, infinities and zeros, such as from an overflow in FP16."""
        if rows := broken_rows(embeddings):
            self.counters.broken_embeddings.inc(len(rows))
            problems = [bodies.ImageProblem(index=row, reason=BROKEN) for row in rows]
            raise RequestError(
                500,
                f"For {len(rows)} of {len(embeddings)} images {BROKEN} (at {precision}): serve a higher "
                "precision, or export the model again.",
                problems,
            )

    async def _compute_while_connected(
        self, request: Request, work: RequestWork, place: QueuePlace, batcher: Batcher
    ) -> tuple[Computed, float]:
        """Decode and compute until the client leaves; return the answer and the time when decoding ended."""
        has_left = False

        async def watch() -> None:
            nonlocal has_left
            while (await request.receive())["type"] != "http.disconnect":
                pass
            has_left = True
            work.cancel()

        watching = asyncio.create_task(watch())
        try:
            await asyncio.wrap_future(self.decoder.decode_usual(work))
            if work.costly:
                self.admission.check_costly()
                place.move_to("costly", len(work.costly))
                await asyncio.wrap_future(self.decoder.decode_costly(work))
            pixels = work.pixels()
            place.move_to("computing")
            decoded = time.perf_counter()
            return await asyncio.wrap_future(work.follow(batcher.submit(pixels, work.deadline))), decoded
        except (asyncio.CancelledError, Cancelled):
            if has_left:
                raise RequestError(400, "The client closed the connection before the answer.") from None
            if isinstance(sys.exception(), Cancelled):
                raise RequestError(503, "The service is being stopped.") from None
            raise
        finally:
            watching.cancel()
            work.cancel()

    async def read_files(self, request: Request, reserve: bodies.ReserveBytes) -> list[bytes]:
        _require_content_type(request, "multipart/form-data")
        chunks = bodies.stream(request, reserve, self.settings)
        return await bodies.read_multipart(request.headers, chunks, self.settings.max_images)

    async def read_json(self, request: Request, reserve: bodies.ReserveBytes) -> list[bytes]:
        """Read a JSON body; parse a large one in a thread."""
        _require_content_type(request, "application/json")
        body, max_images = bytearray(), self.settings.max_images
        async for chunk in bodies.stream(request, reserve, self.settings):
            body += chunk
        if len(body) < 1 << 18:
            return bodies.read_base64(bytes(body), max_images)
        return await asyncio.to_thread(bodies.read_base64, bytes(body), max_images)


def _load(settings: ServiceSettings) -> ImageModel:
    if settings.engine == "triton":
        return TritonModel(settings.precision)
    return load_model(
        settings.model_pretrained,
        engine=settings.engine or None,
        precision=settings.precision,
        threads=settings.threads,
        device=settings.device,
        name=settings.model_name,
    )


def _seconds_of_one(model: ImageModel) -> float:
    started = time.perf_counter()
    model.embed_pixels(np.zeros((1, 3, 224, 224), np.uint8))
    return time.perf_counter() - started


def _require_content_type(request: Request, content_type: str) -> None:
    actual = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if actual != content_type:
        alternative = "/embed/base64" if content_type.startswith("multipart") else "/embed"
        raise RequestError(
            415,
            f"{request.url.path} takes {content_type}, not {actual or 'an untyped body'}; see also {alternative}.",
        )


def encode_answer(embeddings: np.ndarray, encoding: str) -> bytes:
    """Return the body of an answer; `base64` encodes each embedding's float32 values, little-endian."""
    if encoding == "base64":
        rows: list[Any] = [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in embeddings]
    else:
        rows = embeddings.tolist()
    return to_json({"embeddings": rows})  # ten times faster than json.dumps for floats
