"""PyTorch's engines on one device: eager, CUDA graphs and `torch.compile`, each in every precision it has."""

import contextlib
import copy
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class NotHere(Exception):
    """An engine that cannot run on this device; the message is the reason in one sentence."""


@dataclass(frozen=True)
class Timing:
    """What one batch size of an engine took.

    Attributes:
        times_ms: one for each repeat.
        clock: `device` (CUDA events) or `wall`.
        memory_mb: peak of PyTorch's allocations, CUDA only.
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
    if precision == "fp16" and not cpu_has("avx512_fp16", "amx_fp16"):
        raise NotHere("this CPU has no FP16 arithmetic, and emulating it is far slower than FP32")


def cpu_has(*flags: str) -> bool:
    """Say whether the processor names one of these features."""
    try:
        words = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return False
    return bool(words & set(flags))


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
            start, build_s = time.perf_counter(), None
            if engine == "pytorch-cuda-graph":
                call = captured(network, image)
                build_s = time.perf_counter() - start
            elif engine == "pytorch-compile":
                # Forget the other shapes: beyond eight of them PyTorch would quietly run eagerly.
                torch._dynamo.reset()
                run = torch.compile(network, dynamic=False, fullgraph=True)
                run(image)
                build_s = time.perf_counter() - start
                call = lambda: run(image)  # noqa: E731
            else:
                call = lambda: network(image)  # noqa: E731
            times = cuda_times(call, repeats) if cuda else wall_times(call, repeats)
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


def wall_times(call: Callable[[], Any], repeats: int) -> list[float]:
    """Return the milliseconds of each call by the wall clock, after two that warm it."""
    call()
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1000)
    return times


def cuda_times(call: Callable[[], Any], repeats: int) -> list[float]:
    """Return the milliseconds of each call by the device's own clock, after five that warm it."""
    import torch

    for _ in range(5):
        call()
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    torch.cuda.synchronize()
    for start, end in pairs:
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in pairs]
