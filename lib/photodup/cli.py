"""The `photodup` command. Each command imports what it needs when it runs, so `--help` stays instant."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from photodup.errors import PhotodupError

app = typer.Typer(
    name="photodup",
    help="Find near-duplicate photos, and study how the embedding behind it is served.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

study = typer.Typer(no_args_is_help=True, help="Run the notebooks against servers, and read what they found.")
app.add_typer(study, name="study")


Only = Annotated[list[str] | None, typer.Option(help="notebook prefix such as 03; repeat for more")]


# Typer has no repeated option of two words, and papermill's users have -p KEY VALUE in their fingers.
@study.command("run", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def study_run(
    context: typer.Context,
    run: Annotated[str, typer.Option(help="directory under results/")] = "quick",
    endpoints: Annotated[Path | None, typer.Option(help="YAML of servers elsewhere; else embedded")] = None,
    sizes: Annotated[str, typer.Option(help="quick (tests/overrides.yaml) or full")] = "quick",
    only: Only = None,
    weights: Annotated[str | None, typer.Option(help="MODEL_PRETRAINED; random:0 by default")] = None,
    again: Annotated[bool, typer.Option(help="run notebooks even if they passed before")] = False,
) -> None:
    """Run every notebook (or --only some) and write results/RUN/index.html; resume where it stopped.

    Give notebook parameters as papermill does: -p KEY VALUE, as often as you like.
    """
    from photodup.study.execute import parse_parameters, run_study

    outcomes = run_study(
        run,
        endpoints=endpoints,
        sizes=sizes,
        only=only or (),
        parameters=parse_parameters(context.args),
        weights=weights,
        again=again,
    )
    if any(outcome.status != "passed" for outcome in outcomes):
        raise typer.Exit(1)


@study.command("parameters")
def study_parameters() -> None:
    """List every notebook's parameters with their help."""
    from photodup.study.execute import declared_parameters, notebooks

    for path in notebooks():
        print(path.stem)
        for name, text in declared_parameters(path).items():
            print(f"  {name:24} {text}")


@study.command("render")
def study_render(
    only: Annotated[
        list[str] | None, typer.Option(help="notebook prefix such as 03; repeat for more")
    ] = None,
) -> None:
    """Execute the committed notebooks in place from the records of the reference run; nothing is measured."""
    from photodup.study.render import render_notebooks

    for path in render_notebooks(only or ()):
        print(path.name)


@app.command()
def report(run: Annotated[str, typer.Argument(help="directory under results/")] = "quick") -> None:
    """Write results/RUN/index.html and one page per notebook from what is recorded."""
    from photodup.study.report import write_report

    print(write_report(run))


from photodup.serving import commands as serving  # noqa: E402  (imports nothing heavy)

app.command()(serving.serve)
app.command()(serving.render)
app.add_typer(serving.endpoints, name="endpoints")


def main() -> None:
    """Run the command line; a `PhotodupError` becomes one sentence on stderr and exit status 2."""
    try:
        app()
    except PhotodupError as error:
        print(f"photodup: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
