"""KServe's v2 protocol over HTTP (binary or JSON tensors) and gRPC: descriptions, requests, answers."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from photodup.core.addresses import is_loopback
from photodup.core.errors import PhotodupError
from photodup.core.extras import import_extra
from photodup.embedding.wire.http import Answer, AnswerError, HttpRequest, answer_reader, read_json_answer

if TYPE_CHECKING:
    import grpc
    from tritonclient.grpc import service_pb2

Config = Mapping[str, Any]  # of a model
LARGEST_MESSAGE = 2**31 - 1  # bytes, of gRPC


@dataclass(frozen=True)
class Tensor:
    """An input or output of a model; `dims` leaves out the batch dimension and has -1 for a free axis."""

    name: str
    datatype: str
    dims: tuple[int, ...]


@dataclass(frozen=True)
class ServedModel:
    """A server's description of a model.

    Attributes:
        batched: the first dimension of its tensors counts items.
        max_batch: most items in a request; None if not stated.
    """

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    batched: bool
    max_batch: int | None = None


@answer_reader("The server's description of the model")
def model_of(name: str, metadata: Mapping[str, Any], config: Config) -> ServedModel:
    """Return a model from its metadata and its configuration (Triton's extension, may be empty).

    Raises:
        AnswerError: metadata or configuration have another form.
    """
    shapes = [
        [(str(t["name"]), str(t["datatype"]), [int(d) for d in t.get("shape", ())]) for t in metadata[side]]
        for side in ("inputs", "outputs")
    ]
    if not all(shapes):
        raise AnswerError(f"The server names no {'outputs' if shapes[0] else 'inputs'} of the model {name}.")
    max_batch = None if config.get("max_batch_size") is None else int(config["max_batch_size"])
    # Only Triton has `max_batch_size`; elsewhere a free first dimension is nearly always a batch.
    batched = max_batch > 0 if max_batch is not None else all(s and s[0] == -1 for *_, s in shapes[0])
    inputs, outputs = (tuple(Tensor(n, kind, tuple(s[batched:])) for n, kind, s in side) for side in shapes)
    return ServedModel(name, inputs, outputs, batched, max_batch or None)


@answer_reader("The server's configuration of the model")
def steps_of(config: Config) -> list[str]:
    """Return the models that an ensemble calls, in order; empty for another model. Raises `AnswerError` like `params_of`."""
    return [str(step["model_name"]) for step in config.get("ensemble_scheduling", {}).get("step", [])]


@answer_reader("The server's configuration of the model")
def params_of(config: Config, config_of: Callable[[str], Config]) -> dict[str, str | None]:
    """Return the `parameters` of a model's configuration, or of an ensemble's last step; None for a value that is unset.

    Args:
        config_of: returns the configuration of another model.

    Raises:
        AnswerError: the configuration has another form.
    """
    parameters = config.get("parameters") or {}
    if not parameters and (steps := steps_of(config)):
        parameters = config_of(steps[-1]).get("parameters") or {}
    strings = {key: value.get("string_value") for key, value in parameters.items()}
    return {key: None if value in ("", "unset") else value for key, value in strings.items()}


@dataclass(frozen=True)
class KserveHttp:
    """A model behind HTTP.

    Args:
        as_json: decimal numbers in both directions, as from a client that calls `.tolist()`.
        version: of the model; the server's choice if empty.
    """

    model: str
    output: str = "embedding"
    batched: bool = True
    as_json: bool = False
    version: str = ""

    def encode(self, tensors: Mapping[str, np.ndarray]) -> HttpRequest:
        inputs, data = [], []
        for name, array in tensors.items():
            tensor: dict[str, Any] = {"name": name, "shape": list(array.shape), "datatype": datatype(array)}
            if self.as_json:
                tensor["data"] = _texts(array) if array.dtype == np.object_ else array.tolist()
            else:
                data.append(_packed(array))
                tensor["parameters"] = {"binary_data_size": len(data[-1])}
            inputs.append(tensor)
        output = {"name": self.output, "parameters": {"binary_data": not self.as_json}}
        head = json.dumps({"inputs": inputs, "outputs": [output]}).encode()
        headers = {"Content-Type": "application/json"}
        if data:
            headers = {
                "Content-Type": "application/octet-stream",
                "Inference-Header-Content-Length": str(len(head)),
            }
        version = self.version and f"/versions/{self.version}"
        return HttpRequest(f"/v2/models/{self.model}{version}/infer", headers, b"".join((head, *data)))

    @answer_reader("The answer")
    def decode(self, answer: Answer) -> np.ndarray:
        headers, body = answer
        length = int(headers.get("inference-header-content-length") or len(body))
        content = read_json_answer(body[:length], headers)
        _check_version(self.version, content.get("model_version"))
        output = content["outputs"][0]
        # A server without binary tensors writes the numbers into the JSON.
        size = output.get("parameters", {}).get("binary_data_size", 0)
        data = body[length : length + size] or output.get("data")
        return _rows(output["datatype"], output["shape"], data, self.batched)


@dataclass(frozen=True)
class KserveGrpc:
    """The same model behind gRPC; messages are `tritonclient`'s protobufs."""

    model: str
    output: str = "embedding"
    batched: bool = True
    version: str = ""

    def encode(self, tensors: Mapping[str, np.ndarray]) -> "service_pb2.ModelInferRequest":
        """Return a ModelInferRequest."""
        from tritonclient.grpc import service_pb2

        request = service_pb2.ModelInferRequest(model_name=self.model, model_version=self.version)
        for name, array in tensors.items():
            request.inputs.add(name=name, datatype=datatype(array)).shape.extend(array.shape)
            request.raw_input_contents.append(_packed(array))
        request.outputs.add(name=self.output)
        return request

    @answer_reader("The answer")
    def decode(self, answer: "service_pb2.ModelInferResponse") -> np.ndarray:
        """Read a ModelInferResponse."""
        _check_version(self.version, answer.model_version)
        output = answer.outputs[0]
        raw = answer.raw_output_contents
        typed = [list(values) for _, values in output.contents.ListFields()]  # one field a type
        data = raw[0] if raw else typed[0] if typed else None
        return _rows(output.datatype, output.shape, data, self.batched)


def _check_version(version: str, actual: str | None) -> None:
    if version and actual and version != actual:
        raise AnswerError(f"The server answered with version {actual} of the model, not {version}.")


def grpc_channel(
    address: str, credentials: "grpc.ChannelCredentials | None" = None, host: str = ""
) -> "grpc.Channel":
    """Return a channel with its own TCP connection; `host` overrides the server's name."""
    import_extra("tritonclient.grpc")
    import grpc

    options = [
        # Otherwise channels to one address share a TCP connection.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.max_send_message_length", LARGEST_MESSAGE),
        ("grpc.max_receive_message_length", LARGEST_MESSAGE),
        ("grpc.enable_http_proxy", int(not is_loopback(address))),
        *([("grpc.default_authority", host)] if host else []),
    ]
    if credentials is not None:
        return grpc.secure_channel(address, credentials, options=options)
    return grpc.insecure_channel(address, options=options)


def infer_call(channel: "grpc.Channel") -> "grpc.UnaryUnaryMultiCallable":
    """Return a callable from ModelInferRequest to ModelInferResponse over a channel."""
    from tritonclient.grpc import service_pb2_grpc

    return service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer


def about_model(
    channel: "grpc.Channel", kind: str, model: str, version: str = "", **options: object
) -> dict[str, Any]:
    """Return a model's `ModelMetadata`, `ModelConfig` or `ModelStatistics` over gRPC, in the form of HTTP's JSON.

    Raises:
        grpc.RpcError: the call failed.
    """
    from google.protobuf.json_format import MessageToDict
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    call = getattr(service_pb2_grpc.GRPCInferenceServiceStub(channel), kind)
    answer = call(getattr(service_pb2, f"{kind}Request")(name=model, version=version), **options)
    message = MessageToDict(answer, preserving_proto_field_name=True)
    return {"max_batch_size": 0, **message["config"]} if kind == "ModelConfig" else message


def datatype(array: np.ndarray) -> str:
    """Return KServe's name of an array's type."""
    from tritonclient.utils import np_to_triton_dtype

    return np_to_triton_dtype(array.dtype)


def dtype(datatype: str) -> np.dtype | None:
    """Return NumPy's type for a KServe type (`object` for BYTES), or None."""
    from tritonclient.utils import triton_to_np_dtype

    numpy_type = triton_to_np_dtype(datatype)
    return None if numpy_type is None else np.dtype(numpy_type)


def _packed(array: np.ndarray) -> bytes:
    """Return a tensor's bytes on the wire: strings after their lengths, numbers as in memory."""
    if array.dtype != np.object_:
        return array.tobytes()
    from tritonclient.utils import serialize_byte_tensor

    packed = serialize_byte_tensor(array)
    return packed.item() if packed.size else b""


def _texts(array: np.ndarray) -> list[str]:
    try:
        return [item.decode() for item in array.ravel()]
    except UnicodeDecodeError:
        raise PhotodupError("The server takes JSON alone, and what is sent is no text: send texts.") from None


def _rows(datatype: str, shape: Sequence[Any], data: Any, batched: bool) -> np.ndarray:
    """Return an output as float32 [items, values], with no values if it holds no numbers."""
    dims = [int(d) for d in shape]
    items = dims[0] if batched and dims else 1
    numbers = dtype(datatype)
    if numbers is None or numbers.kind not in "fiu" or data is None:
        return np.empty((items, 0), np.float32)
    flat = np.frombuffer(data, numbers) if isinstance(data, bytes) else np.asarray(data, numbers)
    if flat.size != math.prod(dims):
        raise AnswerError(f"The answer holds {flat.size} numbers for the shape {dims}.")
    return flat.reshape(items, -1).astype(np.float32, copy=False)
