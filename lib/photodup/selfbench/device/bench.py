"""The lines of the device benchmark: each engine, precision and batch size measured once, and kept at once.

Every line is timed the same way: a warmed shape, input already on the device, one batch at a time. On CUDA
the clock is the device's own (events around the work), elsewhere the wall clock. A line that cannot run
says why and the others go on. Only calls that PyTorch and ONNX Runtime have had for years are used, since
a GPU image brings its own versions of both.
"""

import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from photodup.bench.record.record import RunStore
from photodup.selfbench.device import measures
from photodup.selfbench.device.engines import NotHere, Opened, open_onnx, open_openvino, open_torch
from photodup.selfbench.device.plan import CEILINGS, FIDELITY, Part, TimeBudget, plan

Line = dict[str, Any]


@dataclass
class DeviceBench:
    """Times every engine on one device.

    Attributes:
        visual: the image tower, a `torch.nn.Module` in float32; copied, not changed.
        graph: returns its float32 ONNX export.
        store: keeps the lines and finds them again.
        device: `cpu` or `cuda`.
        batches: batch sizes, each warmed before it is timed.
        repeats: timed runs of each; the median is reported.
        compile_on_cpu: also `torch.compile` on a CPU, which builds for minutes.
        cache: folder for TensorRT's engines; without one they are built again each time.
        half: makes the graph with FP16 inside, for `onnx-cuda` in FP16.
        images: photographs for the fidelity of precisions, float32 [n, 3, 224, 224], normalised; None leaves it out.
        simulated: see `measures.fidelity`.
        budget: leaves out what would take too long, and remembers what that was.
        facts: what else a line depends on (weights, name of the GPU); part of its record's configuration.
    """

    visual: Any
    graph: Callable[[], Path]
    store: RunStore
    device: str = "cpu"
    batches: Sequence[int] = (1, 8, 32)
    repeats: int = 10
    compile_on_cpu: bool = False
    cache: Path | None = None
    half: Callable[[], Path] | None = None
    images: Any = None
    simulated: Callable[[str], Any] | None = None
    budget: TimeBudget = field(default_factory=TimeBudget)
    facts: Mapping[str, Any] = field(default_factory=dict)
    _open: tuple[Part, Opened, float] | None = None  # one engine at a time, and the seconds it took to open

    def lines(self, engines: Collection[str] = (), precisions: Collection[str] = ()) -> Iterator[Line]:
        """Yield a line for each engine, precision and batch size as it is done.

        Args:
            engines, precisions: which ones; none is all (`plan.ENGINES`, `PRECISIONS`).

        Yields:
            `engine`, `precision`, `device`, and either `not_run` (why; with `batch` when only that size and larger
            ones failed) or: for engines `batch`, `latency_ms_p50`, `throughput_images_per_s`, `n`, `clock` (device or
            wall), `build_s` (until the engine takes input; CUDA graphs and `torch.compile` build for each size),
            `peak_memory_mb` (CUDA: PyTorch's peak, and what the GPU holds more with ONNX Runtime); for `ceilings` what
            `measures.gemm` returns, and a line with precision `copy`; for `fidelity` what `measures.fidelity` returns.

        Raises:
            PhotodupError: an engine or precision that does not exist.
        """
        for part in plan(self.device, engines, precisions):
            if part.engine == FIDELITY and self.images is None:
                continue
            # Ascending: what does not fit ends an engine's part, not the smaller ones.
            sizes = [None] if part.engine in (CEILINGS, FIDELITY) else sorted(set(self.batches))
            for line in (line for batch in sizes if (line := self._line(part, batch))):
                yield line
                if "not_run" in line:
                    break
            self._close()

    def _line(self, part: Part, batch: int | None) -> Line | None:
        """Return a line from its record, or measure it now; None where the budget leaves it out."""
        own: Line = {"engine": part.engine, "precision": part.precision} | ({"batch": batch} if batch else {})
        name = f"{part} b{batch}" if batch else str(part)
        config = {"device": self.device, "repeats": self.repeats, **self.facts, **own}
        record = self.store.record(f"device {name}", config=config)
        is_done = record is not None and record["status"] == "ok"
        if not is_done and not self.budget.allows(part.engine, name):
            return None
        started = time.perf_counter()

        def run() -> Line:
            try:
                return self._measure(part, batch)
            except Exception as error:  # four libraries, one table: a failing engine is a line, not the end
                return {"status": "failed", "error": _reason(error)}

        found = dict(self.store.measure_or_load(f"device {name}", run, config=config))
        if not is_done:
            self.budget.took(part.engine, time.perf_counter() - started)
        own["device"] = self.device
        if found.get("status") != "failed":
            return own | found
        if batch and (self._open is None or self._open[0] != part):
            del own["batch"]  # the engine cannot even be opened: one line for all sizes
        return own | {"not_run": found["error"]}

    def _measure(self, part: Part, batch: int | None) -> Line:
        if part.engine == CEILINGS and part.precision == "copy":
            return measures.copy_rate(self.device, repeats=self.repeats)
        if part.engine == CEILINGS:
            return measures.gemm(part.precision, self.device, repeats=self.repeats)
        if batch is None:
            return measures.fidelity(self.visual, self.images, part.precision, self.device, self.simulated)
        if self._open is None or self._open[0] != part:
            self._close()
            start = time.perf_counter()
            opened = self._opened(part)
            self._open = part, opened, time.perf_counter() - start
        _, timed, build_s = self._open
        timing = timed(batch, self.repeats)
        median = statistics.median(timing.times_ms)
        return {
            "n": len(timing.times_ms),
            "latency_ms_p50": median,
            "latency_ms": [round(value, 5) for value in timing.times_ms],
            "throughput_images_per_s": batch / median * 1000,
            "clock": timing.clock,
            "build_s": build_s if timing.build_s is None else timing.build_s,
            "peak_memory_mb": timing.memory_mb,
        }

    def _opened(self, part: Part) -> Opened:
        if part.engine.startswith("pytorch"):
            if part.engine == "pytorch-compile" and self.device == "cpu" and not self.compile_on_cpu:
                raise NotHere("torch.compile builds for minutes on a CPU: ask for it with --compile")
            return open_torch(self.visual, part.engine, part.precision, self.device)
        if part.engine == "openvino":
            return open_openvino(self.graph(), part.precision, self.device)
        return open_onnx(self.graph(), self.half, part.engine, part.precision, self.cache, max(self.batches))

    def _close(self) -> None:
        """Let go of the engine, and of the device memory that PyTorch keeps for the next one."""
        was_open, self._open = self._open, None
        if was_open is not None and self.device.startswith("cuda"):
            import torch

            del was_open
            torch.cuda.empty_cache()


def _reason(error: Exception) -> str:
    text = str(error) or type(error).__name__
    if isinstance(error, NotHere):
        return text
    small = text.lower()
    known = (sentence for words, sentence in REMEDIES.items() if any(word in small for word in words))
    return next(known, " ".join(text.split())[:160].rstrip("."))


# Words of drivers, CUDA, PyTorch and TensorRT, in small letters, and the sentence they stand for.
REMEDIES = {
    (
        "out of memory",
        "alloc_failed",
    ): "out of device memory at this batch size: leave out the largest with --batch",
    (
        "driver on your system is too old",
        "driver version is insufficient",
        "cuda_error_compat_not_supported",
    ): (
        "the NVIDIA driver is older than this CUDA: update the driver, or install torch for an older CUDA (TORCH_INDEX)"
    ),
    ("no kernel image is available", "not compatible with the current pytorch"): (
        "this build of CUDA code has no kernels for this GPU: install torch and onnxruntime-gpu for its generation"
    ),
    ("no nvidia driver", "no cuda-capable device"): (
        "no NVIDIA driver or GPU is visible here: try nvidia-smi"
    ),
    ("not compiled with cuda",): (
        "this torch is a CPU build: install torch from an index with CUDA builds (TORCH_INDEX)"
    ),
    ("libcudart", "libcublas", "libcudnn", "libnvinfer"): (
        "a CUDA library of the version that this build wants is missing: install the matching CUDA, cuDNN or TensorRT"
    ),
    ("incompatible device", "deserialize", "different gpu", "version tag does not match"): (
        "an engine in the cache is of another GPU or TensorRT: empty build/trt and let it be built again"
    ),
}
