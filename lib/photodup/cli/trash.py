"""The `trash` commands: what they do and print."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option, Typer

from photodup.core.errors import PhotodupError
from photodup.core.names import count, escaped, printable

if TYPE_CHECKING:
    from photodup.photos.trash.entries import Operation
    from photodup.photos.trash.quarantine import Trash

trash = Typer(
    no_args_is_help=True, help="List, restore or delete for good the photos that `photodup review` removed."
)
Library = Annotated[Path, Argument(help="the library")]
Names = Annotated[list[str] | None, Argument(help="names from `trash list`; default all")]
Unsigned = Annotated[
    bool, Option("--unsigned", help="instead those that your photodup on this machine did not write")
]
Yes = Annotated[bool, Option("--yes", help="do not ask")]

_NOT_OURS = (
    "Not written by your photodup on this machine (somebody else wrote it, your key is new, or the journal is "
    "damaged); restored or deleted only with --unsigned:"
)


@trash.command("list")
def list_trash(directory: Library) -> None:
    """List what is in the trash of a library, newest first."""
    from photodup.photos.trash.quarantine import Trash

    contents = Trash(directory).contents()
    for operation in contents.listing:
        print(_line(operation))
    for operation in contents.interrupted:  # read-only or busy today
        first = printable(operation.home)
        print(f"{operation.id}  {operation.state} {first} is not finished; the next command goes on with it")
    print(f"{count(len(contents.listing), 'removal')}, {_megabytes(contents.listing)}")
    if contents.unsigned:
        print(_NOT_OURS)
    for operation in contents.unsigned:
        more = f"{operation.state}, not finished" if operation.unfinished else operation.state
        print(_line(operation) + (f"  {more}" if operation.state != "removed" else ""))
    for sentence in contents.problems:
        print(sentence)


@trash.command("restore")
def restore_trash(
    directory: Library, operation: Names = None, unsigned: Unsigned = False, yes: Yes = False
) -> None:
    """Put files back where they were, with their times."""
    from photodup.photos.trash.quarantine import Trash

    trash = Trash(directory)
    chosen = _chosen(trash, operation or [], unsigned)
    if unsigned and chosen and not yes:
        for removal in chosen:
            print(_line(removal))
        confirm(f"Restore {count(len(chosen), 'removal')} not written by your photodup?", "Restoring these")
    restored = trash.restore(chosen, confirmed=unsigned)
    print("\n".join([*map(printable, restored), f"{count(len(restored), 'file')} restored"]))
    _print_unsigned_left(trash, unsigned)


@trash.command("purge")
def purge_trash(
    directory: Library, operation: Names = None, unsigned: Unsigned = False, yes: Yes = False
) -> None:
    """Delete files from the trash for good. Only this and "Empty the trash" on the page delete photographs."""
    from photodup.photos.trash.quarantine import Trash

    trash = Trash(directory)
    removals = _chosen(trash, operation or [], unsigned)
    chosen = [removal for removal in removals if removal.in_trash or removal.state == "purging"]
    n_chosen = count(len(chosen), "removal")
    if chosen and not yes:
        confirm(f"Delete {n_chosen} ({_megabytes(chosen)}) for good?", "Deleting for good")
    freed_bytes = trash.purge(chosen, confirmed=unsigned)
    print(f"{n_chosen} deleted, {freed_bytes / 1e6:.2f} MB freed")
    _print_unsigned_left(trash, unsigned)


def _print_unsigned_left(trash: "Trash", unsigned: bool) -> None:
    if not unsigned and (n_left := len(trash.contents().unsigned)):
        print(f"{count(n_left, 'more removal')} not written by your photodup: add --unsigned for these.")


def confirm(question: str, action: str) -> None:
    """Ask on the terminal, and return only after a yes.

    Args:
        action: subject of the error's sentence where there is no terminal, such as "Copying".

    Raises:
        TrashError: the answer is not yes, or stdin is no terminal.
    """
    from photodup.photos.trash.entries import TrashError

    if not sys.stdin.isatty():
        raise TrashError(f"{action} needs a yes: add --yes.")
    if input(f"{question} [y/N] ").strip().lower() != "y":
        raise TrashError("Nothing was done.")


def _chosen(trash: "Trash", names: list[str], unsigned: bool) -> "list[Operation]":
    contents = trash.contents()
    signed, foreign = contents.listing, contents.unsigned
    listing = foreign if unsigned else signed
    if unknown := set(names) - {operation.id for operation in listing}:
        in_other_list = unknown & {operation.id for operation in (signed if unsigned else foreign)}
        hint = "leave --unsigned out" if unsigned else "add --unsigned"
        more = f"; {', '.join(sorted(in_other_list))} is there: {hint}" if in_other_list else ""
        missing = escaped(", ".join(sorted(unknown)))
        raise PhotodupError(f"Not in the trash: {missing}; see `photodup trash list`{more}.")
    return [operation for operation in listing if not names or operation.id in names]


def _megabytes(operations: "list[Operation]") -> str:
    return f"{sum(operation.bytes for operation in operations) / 1e6:.2f} MB"


def _line(operation: "Operation") -> str:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(operation.time))
    homes = [operation.home] if operation.written else [moved.home for moved in operation.files]
    files = ", ".join(map(printable, homes))
    reason = escaped(operation.reason)
    return f"{operation.id}  {when}  {operation.bytes / 1e6:8.2f} MB  {files}  ({reason})"
