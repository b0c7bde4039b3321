"""Whether a file is a catalogue of ours, found out without changing a byte of it or of its folder."""

import os
import stat
import time
from enum import Enum
from pathlib import Path

from photodup.photos.own.sqlite_file import APPLICATION_ID, BESIDE, MAGIC


class Kind(Enum):
    """What lies at a path."""

    ABSENT = "nothing"
    OURS = "a catalogue"
    FOREIGN = "the database of another program"
    UNKNOWN = "no database, or one whose beginning is destroyed"


def kind_of(file: Path) -> Kind:
    """Return what lies there; links are followed. The header alone is read, no lock is taken."""
    try:
        if not stat.S_ISREG(os.stat(file).st_mode):
            return Kind.UNKNOWN
        with open(file, "rb") as opened:
            header = opened.read(100)
    except OSError:
        return Kind.ABSENT if not os.path.lexists(file) else Kind.UNKNOWN
    if header[:16] != MAGIC:
        return Kind.UNKNOWN
    return Kind.OURS if int.from_bytes(header[68:72], "big") == APPLICATION_ID else Kind.FOREIGN


def set_aside(file: Path, folder: Path) -> Path:
    """Move a damaged catalogue, with what SQLite keeps beside it, into a folder; return its new place.

    Call it only for a file that is ours. Left behind, the `-wal` file would be applied to the next catalogue.

    Raises:
        OSError: it cannot be moved.
    """
    name, number = f"{file.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}", 1
    aside = folder / name
    while os.path.lexists(aside):
        number += 1
        aside = folder / f"{name}-{number}"
    os.rename(file, aside)
    for suffix in BESIDE:
        beside = file.with_name(file.name + suffix)
        if os.path.lexists(beside):
            os.rename(beside, aside.with_name(aside.name + suffix))
    return aside
