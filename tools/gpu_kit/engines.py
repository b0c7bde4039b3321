"""The engines, opened and timed: PyTorch (eager, CUDA graphs, `torch.compile`) and ONNX Runtime's providers; and ceilings.

Only calls that PyTorch and ONNX Runtime have had for years are used: the machine brings its own versions of both.
"""

import contextlib
import copy
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from photodup.core.errors import PhotodupError
from photodup.embedding.engines.model import can_compute
from photodup.embedding.engines.onnx_runtime import CPU, open_session
from photodup.embedding.fidelity import compare_embeddings
from photodup.study.precision.compiler import noise

PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
GEMM_SIZES = {"cuda": (2048, 4096, 8192), "cpu": (512, 1024, 2048)}
COPY_MB = {"cuda": 4096, "cpu": 256}
THRESHOLD = 0.9  # for counting flipped decisions; the similarities' change does not depend on it
_PROVIDERS = {
    "onnx-cpu": CPU[0],
    "onnx-cuda": "CUDAExecutionProvider",
    "onnx-tensorrt": "TensorrtExecutionProvider",
}
GRAPH = "-graph"
"""Ends the name of an engine whose inference is recorded as a CUDA graph and launched at once."""


@dataclass(frozen=True)
class Timing:
    """The times of one batch size of an engine.

    Attributes:
        times_ms: one for each repeat.
        clock: `device` (CUDA events) or `wall`.
        memory_mb: peak of PyTorch's allocations, or all that the GPU holds more than before the engine was opened.
        build_s: until this shape could be run, where an engine builds for each shape.
    """

    times_ms: list[float]
    clock: str
    memory_mb: float | None = None
    build_s: float | None = None


Opened = Callable[[int, int], Timing]  # batch, repeats


def check_precision(precision: str, device: str) -> None:
    """Refuse a precision that this device does not compute in.

    Raises:
        PhotodupError: with the reason.
    """
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        torch.cuda.init()  # says why: no driver, one too old, a build without CUDA
    if device == "cpu" and precision == "tf32":
        raise PhotodupError("TF32 is a mode of NVIDIA's tensor cores.")
    if device == "cpu" and precision == "fp16" and not can_compute("fp16"):
        raise PhotodupError("This CPU has no FP16 arithmetic, and emulating it is far slower than FP32.")


def dtype_of(precision: str) -> Any:
    """Return the type of weights and pixels; TF32 is float32 with a mode (see `arithmetic`)."""
    import torch

    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)


@contextlib.contextmanager
def arithmetic(precision: str) -> Iterator[None]:
    """Let float32 mean float32, in convolutions too, unless `precision` is `tf32`; puts back what was set.

    PyTorch's convolutions are TF32 by default where the GPU has it. The older of its two sets of switches is used:
    `torch.compile` reads those, and refuses a mixture.
    """
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer versions announce a successor of these switches
        before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        torch.backends.cudnn.allow_tf32 = precision == "tf32"
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before[0])
            torch.backends.cudnn.allow_tf32 = before[1]


def open_torch(visual: Any, engine: str, precision: str, device: str) -> Opened:
    """Put a copy of the image tower on the device.

    Raises:
        PhotodupError: the device has no such engine or precision.
    """
    import torch

    if device == "cpu" and engine == "pytorch-cuda-graph":
        raise PhotodupError("CUDA graphs need an NVIDIA GPU.")
    check_precision(precision, device)
    network = copy.deepcopy(visual).to(device=device, dtype=dtype_of(precision)).eval()

    def timed(batch: int, repeats: int) -> Timing:
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        with arithmetic(precision), torch.inference_mode():
            image = torch.randn(batch, 3, 224, 224, device=device).to(dtype_of(precision))
            start = time.perf_counter()
            call: Callable[[], Any] = partial(network, image)
            if engine == "pytorch-cuda-graph":
                call = captured(network, image)
            elif engine == "pytorch-compile":
                # Forget the other shapes: beyond eight of them PyTorch would quietly run eagerly.
                torch._dynamo.reset()
                call = partial(torch.compile(network, dynamic=False, fullgraph=True), image)
                call()
            build_s = None if engine == "pytorch-eager" else time.perf_counter() - start
            times = times_ms(call, repeats, device)
        if device == "cpu":
            return Timing(times, "wall", None, build_s)
        return Timing(times, "device", torch.cuda.max_memory_allocated() / 1e6, build_s)

    return timed


def captured(run: Callable, image: Any) -> Callable:
    """Record one inference as a CUDA graph: every kernel launched at once afterwards, for this shape only."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # libraries allocate on first use, which a capture must not see
        for _ in range(3):
            run(image)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(image)
    return graph.replay


def used_mb() -> float:
    """Return the memory in use on the GPU, 10⁶ bytes, by all that runs there; PyTorch's cache included."""
    import torch

    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 1e6


def times_ms(call: Callable[[], Any], repeats: int, device: str = "cpu") -> list[float]:
    """Return the milliseconds of each call after some that warm it: on CUDA by the device's clock, else by the wall's."""
    for _ in range(5 if device == "cuda" else 2):
        call()
    if device == "cpu":
        marks = [time.perf_counter()]
        for _ in range(repeats):
            call()
            marks.append(time.perf_counter())
        return [(end - start) * 1000 for start, end in pairwise(marks)]
    import torch

    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    torch.cuda.synchronize()
    for start, end in events:
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in events]


def open_onnx(graph: Path, engine: str, precision: str, cache: Path, largest: int) -> Opened:
    """Open a session of the engine's provider.

    Args:
        graph: the export; float32, but for `onnx-cuda` in FP16.
        cache: folder for TensorRT's engines.
        largest: largest batch size, for TensorRT's profiles.

    Raises:
        PhotodupError: this ONNX Runtime lacks the provider, or it does not start.
    """
    import onnxruntime

    name, on_cpu = _PROVIDERS[engine.removesuffix(GRAPH)], engine == "onnx-cpu"
    if name not in onnxruntime.get_available_providers():
        raise PhotodupError(f"This ONNX Runtime has no {name}: it comes with onnxruntime-gpu.")
    with contextlib.suppress(ImportError):  # a wheel of NVIDIA's, whose import loads TensorRT's libraries
        import tensorrt_libs  # noqa: F401
    before_mb = 0.0 if on_cpu else used_mb()
    session = open_session(
        graph, providers=[name], provider_options={name: settings(engine, precision, cache, largest)}
    )

    def timed(batch: int, repeats: int) -> Timing:
        image = noise(batch)
        if on_cpu:
            return Timing(times_ms(lambda: session.run(["embedding"], {"image": image}), repeats), "wall")
        binding = session.io_binding()  # without it every run copies 0.6 MB an image to the device and back
        binding.bind_ortvalue_input("image", onnxruntime.OrtValue.ortvalue_from_numpy(image, "cuda", 0))
        run = onnxruntime.RunOptions()
        if engine.endswith(
            GRAPH
        ):  # recorded for one shape and one place in memory, under a number of its own
            shape = [batch, session.get_outputs()[0].shape[1]]
            answer = onnxruntime.OrtValue.ortvalue_from_shape_and_type(shape, np.float32, "cuda", 0)
            binding.bind_ortvalue_output("embedding", answer)
            run.add_run_config_entry("gpu_graph_id", str(batch))
        else:
            binding.bind_output("embedding", "cuda", 0)

        def call() -> None:
            session.run_with_iobinding(binding, run)
            binding.synchronize_outputs()

        # ONNX Runtime keeps a stream of its own, where PyTorch's events would see nothing.
        return Timing(times_ms(call, repeats), "wall", used_mb() - before_mb)

    return timed


def settings(engine: str, precision: str, cache: Path, largest: int) -> dict[str, str]:
    """Return the options of the engine's provider."""
    has_graph = str(int(engine.endswith(GRAPH)))
    if engine == "onnx-cpu":
        return {}
    if engine.startswith("onnx-cuda"):
        return {"use_tf32": str(int(precision == "tf32")), "enable_cuda_graph": has_graph}
    shapes = {"min": 1, "opt": min(8, largest), "max": largest}
    return {f"trt_profile_{name}_shapes": f"image:{n}x3x224x224" for name, n in shapes.items()} | {
        "trt_engine_cache_enable": "True",
        "trt_engine_cache_path": str(cache),
        "trt_fp16_enable": str(int(precision == "fp16")),
        "trt_cuda_graph_enable": has_graph,
    }


def gemm(precision: str, device: str, repeats: int) -> dict[str, Any]:
    """Multiply square matrices of random numbers; return the best rate over the sizes.

    A maker's peak rate is a product of clock and units that no program reaches; the share of what the same libraries reach
    on large matrices says how much of the device the network leaves unused.

    Returns:
        `tflops` (2 n³ over the median time, at the best size), `best_size`, `tflops_by_size`, `repeats`.
    """
    import torch

    check_precision(precision, device)
    by_size = {}
    with arithmetic(precision), torch.inference_mode():
        for n in GEMM_SIZES[device]:
            # Random numbers: on zeros the same kernels run faster, since fewer transistors switch.
            a, b = (torch.randn(n, n, device=device).to(dtype_of(precision)) for _ in range(2))
            times = times_ms(partial(torch.mm, a, b, out=torch.empty_like(a)), repeats, device)
            by_size[str(n)] = 2 * n**3 / statistics.median(times) / 1e9  # FLOP/ms ÷ 1e9 = TFLOP/s
    best = max(by_size, key=by_size.__getitem__)
    return {"tflops": by_size[best], "best_size": int(best), "tflops_by_size": by_size, "repeats": repeats}


def copy_rate(device: str, repeats: int) -> dict[str, Any]:
    """Copy a buffer within the device's memory, half of a free device's at most; return `gb_per_s`, read and written."""
    import torch

    check_precision("fp32", device)
    free_mb = torch.cuda.mem_get_info()[0] / 1e6 if device == "cuda" else float("inf")
    megabytes = int(min(COPY_MB[device], free_mb / 4))
    source = torch.ones(megabytes * 250_000, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    times = times_ms(lambda: target.copy_(source), repeats, device)
    # MB/ms = GB/s
    return {"gb_per_s": 2 * megabytes / statistics.median(times), "buffer_mb": megabytes, "repeats": repeats}


def embed(visual: Any, images: np.ndarray, precision: str, device: str) -> np.ndarray:
    """Embed on the device in one precision.

    Args:
        visual: the image tower in float32; copied, not changed.
        images: float32 [n, 3, 224, 224], normalised.

    Returns:
        float32 [n, dim] of length 1.
    """
    import torch

    check_precision(precision, device)
    network = copy.deepcopy(visual).to(device=device, dtype=dtype_of(precision)).eval()
    with arithmetic(precision), torch.inference_mode():
        batches = torch.from_numpy(images).to(device).to(dtype_of(precision)).split(32)
        embedded = torch.cat([network(batch).float() for batch in batches])
        return torch.nn.functional.normalize(embedded, dim=-1).cpu().numpy()


def fidelity(
    visual: Any, images: np.ndarray, precision: str, device: str, rounded: np.ndarray | None = None
) -> dict[str, Any]:
    """Compare a precision of the device with its float32; float32 on a GPU with the CPU's float32.

    Args:
        rounded: float32 [n, dim], the same photographs with that precision's rounding simulated on the CPU.

    Returns:
        What `fidelity.compare_embeddings` returns, with `against`; and the same under `simulated` for the device against
        `rounded`.
    """
    ours = embed(visual, images, precision, device)
    against = "cpu" if precision == "fp32" else device
    measured = compare_embeddings(embed(visual, images, "fp32", against), ours, THRESHOLD)
    simulated = {} if rounded is None else {"simulated": compare_embeddings(rounded, ours, THRESHOLD)}
    return {"against": f"{against} fp32", **measured, **simulated}
