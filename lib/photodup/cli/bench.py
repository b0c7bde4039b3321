"""The `bench` commands: photodup's own speed figures, and every engine on one device."""

from typing import Annotated

import typer

from photodup.errors import PhotodupError

BENCHMARKS = ("service", "serving", "scan", "one_pass", "load_generator", "grouping", "library", "statistics")

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
    engine: Annotated[
        list[str] | None, typer.Option(help="only this: an engine, ceilings or fidelity; repeat for more")
    ] = None,
    precision: Annotated[
        list[str] | None, typer.Option(help="only this: fp32, tf32, fp16 or bf16; repeat for more")
    ] = None,
    budget_minutes: Annotated[
        float | None, typer.Option(min=0, help="leave out what no longer fits, the least important first")
    ] = None,
    compile_on_cpu: Annotated[bool, typer.Option("--compile", help="also torch.compile on a CPU")] = False,
    photos: Annotated[int, typer.Option(min=2, help="demonstration photographs for the fidelity")] = 32,
    run: Annotated[
        str | None, typer.Option(help="keep each line as a record of results/RUN, and go on from those")
    ] = None,
) -> None:
    """Time every engine on one device with no server between: PyTorch, ONNX Runtime, OpenVINO, TensorRT.

    FP32 means FP32: TF32 is a precision of its own. Shares are of what the device itself reaches on matrix products of
    the same precision, measured beforehand.
    """
    from photodup.selfbench.device.plan import TimeBudget
    from photodup.selfbench.device.table import print_bench

    print_bench(
        device,
        batch or [1, 8, 32],
        repeats,
        compile_on_cpu,
        engines=engine or (),
        precisions=precision or (),
        budget=TimeBudget(budget_minutes),
        n_photos=photos,
        run=run,
    )
