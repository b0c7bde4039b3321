"""What `photodup trash` does and prints."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from photodup.errors import PhotodupError
from photodup.photos.library.catalogue import printable
from photodup.photos.trash.trash import Operation, Trash, TrashError


def list_trash(library: Path) -> None:
    """Print one line per removal, newest first, and the sum."""
    trash = Trash(library)
    listing = trash.listing()
    for operation in listing:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(operation.time))
        files = ", ".join(printable(Path(moved.home)) for moved in operation.files)
        print(f"{operation.id}  {when}  {operation.bytes / 1e6:8.2f} MB  {files}  ({operation.reason})")
    for operation in trash.operations():
        if operation.unfinished:  # read-only or busy today
            first = printable(Path(operation.files[0].home))
            print(
                f"{operation.id}  {operation.state} {first} is not finished; the next command goes on with it"
            )
    print(f"{len(listing)} removals, {sum(operation.bytes for operation in listing) / 1e6:.2f} MB")


def restore_trash(library: Path, names: Sequence[str]) -> None:
    """Restore some removals, or all, and print where the files are."""
    trash = Trash(library)
    for path in trash.restore(_chosen(trash, names)):
        print(printable(path))
    print("Run `photodup scan` to bring the catalogue up to date.")


def purge_trash(library: Path, names: Sequence[str], *, yes: bool) -> None:
    """Delete some removals, or all, for good, after asking.

    Raises:
        TrashError: it was not confirmed, or nobody is there to ask.
    """
    trash = Trash(library)
    chosen = _chosen(trash, names)
    size = sum(operation.bytes for operation in chosen) / 1e6
    if chosen and not yes:
        if not sys.stdin.isatty():
            raise TrashError("Deleting for good needs a yes: add --yes.")
        if input(f"Delete {len(chosen)} removals ({size:.2f} MB) for good? [y/N] ").strip().lower() != "y":
            raise TrashError("Nothing was deleted.")
    print(f"{len(chosen)} removals deleted, {trash.purge(chosen) / 1e6:.2f} MB freed")


def _chosen(trash: Trash, names: Sequence[str]) -> list[Operation]:
    listing = trash.listing()
    if unknown := set(names) - {operation.id for operation in listing}:
        raise PhotodupError(f"Not in the trash: {', '.join(sorted(unknown))}; see `photodup trash list`.")
    return [operation for operation in listing if not names or operation.id in names]
