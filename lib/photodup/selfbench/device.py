"""The engines on one device with no server between: what each makes of the same weights, and what the device can do.

Every line is timed the same way: a warmed shape, input already on the device, one batch at a time. On CUDA
the clock is the device's own (events around the work), elsewhere the wall clock. A line that cannot run
says why and the others go on. Each line is kept as soon as it is measured (`device_journal`), the most important
come first (`device_plan`). Only calls that PyTorch and ONNX Runtime have had for years are used, since
a GPU image brings its own versions of both.
"""

import statistics
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from photodup.selfbench import device_ceilings, device_fidelity
from photodup.selfbench.device_journal import InMemory, Journal
from photodup.selfbench.device_onnx import open_onnx, open_openvino
from photodup.selfbench.device_plan import CEILINGS, FIDELITY, Budget, Part, plan, sizes
from photodup.selfbench.device_torch import NotHere, Opened, open_torch


def bench(
    visual: Any,
    graph: Path | Callable[[], Path],
    *,
    device: str = "cpu",
    batches: Sequence[int] = (1, 8, 32),
    repeats: int = 10,
    compile_on_cpu: bool = False,
    cache: Path | None = None,
    half: Callable[[], Path] | None = None,
    images: np.ndarray | None = None,
    simulated: Callable[[str], np.ndarray | None] | None = None,
    engines: Collection[str] = (),
    precisions: Collection[str] = (),
    journal: Journal | None = None,
    budget: Budget | None = None,
    facts: dict[str, Any] | None = None,
) -> Iterator[dict[str, Any]]:
    """Time every engine and yield one line for each engine, precision and batch size as it is done.

    Args:
        visual: the image tower, a `torch.nn.Module` in float32; copied, not changed.
        graph: its float32 ONNX export, or what makes it when it is first needed.
        device: `cpu` or `cuda`.
        batches: batch sizes, each warmed before it is timed.
        repeats: timed runs of each; the median is reported.
        compile_on_cpu: also `torch.compile` on a CPU, which builds for minutes.
        cache: folder for TensorRT's engines; without one they are built again each time.
        half: makes the graph with FP16 inside, for `onnx-cuda` in FP16.
        images: photographs for the fidelity of precisions, float32 [n, 3, 224, 224], normalised; None leaves it out.
        simulated: see `device_fidelity.measure`.
        engines, precisions: which ones; none is all (`device_plan.ENGINES`, `PRECISIONS`).
        journal: where lines are kept and found again; without one, in memory only.
        budget: leaves out what would take too long, and remembers what that was.
        facts: what else a line depends on (weights, name of the GPU); with the rest the name of a line in the journal.

    Yields:
        `engine`, `precision`, `device`, and either `not_run` (why; with `batch` when only that size and larger
        ones failed) or: for engines `batch`, `latency_ms_p50`, `throughput_images_per_s`, `n`, `clock` (device or
        wall), `build_s` (until the engine takes input; CUDA graphs and `torch.compile` build for each size),
        `peak_memory_mb` (CUDA, PyTorch only); for `ceilings` what `device_ceilings.gemm` returns, and a line with
        precision `copy`; for `fidelity` what `device_fidelity.measure` returns.

    Raises:
        PhotodupError: an engine or precision that does not exist.
    """
    journal, budget = journal or InMemory(), budget or Budget()
    opener = _Opener(visual, graph, device, sizes(batches), repeats, compile_on_cpu, cache, half)
    once: dict[str, Callable[..., dict[str, Any]]] = {
        CEILINGS: lambda precision: device_ceilings.gemm(precision, device, repeats=repeats)
    }
    if images is not None:
        once[FIDELITY] = partial(device_fidelity.measure, visual, images, device=device, simulated=simulated)
    steps = _Steps(journal, budget, {"device": device, "repeats": repeats, **(facts or {})})
    copied = False
    for part in plan(device, engines, precisions):
        if part.engine == CEILINGS and not copied:
            copied = True
            yield from steps.one(
                Part(CEILINGS, "copy"), partial(device_ceilings.copy_rate, device, repeats=repeats)
            )
        if part.engine == FIDELITY and images is None:
            continue
        if part.engine in once:
            yield from steps.one(part, partial(once[part.engine], precision=part.precision))
        else:
            yield from steps.sizes(part, opener, sizes(batches))


class _Steps:
    """Runs steps through the journal and the budget, and makes a failure a line."""

    def __init__(self, journal: Journal, budget: Budget, config: dict[str, Any]) -> None:
        self._journal, self._budget, self._config = journal, budget, config

    def one(self, part: Part, measure: Callable[[], dict[str, Any]], batch: int | None = None) -> list[dict]:
        """Return the line of a step as a list; an empty one if the budget left it out."""
        own = {"engine": part.engine, "precision": part.precision} | ({"batch": batch} if batch else {})
        config, name = self._config | own, f"{part} b{batch}" if batch else str(part)
        record = self._journal.record(f"device {name}", config=config)
        done = record is not None and record["status"] == "ok"
        if not done and not self._budget.allows(part.engine, name):
            return []
        started = time.perf_counter()

        def run() -> dict[str, Any]:
            try:
                return measure()
            except Exception as error:  # four libraries, one table: a failing engine is a line, not the end
                return {"status": "failed", "error": _reason(error)}

        found = dict(self._journal.measure_or_load(f"device {name}", run, config=config))
        if not done:
            self._budget.took(part.engine, time.perf_counter() - started)
        line = own | {"device": self._config["device"]}
        if found.get("status") == "failed":
            return [line | {"not_run": found["error"]}]
        return [line | found]

    def sizes(self, part: Part, opener: "_Opener", batches: Sequence[int]) -> Iterator[dict[str, Any]]:
        """Yield a line for each batch size; the engine is opened when the first of them is measured."""
        for batch in batches:
            for line in self.one(part, partial(opener.time, part, batch), batch):
                if "not_run" in line and opener.failed == part:
                    line.pop("batch")  # it cannot even be opened: one line for all sizes
                yield line
                if "not_run" in line:
                    opener.close()
                    return
        opener.close()


class _Opener:
    """Holds one engine open at a time."""

    def __init__(
        self,
        visual: Any,
        graph: Path | Callable[[], Path],
        device: str,
        batches: Sequence[int],
        repeats: int,
        compile_on_cpu: bool,
        cache: Path | None,
        half: Callable[[], Path] | None,
    ) -> None:
        self._visual, self._graph, self._device = visual, graph, device
        self._batches, self._repeats, self._compile_on_cpu = batches, repeats, compile_on_cpu
        self._cache, self._half = cache, half
        self._part: Part | None = None
        self._opened: Opened | None = None
        self._build_s = 0.0
        self.failed: Part | None = None

    def time(self, part: Part, batch: int) -> dict[str, Any]:
        """Open the part's engine unless it is open, and time one batch size."""
        if self._part != part:
            self.close()
            start = time.perf_counter()
            self.failed = part
            self._opened = self._open(part)
            self.failed, self._part, self._build_s = None, part, time.perf_counter() - start
        assert self._opened is not None
        timing = self._opened(batch, self._repeats)
        median = statistics.median(timing.times_ms)
        return {
            "n": len(timing.times_ms),
            "latency_ms_p50": median,
            "latency_ms": [round(value, 5) for value in timing.times_ms],
            "throughput_images_per_s": batch / median * 1000,
            "clock": timing.clock,
            "build_s": self._build_s if timing.build_s is None else timing.build_s,
            "peak_memory_mb": timing.memory_mb,
        }

    def close(self) -> None:
        """Let go of the engine, and of the device memory that PyTorch keeps for the next one."""
        if self._opened is None:
            return
        self._part = self._opened = None
        if self._device.startswith("cuda"):
            import torch

            torch.cuda.empty_cache()

    def _open(self, part: Part) -> Opened:
        if part.engine.startswith("pytorch"):
            if part.engine == "pytorch-compile" and self._device == "cpu" and not self._compile_on_cpu:
                raise NotHere("torch.compile builds for minutes on a CPU: ask for it with --compile")
            return open_torch(self._visual, part.engine, part.precision, self._device)
        if callable(self._graph):
            self._graph = self._graph()
        if part.engine == "openvino":
            return open_openvino(self._graph, part.precision, self._device)
        return open_onnx(
            self._graph, self._half, part.engine, part.precision, self._cache, max(self._batches)
        )


def _reason(error: Exception) -> str:
    text = str(error) or type(error).__name__
    if isinstance(error, NotHere):
        return text
    return remedy(text) or " ".join(text.split())[:160].rstrip(".")


# Words of drivers, CUDA, PyTorch and TensorRT, in small letters, and the sentence they stand for.
REMEDIES = (
    (
        ("out of memory", "alloc_failed"),
        "out of device memory at this batch size: leave out the largest with --batch",
    ),
    (
        (
            "driver on your system is too old",
            "driver version is insufficient",
            "cuda_error_compat_not_supported",
        ),
        "the NVIDIA driver is older than this CUDA: update the driver, or install torch for an older CUDA "
        "(TORCH_INDEX)",
    ),
    (
        ("no kernel image is available", "not compatible with the current pytorch"),
        "this build of CUDA code has no kernels for this GPU: install torch and onnxruntime-gpu for its generation",
    ),
    (
        ("no nvidia driver", "no cuda-capable device"),
        "no NVIDIA driver or GPU is visible here: try nvidia-smi",
    ),
    (
        ("not compiled with cuda",),
        "this torch is a CPU build: install torch from an index with CUDA builds (TORCH_INDEX)",
    ),
    (
        ("libcudart", "libcublas", "libcudnn", "libnvinfer"),
        "a CUDA library of the version that this build wants is missing: install the matching CUDA, cuDNN or TensorRT",
    ),
    (
        ("incompatible device", "deserialize", "different gpu", "version tag does not match"),
        "an engine in the cache is of another GPU or TensorRT: empty build/trt and let it be built again",
    ),
)


def remedy(text: str) -> str | None:
    """Return the sentence for a library's error message, or None if it is none of the known ones."""
    small = text.lower()
    return next((sentence for words, sentence in REMEDIES if any(word in small for word in words)), None)
