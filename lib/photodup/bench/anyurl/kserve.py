"""KServe's v2 protocol: what a model takes is asked of the server, and a request is made of files or of numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from photodup.bench.anyurl.channel import grpc_channel, grpc_metadata
from photodup.bench.anyurl.payloads import Payloads
from photodup.bench.anyurl.target import Target, unreachable
from photodup.errors import PhotodupError
from photodup.extras import need


@dataclass(frozen=True)
class Tensor:
    """One input of a model: `dims` without the batch dimension."""

    name: str
    datatype: str
    dims: tuple[int, ...]


@dataclass(frozen=True)
class Model:
    """What a server says of a model.

    Attributes:
        batched: whether the first dimension of its tensors counts items.
        max_batch: most items in a request; None where the server does not say.
        output: the first output.
    """

    name: str
    inputs: tuple[Tensor, ...]
    output: str
    batched: bool
    max_batch: int | None = None


def describe_model(target: Target) -> Model:
    """Ask a server what its model takes.

    Raises:
        PhotodupError: nothing answers, there is no such model, or the server speaks something else.
    """
    return _over_grpc(target) if target.protocol == "kserve-grpc" else _over_http(target)


def _over_http(target: Target) -> Model:
    about = target.get(target.path)
    if not isinstance(about, dict) or "inputs" not in about:
        raise PhotodupError(
            f"{target.base} has no model {target.model!r} that speaks KServe's v2 protocol: correct the name, or "
            "load the model."
        )
    config = target.get(f"{target.path}/config") or {}
    inputs = [(i["name"], i["datatype"], i["shape"]) for i in about["inputs"]]
    return _model(target.model, inputs, about["outputs"][0]["name"], config.get("max_batch_size"))


def _over_grpc(target: Target) -> Model:
    need("tritonclient")
    import grpc
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    with grpc_channel(target) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        options = {"timeout": min(target.timeout_s, 10.0), "metadata": grpc_metadata(target)}
        try:
            about = stub.ModelMetadata(service_pb2.ModelMetadataRequest(name=target.model), **options)
        except grpc.RpcError as error:
            said = " ".join((error.details() or "").split())[:200]
            if error.code() in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT):
                raise PhotodupError(
                    f"{target.base} has no model {target.model!r}: {said or 'it is not loaded'}."
                ) from None
            if error.code() == grpc.StatusCode.UNIMPLEMENTED:
                raise PhotodupError(f"{target.base} speaks gRPC, but not KServe's v2 protocol.") from None
            raise unreachable(target.base, Exception(f"gRPC {error.code().name}: {said}")) from None
        try:
            config = stub.ModelConfig(service_pb2.ModelConfigRequest(name=target.model), **options).config
            max_batch = config.max_batch_size
        except grpc.RpcError:  # an extension of Triton's
            max_batch = None
    inputs = [(i.name, i.datatype, list(i.shape)) for i in about.inputs]
    return _model(target.model, inputs, about.outputs[0].name, max_batch)


def _model(
    name: str, inputs: Sequence[tuple[str, str, Sequence[Any]]], output: str, max_batch: int | None
) -> Model:
    # Other servers than Triton have no such setting; an open first dimension is a batch in nearly all their models.
    batched = (
        all(shape and int(shape[0]) == -1 for *_, shape in inputs) if max_batch is None else max_batch > 0
    )
    tensors = [Tensor(n, kind, tuple(int(d) for d in shape)[batched:]) for n, kind, shape in inputs]
    return Model(name, tuple(tensors), output, batched, max_batch or None)


def shaped(model: Model, shapes: Sequence[str]) -> Model:
    """Return the model with the open dimensions of its inputs filled in from `NAME=3,224,224`.

    Raises:
        PhotodupError: a dimension stays open, or a shape does not fit the model.
    """
    given = {}
    for text in shapes:
        name, _, dims = text.partition("=")
        try:
            given[name] = tuple(int(d) for d in dims.split(","))
        except ValueError:
            given[name] = ()
        if not given[name] or min(given[name]) < 1:
            raise PhotodupError(f"A shape is written NAME=3,224,224, not {text!r}.")
    if unknown := sorted(set(given) - {t.name for t in model.inputs}):
        names = ", ".join(t.name for t in model.inputs)
        raise PhotodupError(f"{model.name} has no input {unknown[0]!r}: it has {names}.")
    filled = []
    for tensor in model.inputs:
        wanted = given.get(tensor.name, tensor.dims)
        if len(wanted) == len(tensor.dims) + 1 and model.batched:
            wanted = wanted[1:]
        fits = len(wanted) == len(tensor.dims) and all(
            d in (-1, w) for d, w in zip(tensor.dims, wanted, strict=True)
        )
        if not fits:
            raise PhotodupError(
                f"{tensor.name} of {model.name} has the shape {_text(tensor.dims)}"
                f"{' for each item' if model.batched else ''}; {_text(wanted)} does not fit."
            )
        if -1 in wanted:
            raise PhotodupError(
                f"{tensor.name} of {model.name} has open dimensions {_text(tensor.dims)}: give its shape, such as "
                f"--shape {tensor.name}={','.join(str(d) if d > 0 else '128' for d in wanted)}."
            )
        filled.append(Tensor(tensor.name, tensor.datatype, wanted))
    return Model(model.name, tuple(filled), model.output, model.batched, model.max_batch)


def _text(dims: Sequence[int]) -> str:
    return "[" + ", ".join("open" if d == -1 else str(d) for d in dims) + "]"


class Requests:
    """Makes the tensors of a request.

    Args:
        model: with all dimensions known.
        payloads: for an input of bytes: images, files or texts; otherwise seeds of random numbers.
        given: `NAME=FILE.npy` for inputs that are given; an array with a batch dimension is sent as it is.
    """

    def __init__(self, model: Model, payloads: Payloads, given: Sequence[str] = ()) -> None:
        self.model, self._given = model, _arrays(model, given)
        self.n_given = _items_given(model, self._given)
        takes_bytes = [t for t in model.inputs if t.datatype == "BYTES" and t.name not in self._given]
        if takes_bytes and payloads.kind == "arrays":
            raise PhotodupError(
                f"The input {takes_bytes[0].name} of {model.name} takes bytes: say what to send with --file, --text "
                "or --payload images."
            )
        if not takes_bytes and payloads.kind != "arrays":
            raise PhotodupError(
                f"No input of {model.name} takes bytes, so files and texts cannot be sent: give arrays as "
                "--input NAME=FILE.npy."
            )

    def check_batch(self, batch: int) -> None:
        """Raise where a request may not hold so many items."""
        most = self.model.max_batch if self.model.batched else 1
        if self.n_given not in (None, batch):
            raise PhotodupError(
                f"The arrays given hold {self.n_given} items each: ask for --batch {self.n_given}."
            )
        if most is not None and batch > most:
            raise PhotodupError(
                f"{self.model.name} takes {most} item{'s' * (most > 1)} a request at most: lower --batch."
            )

    def tensors(self, items: Sequence[Any]) -> dict[str, np.ndarray]:
        """Return name → array of one request."""
        given = self._given
        return {t.name: given[t.name] if t.name in given else self._made(t, items) for t in self.model.inputs}

    def _made(self, tensor: Tensor, items: Sequence[Any]) -> np.ndarray:
        if tensor.datatype == "BYTES":
            data = [item.encode() if isinstance(item, str) else item for item in items]
            each = int(np.prod(tensor.dims))
            array = np.empty(len(data) * each, dtype=np.object_)
            array[:] = [d for d in data for _ in range(each)]
        else:
            rows = [_random(tensor, item if isinstance(item, int) else 0) for item in items]
            array = np.stack(rows)
        return array.reshape((len(items), *tensor.dims) if self.model.batched else tensor.dims)


def _random(tensor: Tensor, seed: int) -> np.ndarray:
    from tritonclient.utils import triton_to_np_dtype

    dtype = triton_to_np_dtype(tensor.datatype)
    if dtype is None or dtype is np.object_:
        raise PhotodupError(
            f"{tensor.name} has the type {tensor.datatype}, which is not made up here: use --input."
        )
    generator, kind = np.random.default_rng(seed), np.dtype(dtype).kind
    if kind == "f":
        return generator.standard_normal(tensor.dims, np.float32).astype(dtype)
    return generator.integers(0, 2 if kind == "b" else 100, tensor.dims).astype(dtype)


def _arrays(model: Model, given: Sequence[str]) -> dict[str, np.ndarray]:
    from tritonclient.utils import np_to_triton_dtype

    found: dict[str, np.ndarray] = {}
    inputs = {t.name: t for t in model.inputs}
    for text in given:
        name, _, path = text.partition("=")
        if name not in inputs:
            raise PhotodupError(f"{model.name} has no input {name!r}: it has {', '.join(inputs)}.")
        try:
            array = np.load(Path(path), allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise PhotodupError(f"{path or text!r} is no array that can be read (.npy): {error}.") from None
        tensor = inputs[name]
        if tensor.datatype == "BYTES":  # text lies in a file as characters of a fixed width
            array = np.array([str(v).encode() for v in array.ravel()], np.object_).reshape(array.shape)
        elif np_to_triton_dtype(array.dtype) != tensor.datatype:
            raise PhotodupError(
                f"{path} holds {array.dtype}, the input {name} takes {tensor.datatype}: convert it."
            )
        dims = array.shape[1:] if model.batched else array.shape
        if len(dims) != len(tensor.dims) or any(
            d not in (-1, n) for d, n in zip(tensor.dims, dims, strict=True)
        ):
            batch = "a first dimension for the items, then " if model.batched else ""
            raise PhotodupError(
                f"{path} has the shape {_text(array.shape)}, {name} takes {batch}{_text(tensor.dims)}."
            )
        found[name] = array
    return found


def _items_given(model: Model, arrays: Mapping[str, np.ndarray]) -> int | None:
    counts = {len(a) for a in arrays.values()} if model.batched else {1 for _ in arrays}
    if len(counts) > 1:
        raise PhotodupError("The arrays given hold unlike numbers of items: give each input the same.")
    return counts.pop() if counts else None
