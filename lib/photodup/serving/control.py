"""Change a running Triton (another configuration, another version) and see what its clients notice."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from photodup.errors import PhotodupError

if TYPE_CHECKING:
    import numpy as np
    from tritonclient.grpc.model_config_pb2 import ModelConfig


@contextlib.contextmanager
def temporary_config(
    grpc_url: str, model: str, change: Callable[[ModelConfig], None]
) -> Iterator[ModelConfig]:
    """Serve `model` with a changed configuration for the length of a `with` block.

    Triton loads the changed model beside the old one and swaps them, so nobody's request fails. Afterwards
    the configuration that it had before is loaded again.

    Args:
        grpc_url: `host:port` of a Triton started with `--model-control-mode=explicit`.
        model: its name.
        change: changes the configuration it is given, in place.

    Raises:
        PhotodupError: the server does not allow loading, or refuses the configuration; its reason is quoted.
    """
    from google.protobuf import json_format
    from tritonclient.grpc import InferenceServerClient
    from tritonclient.utils import InferenceServerException

    with InferenceServerClient(grpc_url) as client:
        try:
            config = client.get_model_config(model).config
            before = json_format.MessageToJson(config, preserving_proto_field_name=True)
            change(config)
            text = json_format.MessageToJson(config, preserving_proto_field_name=True)
            client.load_model(model, config=text)
        except InferenceServerException as error:
            raise PhotodupError(f"Triton at {grpc_url} keeps {model} as it is: {error.message()}") from None
        try:
            yield config
        finally:
            # Loading without a configuration changes nothing while the files are as they were: the model
            # would keep the temporary one.
            client.load_model(model, config=before)


def answers_during(
    grpc_url: str, model: str, request: np.ndarray, action: Callable[[], None], *, workers: int = 4
) -> dict[str, Any]:
    """Keep asking `model` from several clients while `action` runs, and for a second before and after it.

    Args:
        request: the input `image`, with its batch axis.

    Returns:
        `answers_by_version` (version → answers), `failures` (distinct messages) and `n_failures`.
    """
    import threading
    import time
    from collections import Counter

    from tritonclient.grpc import InferenceServerClient, InferInput
    from tritonclient.utils import np_to_triton_dtype

    value = InferInput("image", list(request.shape), np_to_triton_dtype(request.dtype))
    value.set_data_from_numpy(request)
    answers: list[str] = []
    failures: list[str] = []
    over = threading.Event()

    def ask() -> None:
        with InferenceServerClient(grpc_url) as client:
            while not over.is_set():
                try:
                    answers.append(client.infer(model, [value]).get_response().model_version)
                except Exception as error:  # any failure is the finding
                    failures.append(str(error))

    threads = [threading.Thread(target=ask) for _ in range(workers)]
    for thread in threads:
        thread.start()
    try:
        time.sleep(1)
        action()
        time.sleep(1)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    return {
        "answers_by_version": dict(Counter(answers)),
        "failures": sorted(set(failures)),
        "n_failures": len(failures),
    }
