"""Copies of a model under another name, with another configuration.

To compare two settings of a model at the same time, both must be loaded. Two copies with one configuration show the
smallest difference that a comparison resolves. A copy is a folder of hard links in the repository of a local Triton.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from photodup.core.errors import PhotodupError
from photodup.serving.triton.config import read_config, write_config
from photodup.serving.triton.control import load_triton_model, unload_triton_model
from photodup.serving.triton.repository import copy_code, link_file

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig


@contextlib.contextmanager
def model_copy(
    grpc_url: str, repository: Path, model: str, name: str, change: Callable[[ModelConfig], None]
) -> Iterator[str]:
    """Serve a copy of a model during a `with` block; yield the name to send requests to.

    Args:
        grpc_url: `host:port` of the local Triton that serves `repository`.
        model: name of a model, or of an ensemble for JPEG files, whose encoder is then copied.
        name: of the copied encoder; must be new.
        change: changes the copy's configuration in place.

    Raises:
        PhotodupError: no such model, or Triton refuses the copy; quotes the server.
    """
    copies: list[str] = []
    try:
        source = read_config(repository / model / "config.pbtxt")
        if source.platform == "ensemble":
            inner = source.ensemble_scheduling.step[-1]
            copies.append(_copy(repository, inner.model_name, name, change))
            load_triton_model(grpc_url, name)

            def repoint(config: ModelConfig) -> None:
                config.ensemble_scheduling.step[-1].model_name = name

            copies.append(_copy(repository, model, f"{name}_jpeg", repoint))
        else:
            copies.append(_copy(repository, model, name, change))
        load_triton_model(grpc_url, copies[-1])
        yield copies[-1]
    finally:
        for copied in reversed(copies):
            with contextlib.suppress(PhotodupError):  # the server may be gone
                unload_triton_model(grpc_url, copied)
            shutil.rmtree(repository / copied, ignore_errors=True)


def _copy(repository: Path, model: str, name: str, change: Callable[[ModelConfig], None]) -> str:
    source, target = repository / model, repository / name
    config = read_config(source / "config.pbtxt")
    shutil.rmtree(target, ignore_errors=True)
    without = shutil.ignore_patterns("__pycache__")
    shutil.copytree(source / "1", target / "1", ignore=without, copy_function=_link_or_copy)
    config.name = name
    change(config)
    write_config(config, target / "config.pbtxt", f"A copy of {model}, for a comparison.")
    return name


def _link_or_copy(source: str, target: str) -> None:
    (copy_code if source.endswith(".py") else link_file)(Path(source), Path(target))


def configure(
    config: ModelConfig,
    *,
    instances: int | None = None,
    threads: int | None = None,
    delay_us: int | None = None,
    preferred: int | None = None,
) -> None:
    """Change a Triton configuration in place; None leaves a setting unchanged.

    Args:
        instances: executions at the same time.
        threads: of each instance on a CPU; ignored on a GPU.
        delay_us: how long the batcher may wait for more requests, microseconds.
        preferred: images at which a batch goes out at once, however long it might still wait.
    """
    if instances is not None:
        config.instance_group[0].count = instances
    if threads is not None and config.instance_group[0].kind != config.instance_group[0].KIND_GPU:
        # The parameter of our Python model, or of the stock ONNX Runtime backend of the CPU image.
        name = "intra_op_thread_count" if config.backend == "onnxruntime" else "threads"
        config.parameters[name].string_value = str(threads)
    if delay_us is not None:
        config.dynamic_batching.max_queue_delay_microseconds = delay_us
    if preferred is not None:
        config.dynamic_batching.preferred_batch_size[:] = [preferred]
