"""An encoder that a Triton computes, for the FastAPI service in front of it (`ENGINE=triton`)."""

import numpy as np

from photodup.core.errors import PhotodupError
from photodup.core.settings import environment
from photodup.embedding.backends import parse_backend
from photodup.embedding.client.http import Patience
from photodup.embedding.client.servers import TritonOverGrpc, address_for_grpc
from photodup.embedding.engines.onnx_runtime import ExportedModel
from photodup.embedding.engines.weights import is_random
from photodup.embedding.wire import wires

DEFAULT_BACKEND = "triton-onnx-fp32-grpc-uint8"


class TritonModel(ExportedModel):
    """An `ImageModel` in Triton, with the name, precision, digest and verdict that Triton states.

    `INFERENCE_BACKEND` chooses the model (`DEFAULT_BACKEND`), `TRITON_GRPC_URL` the address (localhost:8004).
    """

    engine = device = "triton"
    _dtype = np.uint8

    def __init__(self, precision: str) -> None:
        """Get the model's description from Triton.

        Raises:
            PhotodupError: a backend without pixels over gRPC, another precision, no such model, or one without a digest.
        """
        backend = parse_backend(environment().service_backend or DEFAULT_BACKEND)
        if backend.server != "triton" or backend.protocol != "grpc" or backend.is_encoded:
            raise PhotodupError(
                f"ENGINE=triton sends pixels by gRPC, and {backend} does not: use {DEFAULT_BACKEND} (INFERENCE_BACKEND)."
            )
        self._wire = backend.wire
        self._server = TritonOverGrpc(address_for_grpc(None), backend, Patience())
        self._remote = self._server.describe()
        self.name, self.pretrained = self._remote.name or "", self._remote.pretrained or "unknown"
        self.dim, self.is_random = self._remote.dim or 0, is_random(self.pretrained)
        self.precision = self._remote.precision or backend.precision
        self.accuracy_check = self._remote.accuracy_check
        self.digest = self.source_digest = self._remote.digest or ("emulated" if backend.is_emulated else "")
        if not self.digest or precision not in ("fp32", self.precision):
            raise PhotodupError(
                f"Triton's model {self.name} computes in {self.precision} with digest {self.digest or 'unset'}: leave "
                "PRECISION out, name another model (INFERENCE_BACKEND), or render the repository again (`photodup render`)."
            )

    def _run(self, pixels: np.ndarray) -> np.ndarray:
        batch = self._remote.max_images
        parts = [pixels[start : start + batch] for start in range(0, len(pixels), batch)]
        return np.concatenate([self._server.infer(wires.in_type(part, self._wire)) for part in parts])
