"""`connect` gives one interface to embeddings from this process or any server.

    with connect() as embedder:                                   # this machine
        vectors = embedder.embed([Path("a.jpg"), Path("b.jpg")])  # float32 [2, 512]
    connect("http://gpu:8002")                                    # the FastAPI service
    connect("http://gpu:8003", "triton-onnx-fp32-http-fp32")

The environment variables of the published study work too: `INFERENCE_SERVICE_URL`, `INFERENCE_BACKEND`
(`pytorch`, `triton`, `triton_grpc` or a full name) and `TRITON_GRPC_URL`.
"""

import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from PIL import Image

from photodup.core.errors import PhotodupError, ServerError
from photodup.core.files import available_cores
from photodup.core.settings import environment
from photodup.embedding import imaging
from photodup.embedding.backends import Backend, parse_backend
from photodup.embedding.client.http import Patience, Remote
from photodup.embedding.client.servers import server_client
from photodup.embedding.engines.weights import is_random
from photodup.embedding.imaging import ImageError
from photodup.embedding.vectors import counted_from, digest_drafted
from photodup.embedding.wire.wires import JPEG_QUALITY, in_type

LOCAL, SERVICE = Backend("local", "pytorch"), Backend("fastapi", "pytorch", "fp32", "http", "jpeg")
LOCAL_BATCH = 32
Source = bytes | Path | Image.Image
Mode = Literal["local", "remote", "auto"]


class Embedder:
    """Images in, embeddings out. Decodes in threads, one chunk ahead.

    Attributes:
        backend: its name, as in `fastapi-pytorch-fp32-http-jpeg`.
        model_digest: embeddings with equal digests are comparable. This and the next three are None if the server
            does not state them.
        model_name: architecture, or the model's name in Triton.
        is_random: random weights: fit for timings, never for decisions.
        dim: length of an embedding.
        precision: what the model computes in; by default the precision in the backend's name.
        draft_size: shortest side to which JPEGs are shrunk while decoding; None decodes them whole.
    """

    backend: str
    draft_size: int | None = None
    model_digest: str | None
    model_name: str | None
    is_random: bool | None
    dim: int | None
    precision: str

    def __init__(self) -> None:
        self._decoders = ThreadPoolExecutor(min(4, available_cores()), thread_name_prefix="decode")
        self._ahead = ThreadPoolExecutor(1, thread_name_prefix="prepare")

    def embed(self, images: Sequence[Source]) -> np.ndarray:
        """Return float32 [n, dim] of length 1, in the order of `images`; any number of them.

        Raises:
            ImageError: an image cannot be read; `.index` is its position in `images`.
            BrokenEmbedding: the model answered NaN, infinities or zeros for some images.
            ServerError: the server does not answer after the allowed attempts.
        """
        images = list(images)
        if not images:
            return np.empty((0, self.dim or 0), np.float32)
        answers: list[np.ndarray] = []
        chunks = self._chunks(images)
        following = self._ahead.submit(next, chunks, None)
        while (chunk := following.result()) is not None:
            following = self._ahead.submit(next, chunks, None)
            with counted_from(sum(map(len, answers))):
                answer = self._infer(chunk)
            if answer.ndim != 2 or len(answer) != len(chunk):
                raise ServerError(
                    f"{self.backend} answered {answer.shape} for {len(chunk)} images: it is no image encoder."
                )
            answers.append(answer)
        return np.concatenate(answers)

    def at_reduced_scale(self) -> None:
        """Decode JPEGs at `imaging.DRAFT_SIZE` or more from now on and change `model_digest`; without one do nothing."""
        if self.draft_size is None and self.model_digest is not None:
            self.draft_size = imaging.DRAFT_SIZE
            self.model_digest = digest_drafted(self.model_digest)

    def _decoded(self, image: Source) -> Image.Image:
        if isinstance(image, Image.Image):
            return image
        return imaging.decode(image, draft_size=self.draft_size)

    def close(self) -> None:
        self._ahead.shutdown(cancel_futures=True)
        self._decoders.shutdown(cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _chunks(self, images: list[Source]) -> Iterator[Any]:
        raise NotImplementedError

    def _infer(self, chunk: Any) -> np.ndarray:
        raise NotImplementedError

    def _prepared(self, images: list[Source], start: int, end: int, prepare: Any) -> list[Any]:
        def prepare_at(index: int) -> Any:
            try:
                return prepare(images[index])
            except ImageError as error:
                error.index = index
                raise

        return list(self._decoders.map(prepare_at, range(start, end)))


def connect(
    url: str | None = None,
    backend: str | None = None,
    *,
    mode: Mode | None = None,
    patience: Patience | None = None,
    jpeg_quality: int | None = JPEG_QUALITY,
    **local: Any,
) -> Embedder:
    """Return a client that has reached its server, or a model in this process.

    Args:
        url: `http://host:port`; default `INFERENCE_SERVICE_URL`. For gRPC, `host:port` is used as it is, and
            from an `http://` address the port is one higher unless `TRITON_GRPC_URL` says otherwise.
        backend: its name (see `photodup.embedding.backends`); default `INFERENCE_BACKEND`, else
            `fastapi-pytorch-fp32-http-jpeg`, or `local-pytorch-fp32` without a server.
        mode: `remote`, `local`, or `auto`: remote, or local with a warning if the server cannot be reached now
            (later it never switches: half a library from each would be hard to explain). By default remote if a
            URL or a server's backend is given, here or in the environment, else local.
        patience: timeouts and attempts.
        jpeg_quality: wires `jpeg` and `base64`: shrink to 224 pixels and send about 10 KB, which changes the
            embedding a little. None sends the whole file, and the server resizes it.
        **local: for local models: `pretrained` (the weights), and `engine`, `precision`, `threads`, `device`,
            `name` of `load_model`.

    Raises:
        PhotodupError: unknown backend, no or another server, weights missing.
    """
    backend = backend or environment().service_backend or None
    url = url or environment().service_url or None
    parsed = parse_backend(backend) if backend else None
    if parsed and parsed.wire == "json":
        raise PhotodupError(f"{backend} exists to measure what JSON costs: use the fp32 wire to embed.")
    is_local = parsed.is_local if parsed else not url
    mode = mode or ("local" if is_local else "remote")
    if mode not in ("local", "remote", "auto"):
        raise PhotodupError(f"No mode {mode!r}: use local, remote or auto.")
    if mode == "local":
        return LocalEmbedder(parsed if parsed and parsed.is_local else LOCAL, **local)
    if parsed is None or parsed.is_local:
        parsed = SERVICE
    try:
        return RemoteEmbedder(url, parsed, patience or Patience(), jpeg_quality)
    except ServerError as error:
        if mode == "remote":
            raise
        warnings.warn(f"{error} Embedding on this machine instead.", stacklevel=2)
        return LocalEmbedder(LOCAL, **local)


class LocalEmbedder(Embedder):
    """The model in this process; the constructor loads its weights."""

    def __init__(self, backend: Backend, **options: Any) -> None:
        from photodup.embedding.engines.encoder import load_model

        if backend.engine not in ("pytorch", "onnx", "openvino"):
            raise PhotodupError(
                f"{backend} cannot embed: use local-pytorch-fp32, local-onnx-fp32 or local-openvino-fp32."
            )
        weights = options.pop("pretrained", None) or environment().weights
        engine = options.pop("engine", None) or (None if backend.engine == "pytorch" else backend.engine)
        options.setdefault("precision", backend.precision)
        super().__init__()
        self.model = load_model(weights, engine=engine, **options)
        self.backend = backend.name
        self.model_digest, self.model_name = self.model.digest, self.model.name
        self.is_random, self.dim = self.model.is_random, self.model.dim
        self.precision = self.model.precision

    def _chunks(self, images: list[Source]) -> Iterator[np.ndarray]:
        for start in range(0, len(images), LOCAL_BATCH):
            yield np.stack(self._prepared(images, start, min(start + LOCAL_BATCH, len(images)), self._pixels))

    def _pixels(self, image: Source) -> np.ndarray:
        return imaging.to_uint8(self._decoded(image))

    def _infer(self, chunk: np.ndarray) -> np.ndarray:
        return self.model.embed_pixels(chunk)


class RemoteEmbedder(Embedder):
    """Embeddings from a server; splits batches into requests that it accepts, and keeps the connection."""

    def __init__(
        self, url: str | None, backend: Backend, patience: Patience, jpeg_quality: int | None
    ) -> None:
        self._server = server_client(url, backend, patience)
        try:
            self.remote: Remote = self._server.describe()
        except BaseException:
            self._server.close()
            raise
        super().__init__()
        self.backend, self._wire, self._quality = backend.name, backend.wire, jpeg_quality
        self._is_encoded = backend.is_encoded
        self.model_digest, self.model_name, self.dim = self.remote.digest, self.remote.name, self.remote.dim
        pretrained = self.remote.pretrained
        self.is_random = None if pretrained is None else is_random(pretrained)
        # Either the name or the server may tell of a reduced precision.
        precision = self.remote.precision or backend.precision
        self.precision = backend.precision if precision == "fp32" else precision

    def close(self) -> None:
        super().close()
        self._server.close()

    def _chunks(self, images: list[Source]) -> Iterator[Any]:
        step = self.remote.max_images
        for start in range(0, len(images), step):
            payloads = self._prepared(images, start, min(start + step, len(images)), self._payload)
            yield from self._within_bytes(payloads) if self._is_encoded else [np.stack(payloads)]

    def _within_bytes(self, payloads: list[bytes]) -> Iterator[list[bytes]]:
        chunk: list[bytes] = []
        for payload in payloads:
            if chunk and sum(map(len, chunk)) + len(payload) > self.remote.max_bytes:
                yield chunk
                chunk = []
            chunk.append(payload)
        yield chunk

    def _payload(self, image: Source) -> Any:
        image = self._decoded(image) if self.draft_size else image
        if self._is_encoded:
            if self._quality is not None:
                return imaging.client_jpeg(self._decoded(image), self._quality)
            if isinstance(image, Image.Image):
                return imaging.to_jpeg(image, 95)
            return image if isinstance(image, bytes) else _read(image)
        return in_type(imaging.to_uint8(self._decoded(image)), self._wire)

    def _infer(self, chunk: Any) -> np.ndarray:
        return self._server.infer(chunk)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ImageError(error.strerror or str(error), os.fspath(path)) from error
