"""Clients of the FastAPI service and of Triton: a server's description, and embeddings with retries."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
import numpy as np

from photodup.core.addresses import grpc_address
from photodup.core.errors import PhotodupError, ServerError
from photodup.core.extras import import_extra
from photodup.core.settings import environment, key_headers
from photodup.embedding.backends import WIRES, Backend
from photodup.embedding.client.http import (
    FASTAPI,
    TRITON_HTTP,
    Http,
    Patience,
    Remote,
    Transient,
    bad_image,
    error_sentence,
    image_problems,
    which_server,
)
from photodup.embedding.imaging import IMAGE_SIZE, ImageError
from photodup.embedding.vectors import BrokenEmbedding, counted_from
from photodup.embedding.wire import kserve, wires
from photodup.embedding.wire.http import AnswerError, Base64Json, Multipart, read_json_answer

Answered = TypeVar("Answered")


def server_client(
    url: str | None, backend: Backend, patience: Patience
) -> "FastApiServer | TritonOverHttp | TritonOverGrpc":
    """Return the client of a backend's server; thread-safe.

    Its `describe` raises `ServerError` if the server is not there or is another one. Its `infer` maps n encoded images, or
    uint8, float16 or float32 [n, 3, 224, 224], to float32 [n, dim].

    Raises of `infer`:
        ImageError: an image cannot be read; `.index` is its position.
        BrokenEmbedding: the model answered NaN, infinities or zeros for some images.
        ServerError: the server does not answer after the allowed attempts.
    """
    if backend.server == "fastapi":
        return FastApiServer(url or "http://localhost:8002", backend, patience)
    if backend.protocol == "http":
        return TritonOverHttp(url or "http://localhost:8003", backend, patience)
    return TritonOverGrpc(address_for_grpc(url), backend, patience)


class FastApiServer:
    """The FastAPI service: `jpeg` sends files in a form, `base64` sends them in JSON."""

    def __init__(self, url: str, backend: Backend, patience: Patience) -> None:
        self._http = Http(url, patience, key_headers())
        kind = Base64Json if backend.wire == "base64" else Multipart
        self._protocol = kind(f"{kind.path}?encoding=base64")
        self.url = self._http.url

    def describe(self) -> Remote:
        response = self._http.call("GET", "/info")
        try:
            info = read_json_answer(response.raise_for_status().content)
            identity = {name: info[name] for name in ("digest", "name", "pretrained", "dim")}
            computing = {name: info.get(name) for name in ("precision", "accuracy_check")}
            limits = info["limits"]
            # base64 adds a third; the form's headers add about 150 bytes an image
            maxima = {"max_images": limits["max_images"], "max_bytes": int(limits["max_body_bytes"] * 0.7)}
            return Remote(**computing, **identity, **maxima)
        except (httpx.HTTPError, AnswerError, ValueError, KeyError, TypeError):
            if response.status_code == 404 and self._http.call("GET", "/healthz").status_code == 200:
                return Remote(max_images=8)  # a service like the published one, which has no /info
            raise self._http.explain(response, FASTAPI) from None

    def infer(self, images: Sequence[bytes]) -> np.ndarray:
        response = self._http.post(self._protocol.encode(images))
        if response.status_code == 400:
            raise bad_image(response)
        if response.status_code == 413 and len(images) > 1:  # such as too many pixels together
            return self._halves(images)
        if response.status_code == 500 and (problems := image_problems(response)):
            rows = [row for row, _ in problems]
            raise BrokenEmbedding(f"{self.url}: {error_sentence(response)}", rows)
        if response.status_code in (413, 422):
            raise ServerError(f"{self.url} refuses the request: {error_sentence(response)}")
        if response.status_code != 200:
            raise self._http.explain(response, FASTAPI)
        try:
            return self._protocol.decode((response.headers, response.content))
        except AnswerError:
            raise self._http.explain(response, FASTAPI) from None

    def _halves(self, images: Sequence[bytes]) -> np.ndarray:
        middle = len(images) // 2
        first = self.infer(images[:middle])
        with counted_from(middle):
            return np.concatenate([first, self.infer(images[middle:])])

    def close(self) -> None:
        self._http.close()


class _Triton:
    """Base of both Triton clients: a model's description, and the names of tensors."""

    def __init__(self, url: str, backend: Backend) -> None:
        self.url, self._wire, self.model = url, backend.wire, backend.triton_model
        try:
            import_extra("tritonclient.grpc")
        except PhotodupError as error:  # a ServerError, so that mode `auto` embeds on this machine
            raise ServerError(str(error)) from None

    def _tensors(self, images: Sequence[bytes] | np.ndarray) -> dict[str, np.ndarray]:
        return wires.named(images if isinstance(images, np.ndarray) else wires.encoded_tensor(images))

    def _read(self, metadata: Mapping[str, Any], config_of: Callable[[str], Mapping[str, Any]]) -> Remote:
        config = config_of(self.model)
        try:
            model = kserve.model_of(self.model, metadata, config)
        except AnswerError as error:
            raise ServerError(f"Triton at {self.url}: {error}") from None
        inputs = [(t.name, t.datatype) for t in model.inputs]
        expected = "encoded" if self._wire == "jpeg" else "image", WIRES[self._wire].datatype
        shape, outputs = list(model.inputs[0].dims), {t.name: t.dims for t in model.outputs}
        shape_ok = self._wire == "jpeg" or shape[-3:] == [3, IMAGE_SIZE, IMAGE_SIZE]
        if expected not in inputs or not shape_ok or not outputs.get("embedding"):
            raise ServerError(
                f"Triton's model {self.model} takes {inputs} {shape}, but the wire {self._wire} needs {expected[1]} "
                f"{expected[0]!r} and an output 'embedding': choose another model or wire."
            )
        parameters = kserve.params_of(config, config_of)
        return Remote(
            digest=parameters.get("model_digest"),
            name=self.model,
            pretrained=parameters.get("pretrained"),
            dim=outputs["embedding"][-1],
            precision=parameters.get("precision"),
            accuracy_check=parameters.get("accuracy_check"),
            max_images=model.max_batch or 1,
        )

    def _missing(self, statistics: Mapping[str, Any]) -> ServerError:
        ready = sorted({row["name"] for row in statistics.get("model_stats", [])})
        return ServerError(
            f"Triton at {self.url} has no model {self.model} ready: load it, or choose the backend of one "
            f"that is ({', '.join(ready) or 'none is'})."
        )

    def _refused(self, message: str) -> ServerError:
        return ServerError(f"Triton at {self.url}, model {self.model}: {message}")


class TritonOverHttp(_Triton):
    """Triton's HTTP port, with binary tensors."""

    def __init__(self, url: str, backend: Backend, patience: Patience) -> None:
        self._http = Http(url, patience)
        super().__init__(self._http.url, backend)
        self._protocol = kserve.KserveHttp(self.model)

    def describe(self) -> Remote:
        response = self._http.call("GET", f"/v2/models/{self.model}")
        if response.status_code != 200:
            # Statistics name the models that are ready; the repository's index may need a key.
            statistics = self._http.call("GET", "/v2/models/stats")
            if statistics.status_code == 200:
                raise self._missing(read_json_answer(statistics.content))
            raise self._http.explain(response, TRITON_HTTP)
        try:
            return self._read(read_json_answer(response.content), self._config)
        except (AnswerError, AttributeError, TypeError, KeyError):
            raise self._http.explain(response, TRITON_HTTP) from None

    def _config(self, model: str) -> Mapping[str, Any]:
        response = self._http.call("GET", f"/v2/models/{model}/config")
        return read_json_answer(response.content) if response.status_code == 200 else {}

    def infer(self, images: Sequence[bytes] | np.ndarray) -> np.ndarray:
        response = self._http.post(self._protocol.encode(self._tensors(images)))
        if response.status_code == 400 and self._wire == "jpeg":
            raise bad_image(response)
        if response.status_code != 200:
            raise self._refused(error_sentence(response))
        try:
            return self._protocol.decode((response.headers, response.content))
        except AnswerError as error:
            raise self._refused(str(error)) from None

    def close(self) -> None:
        self._http.close()


class TritonOverGrpc(_Triton):
    """Triton's gRPC port; one channel."""

    def __init__(self, url: str, backend: Backend, patience: Patience) -> None:
        super().__init__(url, backend)
        self._patience, self._protocol = patience, kserve.KserveGrpc(self.model)
        self._channel = kserve.grpc_channel(url)
        self._call = kserve.infer_call(self._channel)

    def describe(self) -> Remote:
        return self._read(self._about("ModelMetadata", self.model, self._patience.connect_s), self._config)

    def _config(self, model: str) -> Mapping[str, Any]:
        return self._about("ModelConfig", model, self._patience.request_s)

    def _about(self, kind: str, model: str, seconds: float) -> Mapping[str, Any]:
        return self._retried(lambda: kserve.about_model(self._channel, kind, model, timeout=seconds))

    def infer(self, images: Sequence[bytes] | np.ndarray) -> np.ndarray:
        request = self._protocol.encode(self._tensors(images))
        answer = self._retried(lambda: self._call(request, timeout=self._patience.request_s))
        try:
            return self._protocol.decode(answer)
        except AnswerError as error:
            raise self._refused(str(error)) from None

    def _retried(self, call: Callable[[], Answered]) -> Answered:
        return self._patience.retry(lambda: self._once(call))

    def _once(self, call: Callable[[], Answered]) -> Answered:
        import grpc

        try:
            return call()
        except grpc.RpcError as error:
            status, details = error.code().name, error.details() or ""
        if status == "NOT_FOUND" or (status == "UNAVAILABLE" and "unknown model" in details):
            raise self._missing(
                kserve.about_model(self._channel, "ModelStatistics", "", timeout=self._patience.connect_s)
            )
        if status in ("UNAVAILABLE", "DEADLINE_EXCEEDED", "UNKNOWN", "UNIMPLEMENTED"):
            if server := which_server(f"http://{self.url}"):
                raise ServerError(
                    f"{self.url} is {server}, not a gRPC port: Triton's gRPC port is usually one higher than HTTP."
                )
            raise Transient(
                f"No gRPC server answers at {self.url} ({status}): start it, or correct the address (TRITON_GRPC_URL)."
            )
        if status == "INVALID_ARGUMENT" and self._wire == "jpeg":
            raise ImageError(f"refused by Triton: {details}")
        raise self._refused(details)

    def close(self) -> None:
        self._channel.close()


def address_for_grpc(url: str | None) -> str:
    """Return `host:port` for gRPC: for an HTTP address or None that is `TRITON_GRPC_URL`, else the next higher port."""
    configured = environment().triton_grpc_url
    if url is None or urlsplit(url).scheme in ("http", "https"):
        if configured:
            return configured.removeprefix("grpc://").removeprefix("http://")
        parts = urlsplit(url or "http://localhost:8003")
        if not parts.hostname or not parts.port:
            raise ServerError(f"{url!r} has no port to derive the gRPC port from: give host:port.")
        return grpc_address(f"{parts.netloc.rpartition(':')[0]}:{parts.port + 1}")
    return grpc_address(url)
