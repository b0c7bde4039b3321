"""How a batch travels to Triton and back, over HTTP and over gRPC. Triton's own client packs the tensors."""

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np

from photodup.addresses import grpc_address
from photodup.embedding.backends import Backend
from photodup.embedding.client.answers import Patience, Remote, ServerError, Transient
from photodup.embedding.client.http import Http, bad_image, sentence
from photodup.embedding.client.which_server import TRITON_HTTP, which_server
from photodup.embedding.imaging import IMAGE_SIZE, ImageError
from photodup.errors import PhotodupError
from photodup.extras import need
from photodup.settings import environment

_DTYPES = {"fp32": "FP32", "fp16": "FP16", "uint8": "UINT8", "jpeg": "BYTES"}
_INPUTS = {"fp32": "image", "fp16": "image", "uint8": "image", "jpeg": "encoded"}


def address_for_grpc(url: str | None) -> str:
    """Return host:port; from an HTTP address, `TRITON_GRPC_URL` or the port one higher."""
    configured = environment().triton_grpc_url
    if url is None or urlsplit(url).scheme in ("http", "https"):
        if configured:
            return configured.removeprefix("grpc://").removeprefix("http://")
        parts = urlsplit(url or "http://localhost:8003")
        if not parts.hostname or not parts.port:
            raise ServerError(f"{url!r} has no port to derive the gRPC port from: give host:port.")
        return f"{parts.hostname}:{parts.port + 1}"
    try:
        return grpc_address(url)
    except PhotodupError as error:
        raise ServerError(str(error)) from None


class _Triton:
    """What HTTP and gRPC share: the model's description, and tensors in and out."""

    url: str

    def __init__(self, backend: Backend, model: str | None) -> None:
        self._wire, self.model = backend.wire, model or backend.triton_model
        try:
            self._library = need(f"tritonclient.{backend.protocol}")
        except PhotodupError as error:  # without its client there is no Triton, so `auto` looks elsewhere
            raise ServerError(str(error)) from None

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
            precision=said.get("precision"),
            gate=said.get("gate"),
            max_images=max(1, int(config.get("max_batch_size", 0))),
        )

    def _tensor(self, batch: np.ndarray) -> tuple[list, list]:
        tensor = self._library.InferInput(_INPUTS[self._wire], list(batch.shape), _DTYPES[self._wire])
        tensor.set_data_from_numpy(batch)
        return [tensor], [self._library.InferRequestedOutput("embedding")]

    def _missing(self, statistics: dict) -> ServerError:
        ready = sorted({row["name"] for row in statistics.get("model_stats", [])})
        return ServerError(
            f"Triton at {self.url} has no model {self.model} ready: load it, or choose the backend of one "
            f"that is ({', '.join(ready) or 'none is'})."
        )


class TritonOverHttp(_Triton):
    """Triton's HTTP port with binary tensors, never JSON.

    tritonclient packs and unpacks; httpx carries it, because tritonclient's own HTTP client is bound to one
    thread and retries nothing.
    """

    def __init__(self, url: str, backend: Backend, patience: Patience, model: str | None = None) -> None:
        super().__init__(backend, model)
        self._http = Http(url, patience)
        self.url = self._http.url

    def describe(self) -> Remote:
        path = f"/v2/models/{self.model}"
        metadata = self._http.call("GET", path)
        if metadata.status_code != 200:
            # Statistics name the models that are ready; the repository's index may need a key.
            statistics = self._http.call("GET", "/v2/models/stats")
            if statistics.status_code == 200:
                raise self._missing(statistics.json())
            raise self._http.explain(metadata, TRITON_HTTP)
        try:
            config = self._http.call("GET", f"{path}/config").raise_for_status().json()
            return self._read(metadata.json(), config, self._config)
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            raise self._http.explain(metadata, TRITON_HTTP) from None

    def _config(self, model: str) -> dict:
        response = self._http.call("GET", f"/v2/models/{model}/config")
        return response.json() if response.status_code == 200 else {}

    def infer(self, batch: np.ndarray) -> np.ndarray:
        packer = self._library.InferenceServerClient
        body, json_size = packer.generate_request_body(*self._tensor(batch))
        headers = {"Inference-Header-Content-Length": str(json_size)} if json_size else {}
        response = self._http.call("POST", f"/v2/models/{self.model}/infer", content=body, headers=headers)
        if response.status_code != 200:
            if response.status_code == 400 and self._wire == "jpeg":
                raise bad_image(response)
            raise ServerError(f"Triton at {self.url}, model {self.model}: {sentence(response)}")
        length = response.headers.get("inference-header-content-length")
        result = packer.parse_response_body(response.content, header_length=int(length) if length else None)
        return np.array(result.as_numpy("embedding"), dtype=np.float32)

    def close(self) -> None:
        self._http.close()


class TritonOverGrpc(_Triton):
    """Triton's gRPC port; one channel, thread-safe."""

    def __init__(self, url: str, backend: Backend, patience: Patience, model: str | None = None) -> None:
        super().__init__(backend, model)
        self.url, self._patience = url, patience
        self._client = self._library.InferenceServerClient(url)

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
        inputs, outputs = self._tensor(batch)
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
            raise Transient(
                f"No gRPC server answers at {self.url} ({status.removeprefix('StatusCode.')}): start it, or "
                "correct the address (TRITON_GRPC_URL)."
            )
        if "INVALID_ARGUMENT" in status and self._wire == "jpeg":
            raise ImageError(f"refused by Triton: {said}")
        raise ServerError(f"Triton at {self.url}, model {self.model}: {said}")

    def _http_hint(self) -> str | None:
        """Tell whether HTTP is spoken where gRPC was expected."""

        def ask(path: str) -> tuple[int, str]:
            try:
                answer = httpx.get(f"http://{self.url}{path}", timeout=2)
            except (httpx.HTTPError, httpx.InvalidURL):
                return 0, ""
            return answer.status_code, answer.text

        if not (found := which_server(ask)):
            return None
        return f"{self.url} is {found}, not a gRPC port: Triton's gRPC port is usually one higher than HTTP."

    def close(self) -> None:
        self._client.close()
