"""What the FastAPI service answers with, and how its OpenAPI document describes it."""

from typing import Any

from pydantic import BaseModel, Field

from photodup.serving.service.bodies import Problem
from photodup.serving.service.openai_form import OpenAiProblem


class Embeddings(BaseModel):
    """One embedding per image, in the order sent, of length 1.

    Numbers by default; with `?encoding=base64` each is the base64 of its float32 values, little-endian.
    """

    embeddings: list[list[float]] | list[str]


class Limits(BaseModel):
    max_images: int
    max_body_bytes: int
    max_pixels: int
    max_request_pixels: int
    batch_max: int
    batch_delay_ms: float


class Info(BaseModel):
    """What the service computes. Embeddings are comparable if their `digest` is the same."""

    name: str
    pretrained: str
    digest: str
    is_random: bool
    dim: int
    device: str
    engine: str
    precision: str
    gate: str = Field(
        description="of a reduced precision: passed, refused, undecided or not asked; else not needed"
    )
    limits: Limits


class Status(BaseModel):
    status: str


_ERRORS = {
    400: "An image cannot be read, or is too large once decoded; or the body is cut short",
    401: "An API key is needed",
    408: "The body arrives too slowly",
    413: "Too many images or pixels, or too large a body",
    415: "Another content type is needed",
    422: "The body has another form",
    500: "The service failed, or the model's answer is no embedding (NaN, infinities or zero)",
    503: "Not ready, or too much at a time: retry",
}
OPENAI_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": OpenAiProblem, "description": text}
    for status, text in (_ERRORS | {404: "There is no such model"}).items()
}
RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": text} for status, text in _ERRORS.items()
}
FILES = {
    "type": "object",
    "properties": {
        "files": {"type": "array", "items": {"type": "string", "format": "binary"}, "minItems": 1}
    },
    "required": ["files"],
}
