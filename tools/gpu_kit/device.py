"""Times of engines with no server between: each engine, precision and batch size is measured once and recorded at once.

Every line is timed the same way: a warmed shape, input already on the device, one batch at a time. On CUDA the clock is the
device's own (events around the work), elsewhere the wall clock. A line that cannot run is a failed record that says why, and
the others go on.
"""

import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import engines as timed_engines
from engines import PRECISIONS, Opened, copy_rate, fidelity, gemm

from photodup.bench.record import environment
from photodup.bench.record.json_files import slug
from photodup.bench.record.store import RunStore
from photodup.core.errors import PhotodupError
from photodup.core.paths import build_dir, project_root

CEILINGS, FIDELITY = "ceilings", "fidelity"
_BUILDS = ("pytorch-compile", "onnx-tensorrt", "onnx-tensorrt-graph")  # a minute before the first answer
# The most important precisions first, so that a budget cuts at the end. TensorRT and graphs of ONNX Runtime know two.
PRECISIONS_OF = {
    CEILINGS: ("copy", *PRECISIONS),
    "pytorch-eager": ("fp32", "fp16", "bf16", "tf32"),
    "onnx-cpu": ("fp32",),
    "onnx-cuda": ("fp32", "fp16", "tf32"),
    **dict.fromkeys(("pytorch-cuda-graph", "pytorch-compile"), ("fp16", "fp32", "bf16", "tf32")),
    FIDELITY: ("fp16", "bf16", "tf32", "fp32"),
    **dict.fromkeys(("onnx-cuda-graph", "onnx-tensorrt", "onnx-tensorrt-graph"), ("fp16", "fp32")),
}


@dataclass
class Budget:
    """The time of a step; lines that no longer fit are left out and remembered.

    Attributes:
        minutes: from now on.
        left_out: names of what did not fit.
    """

    minutes: float
    left_out: list[str] = field(default_factory=list)
    _started: float = field(default_factory=time.perf_counter)
    _longest_s: dict[str, float] = field(default_factory=dict)

    def allows(self, engine: str, name: str) -> bool:
        """Say whether a line can be expected to end in time, as long as its engine's longest so far; if not, note it."""
        expected_s = self._longest_s.get(engine, 60.0 if engine in _BUILDS else 1.0)
        if self.minutes * 60 - (time.perf_counter() - self._started) >= expected_s:
            return True
        self.left_out.append(name)
        return False

    def took(self, engine: str, seconds: float) -> None:
        """Note how long a line took."""
        self._longest_s[engine] = max(seconds, self._longest_s.get(engine, 0.0))


@dataclass
class Device:
    """A device and the model whose engines are timed on it.

    Attributes:
        name: `cpu` or `cuda`.
        visual: the image tower, a `torch.nn.Module` in float32; copied, not changed.
        graph: returns the ONNX export with FP16 inside or without, by precision.
        store: keeps the lines and finds them again.
        batches, repeats: sizes, each warmed before it is timed, and timed runs of each.
        engine_cache: folder for TensorRT's engines.
        images: photographs for the fidelity of precisions, float32 [n, 3, 224, 224], normalised.
        rounded: returns their embeddings with a precision's rounding simulated on the CPU; None where nobody simulates it.
        facts: what else a line depends on (weights, name of the GPU); part of its record's configuration.
    """

    name: str
    visual: Any
    graph: Callable[[str], Path]
    store: RunStore
    batches: Sequence[int]
    repeats: int
    engine_cache: Path
    images: Any
    rounded: Callable[[str], Any]
    facts: Mapping[str, Any] = field(default_factory=dict)
    # One engine at a time, and the seconds it took to open.
    _opened: tuple[str, str, Opened, float] | None = None

    def measure(self, engines: Sequence[str], precisions: Collection[str], budget: Budget) -> None:
        """Measure each line that has no record yet, and print it; no `precisions` are all."""
        for engine in engines:
            for precision in PRECISIONS_OF[engine]:
                if not precisions or precision in (*precisions, "copy"):
                    # Ascending: what does not fit ends an engine's part, not the smaller ones.
                    sizes = [None] if engine in (CEILINGS, FIDELITY) else sorted(set(self.batches))
                    all(self._line(engine, precision, batch, budget) for batch in sizes)
                    self._close()

    def _line(self, engine: str, precision: str, batch: int | None, budget: Budget) -> bool:
        """Measure one line, or find its record; return whether a larger batch may be tried."""
        name = f"device {engine} {precision}" + (f" b{batch}" if batch else "")
        config = {"device": self.name, "repeats": self.repeats, **self.facts}
        config |= {"engine": engine, "precision": precision} | ({"batch": batch} if batch else {})
        record = self.store.record(name, config=config)
        if (record is None or record["status"] != "ok") and not budget.allows(engine, name):
            return True
        started = time.perf_counter()

        def run() -> dict[str, Any]:
            try:
                return self._timed(engine, precision, batch)
            except Exception as error:  # three libraries, one run: a failing engine is a line, not the end
                message = " ".join(str(error).split())[:160]
                return {"status": "failed", "error": message or type(error).__name__}

        line = self.store.measure_or_load(name, run, config=config)
        budget.took(engine, time.perf_counter() - started)
        print(name.removeprefix("device "), sentence(line), flush=True)
        return line.get("status") != "failed"

    def _timed(self, engine: str, precision: str, batch: int | None) -> dict[str, Any]:
        if engine == CEILINGS:
            return (
                copy_rate(self.name, self.repeats)
                if precision == "copy"
                else gemm(precision, self.name, self.repeats)
            )
        if batch is None:
            return fidelity(self.visual, self.images, precision, self.name, self.rounded(precision))
        if self._opened is None or self._opened[:2] != (engine, precision):
            start = time.perf_counter()
            self._opened = engine, precision, self._open(engine, precision), time.perf_counter() - start
        *_, timed, build_s = self._opened
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

    def _open(self, engine: str, precision: str) -> Opened:
        if engine.startswith("pytorch"):
            return timed_engines.open_torch(self.visual, engine, precision, self.name)
        graph = self.graph(precision if engine.startswith("onnx-cuda") else "fp32")
        return timed_engines.open_onnx(graph, engine, precision, self.engine_cache, max(self.batches))

    def _close(self) -> None:
        """Let go of the engine, and of the device memory that PyTorch keeps for the next one."""
        self._opened = None
        if self.name == "cuda":
            import torch

            torch.cuda.empty_cache()


def sentence(line: Mapping[str, Any]) -> str:
    """Return a line in words: what was measured, or why nothing was."""
    if "error" in line:
        return line["error"]
    if "tflops" in line or "gb_per_s" in line:
        return f"{line['tflops']:.1f} TFLOP/s" if "tflops" in line else f"{line['gb_per_s']:,.0f} GB/s"
    if "cosine_min" in line:
        return f"cosine {line['cosine_min']:.6f} at least against {line['against']}"
    return f"{line['latency_ms_p50']:.2f} ms, {line['throughput_images_per_s']:,.1f} images/s"


def measure_device(
    name: str,
    run: str,
    engines: Sequence[str],
    precisions: Sequence[str],
    batches: Sequence[int],
    repeats: int,
    budget: Budget,
) -> None:
    """Time engines of the model of MODEL_PRETRAINED on `cpu` or `cuda`; each line is a record of results/RUN.

    Raises:
        PhotodupError: MODEL_PRETRAINED is an export.
    """
    from photodup.embedding.engines.encoder import load_model
    from photodup.embedding.engines.export import export
    from photodup.embedding.engines.pytorch import TorchModel
    from photodup.embedding.engines.reduced import load_graph
    from photodup.embedding.imaging import normalize
    from photodup.embedding.wire.wires import pixels
    from photodup.study.notebook.weights import payload_photos
    from photodup.study.precision import rounding

    # On the CPU: on a GPU PyTorch's convolutions are TF32 by default, and the export would be held to that.
    model = load_model(device="cpu")
    if not isinstance(model, TorchModel):
        raise PhotodupError(
            f"{model.pretrained} is an export: name PyTorch weights, of which all engines are made."
        )
    facts = environment.describe({"digest": model.digest, "pretrained": model.pretrained})
    gpus, models = facts.get("gpus") or [], build_dir() / "models"
    on = str(gpus[0]["name"]) if name == "cuda" and gpus else str(facts.get("cpu"))
    engine_cache = build_dir() / "trt" / slug(f"{on} ort {facts['packages'].get('onnxruntime', '')}")
    engine_cache.mkdir(parents=True, exist_ok=True)
    images = normalize(pixels(payload_photos(32)))
    fp32_graph = cache(lambda: export(model, models, ["fp32"])["fp32"])

    def graph(precision: str) -> Path:
        return rounding.fp16_file(fp32_graph(), models) if precision == "fp16" else fp32_graph()

    def rounded(precision: str) -> Any:
        if precision not in rounding.ROUNDED:
            return None
        return rounding.embeddings_of(rounding.rounded(load_graph(fp32_graph()), precision), images)

    with RunStore(project_root() / "results" / run, model=facts["model"]) as store:
        facts_of_lines = {"weights": model.digest[:12], "on": on}
        device = Device(
            name, model.visual, graph, store, batches, repeats, engine_cache, images, rounded, facts_of_lines
        )
        device.measure(engines, precisions, budget)
    if budget.left_out:
        print(f"left out, the budget of {budget.minutes:g} minutes is spent: {', '.join(budget.left_out)}.")
