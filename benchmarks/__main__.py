"""Print photodup's own speed figures and their goals, both sides of a ratio measured in turns."""

import importlib
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.rows import HEAD, Row, as_json, as_line, guarded
from photodup.core.files import write_atomically

NAMES = ("service", "starts", "one_pass", "load_generator", "crops", "waits")


def main(
    only: Annotated[list[str] | None, typer.Option(help=f"{', '.join(NAMES)}; repeat")] = None,
    json: Annotated[Path | None, typer.Option(help="write the rows here")] = None,
) -> None:
    """Print photodup's own speed figures and their goals, both sides of a ratio measured in turns."""
    if unknown := sorted(set(only or ()) - set(NAMES)):
        raise typer.BadParameter(f"there is no benchmark {unknown[0]!r}: choose of {', '.join(NAMES)}.")
    rows: list[Row] = []
    for name in only or NAMES:
        for row in guarded(name, importlib.import_module(f"benchmarks.{name}").rows):
            print(as_line(row) if rows else f"{HEAD}\n{as_line(row)}", flush=True)
            rows.append(row)
        if json:  # what is measured so far outlives an interruption
            write_atomically(json, as_json(rows))


if __name__ == "__main__":
    typer.run(main)
