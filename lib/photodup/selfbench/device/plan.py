"""The plan of `photodup bench device`: the most important first, so that a budget cuts at the end."""

import time
from collections.abc import Collection
from dataclasses import dataclass, field

from photodup.errors import PhotodupError

CEILINGS, FIDELITY = "ceilings", "fidelity"
ENGINES = (
    CEILINGS, "pytorch-eager", "pytorch-cuda-graph", "pytorch-compile", FIDELITY,
    "onnx-cpu", "openvino", "onnx-cuda", "onnx-cuda-graph", "onnx-tensorrt", "onnx-tensorrt-graph",
    "onnx-tensorrt-rtx",
)  # fmt: skip
"""What `--engine` may name: the engines, the device's measured ceilings and the fidelity of its precisions."""
PRECISIONS = ("fp32", "tf32", "fp16", "bf16")


@dataclass(frozen=True)
class Part:
    """One engine in one precision; an engine is opened once for all batch sizes of its part."""

    engine: str
    precision: str

    def __str__(self) -> str:
        return f"{self.engine} {self.precision}"


_ON_CUDA = (
    (CEILINGS, ("copy", *PRECISIONS)),
    ("pytorch-eager", ("fp32", "fp16", "bf16", "tf32")),
    ("pytorch-cuda-graph", ("fp16", "fp32", "bf16", "tf32")),
    (FIDELITY, ("fp16", "bf16", "tf32", "fp32")),
    ("onnx-cuda", ("fp32", "fp16", "tf32")),
    ("onnx-cuda-graph", ("fp16", "fp32")),
    ("pytorch-compile", ("fp16", "fp32", "bf16", "tf32")),
    ("onnx-tensorrt", ("fp16", "fp32")),
    ("onnx-tensorrt-graph", ("fp16", "fp32")),
    ("onnx-tensorrt-rtx", ("fp32",)),
    ("openvino", ("fp32", "bf16")),
)
_ON_CPU = (
    (CEILINGS, ("copy", *PRECISIONS)),
    ("pytorch-eager", PRECISIONS),
    ("onnx-cpu", ("fp32",)),
    ("openvino", ("fp32", "bf16")),
    (FIDELITY, ("bf16", "fp16", "tf32")),
    ("pytorch-compile", PRECISIONS),
    ("pytorch-cuda-graph", PRECISIONS),
    *(of for of in _ON_CUDA if of[0].startswith("onnx-")),  # each says why it cannot run here
)


def plan(device: str, engines: Collection[str] = (), precisions: Collection[str] = ()) -> list[Part]:
    """Return the parts in order of importance.

    Args:
        device: `cpu` or `cuda`.
        engines: names of `ENGINES` to keep; none keeps all.
        precisions: names of `PRECISIONS` to keep; none keeps all.

    Raises:
        PhotodupError: a name that is none of those.
    """
    for asked, known, what in ((engines, ENGINES, "engine"), (precisions, PRECISIONS, "precision")):
        if unknown := sorted(set(asked) - set(known)):
            raise PhotodupError(f"There is no {what} {unknown[0]!r} here: choose of {', '.join(known)}.")
    order = _ON_CUDA if device.startswith("cuda") else _ON_CPU
    return [
        Part(engine, precision)
        for engine, its in order
        for precision in its
        if (not engines or engine in engines) and (not precisions or precision in (*precisions, "copy"))
    ]


@dataclass
class TimeBudget:
    """The time of a benchmark; steps that no longer fit are left out and remembered.

    Args:
        minutes: from now on; None is no limit.

    Attributes:
        left_out: names of what did not fit.
    """

    minutes: float | None = None
    left_out: list[str] = field(default_factory=list)
    _started: float = field(default_factory=lambda: time.perf_counter())
    _longest_s: dict[str, float] = field(default_factory=dict)

    def allows(self, engine: str, name: str) -> bool:
        """Say whether a step of `engine` can be expected to end in time; if not, note it under `name`.

        The longest step of that engine so far is taken for the next one's time. Before the first a guess stands:
        `torch.compile` and TensorRT build for about a minute, the others begin at once.
        """
        if self.minutes is None:
            return True
        builds = engine == "pytorch-compile" or engine.startswith("onnx-tensorrt")
        expected_s = self._longest_s.get(engine, 60.0 if builds else 1.0)
        if self.minutes * 60 - (time.perf_counter() - self._started) >= expected_s:
            return True
        self.left_out.append(name)
        return False

    def took(self, engine: str, seconds: float) -> None:
        """Note how long a step of `engine` took."""
        self._longest_s[engine] = max(seconds, self._longest_s.get(engine, 0.0))

    def sentence(self) -> str:
        """Say what was left out, or return an empty string."""
        if not self.left_out:
            return ""
        return (
            f"left out, the budget of {self.minutes:g} minutes is spent: {', '.join(self.left_out)}. "
            "The same command with the same run goes on from here."
        )
