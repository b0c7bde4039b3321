"""Presets of the emulated accelerator: serving at a GPU's speed without the GPU, always labelled as emulated."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml


@dataclass(frozen=True)
class EmulatedGpu:
    """Timing of one emulated device, with its source.

    Attributes:
        name: as in `emulated_<name>` and `triton-emulated-<name>-fp32-http-fp32`.
        base_ms, per_image_ms: an execution of n images takes `base_ms + n × per_image_ms`.
        gpu, engine, source: the imitated GPU and engine, and the source of `base_ms + per_image_ms`.
        assumption: the part that nobody measured.
    """

    name: str
    base_ms: float
    per_image_ms: float
    gpu: str
    engine: str
    source: str
    assumption: str


@cache
def emulated_gpus() -> dict[str, EmulatedGpu]:
    """Return every preset by name, from `emulated_gpus.yaml`."""
    data = yaml.safe_load(Path(__file__).with_name("emulated_gpus.yaml").read_text())
    share, gflop = data["share_of_peak"], data["image_gflop"]
    by_name = {}
    for name, entry in data["gpus"].items():
        peak = entry["peak_tflops"]
        slope = gflop / (peak * share) if peak else 0.0  # GFLOP / (TFLOP/s) = ms
        by_name[name] = EmulatedGpu(
            name=name,
            base_ms=entry["batch_1_ms"] - slope,
            per_image_ms=slope,
            gpu=entry["gpu"],
            engine=entry["engine"],
            source=entry["source"],
            assumption=(
                f"per-image time assumed: {gflop} GFLOP at {share:.0%} of {peak} TFLOP/s" if peak else ""
            ),
        )
    return by_name
