"""The servers that a study needs on this machine: those of the notebooks, and one for each side that is compared."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection, Iterable
from contextlib import ExitStack
from pathlib import Path

from photodup.bench.pairs.declared import Pair
from photodup.core.paths import project_root
from photodup.embedding.backends import Backend
from photodup.embedding.engines.model import can_compute

# Emulated on every wire: the compute time of a published GPU, and none at all, which is the emulator's own limit.
EMULATED = tuple(
    f"emulated_{gpu}{wire}" for gpu in ("4080", "a100", "zero") for wire in ("", "_fp16", "_uint8", "_jpeg")
)
_SERVED_ANYWAY = ("pytorch", "fp32")  # by the FastAPI service of every study


def start_servers(stack: ExitStack, name: str, pairs: Collection[Pair], *, is_reversed: bool = False) -> Path:
    """Start FastAPI and Triton with all that the comparisons need; return the endpoints file.

    A precision that this processor cannot compute is left out. Its comparisons then take other sides, or say why not.

    Args:
        stack: ends the servers.
        name: of the run.
        is_reversed: start in the reverse order, Triton before the services.
    """
    from photodup.serving.embedded import MODELS, embedded_servers
    from photodup.serving.endpoints import save_endpoints

    backends = _compared(pairs)
    exported = _exported(with_int8=any(b.precision == "int8" for b in backends))
    if "openvino-int8" not in exported:
        backends = _compared(pairs, without="int8")
    services = {(b.engine, b.precision) for b in backends if b.server == "fastapi"} - {_SERVED_ANYWAY}
    compared = sorted({b.triton_model for b in backends if b.server == "triton"} - {*MODELS, *EMULATED})
    print(f"Starting {1 + len(services)} FastAPI services and Triton on this machine", flush=True)
    models = (*MODELS, *EMULATED, *compared)
    engines = sorted(services, reverse=is_reversed)
    running = embedded_servers(
        models=models, engines=engines, exported=exported, timeout_s=600.0, triton_first=is_reversed
    )
    path = project_root() / "build" / f"endpoints-{name}.yaml"
    save_endpoints(stack.enter_context(running), path)
    return path


def _compared(pairs: Iterable[Pair], without: str = "") -> set[Backend]:
    """Return the backends of the compared sides that this machine can serve, except those of the precision `without`."""

    def has(backend: Backend) -> bool:
        return backend.engine != "trt" and can_compute(backend.precision) and backend.precision != without

    sides = [side for pair in pairs for side in (pair.offered(has).a, pair.offered(has).b)]
    return {side.backend for side in sides if has(side.backend)}


def _exported(*, with_int8: bool) -> dict[str, Path]:
    """Return the exported files, with INT8 where it is compared.

    The study serves INT8 whatever the accuracy check's verdict, which is written beside it and shown by notebook 05.
    """
    from photodup.serving.embedded import export_models, int8_files

    exported = export_models()
    if with_int8 and "openvino-int8" not in exported:
        print("Quantising the model to INT8 (once; about a minute)", flush=True)
        # In a process of its own, for it takes a gigabyte.
        command = [sys.executable, "-P", "-m", "photodup", "export", "--precision", "int8"]
        process = subprocess.run(command, capture_output=True, text=True)
        exported.update(int8_files(exported["fp32"]))
        if "openvino-int8" not in exported:
            lines = (process.stderr.strip() or process.stdout.strip()).splitlines() or ["it printed nothing"]
            print(f"No INT8 in this study: {lines[-1]}", flush=True)
    return exported
