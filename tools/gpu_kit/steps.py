"""The steps that measure, on the machine with the GPU: `far_side.sh` calls them one by one, each in its own process.

    python tools/gpu_kit/steps.py probe|compile|fidelity|service|onnx|pairs|triton|notebooks

Every record is written as soon as it is measured, and one that is there is not measured again. Settings, all in the
environment: KIT_DEVICE (cuda or cpu), KIT_RUN (name of the run; default the GPU's name); of the device benchmark
KIT_BATCHES, KIT_REPEATS, KIT_BENCH_PRECISIONS and KIT_MINUTES; of the loads KIT_CONCURRENCY and KIT_SECONDS (shortest
window, of the notebooks' too); of the comparisons KIT_VISITS and KIT_BLOCK_S; KIT_NOTEBOOKS, KIT_SIZES (quick or full) and
KIT_PRICE (USD an hour).
"""

import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from device import Budget, measure_device

from photodup.bench.load.plan import Stopping
from photodup.bench.pairs.declared import declarations
from photodup.bench.record import environment
from photodup.bench.record.record import RunStore
from photodup.bench.stats.facts import Load
from photodup.bench.stats.sentence import sentence
from photodup.core.errors import PhotodupError
from photodup.core.paths import build_dir, project_root
from photodup.core.settings import set_variables
from photodup.serving.embedded import embedded_servers
from photodup.serving.endpoints import Endpoints
from photodup.serving.process.ports import claim_ports
from photodup.study.comparisons.measure import measure_comparisons, sizes_of
from photodup.study.comparisons.outcomes import write_outcomes
from photodup.study.notebook.points import measure_point
from photodup.study.notebook.run import Run

DEVICE = os.environ.get("KIT_DEVICE", "cuda")
UNFINISHED = 3  # exit status of a step that the next call goes on with
ONNX_MODELS = ("openclip_vit_b32", "openclip_vit_b32_uint8", "openclip_vit_b32_jpeg")
TRITON_MODELS = ("openclip_vit_b32_pytorch_uint8", "openclip_vit_b32_pytorch_jpeg")


def main() -> None:
    """Run the step that is named."""
    name = sys.argv[1] if len(sys.argv) == 2 else ""
    if name not in STEPS:
        sys.exit(f"steps.py: there is no step {name!r}: choose of {', '.join(STEPS)}.")
    try:
        STEPS[name]()
    except PhotodupError as error:
        sys.exit(f"steps.py: {error}")


def probe() -> None:
    """Ceilings of the device, then PyTorch eager and as CUDA graphs, in every precision and batch size."""
    bench("ceilings", "pytorch-eager", "pytorch-cuda-graph", minutes=3.5)


def compiled() -> None:
    """`torch.compile` for each shape."""
    bench("ceilings", "pytorch-compile", minutes=5.5)


def fidelity() -> None:
    """What each precision does to embeddings, against float32 and against the CPU's simulated rounding."""
    bench("ceilings", "fidelity", minutes=2.5)


def onnx() -> None:
    """ONNX Runtime with the CUDA provider, eager and as CUDA graphs, then TensorRT so (on a CPU with its own)."""
    providers = ("onnx-cuda", "onnx-cuda-graph", "onnx-tensorrt", "onnx-tensorrt-graph")
    bench("ceilings", *(providers if DEVICE == "cuda" else ("onnx-cpu",)), minutes=2.5)


def service() -> None:
    """The FastAPI service on the device, photographs in, 1 to 128 in flight."""
    run = open_kit_run()
    with embedded_servers(models=(), env=service_settings(), progress=say) as servers:
        loads(run, servers, ["fastapi-pytorch-fp32-http-jpeg"], label="fp32")


def pairs() -> None:
    """FastAPI and Triton on the device, taking turns: the study's comparisons of which both sides are here.

    Triton's Python backend runs ONNX Runtime with CUDA, of the version that FastAPI runs.
    """
    block_s = float(os.environ.get("KIT_BLOCK_S", "0.6"))
    sizes = {"block_s": block_s, "slice_s": block_s, "alone_s": block_s, "warmup_s": 0.3}
    render: dict[str, Any] = {"device": DEVICE, "preprocess_instances": decoders()}
    engines = [("onnx", "fp32")]
    set_variables(**service_settings())  # of all servers, of second processes, and of the reference
    with embedded_servers(
        models=ONNX_MODELS, engines=engines, timeout_s=240, progress=say, **render
    ) as servers:
        run = replace(open_kit_run(), endpoints=on_device(servers))
        declared = declarations()
        here = [pair.on(servers.has) for pair in (*declared.pairs, *declared.nulls)]
        asked = [p for p in here if servers.has(p.a.backend) and servers.has(p.b.backend) and not p.link]
        measure_comparisons(run, asked, sizes_of(sizes, int(os.environ.get("KIT_VISITS", "4"))), say=say)
        for outcome in write_outcomes(run):
            say(sentence(outcome))


def triton() -> None:
    """A real Triton, its model in PyTorch on the device: the same loads, in float32."""
    # Triton's own account of the GPU first; where it refuses that, counted on the CPU and computed on the GPU.
    kinds = ("KIND_GPU", "KIND_CPU") if DEVICE == "cuda" else ("KIND_CPU",)
    for kind in kinds:
        try:
            with triton_serving(kind) as servers:
                backends = [name for name in servers.backends if "-pytorch-" in name]
                loads(open_kit_run(), servers, backends, label="fp32", config={"instance_kind": kind})
            return
        except PhotodupError as error:
            say(f"Triton, {kind}: {error}")
    raise PhotodupError("Triton did not serve: see the lines above.")


def notebooks() -> None:
    """The notebooks that ask servers, told this machine's address, ports, GPU and price as papermill tells them."""
    from photodup.study.runner.execute import run_study  # needs wheels that no other step needs

    set_variables(**service_settings())
    seconds = float(os.environ.get("KIT_SECONDS", "4"))
    render: dict[str, Any] = {"device": DEVICE, "preprocess_instances": decoders()}
    # No other loopback address than 127.0.0.1 is taken for the client's own machine.
    host = "127.0.0.7"
    names = ("pytorch_port", "triton_http_port", "triton_grpc_port", "triton_metrics_port")
    where: dict[str, Any] = {"host": host, **claim_ports(host, dict.fromkeys(names, 0))}
    with embedded_servers(models=ONNX_MODELS, timeout_s=240, progress=say, **where, **render) as servers:
        told = {
            **{name.upper(): value for name, value in where.items()},
            "GPU": on_device(servers).gpu,
            "GPUS": 1,
            "EXPLORE": True,
            "SECONDS": seconds,
            "MAX_SECONDS": 4 * seconds,
        }
        chosen = words("KIT_NOTEBOOKS", "03 04 06 07 08 11")
        if DEVICE == "cuda" and "04" in chosen:  # what ONNX Runtime leaves to the processor is counted, too
            told["PROVIDERS"] = ["CUDAExecutionProvider", "CPUExecutionProvider"]
        if price := os.environ.get("KIT_PRICE"):
            told["PRICE_PER_HOUR"] = float(price)
        sizes = os.environ.get("KIT_SIZES", "quick")
        done = run_study(f"{run_name()}-notebooks", sizes=sizes, only=chosen, parameters=told)
    if failed := [outcome.notebook for outcome in done if outcome.status != "passed"]:
        raise PhotodupError(f"These did not run to their end: {', '.join(failed)}.")


def bench(*engines: str, minutes: float) -> None:
    """Time engines with no server between; exits with `UNFINISHED` if time ran out."""
    budget = Budget(float(os.environ.get("KIT_MINUTES", minutes)))
    batches = [int(word) for word in words("KIT_BATCHES", "1 8 32 128 512")]
    repeats = int(os.environ.get("KIT_REPEATS", "20"))
    precisions = words("KIT_BENCH_PRECISIONS", "")
    measure_device(DEVICE, run_name(), engines, precisions, batches, repeats, budget)
    if budget.left_out:
        sys.exit(UNFINISHED)


def loads(
    run: Run,
    servers: Endpoints,
    backends: Sequence[str],
    *,
    label: str,
    config: dict[str, Any] | None = None,
) -> None:
    """Drive the same loads against each backend, the smallest first.

    Raises:
        PhotodupError: at the end, if some could not be measured; names them.
    """
    seconds = float(os.environ.get("KIT_SECONDS", "4"))
    stopping = Stopping(min_duration_s=seconds, min_requests=32, max_duration_s=4 * seconds)
    run, failed = replace(run, endpoints=on_device(servers)), []
    for backend in backends:
        check = True  # embeddings are compared before the first timed request
        for concurrency in map(int, words("KIT_CONCURRENCY", "1 8 32 128")):
            load = Load("single_stream") if concurrency == 1 else Load("closed_loop", concurrency=concurrency)
            point = measure_point(
                run,
                backend,
                load,
                stopping,
                label=label,
                check=check,
                config={"device": DEVICE, **(config or {})},
            )
            check = False
            if point.get("status") == "failed":
                failed.append(f"{backend} at {concurrency}")
            if point.get("valid"):
                said = (
                    f"{point['throughput_images_per_s']:.1f} images/s, p50 {point['latency_ms_p50']:.1f} ms"
                )
            else:
                said = f"not valid: {point.get('invalid_because')}"
            say(f"{backend} {label}, {concurrency} in flight: {said}")
    if failed:  # the step is tried again by the next call; what is not steady is a result, and stays
        raise PhotodupError(f"These could not be measured: {', '.join(failed)}.")


def triton_serving(kind: str):
    """Render the model for this device and serve it: the `with` block ends the server."""
    from photodup.embedding.engines.encoder import load_model
    from photodup.serving.triton.config import read_config, write_config
    from photodup.serving.triton.repository import render_repository

    model = load_model(device="cpu")
    folder = render_repository(
        "cuda" if DEVICE == "cuda" else "cpu-embedded",
        build_dir() / "triton" / kind.lower(),
        {},
        models=TRITON_MODELS,
        preprocess_instances=decoders(),
        pretrained=model.pretrained,
        model_digest=model.digest,
    )
    path = folder / TRITON_MODELS[0] / "config.pbtxt"
    config = read_config(path)
    config.instance_group[0].kind = config.instance_group[0].Kind.Value(kind)
    write_config(config, path, kind)
    return embedded_servers(
        service=False, models=TRITON_MODELS, repository=folder, timeout_s=240, progress=say
    )


def on_device(servers: Endpoints) -> Endpoints:
    """Return the servers with the GPU on which they compute, for the records."""
    gpu = environment.describe()["gpus"][0]["name"] if DEVICE == "cuda" else servers.gpu
    return servers.model_copy(update={"gpu": gpu})


def decoders() -> int:
    """Return how many processes decode JPEG files for Triton: half of the processors."""
    return max(2, (os.cpu_count() or 2) // 2)


def service_settings() -> dict[str, str]:
    """Return the service's settings: on the device, batches as large as Triton's, no refusal of what waits.

    The first one switches TF32 off in NVIDIA's libraries: the label says fp32.
    """
    no_tf32 = {"NVIDIA_TF32_OVERRIDE": "0"}
    return no_tf32 | {"DEVICE": DEVICE, "BATCH_MAX": "32", "MAX_WAIT_S": "120", "MAX_IN_FLIGHT": "512"}


def open_kit_run() -> Run:
    """Open the run of this machine; its facts name the weights, as those of the device benchmark do."""
    from photodup.embedding.engines.encoder import load_model

    model = load_model(device="cpu")
    facts = {"digest": model.digest, "pretrained": model.pretrained}
    directory = project_root() / "results" / run_name()
    nowhere = Endpoints(name="none", backends={"fastapi-pytorch-fp32-http-jpeg": "http://127.0.0.1:1"})
    return Run(run_name(), directory, nowhere, RunStore(directory, model=facts))


def run_name() -> str:
    """Return KIT_RUN, or the GPU's name as the name of a run."""
    gpus = environment.describe()["gpus"]
    name = os.environ.get("KIT_RUN") or (gpus[0]["name"] if gpus and DEVICE == "cuda" else f"kit-{DEVICE}")
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def words(variable: str, default: str) -> list[str]:
    """Return the words of an environment variable."""
    return os.environ.get(variable, default).split()


def say(text: str) -> None:
    """Print a line at once: a step may be stopped at its limit."""
    print(text, flush=True)


STEPS: dict[str, Callable[[], None]] = {
    "probe": probe,
    "compile": compiled,
    "fidelity": fidelity,
    "service": service,
    "onnx": onnx,
    "pairs": pairs,
    "triton": triton,
    "notebooks": notebooks,
}

if __name__ == "__main__":
    main()
