"""The steps that measure, on the machine with the GPU: `far_side.sh` calls them one by one, each in its own process.

    python tools/gpu_kit/steps.py parity|fp32|fp16|tensorrt|graphs|compile|servers|notebooks|full

Every record is written as soon as it is measured, and one that is there is not measured again. Settings are environment
variables, listed in README.md. KIT_STEP_S, which `far_side.sh` sets, is how long the step may take.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from device import CEILINGS, FIDELITY, Budget, measure_device

from photodup.bench.record import environment
from photodup.core.errors import PhotodupError
from photodup.core.paths import build_dir, project_root
from photodup.core.settings import set_variables
from photodup.embedding.backends import parse_backend
from photodup.serving.embedded import embedded_servers
from photodup.serving.endpoints import Endpoints, save_endpoints

DEVICE = os.environ.get("KIT_DEVICE", "cuda")
UNFINISHED = 3  # exit status of a step that the next call goes on with
RESERVE_S = 5  # for writing what was measured
MODELS = ("openclip_vit_b32", "openclip_vit_b32_uint8", "openclip_vit_b32_jpeg")
# In `servers`: the same photograph as a file and as prepared tensors, by HTTP and gRPC.
BACKENDS = (
    "fastapi-pytorch-fp32-http-jpeg",
    "fastapi-onnx-fp32-http-jpeg",
    "triton-onnx-fp32-http-fp32",
    "triton-onnx-fp32-grpc-fp32",
    "triton-onnx-fp32-http-uint8",
    "triton-onnx-fp32-grpc-uint8",
)
ONNX = "onnx-cuda" if DEVICE == "cuda" else "onnx-cpu"


def main() -> None:
    """Run the step that is named."""
    name = sys.argv[1] if len(sys.argv) == 2 else ""
    if name not in STEPS:
        sys.exit(f"steps.py: there is no step {name!r}: choose of {', '.join(STEPS)}.")
    try:
        STEPS[name]()
    except PhotodupError as error:
        sys.exit(f"steps.py: {error}")


def bench(engines: tuple[str, ...], precisions: tuple[str, ...] = ()) -> None:
    """Time engines with no server between; exits with `UNFINISHED` if time ran out. No `precisions` are all."""
    budget = Budget((float(os.environ.get("KIT_STEP_S", "180")) - RESERVE_S) / 60)
    batches = [int(word) for word in words("KIT_BATCHES", "1 8 32 128 512")]
    repeats = int(os.environ.get("KIT_REPEATS", "20"))
    measure_device(DEVICE, run_name(), engines, precisions, batches, repeats, budget)
    if budget.left_out:
        sys.exit(UNFINISHED)


def servers() -> None:
    """Measure FastAPI and Triton over real sockets with prepared requests, 1 to 128 in flight, smallest first."""
    in_flight = words("KIT_CONCURRENCY", "1 2 4 8 16 32 64 128")
    seconds = float(os.environ.get("KIT_SECONDS", "4")) * len(in_flight)
    with serving([("onnx", "fp32")]) as endpoints:
        for name in BACKENDS:
            folder = project_root() / "results" / run_name() / "load" / name
            with contextlib.suppress(FileNotFoundError):
                if json.loads((folder / "result.json").read_text())["status"] == 0:
                    continue
            print(f"{name}: {seconds:.0f} s", flush=True)
            # Processes enough that the generator is not what is measured; it shares no gRPC requests among them.
            processes = 1 if "-grpc-" in name else decoders()
            generator = ("--processes", processes, "--concurrency", ",".join(in_flight))
            photodup("load", load_url(endpoints, name), *generator, "--seconds", seconds, "--out", folder)


def load_url(endpoints: Endpoints, name: str) -> str:
    """Return the URL that `photodup load` takes for a backend."""
    backend, address = parse_backend(name), endpoints.backends[name]
    if backend.server == "fastapi":
        return f"{address}/embed"
    if backend.protocol == "grpc":
        return f"grpc://{address}/{backend.triton_model}"
    return f"{address}/v2/models/{backend.triton_model}"


def notebooks(sizes: str) -> None:
    """Run the notebooks that ask servers, against an endpoints file of this machine, as a user does."""
    file = build_dir() / "endpoints-kit.yaml"
    with serving() as endpoints:
        save_endpoints(endpoints, file)
        only = [word for number in words("KIT_NOTEBOOKS", "03 04 06 07 08 11") for word in ("--only", number)]
        run = f"{run_name()}-notebooks"
        photodup("study", "run", "--run", run, "--endpoints", file, "--sizes", sizes, *only)


@contextlib.contextmanager
def serving(engines: list[tuple[str, str]] | None = None) -> Iterator[Endpoints]:
    """Serve on the device with FastAPI and Triton, batches as large as Triton's; yields where, GPU and price named."""
    # NVIDIA's libraries compute FP32 as TF32 unless the first variable says otherwise.
    set_variables(
        NVIDIA_TF32_OVERRIDE="0", DEVICE=DEVICE, BATCH_MAX="32", MAX_WAIT_S="120", MAX_IN_FLIGHT="512"
    )
    with embedded_servers(
        models=MODELS,
        engines=engines or (),
        timeout_s=240,
        progress=partial(print, flush=True),
        device=DEVICE,
        preprocess_instances=decoders(),
    ) as endpoints:
        price = os.environ.get("KIT_PRICE")
        facts = {"gpu": gpu_name() or endpoints.gpu, "price_per_hour_usd": float(price) if price else None}
        yield endpoints.model_copy(update=facts)


def photodup(*arguments: str | float | Path) -> None:
    """Run a command of photodup.

    Raises:
        PhotodupError: it failed; what was measured before stays.
    """
    command = [sys.executable, "-m", "photodup", *map(str, arguments)]
    if status := subprocess.run(command, check=False).returncode:
        raise PhotodupError(f"photodup {arguments[0]} ended with status {status}: see the lines above.")


def decoders() -> int:
    """Return how many processes decode for Triton, and how many generate load: half of the processors."""
    return max(2, (os.cpu_count() or 2) // 2)


def gpu_name() -> str:
    """Return the GPU's name; empty where the rehearsal uses none."""
    gpus = environment.describe()["gpus"] if DEVICE == "cuda" else []
    return str(gpus[0]["name"]) if gpus else ""


def run_name() -> str:
    """Return KIT_RUN, or the GPU's name as the name of a run."""
    name = os.environ.get("KIT_RUN") or gpu_name() or f"kit-{DEVICE}"
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def words(variable: str, default: str) -> list[str]:
    """Return the words of an environment variable."""
    return os.environ.get(variable, default).split()


STEPS: dict[str, Callable[[], None]] = {
    "parity": partial(bench, (FIDELITY, CEILINGS)),
    "fp32": partial(bench, ("pytorch-eager", ONNX), ("fp32",)),
    "fp16": partial(bench, ("pytorch-eager", ONNX), ("fp16", "bf16", "tf32")),
    "tensorrt": partial(bench, ("onnx-tensorrt",)),
    "graphs": partial(bench, ("pytorch-cuda-graph", "onnx-cuda-graph", "onnx-tensorrt-graph")),
    "compile": partial(bench, ("pytorch-compile",)),
    "servers": servers,
    "notebooks": partial(notebooks, os.environ.get("KIT_SIZES", "quick")),
    "full": partial(notebooks, "full"),
}

if __name__ == "__main__":
    main()
