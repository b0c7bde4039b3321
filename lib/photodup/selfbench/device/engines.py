"""The engines, opened and timed: PyTorch (eager, CUDA graphs, `torch.compile`), ONNX Runtime's providers and OpenVINO."""

import contextlib
import copy
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from photodup.embedding.engines.model import can_compute
from photodup.embedding.engines.onnx_runtime import CPU, open_session
from photodup.embedding.engines.openvino import compile_graph
from photodup.study.precision.compiler import noise


class NotHere(Exception):
    """An engine that cannot run on this device; the message is the reason in one sentence."""


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
        NotHere: with the reason.
    """
    import torch

    if device.startswith("cuda"):
        if not torch.cuda.is_available():
            torch.cuda.init()  # says why: no driver, one too old, a build without CUDA
            raise NotHere("PyTorch finds no CUDA device here")
        return
    if precision == "tf32":
        raise NotHere("TF32 is a mode of NVIDIA's tensor cores")
    if precision == "fp16" and not can_compute("fp16"):
        raise NotHere("this CPU has no FP16 arithmetic, and emulating it is far slower than FP32")


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
        NotHere: the device has no such engine or precision.
    """
    import torch

    cuda = device.startswith("cuda")
    if not cuda and engine == "pytorch-cuda-graph":
        raise NotHere("CUDA graphs need an NVIDIA GPU")
    check_precision(precision, device)
    dtype = dtype_of(precision)
    network = copy.deepcopy(visual).to(device=device, dtype=dtype).eval()

    def timed(batch: int, repeats: int) -> Timing:
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        with arithmetic(precision), torch.inference_mode():
            image = torch.randn(batch, 3, 224, 224, device=device).to(dtype)
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
        memory = torch.cuda.max_memory_allocated() / 1e6 if cuda else None
        return Timing(times, "device" if cuda else "wall", memory, build_s)

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
    if not device.startswith("cuda"):
        call()
        call()
        marks = [time.perf_counter()]
        for _ in range(repeats):
            call()
            marks.append(time.perf_counter())
        return [(end - start) * 1000 for start, end in pairwise(marks)]
    import torch

    for _ in range(5):
        call()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    torch.cuda.synchronize()
    for start, end in events:
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in events]


_PROVIDERS = {
    "onnx-cuda": "CUDAExecutionProvider",
    "onnx-tensorrt": "TensorrtExecutionProvider",
    "onnx-tensorrt-rtx": "NvTensorRTRTXExecutionProvider",
}
GRAPH = "-graph"
"""Ends the name of an engine whose inference is recorded as a CUDA graph and launched at once."""
_WHEELS = {"onnx-tensorrt-rtx": "onnxruntime-trt-rtx"}


def open_onnx(
    graph: Path,
    half: Callable[[], Path] | None,
    engine: str,
    precision: str,
    cache: Path | None,
    largest: int,
) -> Opened:
    """Open a session of the engine's provider.

    Args:
        graph: the float32 export.
        half: makes the graph with FP16 inside, which `onnx-cuda` needs to compute in FP16; None leaves that out.
        cache: folder for TensorRT's engines; None builds them again.
        largest: largest batch size, for TensorRT's profiles.

    Raises:
        NotHere: this ONNX Runtime lacks the provider.
    """
    import onnxruntime

    kind, is_graph = engine.removesuffix(GRAPH), engine.endswith(GRAPH)
    name = _PROVIDERS.get(kind, CPU[0])
    if name not in onnxruntime.get_available_providers():
        wheel = _WHEELS.get(kind, "onnxruntime-gpu")
        raise NotHere(f"this ONNX Runtime has no {name}: it comes with {wheel}")
    before_mb = 0.0 if engine == "onnx-cpu" else used_mb()
    if kind == "onnx-cuda" and precision == "fp16":
        if half is None:
            raise NotHere("no FP16 graph was given")
        graph = half()
    options = {name: settings(engine, precision, cache, largest)}
    session = open_session(graph, providers=[name], provider_options=options)

    def timed(batch: int, repeats: int) -> Timing:
        image = noise(batch)
        if engine == "onnx-cpu":
            return Timing(times_ms(lambda: session.run(["embedding"], {"image": image}), repeats), "wall")
        binding = session.io_binding()  # without it every run copies 0.6 MB an image to the device and back
        binding.bind_ortvalue_input("image", onnxruntime.OrtValue.ortvalue_from_numpy(image, "cuda", 0))
        run = onnxruntime.RunOptions()
        if is_graph:  # a graph is recorded for one shape and one place in memory, under a number of its own
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


def settings(engine: str, precision: str, cache: Path | None, largest: int) -> dict[str, str]:
    """Return the options of the engine's provider."""
    if engine == "onnx-cpu":
        return {}
    if engine.startswith("onnx-cuda"):
        return {
            "use_tf32": str(int(precision == "tf32")),
            "enable_cuda_graph": str(int(engine.endswith(GRAPH))),
        }
    shapes = {"min": 1, "opt": min(8, largest), "max": largest}
    if engine == "onnx-tensorrt-rtx":  # its precision is the graph's own
        return {f"nv_profile_{k}_shapes": f"image:{n}x3x224x224" for k, n in shapes.items()}
    found = {f"trt_profile_{k}_shapes": f"image:{n}x3x224x224" for k, n in shapes.items()}
    if cache is not None:
        found |= {"trt_engine_cache_enable": "True", "trt_engine_cache_path": str(cache)}
    return found | {
        "trt_fp16_enable": str(precision == "fp16"),
        "trt_cuda_graph_enable": str(engine.endswith(GRAPH)),
    }


def open_openvino(graph: Path, precision: str, device: str) -> Opened:
    """Compile the graph with OpenVINO.

    Raises:
        NotHere: the device is no CPU, or the CPU has no such precision.
        PhotodupError: OpenVINO is missing, or the file is no model.
    """
    if device != "cpu":
        raise NotHere("OpenVINO computes on Intel and AMD processors, not on CUDA")
    if precision == "bf16" and not can_compute("bf16"):
        raise NotHere("this CPU has no BF16 arithmetic")
    request = compile_graph(graph, precision).create_infer_request()

    def timed(batch: int, repeats: int) -> Timing:
        image = noise(batch)
        return Timing(times_ms(lambda: request.infer([image], share_inputs=True), repeats), "wall")

    return timed
