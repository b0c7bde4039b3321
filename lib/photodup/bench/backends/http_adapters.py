"""FastAPI and Triton over HTTP, on the same thin connection, so that only server and wire differ."""

import base64
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from photodup.bench.backends import wires
from photodup.bench.backends.http_connection import Answer, HttpConnection, HttpWorker, Prepared
from photodup.embedding.backends import Backend, parse_backend
from photodup.errors import PhotodupError

_BOUNDARY = "photodup-7MA4YWxkTrZu0gW"


class _Http:
    is_async, can_reconnect = False, True

    def __init__(self, backend: str | Backend, url: str, **connection_options: Any) -> None:
        self.backend, self.url = parse_backend(backend), url
        self._options = connection_options
        self._heads = HttpConnection(url)  # never connected: it only writes heads
        self.wire = self.backend.wire

    def describe(self) -> dict[str, Any]:
        return {**self.backend.columns(), "channel": None}

    def payload_bytes(self, prepared: Prepared) -> int:
        return len(prepared[1])

    def open(self) -> HttpWorker:
        return HttpWorker(HttpConnection(self.url, **self._options), self.decode)

    def close(self) -> None:
        """Workers close their own connections."""

    def decode(self, answer: Answer) -> np.ndarray:
        raise NotImplementedError


class FastApiHttp(_Http):
    """The FastAPI service: `jpeg` is multipart, `base64` is JSON holding base64 JPEGs.

    Args:
        answer: `float` (JSON numbers, the published form) or `base64` (float32 in base64).
        jpeg_quality: of the 224-pixel re-encode; None posts the photographs as they are.
    """

    def __init__(
        self,
        backend: str | Backend,
        url: str,
        *,
        answer: str = "float",
        jpeg_quality: int | None = wires.JPEG_QUALITY,
        **options: Any,
    ) -> None:
        super().__init__(backend, url, **options)
        if self.backend.server != "fastapi":
            raise PhotodupError(f"{backend} is not served by the FastAPI service.")
        self._encoding, self._quality = answer, jpeg_quality

    def prepare(self, photos: Sequence[bytes]) -> Prepared:
        encoded = wires.jpegs(photos, self._quality)
        query = f"?encoding={self._encoding}"
        if self.wire == "base64":
            images = [base64.b64encode(jpeg).decode() for jpeg in encoded]
            body = json.dumps({"images": images}).encode()
            return self._heads.head("POST", f"/embed/base64{query}", len(body), _JSON), body
        body = b"".join(
            b'--%s\r\nContent-Disposition: form-data; name="files"; filename="%d.jpg"\r\n'
            b"Content-Type: image/jpeg\r\n\r\n%s\r\n" % (_BOUNDARY.encode(), number, jpeg)
            for number, jpeg in enumerate(encoded)
        )
        body += b"--%s--\r\n" % _BOUNDARY.encode()
        kind = {"Content-Type": f"multipart/form-data; boundary={_BOUNDARY}"}
        return self._heads.head("POST", f"/embed{query}", len(body), kind), body

    def decode(self, answer: Answer) -> np.ndarray:
        content = json.loads(answer[1])
        if self._encoding == "base64":
            vectors = [np.frombuffer(base64.b64decode(text), "<f4") for text in content["embeddings"]]
            return np.stack(vectors)
        return np.asarray(content["embeddings"], np.float32)


_JSON = {"Content-Type": "application/json"}


class TritonHttp(_Http):
    """Triton's HTTP protocol with binary tensors; framing by `tritonclient`, sockets ours.

    The wire `json` sends the fp32 tensor as decimal text, as a client does that calls `.tolist()`.
    """

    def __init__(self, backend: str | Backend, url: str, *, model: str | None = None, **options: Any) -> None:
        super().__init__(backend, url, **options)
        self.model = model or self.backend.triton_model

    def prepare(self, photos: Sequence[bytes]) -> Prepared:
        from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput
        from tritonclient.utils import np_to_triton_dtype

        array = wires.tensor(photos, self.wire)
        path = f"/v2/models/{self.model}/infer"
        if self.wire == "json":
            data = {"name": "image", "shape": list(array.shape), "datatype": "FP32", "data": array.tolist()}
            body = json.dumps({"inputs": [data], "outputs": [{"name": "embedding"}]}).encode()
            return self._heads.head("POST", path, len(body), _JSON), body
        name = "encoded" if self.wire == "jpeg" else "image"
        tensor = InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        outputs = [InferRequestedOutput("embedding", binary_data=True)]
        body, json_length = InferenceServerClient.generate_request_body([tensor], outputs=outputs)
        headers = {"Inference-Header-Content-Length": str(json_length)} if json_length else {}
        return self._heads.head("POST", path, len(body), headers), bytes(body)

    def decode(self, answer: Answer) -> np.ndarray:
        headers, body = answer
        if self.wire == "json":
            output = json.loads(body)["outputs"][0]
            return np.asarray(output["data"], np.float32).reshape(output["shape"])
        from tritonclient.http import InferenceServerClient

        length = headers.get("inference-header-content-length")
        result = InferenceServerClient.parse_response_body(
            body, header_length=int(length) if length else None
        )
        return result.as_numpy("embedding")
