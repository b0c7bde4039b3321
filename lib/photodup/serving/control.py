"""Try another configuration on a running Triton, and put the old one back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from photodup.errors import PhotodupError

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig


@contextlib.contextmanager
def temporary_config(
    grpc_url: str, model: str, change: Callable[[ModelConfig], None]
) -> Iterator[ModelConfig]:
    """Serve `model` with a changed configuration for the length of a `with` block.

    Triton loads the changed model beside the old one and swaps them, so nobody's request fails. Afterwards
    the configuration in the repository is loaded again.

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
            change(config)
            text = json_format.MessageToJson(config, preserving_proto_field_name=True)
            client.load_model(model, config=text)
        except InferenceServerException as error:
            raise PhotodupError(f"Triton at {grpc_url} keeps {model} as it is: {error.message()}") from None
        try:
            yield config
        finally:
            client.load_model(model)
