"""ONNX Runtime's engines on one device: its CPU, CUDA and TensorRT providers; and OpenVINO."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from photodup.embedding.engines.openvino import compile_graph
from photodup.selfbench.device_torch import NotHere, Opened, Timing, cpu_has, wall_times

_PROVIDERS = {
    "onnx-cuda": "CUDAExecutionProvider",
    "onnx-tensorrt": "TensorrtExecutionProvider",
    "onnx-tensorrt-rtx": "NvTensorRTRTXExecutionProvider",
}
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
        NotHere: this ONNX Runtime lacks the provider, or it did not load.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    provider: Any = "CPUExecutionProvider"
    if engine != "onnx-cpu":
        name = _PROVIDERS[engine]
        if name not in onnxruntime.get_available_providers():
            wheel = _WHEELS.get(engine, "onnxruntime-gpu")
            raise NotHere(f"this ONNX Runtime has no {name}: it comes with {wheel}")
        provider = (name, settings(engine, precision, cache, largest))
    if engine == "onnx-cuda" and precision == "fp16":
        if half is None:
            raise NotHere("no FP16 graph was given")
        graph = half()
    session = onnxruntime.InferenceSession(str(graph), options, providers=[provider])
    if engine != "onnx-cpu" and session.get_providers()[0] != _PROVIDERS[engine]:
        raise NotHere(
            f"{_PROVIDERS[engine]} did not load; ONNX Runtime fell back to {session.get_providers()[0]}"
        )

    def timed(batch: int, repeats: int) -> Timing:
        image = np.random.default_rng(0).standard_normal((batch, 3, 224, 224), np.float32)
        if engine == "onnx-cpu":
            return Timing(wall_times(lambda: session.run(["embedding"], {"image": image}), repeats), "wall")
        binding = session.io_binding()  # without it every run copies 0.6 MB an image to the device and back
        binding.bind_ortvalue_input("image", onnxruntime.OrtValue.ortvalue_from_numpy(image, "cuda", 0))
        binding.bind_output("embedding", "cuda", 0)

        def call() -> None:
            session.run_with_iobinding(binding)
            binding.synchronize_outputs()

        # ONNX Runtime keeps a stream of its own, where PyTorch's events would see nothing.
        return Timing(wall_times(call, repeats), "wall")

    return timed


def settings(engine: str, precision: str, cache: Path | None, largest: int) -> dict[str, str]:
    """Return the options of the engine's provider."""
    if engine == "onnx-cuda":
        return {"use_tf32": str(int(precision == "tf32"))}
    shapes = {"min": 1, "opt": min(8, largest), "max": largest}
    if engine == "onnx-tensorrt-rtx":  # its precision is the graph's own
        return {f"nv_profile_{k}_shapes": f"image:{n}x3x224x224" for k, n in shapes.items()}
    found = {f"trt_profile_{k}_shapes": f"image:{n}x3x224x224" for k, n in shapes.items()}
    if cache is not None:
        found |= {"trt_engine_cache_enable": "True", "trt_engine_cache_path": str(cache)}
    return found | {"trt_fp16_enable": str(precision == "fp16")}


def open_openvino(graph: Path, precision: str, device: str) -> Opened:
    """Compile the graph with OpenVINO.

    Raises:
        NotHere: the device is no CPU, or the CPU has no such precision.
        PhotodupError: OpenVINO is missing, or the file is no model.
    """
    if device != "cpu":
        raise NotHere("OpenVINO computes on Intel and AMD processors, not on CUDA")
    if precision == "bf16" and not cpu_has("avx512_bf16", "amx_bf16"):
        raise NotHere("this CPU has no BF16 arithmetic")
    request = compile_graph(graph, precision).create_infer_request()

    def timed(batch: int, repeats: int) -> Timing:
        image = np.random.default_rng(0).standard_normal((batch, 3, 224, 224), np.float32)
        return Timing(wall_times(lambda: request.infer([image], share_inputs=True), repeats), "wall")

    return timed
