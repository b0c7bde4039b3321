"""The `bench` commands: photodup's own speed figures, and every engine on one device."""

from typing import Annotated

import typer

from photodup.errors import PhotodupError
from photodup.study.parts.device_command import bench_device

BENCHMARKS = ("service", "serving", "scan", "one_pass", "load_generator", "grouping", "library")

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


benchmarks.command("device")(bench_device)
