"""The makers' peak rates of devices: what the model's arithmetic is compared with."""

import re
from typing import TYPE_CHECKING

from photodup.study.published.published import published_dir

if TYPE_CHECKING:
    import pandas as pd

IMAGE_GFLOP = 8.82  # ViT-B/32 image tower, one multiply-add = 2; open_clip docs/model_profile.csv
PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
_COLUMN = {"bf16": "fp16"}  # the same units at the same rate on every device of the table
# Words of a driver's name that make another device of the same number: fewer units, or a lower clock.
_QUALIFIERS = {"TI", "SUPER", "LAPTOP", "MAX", "MOBILE", "D", "PCIE", "NVL", "MIG", "ADA", "PRO", "SERVER"}


def load_devices() -> "pd.DataFrame":
    """Return peak rates by device: `fp32_tflops`, `tf32_tflops`, `fp16_tflops` (dense), `memory_gb_per_s`."""
    import pandas as pd

    return pd.read_csv(published_dir() / "devices.csv").set_index("device")


def device_named(gpu: str) -> str | None:
    """Return the line of devices.csv that a driver's name for a GPU means, or None if it has none.

    `NVIDIA H100 80GB HBM3` is the `H100 SXM5 80GB`. Another form of the same number (`H100 PCIe`, `RTX 4090 Laptop
    GPU`) has other rates, so it is none of them.
    """

    def number(words: list[str]) -> str | None:
        return next(
            (w for w in words if re.fullmatch(r"[A-Z]{0,2}\d{1,4}[A-Z]?", w) and not w.endswith("GB")), None
        )

    words = re.split(r"[^A-Z0-9]+", gpu.upper())
    for device in load_devices().index:
        its = re.split(r"[^A-Z0-9]+", str(device).upper())
        if number(words) == number(its) and _QUALIFIERS & set(words) == _QUALIFIERS & set(its):
            return str(device)
    return None


def makers_peaks(gpu: str) -> dict[str, float]:
    """Return the maker's dense peak rates of a GPU in TFLOP/s by precision; empty for one not in devices.csv."""
    device = device_named(gpu)
    peaks = load_devices().loc[device] if device else None
    return {} if peaks is None else {p: float(peaks[f"{_COLUMN.get(p, p)}_tflops"]) for p in PRECISIONS}


def achieved_tflops(throughput_images_per_s: float) -> float:
    """Return the arithmetic rate in TFLOP/s that a throughput in images per second means."""
    return throughput_images_per_s * IMAGE_GFLOP / 1000
