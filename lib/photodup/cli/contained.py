"""The command `contained`: what it prints and the page that it writes."""

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option

from photodup.cli.load import AsJson
from photodup.cli.trash import Yes, confirm
from photodup.core.names import as_text, escaped, printable

if TYPE_CHECKING:
    from photodup.photos.across.contained import Contained, Location


def contained(
    old: Annotated[Path, Argument(help="folder of the old drive, phone or export")],
    library: Annotated[Path, Option("--in", help="the library that should hold its photos")],
    as_json: AsJson = False,
    copy_new_to: Annotated[
        Path | None, Option(help="after a yes, copy what is only in OLD into this folder")
    ] = None,
    also_probable: Annotated[
        bool, Option("--also-probable", help="also copy photos whose match in the library is only probable")
    ] = False,
    yes: Yes = False,
) -> None:
    """Report for each photo of an old folder whether a library has it, as good or better; both folders are only read.

    Copying asks first, never replaces a file, and goes on where it was stopped.
    """
    from photodup.core.files import write_atomically
    from photodup.core.pages import render_page
    from photodup.photos.across.contained import Location, cached_catalogue, find_contained

    report = find_contained(old, library)
    page, lines = cached_catalogue(report.old).with_suffix(".html"), contained_summary(report)
    content = render_page(
        Path(__file__).with_suffix(".html"),
        report=report,
        sentences=lines,
        locations=[*reversed(Location)],
        finished=f"{datetime.now():%Y-%m-%d %H:%M}",
        path=printable,
        text=escaped,
    )
    write_atomically(page, content)
    lines.append(f"Every name: {printable(page)}")
    print(json.dumps(report.as_record(), default=as_text) if as_json else "\n".join(lines), flush=True)
    if copy_new_to is not None:
        where = [Location.ONLY_HERE] + [Location.PROBABLY] * also_probable
        _copy(report, where, copy_new_to, yes)


def contained_summary(report: "Contained") -> list[str]:
    """Return lines with the count and size of each kind of photo, and with advice."""
    from photodup.photos.across.contained import Location

    lines = [f"{len(report.photos)} photos of {printable(report.old)} and {printable(report.library)}:"]
    for where in Location:
        photos = report.of(where)
        size_mb = sum(photo.size_bytes for photo in photos) / 1e6
        lines.append(f"{len(photos):9,}  {size_mb:12,.2f} MB  {where}")
    lines.append(f"{len(report.unread):9,}  {'':15}  not readable, so not compared")
    if lost := sum(bool(photo.reason) for photo in report.of(Location.SAME)):
        lines.append(
            f"{lost} of those with the same bytes have something beside them that the library lacks: copying takes them too."
        )
    if report.of(Location.PROBABLY):
        lines.append("Look at what is probably there before you give the old folder up, or copy it as well.")
    lines += [f"not compared: {escaped(problem)}" for problem in report.problems]
    return [
        *lines,
        "Videos are not compared, and only the extra photos-more compares JPEG XL and RAW that lies alone.",
    ]


def _copy(report: "Contained", where: "list[Location]", target: Path, yes: bool) -> None:
    from photodup.photos.across.copy_new import copy_new, files_to_copy

    photos = report.to_copy(*where)
    n = len(files_to_copy(report, photos))
    if not yes:
        question = f"Copy {len(photos)} photos ({n} files with what belongs to them) to {printable(target)}?"
        confirm(question, "Copying")
    n_copied, n_there, refused = copy_new(report, photos, target)
    for sentence in refused:
        print(sentence, file=sys.stderr)
    print(
        f"{n_copied} files copied, {n_there} there already, {len(refused)} left alone: {len(photos)} photos and "
        f"{n - len(photos)} files that belong to them",
        file=sys.stderr,
    )
    if refused:
        raise Exit(1)
