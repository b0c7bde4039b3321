"""Images and texts over HTTP: photodup's own two forms, OpenAI's embeddings, and a plain POST."""

import base64
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from photodup.core.errors import PhotodupError
from photodup.core.files import parse_json

_BOUNDARY = "photodup-7MA4YWxkTrZu0gW"
_JSON = {"Content-Type": "application/json"}
# Exceptions of hostile or broken JSON on its way to an array, endless nesting (RecursionError) included.
_BROKEN = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, MemoryError)

Answer = tuple[Mapping[str, str], bytes]  # headers, their names in lower case, and body
Read = TypeVar("Read")


class AnswerError(PhotodupError):
    """A server's answer has another form than expected."""


class HttpRequest(NamedTuple):
    """A POST: path, headers and body."""

    path: str
    headers: dict[str, str]
    body: bytes


class HttpProtocol(Protocol):
    """Encodes requests, whose `path` may hold a query, and decodes their answers."""

    def encode(self, items: Any) -> HttpRequest: ...

    def decode(self, answer: Answer) -> np.ndarray:
        """Return float32 [items, values].

        Raises:
            AnswerError: the answer has another form.
        """


def answer_reader(subject: str) -> Callable[[Callable[..., Read]], Callable[..., Read]]:
    """Decorate a function that reads a server's answer, so that it raises only `AnswerError`."""

    def decorator(read: Callable[..., Read]) -> Callable[..., Read]:
        @functools.wraps(read)
        def guarded(*arguments: Any) -> Read:
            try:
                with np.errstate(over="raise"):  # a number beyond float32 is an error
                    return read(*arguments)
            except _BROKEN as error:
                text = " ".join(str(error).split())[:200]
                raise AnswerError(f"{subject} cannot be read ({type(error).__name__}: {text}).") from None

        return guarded

    return decorator


@dataclass(frozen=True)
class Multipart:
    """Images as files of a form; the answer has `embeddings`, or just rows (BentoML)."""

    path: str = "/embed"
    media_type: str = "image/jpeg"

    def encode(self, images: Sequence[bytes]) -> HttpRequest:
        boundary, kind = _BOUNDARY.encode(), self.media_type.encode()
        parts = b"".join(
            b'--%s\r\nContent-Disposition: form-data; name="files"; filename="%d.jpg"\r\n'
            b"Content-Type: %s\r\n\r\n%s\r\n" % (boundary, number, kind, image)
            for number, image in enumerate(images)
        )
        headers = {"Content-Type": f"multipart/form-data; boundary={_BOUNDARY}"}
        return HttpRequest(self.path, headers, parts + b"--%s--\r\n" % boundary)

    @answer_reader("The answer")
    def decode(self, answer: Answer) -> np.ndarray:
        content = read_json_answer(answer[1], answer[0])
        if isinstance(content, list) and all(isinstance(row, list) for row in content):
            return _rows(content)
        return _rows(_member(content, "embeddings"))


@dataclass(frozen=True)
class Base64Json(Multipart):
    """Images as base64 in `{"images": […]}`; answers as for `Multipart`."""

    path: str = "/embed/base64"

    def encode(self, images: Sequence[bytes]) -> HttpRequest:
        request = {"images": [_base64(image) for image in images]}
        return HttpRequest(self.path, _JSON, json.dumps(request).encode())


@dataclass(frozen=True)
class OpenAi:
    """OpenAI's embeddings; images are data URIs with Infinity's `modality: image`.

    Args:
        encoding: of the answer's numbers, `float` or `base64`.
    """

    path: str
    model: str
    media_type: str = "image/jpeg"
    encoding: str = "float"

    def encode(self, items: Sequence[bytes | str]) -> HttpRequest:
        request: dict[str, str | list[str]] = {"model": self.model, "encoding_format": self.encoding}
        if all(isinstance(item, str) for item in items):
            request["input"] = [str(item) for item in items]
        else:
            head = f"data:{self.media_type};base64,"
            request |= {"input": [head + _base64(item) for item in items], "modality": "image"}
        return HttpRequest(self.path, _JSON, json.dumps(request).encode())

    @answer_reader("The answer")
    def decode(self, answer: Answer) -> np.ndarray:
        data = _member(read_json_answer(answer[1], answer[0]), "data")
        # Servers that do not number rows answer in order.
        return _rows([row["embedding"] for row in sorted(data, key=lambda row: row.get("index", 0))])


@dataclass(frozen=True)
class Post:
    """One file or text, sent unchanged.

    Args:
        is_embedded: the answer has `embeddings`; otherwise it is not read.
    """

    path: str
    media_type: str = "application/octet-stream"
    is_embedded: bool = False

    def encode(self, items: Sequence[bytes | str]) -> HttpRequest:
        item = items[0]
        if isinstance(item, str):
            return HttpRequest(self.path, {"Content-Type": "text/plain"}, item.encode())
        return HttpRequest(self.path, {"Content-Type": self.media_type}, item)

    def decode(self, answer: Answer) -> np.ndarray:
        return Multipart().decode(answer) if self.is_embedded else np.empty((1, 0), np.float32)


@answer_reader("The answer")
def read_json_answer(body: bytes, headers: Mapping[str, str] = {}) -> Any:
    """Parse JSON. If an answer is not JSON, the error names the type or encoding in its headers.

    Raises:
        AnswerError: no JSON, nested too deeply, or too large in memory.
    """
    try:
        return parse_json(body)
    except (json.JSONDecodeError, UnicodeDecodeError):
        name = "content-encoding" if "content-encoding" in headers else "content-type"
        form = f"its {name.title()} is {headers.get(name, 'not stated')[:100]}" if body else "it is empty"
        raise AnswerError(f"The answer is not JSON, {form}: is the address right?") from None


def _base64(data: bytes | str) -> str:
    return base64.b64encode(data.encode() if isinstance(data, str) else data).decode()


def _member(content: Any, key: str) -> Any:
    if not isinstance(content, dict):
        raise AnswerError(f"The answer is no JSON object but {str(content)[:60]!r}: is the protocol right?")
    if not isinstance(content.get(key), list):
        names = ", ".join(content)[:100] or "nothing"
        problem = f"a {key!r} that is no list" if key in content else f"no {key!r} but {names}"
        raise AnswerError(f"The answer has {problem}: is the protocol right?")
    return content[key]


def _rows(rows: list[Any]) -> np.ndarray:
    """Return float32 [rows, values] from rows of numbers, or of base64 of little-endian float32."""
    if rows and isinstance(rows[0], str):
        array = np.stack([np.frombuffer(base64.b64decode(row), "<f4") for row in rows])
    else:
        array = np.asarray(rows, np.float32)
    if array.ndim != 2 or not array.size:
        raise AnswerError(
            f"The answer's embeddings have the shape {list(array.shape)}, not [images, values]."
        )
    return array
