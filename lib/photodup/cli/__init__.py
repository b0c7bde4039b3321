"""The `photodup` command. Its commands import what they need when they run, so that `--help` stays instant.

May import: everything. Read this file first: it lists the commands and their modules.
"""

import io
import sys
import warnings
from collections.abc import Callable
from typing import Annotated, Any

import typer

from photodup.cli import contained, load, model, photos, study, trash
from photodup.core.errors import PhotodupError
from photodup.core.extras import missing_extra
from photodup.core.names import escaped
from photodup.serving import commands as serving

# The commands of each use (`core.extras.USES`); those not listed belong to the study.
_COMMANDS = {
    "photos": ("demo", "scan", "group", "review", "contained", "trash"),
    "load": ("load", "gate", "verify"),
    "serve": ("embed", "serve", "render", "export"),
}

app = typer.Typer(
    name="photodup",
    help="Find near-duplicate photos, serve their embeddings, and measure servers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        from importlib.metadata import version

        print(f"photodup {version('photodup')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    pass


PHOTOS, SERVE, MEASURE, STUDY = "Photos", "Serve", "Measure", "Study"

PANELS: dict[str, tuple[Callable[..., None], ...]] = {
    PHOTOS: (photos.demo, photos.scan, photos.embed, photos.group, photos.review, contained.contained),
    SERVE: (serving.serve, model.export, serving.render),
    MEASURE: (load.load, load.gate, load.verify),
    STUDY: (study.report,),
}
for panel, commands in PANELS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
app.add_typer(trash.trash, name="trash", rich_help_panel=PHOTOS)
app.add_typer(serving.endpoints, name="endpoints", rich_help_panel=SERVE)
app.add_typer(study.study, name="study", rich_help_panel=STUDY)
# Hidden: for developers of photodup.
app.add_typer(study.kube_app, name="kube", hidden=True)


def command_line() -> Any:
    """Return the command tree; a switch takes no value, so its help shows no type."""
    whole = typer.main.get_command(app)
    commands: list[Any] = [whole]
    for command in commands:
        commands += getattr(command, "commands", {}).values()
        for parameter in command.get_params(typer.Context(command)):
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
    return whole


def main() -> None:
    """Run the command line; a `PhotodupError` becomes one sentence on stderr and exit status 2.

    So does the failed import of a library that one of photodup's extras installs.
    """
    # Pillow's warnings about damaged EXIF quote its source; a photo that cannot be read is reported anyway.
    warnings.filterwarnings("ignore", module=r"PIL\.")
    for stream in (sys.stdout, sys.stderr):  # a file name outside its encoding must not end a list
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        command_line()()
    except PhotodupError as error:
        message = str(error)
    except ImportError as error:
        command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
        uses = [use for use, commands in _COMMANDS.items() if command in commands]
        message = missing_extra(error, *uses or ["study"]) or ""
        if not message:
            raise
    else:
        return
    print(f"photodup: {escaped(message, keep=chr(10))}", file=sys.stderr)
    sys.exit(2)
