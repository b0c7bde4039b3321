"""Triton over gRPC, with the channel policy explicit: it decides how many TCP connections carry the load.

`shared`: all workers on one channel, hence one connection, one congestion window (what the published study
measured). `per-worker`: one each. `asyncio`: one channel in an event loop.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from photodup.bench.backends import wires
from photodup.embedding.backends import Backend, parse_backend
from photodup.errors import PhotodupError

CHANNELS = ("per-worker", "shared", "asyncio")
_LARGEST_MESSAGE = 2**31 - 1


class TritonGrpc:
    """Protobufs and stub of `tritonclient`, called directly: building the message belongs to `prepare`.

    Args:
        channel: one of `CHANNELS`.
        model: another model than the backend's own.
        timeout_s: deadline of each call.
    """

    def __init__(
        self,
        backend: str | Backend,
        url: str,
        *,
        channel: str = "per-worker",
        model: str | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        if channel not in CHANNELS:
            raise PhotodupError(f"channel {channel!r} is not one of {', '.join(CHANNELS)}.")
        self.backend, self.channel = parse_backend(backend), channel
        self.wire = self.backend.wire
        self.model = model or self.backend.triton_model
        self.timeout_s = timeout_s
        self.is_async, self.can_reconnect = channel == "asyncio", channel == "per-worker"
        self._address = url.split("//")[-1].rstrip("/")
        self._shared: Any = None

    def describe(self) -> dict[str, Any]:
        return {**self.backend.columns(), "channel": self.channel}

    def prepare(self, photos: Sequence[bytes]) -> Any:
        from tritonclient.grpc import service_pb2
        from tritonclient.utils import np_to_triton_dtype, serialize_byte_tensor

        array = wires.tensor(photos, self.wire)
        request = service_pb2.ModelInferRequest(model_name=self.model)
        tensor = request.inputs.add(name="encoded" if self.wire == "jpeg" else "image")
        tensor.datatype = np_to_triton_dtype(array.dtype)
        tensor.shape.extend(array.shape)
        data = serialize_byte_tensor(array).item() if array.dtype == np.object_ else array.tobytes()
        request.raw_input_contents.append(data)
        request.outputs.add(name="embedding")
        return request

    def payload_bytes(self, prepared: Any) -> int:
        return prepared.ByteSize()

    def open(self) -> "_Blocking | _InLoop":
        if self.channel == "asyncio":
            return _InLoop(self)
        if self.channel == "shared":
            self._shared = self._shared or self.new_channel()
        return _Blocking(self)

    def new_channel(self, *, asynchronous: bool = False) -> Any:
        import grpc

        options = [
            # Without this, channels to one address quietly share one TCP connection.
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_send_message_length", _LARGEST_MESSAGE),
            ("grpc.max_receive_message_length", _LARGEST_MESSAGE),
        ]
        kind = grpc.aio if asynchronous else grpc
        return kind.insecure_channel(self._address, options=options)

    def close(self) -> None:
        if self._shared is not None:
            self._shared.close()
            self._shared = None


def decode(answer: Any) -> np.ndarray:
    """Return the embeddings of a ModelInferResponse."""
    return np.frombuffer(answer.raw_output_contents[0], "<f4").reshape(tuple(answer.outputs[0].shape))


class _Blocking:
    def __init__(self, adapter: TritonGrpc) -> None:
        self._adapter = adapter
        self._channel: Any = None
        self._call: Any = None

    def request(self, prepared: Any) -> Any:
        if self._call is None:
            from tritonclient.grpc import service_pb2_grpc

            self._channel = self._adapter._shared or self._adapter.new_channel()
            self._call = service_pb2_grpc.GRPCInferenceServiceStub(self._channel).ModelInfer
        return self._call(prepared, timeout=self._adapter.timeout_s)

    def decode(self, answer: Any) -> np.ndarray:
        return decode(answer)

    def close(self) -> None:
        if self._channel is not None and self._channel is not self._adapter._shared:
            self._channel.close()
        self._channel = self._call = None


class _InLoop:
    """All tasks of one event loop share the adapter's channel, which is bound to that loop."""

    def __init__(self, adapter: TritonGrpc) -> None:
        from tritonclient.grpc import service_pb2_grpc

        self._adapter = adapter
        if adapter._shared is None:
            adapter._shared = adapter.new_channel(asynchronous=True)
        self._channel = adapter._shared
        self._call = service_pb2_grpc.GRPCInferenceServiceStub(self._channel).ModelInfer

    async def request(self, prepared: Any) -> Any:
        return await self._call(prepared, timeout=self._adapter.timeout_s)

    def decode(self, answer: Any) -> np.ndarray:
        return decode(answer)

    async def aclose(self) -> None:
        await self._channel.close()
        self._adapter._shared = None
