"""KServe's v2 protocol: ask a server what its model takes, and make requests of files or of numbers."""

import contextlib
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from photodup.bench import Item
from photodup.bench.anyurl.payloads import MOST_BYTES, Payloads
from photodup.bench.anyurl.target import Target
from photodup.core.errors import PhotodupError
from photodup.embedding.wire.kserve import ServedModel, Tensor, datatype, dtype, model_of, params_of, steps_of


def describe_model(target: Target) -> ServedModel:
    """Ask a server what its model takes.

    Raises:
        PhotodupError: nothing answers, there is no such model, or the server speaks something else.
    """
    is_grpc = target.protocol == "kserve-grpc"
    metadata = (
        target.about("ModelMetadata", target.model, target.version) if is_grpc else target.get(target.path)
    )
    if not isinstance(metadata, dict) or "inputs" not in metadata:
        version = target.version and f", version {target.version},"
        raise PhotodupError(
            f"{target.base} has no model {target.model!r}{version} that speaks KServe's v2 protocol: correct the name, or "
            "load the model."
        )
    return model_of(target.model, metadata, _config(target, target.model))


def takes_json_alone(target: Target) -> bool:
    """Ask a server over HTTP whether it lists extensions but no binary tensors (MLServer): it then takes JSON alone."""
    metadata = target.get("/v2")
    listed = metadata.get("extensions") if isinstance(metadata, dict) else None
    return isinstance(listed, list) and "binary_tensor_data" not in listed


def stated_parameters(target: Target) -> dict[str, str | None]:
    """Return the weights and the precision that a model's configuration (an extension of Triton's) states.

    Raises:
        PhotodupError: nothing answers.
    """

    return params_of(_config(target, target.model), partial(_config, target))


def counted_models(target: Target) -> list[str]:
    """Return the models whose counters account for a request: the one asked, then an ensemble's steps in order.

    Raises:
        PhotodupError: nothing answers.
    """
    return [target.model, *steps_of(_config(target, target.model))]


def _config(target: Target, model: str) -> dict[str, Any]:
    """Return a model's configuration; empty where it is not told: it is an extension of Triton's, and may be restricted."""
    config: Any = None
    if target.protocol == "kserve-grpc":
        with contextlib.suppress(PhotodupError):
            config = target.about("ModelConfig", model)
    else:
        config = target.get(f"/v2/models/{model}/config")
    return config or {}


def shaped(model: ServedModel, shapes: Sequence[str], ready: Collection[str] = ()) -> ServedModel:
    """Return the model with open dimensions of its inputs filled in from `NAME=3,224,224`; inputs in `ready` stay.

    Raises:
        PhotodupError: a dimension stays open, or a shape does not fit the model.
    """
    shape_of: dict[str, tuple[int, ...]] = {}
    for text in shapes:
        if not (match := re.fullmatch(r"([^=]+)=([1-9]\d{0,9}(?:,[1-9]\d{0,9})*)", text)):
            raise PhotodupError(f"A shape is written NAME=3,224,224, not {text!r}.")
        shape_of[_input(model, match[1]).name] = tuple(map(int, match[2].split(",")))
    filled = {tensor.name: tensor for tensor in model.inputs}
    for tensor in [tensor for tensor in model.inputs if tensor.name not in ready]:
        requested = shape_of.get(tensor.name, tensor.dims)
        if len(requested) == len(tensor.dims) + 1 and model.batched:
            requested = requested[1:]
        if not _fits(requested, tensor):
            raise PhotodupError(
                f"{tensor.name} of {model.name} has the shape {_text(tensor.dims)}"
                f"{' for each item' if model.batched else ''}; {_text(requested)} does not fit."
            )
        if -1 in requested:
            raise PhotodupError(
                f"{tensor.name} of {model.name} has open dimensions {_text(tensor.dims)}: give its shape, such as "
                f"--shape {tensor.name}={','.join(str(d) if d > 0 else '128' for d in requested)}."
            )
        filled[tensor.name] = Tensor(tensor.name, tensor.datatype, requested)
    return replace(model, inputs=tuple(filled.values()))


def _input(model: ServedModel, name: str) -> Tensor:
    inputs = {tensor.name: tensor for tensor in model.inputs}
    if name not in inputs:
        raise PhotodupError(f"{model.name} has no input {name!r}: it has {', '.join(inputs)}.")
    return inputs[name]


def _fits(dims: Sequence[int], tensor: Tensor) -> bool:
    return len(dims) == len(tensor.dims) and all(d in (-1, n) for d, n in zip(tensor.dims, dims, strict=True))


def _text(dims: Sequence[int]) -> str:
    return "[" + ", ".join("open" if d == -1 else str(d) for d in dims) + "]"


class TensorMaker:
    """Makes the tensors of a request.

    Args:
        model: as its server describes it.
        payloads: for an input of bytes: images, files or texts; otherwise seeds of random numbers.
        inputs: `NAME=FILE.npy` for inputs that are given; an array with a batch dimension is sent as it is.
        shapes: `NAME=3,224,224` for open dimensions of the others.
    """

    def __init__(
        self, model: ServedModel, payloads: Payloads, inputs: Sequence[str] = (), shapes: Sequence[str] = ()
    ) -> None:
        self._inputs = _arrays(model, inputs)
        self.model = model = shaped(model, shapes, self._inputs)
        self.n_items = _items_in(model, self._inputs)
        takes_bytes = [t for t in model.inputs if t.datatype == "BYTES" and t.name not in self._inputs]
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
        """Raise a `PhotodupError` where a request may not hold so many items."""
        most_items = self.model.max_batch if self.model.batched else 1
        if self.n_items not in (None, batch):
            raise PhotodupError(
                f"The arrays given hold {self.n_items} items each: ask for --batch {self.n_items}."
            )
        if most_items is not None and batch > most_items:
            raise PhotodupError(
                f"{self.model.name} takes {most_items} item{'s' * (most_items > 1)} a request at most: lower --batch."
            )

    def tensors(self, items: Sequence[Item]) -> dict[str, np.ndarray]:
        """Return name → array of one request."""
        not_given = [tensor for tensor in self.model.inputs if tensor.name not in self._inputs]
        return self._inputs | {tensor.name: self._make(tensor, items) for tensor in not_given}

    def _make(self, tensor: Tensor, items: Sequence[Item]) -> np.ndarray:
        # a server may claim any size
        if math.prod(tensor.dims) > MOST_BYTES // 8 or len(tensor.dims) > 16:
            raise PhotodupError(
                f"{tensor.name} of {self.model.name} has {math.prod(tensor.dims):.3g} values in {len(tensor.dims)} "
                "dimensions: too many to make up; name smaller arrays with --input."
            )
        if tensor.datatype == "BYTES":
            data = [item.encode() if isinstance(item, str) else item for item in items]
            array = np.repeat(np.array(data, np.object_), int(np.prod(tensor.dims)))
        else:
            rows = [_random(tensor, item if isinstance(item, int) else 0) for item in items]
            array = np.stack(rows)
        return array.reshape((len(items), *tensor.dims) if self.model.batched else tensor.dims)


def _random(tensor: Tensor, seed: int) -> np.ndarray:
    kind_of = dtype(tensor.datatype)
    if kind_of is None or kind_of == np.object_:
        raise PhotodupError(
            f"{tensor.name} has the type {tensor.datatype}, which is not made up here: use --input."
        )
    generator = np.random.default_rng(seed)
    if kind_of.kind == "f":
        return generator.standard_normal(tensor.dims, np.float32).astype(kind_of)
    return generator.integers(0, 2 if kind_of.kind == "b" else 100, tensor.dims).astype(kind_of)


def _arrays(model: ServedModel, inputs: Sequence[str]) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    for text in inputs:
        name, _, path = text.partition("=")
        tensor = _input(model, name)
        try:
            array = np.load(Path(path), allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise PhotodupError(f"{path or text!r} is no array that can be read (.npy): {error}.") from None
        if tensor.datatype == "BYTES":  # text lies in a file as characters of a fixed width
            array = np.array([str(v).encode() for v in array.ravel()], np.object_).reshape(array.shape)
        elif datatype(array) != tensor.datatype:
            raise PhotodupError(
                f"{path} holds {array.dtype}, the input {name} takes {tensor.datatype}: convert it."
            )
        dims = array.shape[1:] if model.batched else array.shape
        if not _fits(dims, tensor):
            batch = "a first dimension for the items, then " if model.batched else ""
            raise PhotodupError(
                f"{path} has the shape {_text(array.shape)}, {name} takes {batch}{_text(tensor.dims)}."
            )
        arrays[name] = array
    return arrays


def _items_in(model: ServedModel, arrays: Mapping[str, np.ndarray]) -> int | None:
    counts = {len(a) for a in arrays.values()} if model.batched else {1 for _ in arrays}
    if len(counts) > 1:
        raise PhotodupError("The arrays given hold unlike numbers of items: give each input the same.")
    return counts.pop() if counts else None
