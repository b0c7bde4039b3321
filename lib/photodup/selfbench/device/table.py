"""The table of `photodup bench device`: each line beside what the device reaches at best."""

import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from photodup.bench.record import environment
from photodup.bench.record.json_files import slug
from photodup.bench.record.record import RunStore
from photodup.errors import PhotodupError
from photodup.paths import build_dir
from photodup.selfbench.device.bench import DeviceBench
from photodup.selfbench.device.plan import CEILINGS, FIDELITY, PRECISIONS, TimeBudget, plan
from photodup.selfbench.rows import HEAD, Row, as_line, row
from photodup.study.notebook.run import folder_of
from photodup.study.published.roofline import achieved_tflops, makers_peaks


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
    from photodup.embedding.imaging import normalize
    from photodup.embedding.wire.wires import pixels
    from photodup.study.notebook.weights import payload_photos
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
    has_fidelity = not engines or FIDELITY in engines
    images = normalize(pixels(payload_photos(n_photos))) if has_fidelity else None
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
        makers = makers_peaks(_name(facts, on_gpu)) if on_gpu else {}
        print(
            f"{model.name}, {model.pretrained}, on {_name(facts, on_gpu)}, median of {repeats} runs\n{HEAD}"
        )
        lines = []
        for found in bench.lines(engines, precisions):
            lines.append(found)
            add_shares(lines, makers)
            print(as_line(as_row(found)), flush=True)
    if said := budget.sentence():
        print(said)
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


def as_row(found: Mapping[str, Any]) -> Row:
    """Return a line: the latency of a batch, what the device reaches at best, or how far a precision moves embeddings."""
    name = f"{found['engine']} {found['precision']}" + (f" b{found['batch']}" if "batch" in found else "")
    if "not_run" in found:
        return row(name, found["not_run"])
    if found["engine"] == FIDELITY:
        cosine = f"{found['cosine_min']:.6f} at least, median {found['cosine_median']:.6f}"
        said = f"{found['n']} photographs against {found['against']}: cosine {cosine}"
        return row(name, found["shift_max"], "of a similarity, at most", because=said)
    if found["engine"] == CEILINGS:
        rate, unit = ("tflops", "TFLOP/s") if "tflops" in found else ("gb_per_s", "GB/s, read and written")
        return row(name, found[rate], unit)
    rates = f"{found['throughput_images_per_s']:,.1f} images/s, {found['tflops']:.3f} TFLOP/s"
    share, memory = found["share_of_measured_peak"], found["peak_memory_mb"]
    said = (
        f"{rates}{'' if share is None else f' ({share:.1%} of the peak)'}, built in {found['build_s']:.1f} s"
    )
    return row(name, found["latency_ms_p50"], "ms", because=said + (f", {memory:,.0f} MB" if memory else ""))


def _cache_name(facts: dict[str, Any]) -> str:
    """Name the folder of engines after what they fit: one type of GPU under one ONNX Runtime."""
    gpu = (facts.get("gpus") or [{"name": "cpu"}])[0]["name"]
    return slug(f"{gpu} ort {facts['packages'].get('onnxruntime', '')}")
