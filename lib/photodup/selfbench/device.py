"""The engines on one device with no server between: what each makes of the same weights.

Every line is timed the same way: a warmed shape, input already on the device, one batch at a time. On CUDA
the clock is the device's own (events around the work), elsewhere the wall clock. A line that cannot run
says why and the others go on. Only calls that PyTorch and ONNX Runtime have had for years are used, since
a GPU image brings its own versions of both.
"""

import copy
import json
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from photodup.errors import PhotodupError
from photodup.selfbench.device_remedies import remedy

PROBE = Path(__file__).with_name("openvino_probe.py")
_PROVIDERS = {
    "onnx-cuda": "CUDAExecutionProvider",
    "onnx-tensorrt": "TensorrtExecutionProvider",
    "onnx-tensorrt-rtx": "NvTensorRTRTXExecutionProvider",
}
_WHEELS = {"onnx-tensorrt-rtx": "onnxruntime-trt-rtx"}


class NotHere(Exception):
    """An engine that cannot run on this device; the message is the reason in one sentence."""


def bench(
    visual: Any,
    graph: Path,
    *,
    device: str = "cpu",
    batches: Sequence[int] = (1, 8, 32),
    repeats: int = 10,
    compile_on_cpu: bool = False,
    openvino_python: Path | None = None,
    cache: Path | None = None,
) -> Iterator[dict[str, Any]]:
    """Time every engine and yield one line for each engine, precision and batch size as it is done.

    Args:
        visual: the image tower, a `torch.nn.Module` in float32; copied, not changed.
        graph: its float32 ONNX export.
        device: `cpu` or `cuda`.
        batches: batch sizes, each warmed before it is timed.
        repeats: timed runs of each; the median is reported.
        compile_on_cpu: also `torch.compile` on a CPU, which builds for minutes.
        openvino_python: a Python that has onnxruntime-openvino; None leaves OpenVINO out, with a reason.
        cache: folder for TensorRT's engines; without one they are built again each time.

    Yields:
        `engine`, `precision`, `device`, and either `not_run` (why; with `batch` when only that size and larger
        ones failed) or `batch`, `latency_ms_p50`, `throughput_images_per_s`, `n`, `clock` (device or wall),
        `build_s` (until the engine takes input; `torch.compile` builds later, in the runs that warm it),
        `peak_memory_mb` (CUDA, PyTorch only).
    """
    for engine, precision in _plan(device):
        line: dict[str, Any] = {"engine": engine, "precision": precision, "device": device}
        try:
            if engine == "onnx-openvino":
                yield from _openvino_lines(line, openvino_python, graph, batches, repeats)
                continue
            start = time.perf_counter()
            if engine.startswith("pytorch"):
                if engine == "pytorch-compile" and device == "cpu" and not compile_on_cpu:
                    raise NotHere("torch.compile builds for minutes on a CPU: ask for it with --compile")
                opened = _torch(visual, engine, precision, device)
            else:
                opened = _onnx(graph, engine, precision, cache, max(batches))
            built = {"build_s": time.perf_counter() - start}
            for batch in sorted(batches):
                line["batch"] = batch
                times, clock, memory = opened(batch, repeats)
                yield line | built | _figures(batch, times, clock) | {"peak_memory_mb": memory}
        except Exception as error:  # four libraries, one table: a failing engine is a line, not the end
            yield line | {"not_run": _reason(error)}


def run_openvino(python: Path | None, graph: Path, *arguments: str, limit_s: float = 300) -> dict[str, Any]:
    """Run `openvino_probe.py` with another Python and return what it printed.

    Raises:
        PhotodupError: that Python is missing, has no OpenVINO provider, or the graph does not run there.
    """
    if python is None or not python.is_file():
        raise PhotodupError("OpenVINO's provider is not installed beside this Python: run `make install`.")
    try:
        done = subprocess.run(
            [str(python), str(PROBE), str(graph), *arguments],
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise PhotodupError(f"OpenVINO did not finish {graph.name} within {limit_s:.0f} s.") from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["no message"]
        raise PhotodupError(f"OpenVINO cannot run {graph.name}: {said[-1][:200]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def _plan(device: str) -> list[tuple[str, str]]:
    torch_engines = ["pytorch-eager", "pytorch-compile", "pytorch-cuda-graph"]
    lines = [
        (engine, precision) for engine in torch_engines for precision in ("fp32", "tf32", "bf16", "fp16")
    ]
    lines += [("onnx-cpu", "fp32")] if device == "cpu" else []
    lines += [("onnx-openvino", "fp32"), ("onnx-openvino", "bf16")]
    return [
        *lines,
        ("onnx-cuda", "fp32"),
        ("onnx-cuda", "tf32"),
        ("onnx-tensorrt", "fp32"),
        ("onnx-tensorrt", "fp16"),
        ("onnx-tensorrt-rtx", "fp32"),
    ]


def _torch(visual: Any, engine: str, precision: str, device: str) -> Callable:
    import torch

    cuda = device.startswith("cuda")
    if cuda and not torch.cuda.is_available():
        torch.cuda.init()  # says why: no driver, one too old, a build without CUDA
        raise NotHere("PyTorch finds no CUDA device here")
    if not cuda and engine == "pytorch-cuda-graph":
        raise NotHere("CUDA graphs need an NVIDIA GPU")
    if not cuda and precision == "tf32":
        raise NotHere("TF32 is a mode of NVIDIA's tensor cores")
    if not cuda and precision == "fp16" and not _cpu_has("avx512_fp16", "amx_fp16"):
        raise NotHere("this CPU has no FP16 arithmetic, and emulating it is far slower than FP32")
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    network = copy.deepcopy(visual).to(device=device, dtype=dtype).eval()
    run = torch.compile(network) if engine == "pytorch-compile" else network

    def timed(batch: int, repeats: int) -> tuple[list[float], str, float | None]:
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        try:
            with torch.inference_mode():
                image = torch.randn(batch, 3, 224, 224, device=device).to(dtype)
                call = _captured(run, image) if engine == "pytorch-cuda-graph" else lambda: run(image)
                times = _cuda_times(call, repeats) if cuda else _wall_times(call, repeats)
        finally:
            torch.set_float32_matmul_precision(before)
        memory = torch.cuda.max_memory_allocated() / 1e6 if cuda else None
        return times, "device" if cuda else "wall", memory

    return timed


def _captured(run: Callable, image: Any) -> Callable:
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


def _onnx(graph: Path, engine: str, precision: str, cache: Path | None, largest: int) -> Callable:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    provider: Any = "CPUExecutionProvider"
    if engine != "onnx-cpu":
        name = _PROVIDERS[engine]
        if name not in onnxruntime.get_available_providers():
            wheel = _WHEELS.get(engine, "onnxruntime-gpu")
            raise NotHere(f"this ONNX Runtime has no {name}: it comes with {wheel}")
        provider = (name, _settings(engine, precision, cache, largest))
    session = onnxruntime.InferenceSession(str(graph), options, providers=[provider])
    if engine != "onnx-cpu" and session.get_providers()[0] != _PROVIDERS[engine]:
        raise NotHere(
            f"{_PROVIDERS[engine]} did not load; ONNX Runtime fell back to {session.get_providers()[0]}"
        )

    def timed(batch: int, repeats: int) -> tuple[list[float], str, float | None]:
        image = np.random.default_rng(0).standard_normal((batch, 3, 224, 224), np.float32)
        if engine == "onnx-cpu":
            return _wall_times(lambda: session.run(["embedding"], {"image": image}), repeats), "wall", None
        binding = session.io_binding()  # without it every run copies 0.6 MB an image to the device and back
        binding.bind_ortvalue_input("image", onnxruntime.OrtValue.ortvalue_from_numpy(image, "cuda", 0))
        binding.bind_output("embedding", "cuda", 0)

        def call() -> None:
            session.run_with_iobinding(binding)
            binding.synchronize_outputs()

        # ONNX Runtime keeps a stream of its own, where PyTorch's events would see nothing.
        return _wall_times(call, repeats), "wall", None

    return timed


def _settings(engine: str, precision: str, cache: Path | None, largest: int) -> dict[str, str]:
    if engine == "onnx-cuda":
        return {"use_tf32": str(int(precision == "tf32"))}
    shapes = {"min": 1, "opt": min(8, largest), "max": largest}
    if engine == "onnx-tensorrt-rtx":  # its precision is the graph's own
        return {f"nv_profile_{k}_shapes": f"image:{n}x3x224x224" for k, n in shapes.items()}
    settings = {f"trt_profile_{k}_shapes": f"image:{n}x3x224x224" for k, n in shapes.items()}
    if cache is not None:
        settings |= {"trt_engine_cache_enable": "True", "trt_engine_cache_path": str(cache)}
    return settings | {"trt_fp16_enable": str(precision == "fp16")}


def _openvino_lines(
    line: dict[str, Any], python: Path | None, graph: Path, batches: Sequence[int], repeats: int
) -> Iterator[dict[str, Any]]:
    if line["device"] != "cpu":
        raise NotHere("OpenVINO computes on Intel and AMD processors, not on CUDA")
    if line["precision"] == "bf16" and not _cpu_has("avx512_bf16", "amx_bf16"):
        raise NotHere("this CPU has no BF16 arithmetic")
    # A precision not asked for would be OpenVINO's choice, which is BF16 wherever the CPU has it.
    arguments = ["--precision", line["precision"].upper(), "--repeats", str(repeats), "--batches"]
    found = run_openvino(python, graph, *arguments, *map(str, batches))
    built = {"build_s": found["build_s"], "peak_memory_mb": None}
    for measured in found["batches"]:
        yield line | built | _figures(measured["batch"], measured["latencies_ms"], "wall")


def _wall_times(call: Callable[[], Any], repeats: int) -> list[float]:
    call()
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1000)
    return times


def _cuda_times(call: Callable[[], Any], repeats: int) -> list[float]:
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


def _figures(batch: int, times_ms: Sequence[float], clock: str) -> dict[str, Any]:
    median = statistics.median(times_ms)
    return {
        "batch": batch,
        "n": len(times_ms),
        "latency_ms_p50": median,
        "throughput_images_per_s": batch / median * 1000,
        "clock": clock,
    }


def _cpu_has(*flags: str) -> bool:
    try:
        words = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return False
    return bool(words & set(flags))


def _reason(error: Exception) -> str:
    text = str(error) or type(error).__name__
    if isinstance(error, NotHere):
        return text
    return remedy(text) or " ".join(text.split())[:160].rstrip(".")
