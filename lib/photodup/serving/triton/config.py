"""Triton model configurations (`config.pbtxt`), read and written with Triton's own protobuf schema."""

from pathlib import Path
from typing import TYPE_CHECKING

from photodup.core.errors import PhotodupError
from photodup.core.files import write_atomically

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig

BATCHING: dict[str, str] = {
    # NVIDIA's advice: batches form while the device is busy; a single request never waits.
    "default": "dynamic_batching { }",
    # The published study's settings, the later one first. A single request waits out the whole delay.
    "published": (
        "dynamic_batching { preferred_batch_size: [4, 8, 16, 32] max_queue_delay_microseconds: 10000 }"
    ),
    "published-early": (
        "dynamic_batching { preferred_batch_size: [8, 16, 32] max_queue_delay_microseconds: 5000 }"
    ),
    # No batching, but a bounded queue.
    "single": "dynamic_batching { preferred_batch_size: [1] }",
    # No batcher, and so no bounded queue.
    "off": "",
}
"""Named variants of the batcher; a pbtxt snippet is accepted in place of a name."""


def read_config(path: Path) -> "ModelConfig":
    """Parse a `config.pbtxt`.

    Raises:
        PhotodupError: no such file, or an invalid line; gives its number.
    """
    try:
        text = path.read_text()
    except OSError as error:
        raise PhotodupError(
            f"{path}: {error.strerror}. A Triton model is a folder with a config.pbtxt: make it with `photodup render`."
        ) from error
    return parse_config(text, str(path))


def parse_config(text: str, where: str = "config") -> "ModelConfig":
    """Parse the text of a `config.pbtxt`; `where` names it in the error."""
    from google.protobuf import text_format
    from tritonclient.grpc.model_config_pb2 import ModelConfig

    try:
        return text_format.Parse(text, ModelConfig())
    except text_format.ParseError as error:
        raise PhotodupError(f"{where} is not a Triton model configuration: line {error}.") from error


def models_in(repository: Path) -> list[str]:
    """Return the names of the models in a repository."""
    return sorted(path.parent.name for path in repository.glob("*/config.pbtxt"))


def write_config(config: "ModelConfig", path: Path, note: str = "") -> None:
    """Write `config.pbtxt` atomically, if it differs."""
    from google.protobuf import text_format

    write_if_changed(path, (f"# {note}\n" if note else "") + text_format.MessageToString(config))


def write_if_changed(path: Path, text: str) -> None:
    """Write a file if its text differs; Triton would reload the model of a newer file."""
    if not path.exists() or path.read_text() != text:
        write_atomically(path, text)


def set_batching(config: "ModelConfig", variant: str) -> None:
    """Set the batcher of `config`: a name of `BATCHING` or a pbtxt snippet (`dynamic_batching { ... }`).

    The queue's bounds stay, unless the snippet has its own.
    """
    snippet = BATCHING.get(variant, variant)
    if variant not in BATCHING and "dynamic_batching" not in variant:
        raise PhotodupError(
            f"Batching variant {variant!r} is unknown: use one of {', '.join(BATCHING)}, or a snippet "
            "such as 'dynamic_batching { max_queue_delay_microseconds: 2000 }'."
        )
    batching = parse_config(snippet, f"batching variant {variant!r}").dynamic_batching
    if snippet and not batching.HasField("default_queue_policy"):
        batching.default_queue_policy.CopyFrom(config.dynamic_batching.default_queue_policy)
    config.ClearField("dynamic_batching")
    if snippet:
        config.dynamic_batching.CopyFrom(batching)


def set_parameter(config: "ModelConfig", **values: object) -> None:
    """Set `parameters` entries; Triton passes them to the backend as strings."""
    for key, value in values.items():
        config.parameters[key].string_value = str(value)
