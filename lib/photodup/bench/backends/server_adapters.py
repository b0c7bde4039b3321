"""Adapters of servers over HTTP and gRPC: a protocol encodes and decodes, the connections here are timed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from photodup.bench import Columns
from photodup.bench.backends.http_connection import HttpConnection
from photodup.core.errors import PhotodupError
from photodup.core.settings import key_headers
from photodup.embedding.backends import Backend
from photodup.embedding.wire import wires
from photodup.embedding.wire.http import Answer, AnswerError, Base64Json, HttpProtocol, Multipart, OpenAi
from photodup.embedding.wire.kserve import KserveGrpc, KserveHttp, grpc_channel, infer_call

if TYPE_CHECKING:
    import grpc
    from tritonclient.grpc.service_pb2 import ModelInferRequest, ModelInferResponse

CHANNELS = ("per-worker", "shared")


@dataclass
class HttpAdapter:
    """A server over HTTP on the thin connection, so that only server and wire differ.

    Args:
        backend: a `Backend`, or what messages call another server.
        columns: of every point.
        to_input: turns a request's items into the protocol's input; part of `prepare`.
        headers: beside the protocol's own.
    """

    backend: Backend | str
    protocol: HttpProtocol
    connection: Callable[[], HttpConnection]
    columns: Mapping[str, str | None]
    to_input: Callable[[Sequence[Any]], Any] = list
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    method: str = "POST"
    # Each worker has a connection of its own, so the policy `new` has a meaning.
    can_reconnect: ClassVar = True

    def __post_init__(self) -> None:
        self._opened: list[HttpConnection] = []
        self._width = 0
        self._heads = self.connection()  # never connected: it only writes heads

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments alone: a TLS connection cannot be sent to another process."""
        return type(self), tuple(getattr(self, each.name) for each in fields(self))

    def describe(self) -> Columns:
        return {**self.columns, "channel": None}

    def prepare(self, items: Sequence[object]) -> tuple[bytes, bytes]:
        path, headers, body = self.protocol.encode(self.to_input(items))
        return self._heads.head(self.method, path, len(body), {**headers, **self.headers}), body

    def payload_bytes(self, prepared: tuple[bytes, bytes]) -> int:
        return len(prepared[1])

    def open(self) -> "HttpClient":
        self._opened.append(self.connection())
        return HttpClient(self._opened[-1], self._decode)

    def _decode(self, answer: Answer) -> np.ndarray:
        rows = self.protocol.decode(answer)
        if isinstance(self.protocol, Multipart | OpenAi):
            self._width = self._width or rows.shape[1]
            if rows.shape[1] != self._width:
                raise AnswerError(f"An embedding has {rows.shape[1]} numbers, and one before {self._width}.")
        return rows

    def n_idle_closes(self) -> int:
        """Return how often the server had closed a connection while it was idle."""
        return sum(connection.n_idle_closes for connection in self._opened)

    def close(self) -> None:
        """Workers close their own connections."""


@dataclass
class HttpClient:
    """The client of one of a load's workers: its own connection, and how an answer is read."""

    connection: HttpConnection
    decode: Callable[[Answer], np.ndarray]

    def request(self, prepared: tuple[bytes, bytes]) -> Answer:
        """Send a prepared request and return the answer's headers and body."""
        return self.connection.request(*prepared)

    def close(self) -> None:
        self.connection.close()


@dataclass
class GrpcAdapter:
    """A server over gRPC, with the channel policy explicit: it decides how many TCP connections carry the load.

    Args:
        channel: `per-worker`: one connection each; `shared`: all workers on one, hence one congestion window (what the
            published study measured).
        connection: makes a channel.
        timeout_s: deadline of each call.
        metadata: of each call.

    The others are as in `HttpAdapter`.
    """

    backend: Backend | str
    protocol: KserveGrpc
    connection: Callable[[], "grpc.Channel"]
    columns: Mapping[str, str | None]
    to_input: Callable[[Sequence[Any]], Any] = dict
    channel: str = "per-worker"
    timeout_s: float = 60.0
    metadata: Sequence[tuple[str, str]] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if self.channel not in CHANNELS:
            raise PhotodupError(f"channel {self.channel!r} is not one of {', '.join(CHANNELS)}.")
        self.can_reconnect = self.channel == "per-worker"
        self.shared: grpc.Channel | None = None

    def describe(self) -> Columns:
        return {**self.columns, "channel": self.channel}

    def prepare(self, items: Sequence[object]) -> "ModelInferRequest":
        return self.protocol.encode(self.to_input(items))

    def payload_bytes(self, prepared: "ModelInferRequest") -> int:
        return prepared.ByteSize()

    def open(self) -> "GrpcClient":
        if self.channel != "per-worker" and self.shared is None:
            self.shared = self.connection()
        return GrpcClient(self)

    def n_idle_closes(self) -> int:
        return 0

    def close(self) -> None:
        if self.shared is not None:
            self.shared.close()
            self.shared = None


class GrpcClient:
    """The client of one of a load's workers, on a channel of its own or on the shared one."""

    def __init__(self, adapter: GrpcAdapter) -> None:
        self._adapter, self.decode = adapter, adapter.protocol.decode
        self._own: grpc.Channel | None = None
        self._call: grpc.UnaryUnaryMultiCallable | None = None

    def request(self, prepared: "ModelInferRequest") -> "ModelInferResponse":
        if self._call is None:
            channel = self._adapter.shared
            if channel is None:
                channel = self._own = self._adapter.connection()
            self._call = infer_call(channel)
        return self._call(prepared, timeout=self._adapter.timeout_s, metadata=self._adapter.metadata)

    def close(self) -> None:
        if self._own is not None:
            self._own.close()
        self._own = self._call = None


def fastapi(
    backend: Backend,
    url: str,
    *,
    answer: str = "float",
    jpeg_quality: int | None = wires.JPEG_QUALITY,
    **options: Any,
) -> HttpAdapter:
    """Return the adapter of the FastAPI service: `jpeg` is multipart, `base64` is JSON holding base64 JPEGs.

    Args:
        answer: `float` (JSON numbers, the published form) or `base64` (float32 in base64).
        jpeg_quality: of the 224-pixel re-encode; None posts the photographs as they are.
        options: of `HttpConnection`.
    """
    kind = Base64Json if backend.wire == "base64" else Multipart
    protocol = kind(f"{kind.path}?encoding={answer}")
    to_input = partial(wires.jpegs, quality=jpeg_quality)
    connection = partial(HttpConnection, url, **options)
    return HttpAdapter(backend, protocol, connection, backend.columns(), to_input, key_headers())


def triton(
    backend: Backend, url: str, *, model: str | None = None, channel: str = "per-worker", **options: Any
) -> "HttpAdapter | GrpcAdapter":
    """Return the adapter of a Triton model, another than the backend's own if `model` is given.

    Args:
        channel: of `GrpcAdapter`.
        options: of `HttpConnection`; over gRPC `timeout_s`.
    """
    name = model or backend.triton_model

    def to_input(photos: Sequence[bytes]) -> dict[str, np.ndarray]:
        return wires.named(wires.tensor(photos, backend.wire))

    if backend.protocol == "http":
        protocol = KserveHttp(name, as_json=backend.wire == "json")
        http = partial(HttpConnection, url, **options)
        return HttpAdapter(backend, protocol, http, backend.columns(), to_input)
    connection = partial(grpc_channel, url.split("//")[-1].rstrip("/"))
    return GrpcAdapter(backend, KserveGrpc(name), connection, backend.columns(), to_input, channel, **options)
