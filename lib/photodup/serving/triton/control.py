"""Change a running Triton (another configuration or version), and observe its clients meanwhile.

`control_key.py` finds the key by the server's address.
"""

from __future__ import annotations

import contextlib
import copy
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from photodup.core.errors import PhotodupError, is_expected
from photodup.serving.triton.control_key import VARIABLE, grpc_metadata

if TYPE_CHECKING:
    import numpy as np
    from tritonclient.grpc import InferenceServerClient
    from tritonclient.grpc.model_config_pb2 import ModelConfig


def load_triton_model(grpc_url: str, model: str, config: ModelConfig | None = None) -> None:
    """Load or reload a model; the old one answers until the new one is ready.

    Args:
        grpc_url: `host:port` of a Triton started with `--model-control-mode=explicit`.
        model: its name.
        config: the configuration; None leaves it to the server, which keeps the last one sent while the files are
            unchanged. So send the former configuration to get it back.

    Raises:
        PhotodupError: the server does not allow loading, the key is missing or wrong, or it refuses the
            configuration; quotes the server.
    """
    from google.protobuf import json_format

    text = None if config is None else json_format.MessageToJson(config, preserving_proto_field_name=True)
    with _control_client(grpc_url, model) as client:
        # Half an hour, since TensorRT may build an engine.
        client.load_model(model, headers=grpc_metadata(grpc_url), config=text, client_timeout=1800.0)


def unload_triton_model(grpc_url: str, model: str) -> None:
    """Unload a model after its requests in flight.

    Raises:
        PhotodupError: as `load_triton_model`.
    """
    with _control_client(grpc_url, model) as client:
        client.unload_model(model, headers=grpc_metadata(grpc_url), client_timeout=60.0)


@contextlib.contextmanager
def nothing_loaded(grpc_url: str) -> Iterator[None]:
    """Unload every model for the length of a `with` block, and load those that were ready again.

    Raises:
        PhotodupError: as `load_triton_model`.
    """
    with _control_client(grpc_url, "every model") as client:
        index = client.get_model_repository_index(headers=grpc_metadata(grpc_url), client_timeout=60.0)
    ready = [model.name for model in index.models if model.state == "READY"]
    try:
        for model in ready:
            unload_triton_model(grpc_url, model)
        yield
    finally:
        for model in ready:
            load_triton_model(grpc_url, model)


@contextlib.contextmanager
def temporary_config(
    grpc_url: str, model: str, change: Callable[[ModelConfig], None]
) -> Iterator[ModelConfig]:
    """Serve `model` with a changed configuration during a `with` block, then with its former one.

    No request fails meanwhile. A change without effect loads nothing, so the deployed configuration can be measured
    without the key.

    Args:
        grpc_url, model: as for `load_triton_model`.
        change: changes a configuration in place.

    Raises:
        PhotodupError: as `load_triton_model`.
    """
    if not grpc_url:
        raise PhotodupError(
            f"The configuration of {model} is changed over gRPC: list a gRPC address of Triton in the endpoints file."
        )
    with _control_client(grpc_url, model) as client:
        before = client.get_model_config(model, client_timeout=60.0).config
    config = copy.deepcopy(before)
    change(config)
    if _as_served(config) == before:
        yield config
        return
    load_triton_model(grpc_url, model, config)
    try:
        yield config
    finally:
        load_triton_model(grpc_url, model, before)


def _as_served(config: ModelConfig) -> ModelConfig:
    """Return a configuration as Triton reports it: a batcher prefers the largest batch by default."""
    served = copy.deepcopy(config)
    if served.HasField("dynamic_batching") and not served.dynamic_batching.preferred_batch_size:
        served.dynamic_batching.preferred_batch_size.append(served.max_batch_size)
    return served


@contextlib.contextmanager
def _control_client(grpc_url: str, model: str) -> Iterator[InferenceServerClient]:
    """Yield a client of the server; turn its refusals into one sentence."""
    from tritonclient.grpc import InferenceServerClient
    from tritonclient.utils import InferenceServerException

    try:
        with InferenceServerClient(grpc_url) as client:
            yield client
    except InferenceServerException as error:
        refusal = f"Triton at {grpc_url} keeps {model} as it is"
        if "is restricted" in error.message():
            state = "the key given for it is wrong" if grpc_metadata(grpc_url) else "no key is given for it"
            raise PhotodupError(
                f"{refusal}: its control needs a key, and {state} (set `triton_control_key` in the endpoints file, or "
                f"{VARIABLE})."
            ) from None
        if "not allowed" in error.message():
            raise PhotodupError(
                f"{refusal}: it was started without model control (--model-control-mode=explicit; our images start "
                f"with it when {VARIABLE} is set)."
            ) from None
        raise PhotodupError(f"{refusal}: {error.message()}") from error


def answers_during(
    grpc_url: str, model: str, request: np.ndarray, action: Callable[[], None]
) -> dict[str, dict[str, int] | list[str] | int]:
    """Send requests to `model` from four clients during `action`, and a second before and after it.

    Args:
        request: the input `image`, with its batch axis.

    Returns:
        `answers_by_version` (version → answers), `failures` (distinct messages) and `n_failures`.
    """
    from tritonclient.grpc import InferenceServerClient, InferInput
    from tritonclient.utils import np_to_triton_dtype

    tensor = InferInput("image", list(request.shape), np_to_triton_dtype(request.dtype))
    tensor.set_data_from_numpy(request)
    answers, failures, is_over = list[str](), list[str](), threading.Event()

    def ask() -> None:
        with InferenceServerClient(grpc_url) as client:
            while not is_over.is_set():
                try:
                    answers.append(client.infer(model, [tensor]).get_response().model_version)
                except Exception as error:
                    if not is_expected(error):
                        raise
                    failures.append(str(error))

    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(ask) for _ in range(4)]
        try:
            time.sleep(1)
            action()
            time.sleep(1)
        finally:
            is_over.set()
    for future in futures:
        future.result()
    return {
        "answers_by_version": Counter(answers),
        "failures": sorted(set(failures)),
        "n_failures": len(failures),
    }
