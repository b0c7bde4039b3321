"""The environment variables that photodup reads; the service's own are in `serving.service.settings`.

Each is read when it is needed: a notebook's cell or a test may have set it a moment ago.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any

from photodup.core.errors import PhotodupError

DEFAULT_NAME, DEFAULT_PRETRAINED = "ViT-B-32", "laion2b_s34b_b79k"


def _of(variable: str, *, secret: bool = False) -> Any:
    return field(default="", repr=not secret, metadata={"variable": variable})


@dataclass(frozen=True)
class Environment:
    """The variables that photodup knows; one that is not set is empty."""

    root: str = _of("PHOTODUP_ROOT")
    config: str = _of("PHOTODUP_CONFIG")
    config_home: str = _of("XDG_CONFIG_HOME")
    cache_home: str = _of("XDG_CACHE_HOME")
    triton_venv: str = _of("PHOTODUP_TRITON_VENV")
    api_key: str = _of("PHOTODUP_API_KEY", secret=True)
    control_key: str = _of("PHOTODUP_TRITON_CONTROL_KEY", secret=True)
    measure: str = _of("PHOTODUP_MEASURE")
    model_name: str = _of("MODEL_NAME")
    model_pretrained: str = _of("MODEL_PRETRAINED")
    service_url: str = _of("INFERENCE_SERVICE_URL")
    service_backend: str = _of("INFERENCE_BACKEND")
    triton_grpc_url: str = _of("TRITON_GRPC_URL")

    @property
    def architecture(self) -> str:
        """The open_clip architecture: MODEL_NAME, or the default."""
        return self.model_name or DEFAULT_NAME

    @property
    def weights(self) -> str:
        """MODEL_PRETRAINED, or the default."""
        return self.model_pretrained or DEFAULT_PRETRAINED

    @property
    def may_measure(self) -> bool:
        """Whether a run may measure; with PHOTODUP_MEASURE=0 it only reads."""
        return self.measure != "0"


def environment() -> Environment:
    """Return the current values."""
    return Environment(**{entry.name: variable(entry.metadata["variable"]) for entry in fields(Environment)})


def variable(name: str) -> str:
    """Return a variable by its name, such as one that the user named with `env:NAME`; empty where it is not set."""
    return os.environ.get(name, "")


def header_text(text: str, name: str) -> str:
    """Return a key, or another header's value, without white space around it such as the newline that `echo` adds.

    Raises:
        PhotodupError: no header can carry it; `name` says where it stands, and the value is never shown.
    """
    if not (text := text.strip()).isascii() or not text.isprintable():
        raise PhotodupError(f"The value of {name} holds characters that no header can carry: write it anew.")
    return text


def key_headers() -> dict[str, str]:
    """Return the header with the key of a FastAPI service, if there is one. Send it to no other kind of server."""
    return {"X-API-Key": key} if (key := header_text(environment().api_key, "PHOTODUP_API_KEY")) else {}


def inherited(**changes: str) -> dict[str, str]:
    """Return the environment for another process: this one's, with changes."""
    return dict(os.environ) | changes


def set_variables(**values: str) -> None:
    """Set variables for this process and those that it starts."""
    os.environ.update(values)


@contextmanager
def variables(**values: str) -> Iterator[None]:
    """Set variables inside a `with` block; an empty value takes one away."""
    before = {name: os.environ.pop(name, None) for name in values}
    set_variables(**{name: value for name, value in values.items() if value})
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
