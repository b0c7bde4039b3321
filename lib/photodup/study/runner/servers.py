"""The servers that a study needs on this machine: those of the notebooks, and one for each side that is compared."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from photodup.embedding.backends import Backend
from photodup.embedding.engines.processor import can_compute
from photodup.paths import project_root
from photodup.study.rounds.declared import Pair

# Beside the real engines: a published GPU's speed on every wire, and no wait at all, the emulator's own ceiling.
EMULATED = tuple(
    f"emulated_{gpu}{wire}" for gpu in ("a100", "zero") for wire in ("", "_fp16", "_uint8", "_jpeg")
)
_SERVED_ANYWAY = ("pytorch", "fp32")  # by the FastAPI service of every study


def start_servers(stack: ExitStack, name: str, pairs: Iterable[Pair]) -> Path:
    """Start FastAPI and Triton with all that the comparisons need; return the endpoints file.

    A precision that this processor has no instructions for is left out: its comparisons say so.

    Args:
        stack: ends the servers.
        name: of the run.
    """
    from photodup.serving.embedded import MODELS, embedded_servers, export_models
    from photodup.serving.endpoints import save_endpoints

    backends = {b for b in _backends(pairs) if can_compute(b.precision)}
    exported = export_models()
    if any(b.precision == "int8" for b in backends) and "openvino-int8" not in exported["files"]:
        exported = _quantise()
        if "openvino-int8" not in exported["files"]:
            backends = {b for b in backends if b.precision != "int8"}
    services = {(b.engine, b.precision) for b in backends if b.server == "fastapi"} - {_SERVED_ANYWAY}
    compared = sorted({b.triton_model for b in backends if b.server == "triton"} - {*MODELS, *EMULATED})
    free = dict.fromkeys(("pytorch_port", "triton_http_port", "triton_grpc_port", "triton_metrics_port"), 0)
    print(f"Starting {1 + len(services)} FastAPI services and Triton on this machine", flush=True)
    running = stack.enter_context(
        embedded_servers(
            models=(*MODELS, *EMULATED, *compared),
            engines=sorted(services),
            exported=exported,
            timeout_s=600.0,
            **free,
        )
    )
    path = project_root() / "build" / f"endpoints-{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    save_endpoints(running, path)
    return path


def _backends(pairs: Iterable[Pair]) -> set[Backend]:
    return {side.backend for pair in pairs for side in (pair.a, pair.b) if side.backend.engine != "trt"}


def _quantise() -> dict[str, Any]:
    """Make the INT8 file, in a process of its own: it takes a minute and a gigabyte. Return what is exported then.

    What the gate says of it is written beside it and shown by notebook 05; a laboratory may serve it all the same.
    """
    from photodup.serving.embedded import export_models

    print("Quantising the model to INT8 (once; about a minute)", flush=True)
    command = [sys.executable, "-m", "photodup", "export", "--precision", "int8"]
    done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True)
    exported = export_models()
    if "openvino-int8" not in exported["files"]:
        said = (done.stderr.strip() or done.stdout.strip() or "it printed nothing").splitlines()[-1]
        print(f"No INT8 in this study: {said}", flush=True)
    return exported
