"""The `photodup` command, one module for each package. Commands import what they need when they run: `--help` stays instant.

May import: everything. Read this file first: it says which command stands where.
"""

import sys
import warnings
from typing import Annotated

import typer

from photodup.cli import bench, load, model, photos, study, trash
from photodup.errors import PhotodupError
from photodup.extras import missing_extra
from photodup.names import escaped
from photodup.serving import commands as serving

# The extra that the commands of one use need; those not listed here belong to the study.
_COMMANDS = {
    "photos": ("demo", "scan", "embed", "group", "review", "evaluate", "trash"),
    "load": ("load",),
    "serve": ("serve", "render", "export"),
}

app = typer.Typer(
    name="photodup",
    help="Find near-duplicate photos, and study how the embedding behind it is served.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"photodup {version('photodup')}")
        except PackageNotFoundError:  # run from a checkout that is not installed
            print("photodup, not installed")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print it and end")
    ] = False,
) -> None:
    pass


app.add_typer(study.study, name="study")
app.add_typer(bench.benchmarks, name="bench")
app.command()(load.load)
app.command()(study.report)
app.command()(study.audit)
app.command()(serving.serve)
app.command()(serving.render)
app.add_typer(serving.endpoints, name="endpoints")
app.add_typer(serving.vast, name="vast")
app.command()(model.export)
app.command()(model.tune)
app.command()(photos.demo)
app.command()(photos.scan)
app.command()(photos.embed)
app.command()(photos.group)
app.command()(photos.review)
app.command()(photos.evaluate)
app.add_typer(trash.trash, name="trash")
app.add_typer(study.kube_app, name="kube")


def main() -> None:
    """Run the command line; a `PhotodupError` becomes one sentence on stderr and exit status 2.

    So does the import of a library that an extra of photodup would have installed.
    """
    # What Pillow says about damaged EXIF, with a line of its source; a photo that cannot be read is reported.
    warnings.filterwarnings("ignore", module=r"PIL\.")
    try:
        app()
    except PhotodupError as error:
        said = str(error)
    except ImportError as error:
        command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
        use = next((use for use, commands in _COMMANDS.items() if command in commands), "study")
        if not (missing := missing_extra(error, use)):
            raise
        said = missing
    else:
        return
    print(f"photodup: {escaped(said, keep=chr(10))}", file=sys.stderr)
    sys.exit(2)
