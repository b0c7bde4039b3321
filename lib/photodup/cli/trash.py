"""The `trash` commands."""

from pathlib import Path
from typing import Annotated

import typer

trash = typer.Typer(
    no_args_is_help=True, help="What `photodup review` removed: list, restore, delete for good."
)
Unsigned = Annotated[
    bool, typer.Option("--unsigned", help="instead, what your photodup on this machine did not write")
]


@trash.command("list")
def trash_list(directory: Annotated[Path, typer.Argument(help="the library")]) -> None:
    """List what is in the trash of a library, newest first."""
    from photodup.photos.commands.trash_command import list_trash

    list_trash(directory)


@trash.command("restore")
def trash_restore(
    directory: Annotated[Path, typer.Argument(help="the library")],
    operation: Annotated[
        list[str] | None, typer.Argument(help="names from `trash list`; default all")
    ] = None,
    unsigned: Unsigned = False,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
) -> None:
    """Put files back where they were, with their times."""
    from photodup.photos.commands.trash_command import restore_trash

    restore_trash(directory, operation or (), unsigned=unsigned, yes=yes)


@trash.command("purge")
def trash_purge(
    directory: Annotated[Path, typer.Argument(help="the library")],
    operation: Annotated[
        list[str] | None, typer.Argument(help="names from `trash list`; default all")
    ] = None,
    unsigned: Unsigned = False,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
) -> None:
    """Delete files from the trash for good. This is the only command that deletes a photograph."""
    from photodup.photos.commands.trash_command import purge_trash

    purge_trash(directory, operation or (), unsigned=unsigned, yes=yes)
