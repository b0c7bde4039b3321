"""The table of `photodup bench device`: each line beside the roofline of the device it ran on."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from photodup.bench.record import environment
from photodup.errors import PhotodupError
from photodup.selfbench import device as device_bench
from photodup.study.published.roofline import achieved_tflops, limit_of, load_devices

# Short, so that a terminal of 80 columns holds them.
_COLUMNS = ("engine", "precision", "batch", "build s", "ms", "images/s", "TFLOP/s", "of peak", "memory")


def openvino_python() -> Path | None:
    """Return the Python beside Triton that has ONNX Runtime's OpenVINO provider, or None."""
    from photodup.serving.triton.server import triton_venv

    try:
        return triton_venv() / "bin" / "python"
    except PhotodupError:
        return None


def print_bench(
    device: str | None,
    batches: Sequence[int],
    repeats: int,
    compile_on_cpu: bool,
    ghz: float,
    flop_per_cycle: int,
    json_file: Path | None,
) -> list[dict[str, Any]]:
    """Measure, print the table and return its lines; see `photodup.selfbench.device.bench`."""
    from rich.console import Console
    from rich.table import Table

    from photodup.embedding.engines.encoder import load_model
    from photodup.embedding.engines.export import export
    from photodup.paths import build_dir

    model = load_model(device=device)
    graph = export(model, build_dir() / "models", ["fp32"])["fp32"]
    facts = environment.describe()
    peak, source = _peak(facts, model.device, ghz, flop_per_cycle)
    cache = build_dir() / "trt" / _cache_name(facts)
    cache.mkdir(parents=True, exist_ok=True)
    lines = []
    for line in device_bench.bench(
        model.visual,
        graph,
        device=model.device,
        batches=sorted(set(batches)),
        repeats=repeats,
        compile_on_cpu=compile_on_cpu,
        openvino_python=openvino_python(),
        cache=cache,
    ):
        if "not_run" not in line:
            line["tflops"] = achieved_tflops(line["throughput_images_per_s"])
            line["share_of_fp32_peak"] = line["tflops"] / peak
        lines.append(line)
    timed = [line for line in lines if "not_run" not in line]
    with_memory = any(line.get("peak_memory_mb") is not None for line in timed)
    columns = _COLUMNS if with_memory else _COLUMNS[:-1]
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=True, justify="left" if column in _COLUMNS[:2] else "right")
    for line in timed:
        table.add_row(*_cells(line)[: len(columns)])
    console = Console(soft_wrap=True)
    console.print(f"{model.name}, {model.pretrained}, on {model.device}", highlight=False)
    console.print(table)
    console.print(f"Peak: {peak:.2f} TFLOP/s in FP32 ({source}). Median of {repeats} runs, shapes warmed.")
    for sentence in _not_run(lines):
        console.print(sentence, markup=False, highlight=False)
    if json_file is not None:
        _write(
            json_file, {"environment": facts, "peak_fp32_tflops": peak, "peak_from": source, "lines": lines}
        )
    return lines


def _not_run(lines: Sequence[dict[str, Any]]) -> list[str]:
    """Say once for each engine and reason which precisions, and which batch size on, could not run."""
    found: dict[tuple[str, str], list[str]] = {}
    for line in (line for line in lines if "not_run" in line):
        what = line["precision"] + (f" from batch {line['batch']} on" if "batch" in line else "")
        found.setdefault((line["engine"], line["not_run"]), []).append(what)
    return [f"not run here: {e} {', '.join(which)}: {why}." for (e, why), which in found.items()]


def _cache_name(facts: dict[str, Any]) -> str:
    """Name the folder of engines after what they fit: one type of GPU under one ONNX Runtime."""
    gpu = (facts.get("gpus") or [{"name": "cpu"}])[0]["name"]
    return re.sub(r"[^a-z0-9]+", "-", f"{gpu} ort {facts['packages'].get('onnxruntime', '')}".lower()).strip(
        "-"
    )


def _peak(facts: dict[str, Any], device: str, ghz: float, flop_per_cycle: int) -> tuple[float, str]:
    on_cpu = facts | {"gpus": []} if device == "cpu" else facts
    peak, source = limit_of(on_cpu, ghz=ghz, flop_per_cycle=flop_per_cycle)
    if device != "cpu" and "assumed" in source:
        known = ", ".join(load_devices().index)
        raise PhotodupError(f"No peak rates for this GPU: add it to results/published/devices.csv ({known}).")
    return peak, source


def _cells(line: dict[str, Any]) -> list[str]:
    memory = line.get("peak_memory_mb")
    return [
        line["engine"],
        line["precision"],
        str(line["batch"]),
        f"{line['build_s']:.1f}",
        f"{line['latency_ms_p50']:.2f}",
        f"{line['throughput_images_per_s']:,.1f}",
        f"{line['tflops']:.3f}",
        f"{line['share_of_fp32_peak']:.1%}",
        "" if memory is None else f"{memory:,.0f} MB",
    ]


def _write(path: Path, content: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise PhotodupError(f"Cannot write {path} ({error.strerror}): choose another file.") from None
