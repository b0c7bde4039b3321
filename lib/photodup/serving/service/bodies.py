"""Read the encoded images of an HTTP request in bounded memory, or refuse the request."""

import asyncio
import base64
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from photodup.serving.service.settings import ServiceSettings

# Window over which the rate of a body is measured, so that a pause of a second or two does not count.
_WINDOW_S = 5.0


class ImageProblem(BaseModel):
    """An image that cannot be embedded: its position in the request, from 0, and the reason."""

    index: int
    reason: str


class RequestProblem(BaseModel):
    """Body of every 4xx and 5xx answer: a sentence, and the position of the image (null: the request)."""

    detail: str
    index: int | None = None
    errors: list[ImageProblem] = []


class Base64Request(BaseModel):
    """Encoded images (JPEG, PNG, WebP, …) as base64; a `data:…;base64,` prefix is accepted."""

    model_config = ConfigDict(extra="forbid")

    images: Annotated[list[str], Field(min_length=1)]


class RequestError(Exception):
    """A request to answer with a 4xx, 500 or 503; `retry_after_s` is for a 503."""

    def __init__(
        self, status: int, detail: str, errors: list[ImageProblem] | None = None, retry_after_s: int = 1
    ) -> None:
        super().__init__(detail)
        self.retry_after_s = retry_after_s
        self.status = status
        self.problem = RequestProblem(
            detail=detail, index=errors[0].index if errors else None, errors=errors or []
        )


ReserveBytes = Callable[[int], None]


class BodyBudget:
    """Limits the bytes of request bodies in memory, over all connections."""

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0

    @contextlib.contextmanager
    def open(self) -> Iterator[ReserveBytes]:
        """Yield a function that reserves bytes for one request or raises RequestError 503; the block's end frees them."""
        reserved = 0

        def reserve(n_bytes: int) -> None:
            nonlocal reserved
            if self.used + n_bytes > self.limit:
                raise RequestError(503, "The service holds as many bytes as it may: retry in a second.")
            reserved += n_bytes
            self.used += n_bytes

        try:
            yield reserve
        finally:
            self.used -= reserved


class _InMemoryParser(MultiPartParser):
    # Never to disk: bodies are bounded already.
    spool_max_size = 1 << 62


async def stream(
    request: Request, reserve: ReserveBytes, settings: ServiceSettings
) -> AsyncGenerator[bytes, None]:
    """Yield the body as it arrives, within bounds of size and time.

    Raises:
        RequestError: it is too large, the client left, or it is too slow: not complete after BODY_SECONDS, or at less
            than MIN_BODY_RATE for five seconds.
    """
    max_bytes, max_s = int(settings.max_body_mb * 1e6), settings.body_seconds
    min_rate = settings.min_body_rate
    too_large = RequestError(
        413, f"The body is larger than {max_bytes / 1e6:g} MB: send fewer or smaller images."
    )
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > max_bytes:
        raise too_large
    loop = asyncio.get_running_loop()
    end = loop.time() + max_s
    window_s = _WINDOW_S if min_rate else max_s
    received, window_began, window_bytes = 0, loop.time(), 0
    chunks = request.stream()
    while True:
        try:
            async with asyncio.timeout_at(min(end, window_began + window_s)):
                chunk = await anext(chunks)
        except StopAsyncIteration:
            return
        except TimeoutError:
            state = f"arrives at less than {min_rate:,.0f} bytes a second"
            if loop.time() >= end:
                state = f"is not complete after {max_s:g} seconds"
            raise RequestError(
                408, f"The body {state}: send smaller images, or fewer (BODY_SECONDS, MIN_BODY_RATE)."
            ) from None
        except ClientDisconnect:
            raise RequestError(
                400, "The client closed the connection before the body was complete."
            ) from None
        received += len(chunk)
        if received > max_bytes:
            raise too_large
        reserve(len(chunk))
        yield chunk
        window_bytes += len(chunk)
        if window_bytes >= min_rate * window_s:
            window_began, window_bytes = loop.time(), 0


async def read_multipart(
    headers: Headers, chunks: AsyncGenerator[bytes, None], max_images: int
) -> list[bytes]:
    """Return the content of all file parts, in order; field names do not matter."""
    parser = _InMemoryParser(headers, chunks, max_files=max_images, max_fields=16, max_part_size=1 << 16)
    try:
        form = await parser.parse()
    except MultiPartException as error:
        if error.message.startswith("Too many files"):
            raise too_many(max_images) from None
        raise RequestError(400, f"The multipart body cannot be read: {error.message}") from None
    except KeyError:  # no boundary in the content type
        raise RequestError(400, "The multipart body has no boundary in its Content-Type.") from None
    try:
        files = [item for _, item in form.multi_items() if isinstance(item, UploadFile)]
        if not files:
            raise RequestError(
                422, "There is no file in the form: send images as file parts (curl -F files=@photo.jpg)."
            )
        return [await file.read() for file in files]
    finally:
        await form.close()


def read_base64(body: bytes, max_images: int) -> list[bytes]:
    """Return the decoded images of a JSON body; bad ones are reported together."""
    try:
        encoded = Base64Request.model_validate_json(body).images
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        fault = ": ".join(filter(None, [".".join(map(str, first["loc"])), first["msg"]]))
        raise RequestError(422, f'The body should be {{"images": ["<base64>", …]}}: {fault}.') from None
    if len(encoded) > max_images:
        raise too_many(max_images)
    images, problems = [], []
    for index, text in enumerate(encoded):
        try:
            images.append(_of_base64(text.partition(",")[2] if text.startswith("data:") else text))
        except ValueError as error:
            problems.append(ImageProblem(index=index, reason=str(error)))
    if problems:
        raise bad_images(problems)
    return images


def _of_base64(text: str) -> bytes:
    """Decode base64, also with line breaks or in the URL alphabet; raise a ValueError that names the fault."""
    with contextlib.suppress(ValueError):  # the usual form
        return base64.b64decode(text, validate=True)
    text = "".join(text.split()).rstrip("=")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except ValueError as error:
        raise ValueError(f"not base64 ({error})") from None


def bad_images(problems: list[ImageProblem]) -> RequestError:
    """Return the 400 for images that cannot be read; the sentence is about the first."""
    more = f" ({len(problems)} images are bad)" if len(problems) > 1 else ""
    return RequestError(400, f"Image {problems[0].index}: {problems[0].reason}{more}.", problems)


def too_many(max_images: int) -> RequestError:
    """Return the 413 for a request with too many images."""
    return RequestError(413, f"More than {max_images} images in one request: split it.")
