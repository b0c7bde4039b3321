"""Which embedding backends answer, for the settings page."""

import os
from dataclasses import dataclass

from photodup.errors import PhotodupError

# Name and default address, as the documented port map has them.
CANDIDATES = (
    ("pytorch-http-jpeg", "http://127.0.0.1:8002"),
    ("triton-onnx-http-fp32", "http://127.0.0.1:8003"),
    ("triton-onnx-grpc-fp32", "127.0.0.1:8004"),
)


@dataclass(frozen=True)
class Backend:
    """Whether one backend answers and what it serves."""

    name: str
    url: str
    answers: bool
    model: str


def probe_backends() -> list[Backend]:
    """Ask each backend once, briefly; addresses from the environment come first."""
    from photodup.embedding.clients import connect
    from photodup.embedding.remote import Patience

    wanted = list(CANDIDATES)
    if url := os.environ.get("INFERENCE_SERVICE_URL"):
        wanted.insert(0, (os.environ.get("INFERENCE_BACKEND") or "pytorch-http-jpeg", url))
    found = []
    for name, url in wanted:
        try:
            with connect(url, name, mode="remote", patience=Patience(connect_s=1.0, attempts=1)) as embedder:
                random = " (random weights)" if embedder.is_random else ""
                digest = (embedder.model_digest or "digest not told")[:12]
                found.append(Backend(name, url, True, f"{embedder.model_name or '?'}{random} · {digest}"))
        except PhotodupError as error:
            found.append(Backend(name, url, False, str(error)))
    return found
