"""How much of a device a throughput uses: the model's arithmetic against the maker's peak rates.

A share far below one per cent says that something other than the device is being measured.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from photodup.embedding.backends import engine_family, parse_backend
from photodup.errors import PhotodupError
from photodup.serving.endpoints import NO_GPU, UNKNOWN_GPU
from photodup.study.published.published import load_measurements, published_dir

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


def load_model_throughput() -> "pd.DataFrame":
    """Return public measurements of this model alone: no server, no network, large batches."""
    import pandas as pd

    return pd.read_csv(published_dir() / "model_throughput.csv")


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
    return {} if device is None else {p: _peak_tflops(device, p) for p in PRECISIONS}


def _peak_tflops(device: str, precision: str) -> float:
    devices = load_devices()
    if device not in devices.index:
        raise PhotodupError(f"No peak rates for {device!r}: add a line to results/published/devices.csv.")
    if precision not in PRECISIONS:
        raise PhotodupError(f"No precision {precision!r}: use one of {', '.join(PRECISIONS)}.")
    return float(devices.at[device, f"{_COLUMN.get(precision, precision)}_tflops"])


def achieved_tflops(throughput_images_per_s: float) -> float:
    """Return the arithmetic rate in TFLOP/s that a throughput in images per second means."""
    return throughput_images_per_s * IMAGE_GFLOP / 1000


def share_of_peak(throughput_images_per_s: float, device: str, precision: str, *, gpus: int = 1) -> float:
    """Return the share (0 to 1) of a device's peak rate that a throughput uses.

    Args:
        device: a name in devices.csv.
        precision: what the engine computed in. FP32 gives the kindest share; use it when nobody said.
    """
    return achieved_tflops(throughput_images_per_s) / (_peak_tflops(device, precision) * gpus)


def cpu_peak_tflops(cores: int, ghz: float, *, flop_per_cycle: int = 32) -> float:
    """Return a CPU's FP32 peak in TFLOP/s.

    Args:
        cores: physical cores (hyper-threads share the arithmetic units).
        ghz: the clock held with wide vectors, below the advertised boost.
        flop_per_cycle: 32 for AVX2 with two FMA units, 64 for AVX-512 with two.
    """
    return cores * ghz * flop_per_cycle / 1000


def published_shares() -> "pd.DataFrame":
    """Return every published throughput as a share of its device's peak, smallest first.

    Each engine counts in its own precision: FP16 for TensorRT, FP32 for the others. Only rows whose hardware is in
    devices.csv: CPU rows do not say which CPU.
    """
    rows = load_measurements()
    devices = load_devices().index
    rows = rows[(rows["quantity"] == "throughput_images_per_s") & rows["hardware"].isin(devices)]
    table = rows[["step", "hardware", "gpus", "backend", "scenario", "batch", "concurrency"]].copy()
    table["throughput_images_per_s"] = rows["value"]
    table["tflops"] = rows["value"].map(achieved_tflops)
    table["share_of_peak"] = [
        share_of_peak(r["value"], r["hardware"], precision, gpus=int(r["gpus"]))
        for _, r in rows.iterrows()
        for precision in [parse_backend(r["backend"]).precision if r["backend"] else "fp32"]
    ]
    return table.sort_values("share_of_peak")


def of_the_servers(points: "pd.DataFrame", *, elsewhere: bool) -> "pd.Series":
    """Return for each point whether it is valid and a real engine of the servers computed it.

    Args:
        points: with `valid`, `server` and `engine`.
        elsewhere: the servers are on another machine, so this process is none of them.
    """
    is_emulated = points["engine"].map(engine_family).eq("emulated")
    return points["valid"].eq(True) & ~is_emulated & ~(points["server"].eq("local") & elsewhere)


def measured_shares(
    points: "pd.DataFrame", *, peaks_tflops: Mapping[str, float], elsewhere: bool = False
) -> "pd.DataFrame":
    """Return the valid points of a run with `tflops` and `share_of_peak`; empty when there are none.

    Like is divided by like: a precision without a known peak is left out, and so are emulated engines, which compute
    nothing. A share above 1 is impossible and means a wrong device or clock: it is kept and shows.

    Args:
        peaks_tflops: by precision; see `peaks_of`.
        elsewhere: the peaks are those of servers on another machine, so what this one computed is left out.
    """
    columns = ["run", "backend", "precision", "scenario", "batch", "concurrency", "link"]
    columns += ["throughput_images_per_s"]
    usable = points.reindex(columns=[*columns, "valid", "server", "engine"])
    measured = of_the_servers(usable, elsewhere=elsewhere) & usable["throughput_images_per_s"].notna()
    usable = usable[measured & usable["precision"].isin(peaks_tflops)][columns].copy()
    usable["tflops"] = usable["throughput_images_per_s"].map(achieved_tflops)
    usable["share_of_peak"] = usable["tflops"] / usable["precision"].map(peaks_tflops).astype(float)
    return usable.sort_values("share_of_peak")


def peaks_of(
    environment: Mapping[str, Any], *, ghz: float, flop_per_cycle: int
) -> tuple[dict[str, float], str]:
    """Return the peaks of what computes in TFLOP/s by precision, and how they were obtained; none where nobody knows.

    A GPU in devices.csv has the peaks of its data sheet, times the number of GPUs. A machine without a GPU has the FP32
    peak of its cores, by the two assumptions. A GPU that is not in the table has none, and neither have the cores of
    servers elsewhere, which nobody knows.

    Args:
        environment: of the run: of the measuring machine, and of its `servers` where they are elsewhere; those win.
    """
    servers = environment.get("servers") or {}
    gpu, count = servers.get("gpu", NO_GPU), servers.get("gpus", 1)
    if gpu == UNKNOWN_GPU or (servers and gpu == NO_GPU):
        return {}, "no peak rates: it is unknown what the servers compute on"
    named = [gpu] if gpu != NO_GPU else [each["name"] for each in environment.get("gpus") or []]
    for name in named:
        if peaks := makers_peaks(name):
            of = f"{count} × " if count > 1 else ""
            return {p: count * peak for p, peak in peaks.items()}, f"{of}{device_named(name)}, data sheet"
    if named:
        return {}, f"{named[0]}: no peak rates in results/published/devices.csv"
    cores = int(environment.get("cores_usable") or environment.get("cores") or 1)
    peak = cpu_peak_tflops(cores, ghz, flop_per_cycle=flop_per_cycle)
    return {"fp32": peak}, f"{cores} cores × {ghz:g} GHz × {flop_per_cycle} FLOP per cycle in FP32, assumed"
