"""How a batch travels to each server and back. `clients` prepares the payloads and keeps the order.

Every failure becomes a `ServerError` with the remedy: dead server, wrong port, wrong protocol, wrong model.
"""

import base64
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
import numpy as np

from photodup.embedding.backends import Backend
from photodup.embedding.imaging import IMAGE_SIZE, ImageError
from photodup.errors import PhotodupError

Answer = TypeVar("Answer")


# Environment variable with the key that a FastAPI service asks for. It is sent to no other kind of server.
API_KEY_VARIABLE = "PHOTODUP_API_KEY"


class ServerError(PhotodupError):
    """A server that does not answer, or is not the one that was meant."""


class _Transient(Exception):
    """A failure that a second attempt may not meet."""

    def __init__(self, message: str, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.wait_s = wait_s


@dataclass(frozen=True)
class Remote:
    """What a server says about itself; None where it says nothing."""

    digest: str | None = None
    name: str | None = None
    pretrained: str | None = None
    dim: int | None = None
    max_images: int = 32
    max_bytes: int = 1 << 60


@dataclass(frozen=True)
class Patience:
    """Limits of one request.

    Attributes:
        connect_s: until the connection is there.
        request_s: from the last byte sent to the answer.
        attempts: tries in all; embedding twice gives the same answer, so a retry is safe.
        pause_s: before the second try, doubled before each further one.
    """

    connect_s: float = 5.0
    request_s: float = 60.0
    attempts: int = 3
    pause_s: float = 0.2

    def retry(self, what: Callable[[], Answer]) -> Answer:
        for attempt in range(1, self.attempts + 1):
            try:
                return what()
            except _Transient as error:
                if attempt == self.attempts:
                    tries = f" ({attempt} attempts)" if attempt > 1 else ""
                    raise ServerError(f"{error}{tries}") from error
                time.sleep(max(error.wait_s, self.pause_s * 2 ** (attempt - 1)))
        raise AssertionError("attempts must be at least 1")


class _Http:
    """One kept-alive connection pool; thread-safe."""

    def __init__(self, url: str, patience: Patience, headers: dict[str, str] | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ServerError(f"{url!r} is no HTTP address: use http://host:port.")
        self.url, self._patience = url.rstrip("/"), patience
        timeout = httpx.Timeout(patience.request_s, connect=patience.connect_s)
        self._client = httpx.Client(base_url=self.url, timeout=timeout)
        self._client.headers.update(headers or {})

    def call(self, method: str, path: str, **request: Any) -> httpx.Response:
        return self._patience.retry(lambda: self._once(method, path, request))

    def _once(self, method: str, path: str, request: dict[str, Any]) -> httpx.Response:
        try:
            response = self._client.request(method, path, **request)
        except httpx.ConnectError as error:
            raise _Transient(
                f"No server answers at {self.url} ({error}): start it (`photodup serve`), or correct the address."
            ) from error
        except httpx.TimeoutException as error:
            raise _Transient(
                f"{self.url} did not answer in time ({type(error).__name__}): is it overloaded or behind a firewall?"
            ) from error
        except httpx.RemoteProtocolError as error:
            if "disconnected" in str(error).lower():
                raise _Transient(
                    f"{self.url} closed the connection: is this a gRPC port (HTTP is usually one lower)?"
                ) from error
            raise ServerError(
                f"What listens at {self.url} does not speak HTTP: is this the gRPC port? HTTP is usually one lower."
            ) from error
        except (httpx.NetworkError, httpx.ProxyError) as error:
            raise _Transient(f"The connection to {self.url} broke ({type(error).__name__}).") from error
        except httpx.InvalidURL as error:
            raise ServerError(f"{self.url!r} is no HTTP address ({error}): use http://host:port.") from error
        if response.status_code == 401:
            raise ServerError(f"{self.url} asks for an API key, and this is not it: set {API_KEY_VARIABLE}.")
        if response.status_code in (429, 502, 503, 504):
            wait = response.headers.get("retry-after", "0")
            raise _Transient(
                f"{self.url} answers {response.status_code}: {_sentence(response)}",
                float(wait) if wait.isdigit() else 0.0,
            )
        return response

    def explain(self, response: httpx.Response, expected: str) -> ServerError:
        """Say which of the known servers gave an unexpected answer."""
        for path, is_that in (("/v2/health/live", "Triton's HTTP port"), ("/healthz", "the FastAPI service")):
            try:
                found = self._client.get(path).status_code == 200
            except httpx.HTTPError:
                found = False
            if found and is_that != expected:
                return ServerError(
                    f"{self.url} is {is_that}, not {expected}: correct the port or the backend "
                    "(INFERENCE_BACKEND)."
                )
        return ServerError(
            f"{self.url} answers {response.status_code} and is not {expected} as it should be: "
            f"{_sentence(response)}"
        )

    def close(self) -> None:
        self._client.close()


class PyTorchHttp:
    """The FastAPI service: `jpeg` sends files in a form, `base64` sends them in JSON."""

    def __init__(self, url: str, backend: Backend, patience: Patience) -> None:
        key = os.environ.get(API_KEY_VARIABLE)
        self._http = _Http(url, patience, {"X-API-Key": key} if key else None)
        self._json = backend.wire == "base64"
        self.url = self._http.url

    def describe(self) -> Remote:
        response = self._http.call("GET", "/info")
        try:
            info = response.raise_for_status().json()
            return Remote(
                digest=info["digest"],
                name=info["name"],
                pretrained=info["pretrained"],
                dim=info["dim"],
                max_images=info["limits"]["max_images"],
                # base64 adds a third; the form's headers add about 150 bytes an image
                max_bytes=int(info["limits"]["max_body_bytes"] * 0.7),
            )
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            if response.status_code == 404 and self._http.call("GET", "/healthz").status_code == 200:
                return Remote(max_images=8)  # a service like the published one, which says nothing of itself
            raise self._http.explain(response, "the FastAPI service") from None

    def infer(self, images: list[bytes]) -> np.ndarray:
        query = {"encoding": "base64"}
        if self._json:
            body = {"images": [base64.b64encode(image).decode("ascii") for image in images]}
            response = self._http.call("POST", "/embed/base64", params=query, json=body)
        else:
            files = [("files", ("image.jpg", image, "image/jpeg")) for image in images]
            response = self._http.call("POST", "/embed", params=query, files=files)
        if response.status_code == 400:
            raise _bad_image(response)
        if response.status_code == 413 and len(images) > 1:  # too many pixels together, say
            return self._halves(images)
        if response.status_code in (413, 422):
            raise ServerError(f"{self.url} refuses the request: {_sentence(response)}")
        try:
            rows = response.raise_for_status().json()["embeddings"]
        except (httpx.HTTPError, ValueError, KeyError):
            raise self._http.explain(response, "the FastAPI service") from None
        if rows and isinstance(rows[0], str):
            return np.stack([np.frombuffer(base64.b64decode(row), "<f4") for row in rows]).astype(np.float32)
        return np.asarray(rows, dtype=np.float32)

    def _halves(self, images: list[bytes]) -> np.ndarray:
        middle = len(images) // 2
        first = self.infer(images[:middle])
        try:
            return np.concatenate([first, self.infer(images[middle:])])
        except ImageError as error:
            if error.index is not None:
                error.index += middle
            raise

    def close(self) -> None:
        self._http.close()


_DTYPES = {"fp32": "FP32", "fp16": "FP16", "uint8": "UINT8", "jpeg": "BYTES"}
_INPUTS = {"fp32": "image", "fp16": "image", "uint8": "image", "jpeg": "encoded"}


class _Triton:
    """What HTTP and gRPC share: the model's description, and tensors in and out."""

    def __init__(self, backend: Backend, model: str | None) -> None:
        self._wire, self.model = backend.wire, model or backend.triton_model

    def _read(self, metadata: dict, config: dict, config_of: Callable[[str], dict]) -> Remote:
        wanted = (_INPUTS[self._wire], _DTYPES[self._wire])
        found = [(t["name"], t["datatype"]) for t in metadata["inputs"]]
        shape = [int(n) for n in metadata["inputs"][0]["shape"]]
        shape_ok = self._wire == "jpeg" or shape[-3:] == [3, IMAGE_SIZE, IMAGE_SIZE]
        if wanted not in found or not shape_ok or "embedding" not in [t["name"] for t in metadata["outputs"]]:
            raise ServerError(
                f"Triton's model {self.model} takes {found} {shape}, but the wire {self._wire} needs {wanted[1]} "
                f"{wanted[0]!r} and an output 'embedding': choose another model or wire."
            )
        parameters = config.get("parameters") or {}
        if not parameters and (steps := config.get("ensemble_scheduling", {}).get("step")):
            parameters = config_of(steps[-1]["model_name"]).get("parameters") or {}
        said = {key: value.get("string_value") for key, value in parameters.items()}
        said = {key: None if value in ("", "unset") else value for key, value in said.items()}
        output = next(t for t in metadata["outputs"] if t["name"] == "embedding")
        return Remote(
            digest=said.get("model_digest"),
            name=self.model,
            pretrained=said.get("pretrained"),
            dim=int(output["shape"][-1]),
            max_images=max(1, int(config.get("max_batch_size", 0))),
        )

    def _tensor(self, module: Any, batch: np.ndarray) -> tuple[list, list]:
        tensor = module.InferInput(_INPUTS[self._wire], list(batch.shape), _DTYPES[self._wire])
        tensor.set_data_from_numpy(batch)
        return [tensor], [module.InferRequestedOutput("embedding")]

    def _missing(self, statistics: dict) -> ServerError:
        ready = sorted({row["name"] for row in statistics.get("model_stats", [])})
        return ServerError(
            f"Triton at {self.url} has no model {self.model} ready: load it, or choose the backend of one "
            f"that is ({', '.join(ready) or 'none is'})."
        )


class TritonHttp(_Triton):
    """Triton's HTTP port with binary tensors, never JSON.

    tritonclient packs and unpacks; httpx carries it, because tritonclient's own HTTP client is bound to one
    thread and retries nothing.
    """

    def __init__(self, url: str, backend: Backend, patience: Patience, model: str | None = None) -> None:
        super().__init__(backend, model)
        self._http = _Http(url, patience)
        self.url = self._http.url

    def describe(self) -> Remote:
        path = f"/v2/models/{self.model}"
        metadata = self._http.call("GET", path)
        if metadata.status_code != 200:
            # Statistics name the models that are ready; the repository's index may need a key.
            statistics = self._http.call("GET", "/v2/models/stats")
            if statistics.status_code == 200:
                raise self._missing(statistics.json())
            raise self._http.explain(metadata, "Triton's HTTP port")
        try:
            config = self._http.call("GET", f"{path}/config").raise_for_status().json()
            return self._read(metadata.json(), config, self._config)
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            raise self._http.explain(metadata, "Triton's HTTP port") from None

    def _config(self, model: str) -> dict:
        response = self._http.call("GET", f"/v2/models/{model}/config")
        return response.json() if response.status_code == 200 else {}

    def infer(self, batch: np.ndarray) -> np.ndarray:
        import tritonclient.http as module

        body, json_size = module.InferenceServerClient.generate_request_body(*self._tensor(module, batch))
        headers = {"Inference-Header-Content-Length": str(json_size)} if json_size else {}
        response = self._http.call("POST", f"/v2/models/{self.model}/infer", content=body, headers=headers)
        if response.status_code != 200:
            if response.status_code == 400 and self._wire == "jpeg":
                raise _bad_image(response)
            raise ServerError(f"Triton at {self.url}, model {self.model}: {_sentence(response)}")
        length = response.headers.get("inference-header-content-length")
        result = module.InferenceServerClient.parse_response_body(
            response.content, header_length=int(length) if length else None
        )
        return np.array(result.as_numpy("embedding"), dtype=np.float32)

    def close(self) -> None:
        self._http.close()


class TritonGrpc(_Triton):
    """Triton's gRPC port; one channel, thread-safe."""

    def __init__(self, url: str, backend: Backend, patience: Patience, model: str | None = None) -> None:
        import tritonclient.grpc as module

        super().__init__(backend, model)
        self.url, self._patience = url, patience
        self._client = module.InferenceServerClient(url)

    def describe(self) -> Remote:
        metadata = self._patience.retry(
            lambda: self._call(
                self._client.get_model_metadata, self.model, as_json=True, seconds=self._patience.connect_s
            )
        )
        config = self._config(self.model)
        shaped = {
            **metadata,
            "inputs": [{**t, "shape": t.get("shape", [])} for t in metadata.get("inputs", [])],
        }
        return self._read(shaped, config, self._config)

    def _config(self, model: str) -> dict:
        return self._call(self._client.get_model_config, model, as_json=True)["config"]

    def infer(self, batch: np.ndarray) -> np.ndarray:
        import tritonclient.grpc as module

        inputs, outputs = self._tensor(module, batch)
        result = self._patience.retry(
            lambda: self._call(self._client.infer, self.model, inputs=inputs, outputs=outputs)
        )
        return np.array(result.as_numpy("embedding"), dtype=np.float32)

    def _call(self, method: Callable, *arguments: Any, seconds: float | None = None, **options: Any) -> Any:
        from tritonclient.utils import InferenceServerException

        try:
            return method(*arguments, client_timeout=seconds or self._patience.request_s, **options)
        except InferenceServerException as error:
            status, said = str(error.status() or ""), error.message()
        if "NOT_FOUND" in status or ("UNAVAILABLE" in status and "unknown model" in said):
            raise self._missing(self._client.get_inference_statistics(as_json=True))
        if (
            "UNAVAILABLE" in status
            or "DEADLINE" in status
            or "UNKNOWN" in status
            or "UNIMPLEMENTED" in status
        ):
            if hint := self._http_hint():
                raise ServerError(hint)
            raise _Transient(
                f"No gRPC server answers at {self.url} ({status.removeprefix('StatusCode.')}): start it, or "
                "correct the address (TRITON_GRPC_URL)."
            )
        if "INVALID_ARGUMENT" in status and self._wire == "jpeg":
            raise ImageError(f"refused by Triton: {said}")
        raise ServerError(f"Triton at {self.url}, model {self.model}: {said}")

    def _http_hint(self) -> str | None:
        """Tell whether HTTP is spoken where gRPC was expected."""
        try:
            status = httpx.get(f"http://{self.url}/v2/health/live", timeout=2).status_code
        except httpx.HTTPError:
            return None
        is_that = "Triton's HTTP port" if status == 200 else "an HTTP server"
        return (
            f"{self.url} is {is_that}, not a gRPC port: Triton's gRPC port is usually one higher than HTTP."
        )

    def close(self) -> None:
        self._client.close()


def _sentence(response: httpx.Response) -> str:
    """Return what the server says is wrong, shortened."""
    try:
        body = response.json()
        text = body.get("detail") or body.get("error") or body.get("status") or response.text
    except (ValueError, AttributeError):
        text = response.text
    return " ".join(str(text).split())[:300]


def _bad_image(response: httpx.Response) -> ImageError:
    error = ImageError(_sentence(response))
    try:
        problem = response.json()["errors"][0]
        error = ImageError(problem["reason"])
        error.index = problem["index"]
    except (ValueError, KeyError, IndexError, TypeError):
        pass
    return error
