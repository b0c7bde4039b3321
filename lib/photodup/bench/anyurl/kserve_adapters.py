"""A KServe model over HTTP and over gRPC: framing by `tritonclient`, connections as the load generator wants them."""

import contextlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from photodup.bench.anyurl.channel import grpc_channel, grpc_metadata
from photodup.bench.anyurl.http_protocols import Answer, HttpProtocol, Prepared
from photodup.bench.anyurl.kserve import Requests
from photodup.bench.anyurl.payloads import Payloads
from photodup.bench.anyurl.target import Target
from photodup.bench.backends.adapter import AnswerError


class KserveHttp(HttpProtocol):
    """Binary tensors in both directions."""

    def __init__(self, target: Target, payloads: Payloads, requests: Requests) -> None:
        super().__init__(target, payloads)
        self._requests = requests

    def prepare(self, items: Sequence[Any]) -> Prepared:
        from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput
        from tritonclient.utils import np_to_triton_dtype

        inputs = []
        for name, array in self._requests.tensors(items).items():
            inputs.append(InferInput(name, array.shape, np_to_triton_dtype(array.dtype)))
            inputs[-1].set_data_from_numpy(array)
        outputs = [InferRequestedOutput(self._requests.model.output, binary_data=True)]
        body, length = InferenceServerClient.generate_request_body(inputs, outputs=outputs)
        headers = {"Content-Type": "application/octet-stream", **self.target.security.headers}
        headers |= {"Inference-Header-Content-Length": str(length)} if length else {}
        return self._heads.head("POST", f"{self.target.path}/infer", len(body), headers), bytes(body)

    def decode(self, answer: Answer) -> np.ndarray:
        headers, body = answer
        length = int(headers.get("inference-header-content-length") or len(body))
        content = json.loads(body[:length])
        output = content["outputs"][0]
        # A server that knows no binary tensors writes the numbers into the JSON.
        data = body[length : length + output.get("parameters", {}).get("binary_data_size", 0)] or output.get(
            "data"
        )
        return _as_rows(output["datatype"], output["shape"], data, self._requests.model.batched)


class KserveGrpc:
    """One channel, hence one connection, for each request in flight."""

    is_async, can_reconnect = False, True

    def __init__(self, target: Target, payloads: Payloads, requests: Requests) -> None:
        self.target, self.payloads, self._requests = target, payloads, requests

    @property
    def backend(self) -> str:
        return self.target.name

    def describe(self) -> dict[str, Any]:
        return {**self.target.columns(), "payload": self.payloads.kind, "channel": "per-worker"}

    def prepare(self, items: Sequence[Any]) -> Any:
        from tritonclient.grpc import service_pb2
        from tritonclient.utils import np_to_triton_dtype, serialize_byte_tensor

        request = service_pb2.ModelInferRequest(model_name=self.target.model)
        for name, array in self._requests.tensors(items).items():
            tensor = request.inputs.add(name=name, datatype=np_to_triton_dtype(array.dtype))
            tensor.shape.extend(array.shape)
            data = serialize_byte_tensor(array).item() if array.dtype == np.object_ else array.tobytes()
            request.raw_input_contents.append(data)
        request.outputs.add(name=self._requests.model.output)
        return request

    def payload_bytes(self, prepared: Any) -> int:
        return prepared.ByteSize()

    def open(self) -> "_Channel":
        return _Channel(self)

    def decode(self, answer: Any) -> np.ndarray:
        if not answer.outputs:
            raise AnswerError("The answer holds no output.")
        output = answer.outputs[0]
        raw = answer.raw_output_contents[0] if answer.raw_output_contents else None
        data = raw if raw is not None else list(output.contents.fp32_contents)
        return _as_rows(output.datatype, list(output.shape), data, self._requests.model.batched)

    def n_reopened(self) -> int:
        return 0

    def close(self) -> None:
        """Each worker closes its own channel."""


class _Channel:
    def __init__(self, adapter: KserveGrpc) -> None:
        self._adapter = adapter
        self._channel: Any = None
        self._call: Any = None
        self._metadata = grpc_metadata(adapter.target)

    def request(self, prepared: Any) -> Any:
        if self._call is None:
            from tritonclient.grpc import service_pb2_grpc

            self._channel = grpc_channel(self._adapter.target)
            self._call = service_pb2_grpc.GRPCInferenceServiceStub(self._channel).ModelInfer
        return self._call(prepared, timeout=self._adapter.target.timeout_s, metadata=self._metadata)

    def decode(self, answer: Any) -> np.ndarray:
        return self._adapter.decode(answer)

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
        self._channel = self._call = None


def _as_rows(datatype: str, shape: Sequence[int], data: Any, batched: bool) -> np.ndarray:
    """Return an output as [items, values]; only the number of rows where its values are no float32."""
    items = int(shape[0]) if batched and len(shape) else 1
    if datatype == "FP32" and data is not None:
        with contextlib.suppress(ValueError):
            flat = (
                np.frombuffer(data, "<f4")
                if isinstance(data, bytes | bytearray)
                else np.asarray(data, np.float32)
            )
            return flat.reshape(items, -1)
    return np.empty((items, 0))
