"""OpenAI's form: `POST /v1/embeddings`, `GET /v1/models`, and errors for its clients.

Images are data URIs (`data:image/jpeg;base64,…`), with or without Infinity's `modality: image`. URLs of images are refused:
the service fetches nothing.
"""

import base64
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_json

from photodup.embedding.engines.model import ImageModel
from photodup.serving.service.bodies import RequestError, decoded, first_fault, of_base64

PREFIX = "/v1/"
PATH = "/v1/embeddings"


class EmbeddingsRequest(BaseModel):
    """OpenAI's request for embeddings, with images as data URIs."""

    model_config = ConfigDict(extra="ignore")

    model: str = Field(description="as GET /v1/models lists it; the architecture's name will do")
    input: str | Annotated[list[str], Field(min_length=1)]
    encoding_format: Literal["float", "base64"] | None = Field(None, description="float by default")
    modality: Literal["image"] | None = Field(None, description="Infinity's field; only images are embedded")
    dimensions: int | None = Field(None, description="only the model's own")
    user: str | None = None


class Embedding(BaseModel):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class TokenUsage(BaseModel):
    prompt_tokens: int
    total_tokens: int


class EmbeddingsAnswer(BaseModel):
    """One embedding per image in the order sent, of length 1; base64 is of float32 values, little-endian."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: TokenUsage


class ModelEntry(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "photodup"


class Models(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelEntry]


class ErrorBody(BaseModel):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class OpenAiProblem(BaseModel):
    """Body of every 4xx and 5xx answer under /v1/."""

    error: ErrorBody


_CODES = {401: "invalid_api_key", 404: "model_not_found", 503: "overloaded"}


def problem(status: int, sentence: str) -> OpenAiProblem:
    """Return an error in OpenAI's form."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    param = {404: "model", 401: None}.get(status, "input" if status < 500 else None)
    return OpenAiProblem(error=ErrorBody(message=sentence, type=kind, param=param, code=_CODES.get(status)))


def model_id(model: ImageModel) -> str:
    return f"{model.name}/{model.pretrained}"


class OpenAiRequest:
    """One request in OpenAI's form: its images, and the encoding of its answer."""

    def __init__(self, model: ImageModel, max_images: int) -> None:
        self._model, self._max_images = model, max_images
        self._encoding = "float"

    def images(self, body: bytes) -> list[bytes]:
        """Return the encoded images of a body.

        Raises:
            RequestError: it has another form or model, or an image is no data URI.
        """
        try:
            request = EmbeddingsRequest.model_validate_json(body)
        except ValidationError as error:
            raise RequestError(400, f"{first_fault(error)}.") from None
        names = {model_id(self._model), self._model.name, self._model.pretrained}
        if request.model not in names:
            raise RequestError(
                404, f"There is no model {request.model[:80]!r} here, only {model_id(self._model)}."
            )
        if request.dimensions not in (None, self._model.dim):
            raise RequestError(400, f"dimensions: the model has {self._model.dim}, and no other number.")
        self._encoding = request.encoding_format or "float"
        texts = [request.input] if isinstance(request.input, str) else request.input
        return decoded(texts, self._max_images, _of_data_uri)

    def encode(self, embeddings: np.ndarray) -> bytes:
        """Return the JSON body of the answer."""
        rows = embedding_rows(embeddings, self._encoding)
        data = [{"object": "embedding", "index": i, "embedding": row} for i, row in enumerate(rows)]
        usage = {"prompt_tokens": 0, "total_tokens": 0}
        return to_json({"object": "list", "data": data, "model": model_id(self._model), "usage": usage})


def embedding_rows(embeddings: np.ndarray, encoding: str) -> list[Any]:
    """Return embeddings as numbers, or each as base64 of little-endian float32."""
    if encoding == "base64":
        return [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in embeddings]
    return embeddings.tolist()


def _of_data_uri(text: str) -> bytes:
    head, comma, data = text.partition(",")
    if not head.startswith("data:") or not comma:
        is_address = text[:8].lower().startswith(("http://", "https://"))
        raise ValueError(
            "an address, and nothing is fetched here: send the image as data:image/jpeg;base64,…"
            if is_address
            else "no image but text: send data:image/jpeg;base64,…"
        )
    if not head.lower().endswith(";base64"):
        raise ValueError("a data URI that is not in base64: send data:image/jpeg;base64,…")
    return of_base64(data)
