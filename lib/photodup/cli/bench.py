"""The `bench` commands: photodup's own speed figures, and every engine on one device."""

from pathlib import Path
from typing import Annotated

import typer

from photodup.errors import PhotodupError

BENCHMARKS = ("service", "scan", "load_generator", "grouping", "library")

benchmarks = typer.Typer(invoke_without_command=True)


@benchmarks.callback()
def bench(
    context: typer.Context,
    only: Annotated[list[str] | None, typer.Option(help=f"{', '.join(BENCHMARKS)}; repeat")] = None,
) -> None:
    """Print the project's own speed figures as ratios, each pair measured in one run; or time a `device`."""
    import importlib

    if context.invoked_subcommand:
        return
    unknown = set(only or ()) - set(BENCHMARKS)
    if unknown:
        raise PhotodupError(f"There is no benchmark {unknown.pop()!r}: choose of {', '.join(BENCHMARKS)}.")
    for name in only or BENCHMARKS:
        print(name)
        importlib.import_module(f"photodup.selfbench.{name}").main()


@benchmarks.command("device")
def bench_device(
    device: Annotated[str | None, typer.Option(help="cpu or cuda; default the best there is")] = None,
    batch: Annotated[list[int] | None, typer.Option(min=1, help="batch size; repeat; 1, 8, 32")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="timed runs of each line")] = 10,
    compile_on_cpu: Annotated[bool, typer.Option("--compile", help="also torch.compile on a CPU")] = False,
    ghz: Annotated[float, typer.Option(min=0.1, help="CPU: clock held with wide vectors")] = 2.5,
    flop_per_cycle: Annotated[int, typer.Option(min=1, help="CPU: 32 for AVX2, 64 for AVX-512")] = 32,
    json_file: Annotated[Path | None, typer.Option("--json", help="also write the lines here")] = None,
) -> None:
    """Time every engine on one device with no server between: PyTorch, ONNX Runtime, OpenVINO, TensorRT."""
    from photodup.study.parts.device_table import print_bench

    print_bench(device, batch or [1, 8, 32], repeats, compile_on_cpu, ghz, flop_per_cycle, json_file)
