"""The model in this process: what a server is compared with when it costs nothing to reach it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from photodup.bench.backends.adapter import InProcess
from photodup.embedding.backends import Backend
from photodup.embedding.imaging import normalize
from photodup.embedding.wire.wires import pixels


class _Local(InProcess):
    def prepare(self, photos: Sequence[bytes]) -> np.ndarray:
        return normalize(pixels(photos))

    def payload_bytes(self, prepared: np.ndarray) -> int:
        return 0  # nothing crosses a network

    def decode(self, answer: np.ndarray) -> np.ndarray:
        return answer


class LocalPyTorch(_Local):
    """PyTorch.

    Args:
        model: an `ImageModel`; loaded by MODEL_NAME and MODEL_PRETRAINED when not given.
    """

    backend = Backend("local", "pytorch")

    def __init__(self, model: Any = None) -> None:
        if model is None:
            from photodup.embedding.engines.encoder import load_model

            model = load_model()
        self._model = model

    def request(self, prepared: np.ndarray) -> np.ndarray:
        return self._model.embed(prepared)


class LocalOnnx(_Local):
    """ONNX Runtime.

    The fp32 graph of the model in the environment, exported if need be, on the CPU.
    """

    backend = Backend("local", "onnx")

    def __init__(self) -> None:
        from photodup.embedding.engines.encoder import load_model
        from photodup.embedding.engines.export import export
        from photodup.embedding.engines.onnx_runtime import open_session
        from photodup.paths import build_dir

        path = export(load_model(), build_dir() / "models", ["fp32"])["fp32"]
        self._session = open_session(path, providers=["CPUExecutionProvider"])

    def request(self, prepared: np.ndarray) -> np.ndarray:
        return self._session.run(["embedding"], {"image": prepared})[0]
