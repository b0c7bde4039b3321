"""The table of `photodup bench device`: each line beside what the device reaches at best."""

import re
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from photodup.bench.record import environment
from photodup.bench.record.record import RunStore
from photodup.errors import PhotodupError
from photodup.paths import build_dir
from photodup.selfbench.device.bench import DeviceBench
from photodup.selfbench.device.plan import CEILINGS, FIDELITY, PRECISIONS, TimeBudget, plan
from photodup.study.notebook.run import folder_of
from photodup.study.published.roofline import achieved_tflops, makers_peaks

# Short, so that a terminal of 80 columns holds them.
_COLUMNS = ("engine", "precision", "batch", "build s", "ms", "images/s", "TFLOP/s", "of peak", "memory")


def print_bench(
    device: str | None,
    batches: Sequence[int],
    repeats: int,
    compile_on_cpu: bool,
    *,
    engines: Collection[str] = (),
    precisions: Collection[str] = (),
    budget: TimeBudget | None = None,
    n_photos: int = 32,
    run: str | None = None,
) -> list[dict[str, Any]]:
    """Measure, print the table and return its lines; see `DeviceBench`.

    A GPU that devices.csv does not know is measured like any other; only the maker's figures are missing then.

    Args:
        budget: leaves out what does not fit; afterwards it knows what that was.
        run: keeps each line as a record of results/RUN, and finds it again; without one, for this call only.

    Raises:
        PhotodupError: a name that no run can have; an engine or precision that does not exist.
    """
    from photodup.embedding.engines.encoder import load_model
    from photodup.embedding.engines.export import export
    from photodup.embedding.engines.pytorch import TorchModel
    from photodup.study.precision.rounding import fp16_file

    plan(device or "cpu", engines, precisions)  # a mistyped name is said before the model is loaded
    budget = budget or TimeBudget()
    model = load_model(device=device)
    if not isinstance(model, TorchModel):
        raise PhotodupError(
            f"{model.pretrained} is an export: name PyTorch weights, of which all engines are made."
        )
    facts = environment.describe({"digest": model.digest, "pretrained": model.pretrained})
    models = build_dir() / "models"
    # From a model on the CPU: on a GPU PyTorch's convolutions are TF32 by default, and the export would be held to that.
    fp32_graph = cache(lambda: export(load_model(device="cpu"), models, ["fp32"])["fp32"])
    on_gpu = model.device.startswith("cuda")
    engine_cache = build_dir() / "trt" / _cache_name(facts)
    engine_cache.mkdir(parents=True, exist_ok=True)
    images = _photographs(n_photos) if not engines or FIDELITY in engines else None
    with tempfile.TemporaryDirectory() as scratch, _store(run, Path(scratch), facts["model"]) as store:
        bench = DeviceBench(
            model.visual,
            fp32_graph,
            store,
            model.device,
            batches,
            repeats,
            compile_on_cpu,
            cache=engine_cache,
            half=lambda: fp16_file(fp32_graph(), models),
            images=images,
            simulated=None if images is None else _simulated(fp32_graph, images),
            budget=budget,
            facts={"weights": model.digest[:12], "on": _name(facts, on_gpu)},
        )
        lines = []
        for line in bench.lines(engines, precisions):
            lines.append(line)
            print(_progress(line), flush=True)
    add_shares(lines, makers_peaks(_name(facts, on_gpu)) if on_gpu else {})
    _print(lines, f"{model.name}, {model.pretrained}, on {_name(facts, on_gpu)}", budget, repeats)
    return lines


def add_shares(lines: Sequence[dict[str, Any]], makers: Mapping[str, float]) -> None:
    """Add to the timed lines the arithmetic rate and its shares of the measured and of the maker's peak.

    Args:
        makers: peak in TFLOP/s by precision; empty where nobody published it.
    """
    measured = peaks(lines)
    for line in (line for line in lines if "throughput_images_per_s" in line):
        line["tflops"] = achieved_tflops(line["throughput_images_per_s"])
        for name, known in (("share_of_measured_peak", measured), ("share_of_makers_peak", makers)):
            peak = known.get(line["precision"])
            line[name] = line["tflops"] / peak if peak else None


def peaks(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the measured ceilings in TFLOP/s by precision."""
    return {
        x["precision"]: x["tflops"]
        for x in lines
        if x["engine"] == CEILINGS and x["precision"] in PRECISIONS and "not_run" not in x
    }


def _store(run: str | None, scratch: Path, model: Mapping[str, Any]) -> RunStore:
    if run is None:
        return RunStore(scratch, model=model)
    if run.startswith(("reference", "published")):
        raise PhotodupError(f"{run!r} is no name for a run of this machine: it is the project's own.")
    return RunStore(folder_of(run), model=model)


def _photographs(n: int):
    from photodup.embedding import imaging
    from photodup.embedding.wire import wires
    from photodup.study.notebook.weights import payload_photos

    return imaging.normalize(wires.pixels(payload_photos(n)))


def _simulated(graph: Callable[[], Path], images: Any) -> Callable[[str], Any]:
    """Return what gives the photographs' embeddings with a precision's rounding simulated on the CPU."""
    from photodup.embedding.engines.reduced import load_graph
    from photodup.study.precision.rounding import ROUNDED, embed, rounded

    return lambda precision: (
        embed(rounded(load_graph(graph()), precision), images) if precision in ROUNDED else None
    )


def _name(facts: Mapping[str, Any], on_gpu: bool) -> str:
    gpus = facts.get("gpus") or []
    if on_gpu and gpus:
        return str(gpus[0]["name"])
    if on_gpu:  # no NVML here, but PyTorch knows
        import torch

        return torch.cuda.get_device_name()
    return str(facts.get("cpu"))


def _progress(line: Mapping[str, Any]) -> str:
    name = f"{line['engine']} {line['precision']}" + (f" b{line['batch']}" if "batch" in line else "")
    if "not_run" in line:
        return f"{name}: not run"
    if "latency_ms_p50" in line:
        return f"{name}: {line['latency_ms_p50']:.2f} ms"
    if line["engine"] == FIDELITY:
        return f"{name}: cosine {line['cosine_min']:.6f} at least"
    rate, unit = (line["tflops"], "TFLOP/s") if "tflops" in line else (line["gb_per_s"], "GB/s")
    return f"{name}: {rate:,.2f} {unit}"


def _print(lines: Sequence[dict[str, Any]], title: str, budget: TimeBudget, repeats: int) -> None:
    from rich.console import Console
    from rich.table import Table

    timed = [line for line in lines if "latency_ms_p50" in line]
    with_memory = any(line.get("peak_memory_mb") is not None for line in timed)
    columns = _COLUMNS if with_memory else _COLUMNS[:-1]
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=True, justify="left" if column in _COLUMNS[:2] else "right")
    for line in timed:
        table.add_row(*_cells(line)[: len(columns)])
    console = Console(soft_wrap=True)
    console.print(title, highlight=False, markup=False)
    console.print(table)
    console.print(f"Median of {repeats} runs, shapes warmed.")
    for sentence in (*_ceilings(lines), *_fidelity(lines), *_not_run(lines), budget.sentence()):
        if sentence:
            console.print(sentence, markup=False, highlight=False)


def _ceilings(lines: Sequence[dict[str, Any]]) -> list[str]:
    """Say what the shares are shares of."""
    found = peaks(lines)
    copied = next((x for x in lines if x["engine"] == CEILINGS and "gb_per_s" in x), None)
    if not found:
        return ["Peak: not measured here (--engine ceilings)."]
    products = ", ".join(f"{p} {value:,.2f}" for p, value in found.items())
    copy = f"; copy {copied['gb_per_s']:,.0f} GB/s, read and written" if copied else ""
    return [f"Peak, measured on this device in TFLOP/s: {products}{copy}."]


def _fidelity(lines: Sequence[dict[str, Any]]) -> list[str]:
    return [
        f"{x['precision']} against {x['against']}: cosine at least {x['cosine_min']:.6f}, median "
        f"{x['cosine_median']:.6f}; a similarity changes by {x['shift_max']:.2g} at most ({x['n']} photographs)."
        for x in lines
        if x["engine"] == FIDELITY and "not_run" not in x
    ]


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


def _cells(line: dict[str, Any]) -> list[str]:
    memory, share = line.get("peak_memory_mb"), line.get("share_of_measured_peak")
    return [
        line["engine"],
        line["precision"],
        str(line["batch"]),
        f"{line['build_s']:.1f}",
        f"{line['latency_ms_p50']:.2f}",
        f"{line['throughput_images_per_s']:,.1f}",
        f"{line['tflops']:.3f}",
        "" if share is None else f"{share:.1%}",
        "" if memory is None else f"{memory:,.0f} MB",
    ]
