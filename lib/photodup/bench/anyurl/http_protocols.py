"""Images, texts and files over HTTP: photodup's own two forms, OpenAI's embeddings, and a plain POST."""

import base64
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from photodup.bench.anyurl.payloads import Payloads
from photodup.bench.anyurl.target import Target
from photodup.bench.backends.adapter import AnswerError
from photodup.bench.backends.http_connection import Answer, HttpConnection, HttpWorker, Prepared

_BOUNDARY = "photodup-7MA4YWxkTrZu0gW"


class HttpProtocol:
    """What the adapters of this room share; each says how a request is written and an answer read.

    Attributes:
        connections: all that were opened, for counting what was opened anew.
    """

    is_async, can_reconnect = False, True

    def __init__(self, target: Target, payloads: Payloads) -> None:
        self.target, self.payloads = target, payloads
        self.connections: list[HttpConnection] = []
        self._heads = target.connection()  # never connected: it only writes heads

    @property
    def backend(self) -> str:
        return self.target.name

    def describe(self) -> dict[str, Any]:
        return {**self.target.columns(), "payload": self.payloads.kind, "channel": None}

    def payload_bytes(self, prepared: Prepared) -> int:
        return len(prepared[1])

    def open(self) -> HttpWorker:
        self.connections.append(self.target.connection())
        return HttpWorker(self.connections[-1], self.decode)

    def close(self) -> None:
        """Workers close their own connections."""

    def n_reopened(self) -> int:
        """Return how often a connection was made again after its first time."""
        return sum(max(0, connection.n_opened - 1) for connection in self.connections)

    def body(self, items: Sequence[Any]) -> tuple[bytes, str]:
        """Return a request's body and its content type."""
        raise NotImplementedError

    def prepare(self, items: Sequence[Any]) -> Prepared:
        body, kind = self.body(items)
        headers = {"Content-Type": kind, **self.target.security.headers}
        return self._heads.head("POST", self.target.path, len(body), headers), body

    def decode(self, answer: Answer) -> np.ndarray:
        raise NotImplementedError


class Multipart(HttpProtocol):
    """Images as files of a form; an answer with `embeddings`, or the rows alone, as BentoML answers."""

    def body(self, items: Sequence[bytes]) -> tuple[bytes, str]:
        boundary = _BOUNDARY.encode()
        parts = b"".join(
            b'--%s\r\nContent-Disposition: form-data; name="files"; filename="%d.jpg"\r\n'
            b"Content-Type: %s\r\n\r\n%s\r\n" % (boundary, number, self.payloads.media_type.encode(), data)
            for number, data in enumerate(items)
        )
        return parts + b"--%s--\r\n" % boundary, f"multipart/form-data; boundary={_BOUNDARY}"

    def decode(self, answer: Answer) -> np.ndarray:
        content = json.loads(answer[1])
        if isinstance(content, list) and all(isinstance(row, list) for row in content):
            return rows_of_numbers(content)
        return _embeddings(_object(content), "embeddings")


class Base64(HttpProtocol):
    """Images as base64 in `{"images": […]}`; an answer with `embeddings`."""

    def body(self, items: Sequence[bytes]) -> tuple[bytes, str]:
        images = [base64.b64encode(data).decode() for data in items]
        return json.dumps({"images": images}).encode(), "application/json"

    def decode(self, answer: Answer) -> np.ndarray:
        return _embeddings(_json_of(answer), "embeddings")


class OpenAi(HttpProtocol):
    """OpenAI's embeddings. Images are data URIs, with `modality: image` as Infinity asks for them."""

    def __init__(self, target: Target, payloads: Payloads, encoding: str = "float") -> None:
        super().__init__(target, payloads)
        self._encoding = encoding

    def body(self, items: Sequence[Any]) -> tuple[bytes, str]:
        request: dict[str, Any] = {"model": self.target.model, "encoding_format": self._encoding}
        if self.payloads.kind == "texts":
            request["input"] = list(items)
        else:
            kind = self.payloads.media_type
            request["input"] = [f"data:{kind};base64,{base64.b64encode(data).decode()}" for data in items]
            request["modality"] = "image"
        return json.dumps(request).encode(), "application/json"

    def decode(self, answer: Answer) -> np.ndarray:
        content = _json_of(answer)
        rows = sorted(content["data"], key=lambda row: row["index"])
        return rows_of_numbers([row["embedding"] for row in rows])


class Post(HttpProtocol):
    """A file as it is; any answer with a status of success counts."""

    def body(self, items: Sequence[Any]) -> tuple[bytes, str]:
        item = items[0]
        return (item.encode(), "text/plain") if isinstance(item, str) else (item, self.payloads.media_type)

    def decode(self, answer: Answer) -> np.ndarray:
        return np.empty((1, 0))


def _json_of(answer: Answer) -> dict[str, Any]:
    return _object(json.loads(answer[1]))


def _object(content: Any) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise AnswerError(f"The answer is no JSON object but {str(content)[:60]!r}: is the protocol right?")
    return content


def _embeddings(content: dict[str, Any], key: str) -> np.ndarray:
    if key not in content:
        raise AnswerError(
            f"The answer has no {key!r} but {', '.join(content) or 'nothing'}: is the protocol right?"
        )
    return rows_of_numbers(content[key])


def rows_of_numbers(rows: Sequence[Any]) -> np.ndarray:
    """Return rows of numbers, or of base64 of little-endian float32, as float32 [rows, values]."""
    if rows and isinstance(rows[0], str):
        return np.stack([np.frombuffer(base64.b64decode(row), "<f4") for row in rows])
    return np.asarray(rows, np.float32)
