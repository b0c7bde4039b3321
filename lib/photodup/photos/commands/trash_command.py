"""What `photodup trash` does and prints."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from photodup.errors import PhotodupError
from photodup.names import escaped, printable
from photodup.photos.trash.trash import Trash
from photodup.photos.trash.trash_entries import Operation, TrashError

_NOT_OURS = (
    "Not written by your photodup on this machine (somebody else wrote it, or your key is "
    "new); nothing is done about it unless you add --unsigned:"
)


def list_trash(library: Path) -> None:
    """Print one line per removal, newest first, and the sum; then what this user's photodup did not write."""
    contents = Trash(library).contents()
    for operation in contents.listing:
        print(_line(operation))
    for operation in contents.interrupted:  # read-only or busy today
        first = printable(operation.files[0].home)
        print(f"{operation.id}  {operation.state} {first} is not finished; the next command goes on with it")
    size = sum(operation.bytes for operation in contents.listing) / 1e6
    print(f"{len(contents.listing)} removals, {size:.2f} MB")
    if contents.unsigned:
        print(_NOT_OURS)
    for operation in contents.unsigned:
        print(_line(operation) + (f"  {operation.state}, not finished" if operation.unfinished else ""))
    for sentence in contents.problems:
        print(sentence)


def restore_trash(library: Path, names: Sequence[str], *, unsigned: bool = False, yes: bool = False) -> None:
    """Restore some removals, or all, and print where the files are.

    Args:
        library: the scanned folder.
        names: of `trash list`; empty for all.
        unsigned: those that this user's photodup did not write, instead of its own.
        yes: do not ask about these.

    Raises:
        TrashError: it was not confirmed, or nobody is there to ask.
    """
    trash = Trash(library)
    chosen = _chosen(trash, names, unsigned)
    if unsigned and chosen and not yes:
        for operation in chosen:
            print(_line(operation))
        _ask(f"Put {len(chosen)} removals back that your photodup did not write?", "Restoring these")
    for path in trash.restore(chosen, confirmed=unsigned):
        print(printable(path))
    _print_unsigned_left(trash, unsigned)
    print("Run `photodup scan` to bring the catalogue up to date.")


def purge_trash(library: Path, names: Sequence[str], *, unsigned: bool = False, yes: bool) -> None:
    """Delete some removals, or all, for good, after asking.

    Args:
        library: the scanned folder.
        names: of `trash list`; empty for all.
        unsigned: those that this user's photodup did not write, instead of its own.
        yes: do not ask.

    Raises:
        TrashError: it was not confirmed, or nobody is there to ask.
    """
    trash = Trash(library)
    found = _chosen(trash, names, unsigned)
    chosen = [operation for operation in found if operation.in_trash or operation.state == "purging"]
    size = sum(operation.bytes for operation in chosen) / 1e6
    if chosen and not yes:
        _ask(f"Delete {len(chosen)} removals ({size:.2f} MB) for good?", "Deleting for good")
    freed = trash.purge(chosen, confirmed=unsigned)
    print(f"{len(chosen)} removals deleted, {freed / 1e6:.2f} MB freed")
    _print_unsigned_left(trash, unsigned)


def _print_unsigned_left(trash: Trash, unsigned: bool) -> None:
    if not unsigned and (left := len(trash.unsigned())):
        print(f"{left} more removals are there that your photodup did not write: add --unsigned for these.")


def _ask(question: str, what: str) -> None:
    if not sys.stdin.isatty():
        raise TrashError(f"{what} needs a yes: add --yes.")
    if input(f"{question} [y/N] ").strip().lower() != "y":
        raise TrashError("Nothing was done.")


def _chosen(trash: Trash, names: Sequence[str], unsigned: bool) -> list[Operation]:
    contents = trash.contents()
    own, others = contents.listing, contents.unsigned
    listing = others if unsigned else own
    if unknown := set(names) - {operation.id for operation in listing}:
        apart = unknown & {operation.id for operation in (own if unsigned else others)}
        hint = "leave --unsigned out" if unsigned else "add --unsigned"
        more = f"; {', '.join(sorted(apart))} is there: {hint}" if apart else ""
        named = escaped(", ".join(sorted(unknown)))
        raise PhotodupError(f"Not in the trash: {named}; see `photodup trash list`{more}.")
    return [operation for operation in listing if not names or operation.id in names]


def _line(operation: Operation) -> str:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(operation.time))
    files = ", ".join(printable(moved.home) for moved in operation.files)
    reason = escaped(operation.reason)
    return f"{operation.id}  {when}  {operation.bytes / 1e6:8.2f} MB  {files}  ({reason})"
