"""Send one request with pictures in any protocol, on a connection of its own, and classify the reply."""

import contextlib
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from photodup.bench.anyurl import kserve
from photodup.bench.anyurl.measure import LoadTarget
from photodup.bench.anyurl.payloads import Payloads
from photodup.bench.anyurl.target import Target
from photodup.bench.backends.http_connection import HttpError
from photodup.bench.load.workers import describe_error
from photodup.bench.verify.pictures import SIDE
from photodup.core.errors import PhotodupError, is_expected
from photodup.embedding.wire.http import AnswerError
from photodup.embedding.wire.kserve import Tensor, dtype
from photodup.embedding.wire.wires import in_type, pixels

ANSWERED, REFUSED, BUSY, FAILED, SILENT = "answered", "refused", "busy", "failed", "silent"
_REFUSALS = (
    "INVALID_ARGUMENT OUT_OF_RANGE FAILED_PRECONDITION RESOURCE_EXHAUSTED NOT_FOUND UNIMPLEMENTED PERMISSION_DENIED "
    "UNAUTHENTICATED"
)
_GRPC = {"DEADLINE_EXCEEDED": SILENT, "UNAVAILABLE": BUSY} | dict.fromkeys(_REFUSALS.split(), REFUSED)
_HEALTH = ("/readyz", "/health", "/healthz", "/-/healthz", "/v2/health/ready")
_WIRES = {"UINT8": "uint8", "FP16": "fp16", "FP32": "fp32"}
_MOST_CHARACTERS = 90  # characters of what a server says


@dataclass(frozen=True)
class Reply:
    """What a server answered to one request.

    Attributes:
        kind: `answered`; `refused`: it says that the request is at fault (4xx); `busy`: it has no room (429, 503);
            `failed`: it is at fault itself, or what it sent cannot be read; `silent`: nothing came in time.
        rows: float32 [images, dim]; empty unless it answered.
        reason: why not, one line; empty if it answered.
    """

    kind: str
    rows: np.ndarray
    reason: str = ""


@dataclass(frozen=True)
class PictureServer:
    """A target that is sent pictures.

    Attributes:
        max_images: in a request.
        tensor: KServe: the model's input.
    """

    target: Target
    max_images: int
    tensor: Tensor | None = None
    _adapters: dict[str, Any] = field(default_factory=dict)

    @property
    def takes_files(self) -> bool:
        """It decodes images itself; otherwise it takes tensors, which are made here."""
        return self.tensor is None or self.tensor.datatype == "BYTES"

    def ask(self, files: Sequence[bytes]) -> Reply:
        """Send one request with some images of a kind and return what came of it."""
        adapter = self._adapter("image/png" if files[0][:4] == b"\x89PNG" else "image/jpeg")
        return self._send(adapter, adapter.prepare(list(files)))

    def ask_misshapen(self) -> Reply:
        """Send a tensor with sides that no picture has here."""
        tensor = self.tensor
        assert tensor
        array = np.zeros((1, 3, 7, 5), dtype(tensor.datatype))
        adapter = replace(self._adapter(""), to_input=lambda items: {tensor.name: array})
        return self._send(adapter, adapter.prepare([]))

    def _send(self, adapter: Any, prepared: Any) -> Reply:
        try:
            with contextlib.closing(adapter.open()) as connection:
                return Reply(ANSWERED, connection.decode(connection.request(prepared)))
        except (HttpError, AnswerError) as error:
            status = getattr(error, "status", 0)
            outcome = BUSY if status in (429, 503) else REFUSED if 400 <= status < 500 else FAILED
            message = str(error)
        except Exception as error:
            if not is_expected(error):
                raise
            code = getattr(getattr(error, "code", lambda: None)(), "name", "")
            outcome = SILENT if isinstance(error, TimeoutError) else _GRPC.get(code, FAILED)
            message = f"{code} {describe_error(error).partition(': ')[2]}".strip()
        message = f"nothing came within {self.target.timeout_s:g} s" if outcome == SILENT else message
        return Reply(outcome, np.empty((0, 0), np.float32), message[:_MOST_CHARACTERS].rstrip("."))

    def health(self) -> str:
        """Return the health-check paths that answer well; none over gRPC."""
        paths = () if self.target.protocol == "kserve-grpc" else _HEALTH
        return ", ".join(path for path in paths if self._is_well(path))

    def _is_well(self, path: str) -> bool:
        with contextlib.suppress(PhotodupError, OSError), contextlib.closing(self.target.connection()) as to:
            to.request(to.head("GET", path, 0, self.target.security.headers))
            return True
        return False

    def _adapter(self, media_type: str) -> Any:
        kind = "" if self.tensor else media_type  # KServe names none
        if kind not in self._adapters:
            sent = Payloads("images" if self.takes_files else "arrays", (), "", kind)
            adapter = LoadTarget(self.target, sent, is_embedded=True).adapter()
            if self.tensor and not self.takes_files:
                adapter.to_input = functools.partial(_tensor, self.tensor)
            self._adapters[kind] = adapter
        return self._adapters[kind]


def picture_server(target: Target, max_images: int) -> PictureServer:
    """Ask a target what it takes.

    Args:
        max_images: pictures in a request, at most; the body of a plain POST is one.

    Raises:
        PhotodupError: nothing answers, or it takes no pictures.
    """
    if not target.protocol.startswith("kserve"):
        return PictureServer(target, 1 if target.protocol == "post" else max_images)
    model = kserve.describe_model(target)
    (first, *more) = model.inputs
    is_square = first.dims[-3:] == (3, SIDE, SIDE) and first.datatype in _WIRES
    if more or not (first.datatype == "BYTES" or is_square):
        takes = ", ".join(f"{t.name} {t.datatype} {list(t.dims)}" for t in model.inputs)
        raise PhotodupError(
            f"{model.name} takes {takes}: verify sends encoded images, or [3, {SIDE}, {SIDE}] of {', '.join(_WIRES)}."
        )
    limit = min(max_images, model.max_batch or max_images) if model.batched else 1
    return PictureServer(target, limit, first)


def _tensor(tensor: Tensor, files: Sequence[bytes]) -> dict[str, np.ndarray]:
    array = in_type(pixels(files), _WIRES[tensor.datatype])
    return {tensor.name: array if len(tensor.dims) == 3 else array.reshape(tensor.dims)}
