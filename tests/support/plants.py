"""What somebody else may have put where photodup writes: each leads elsewhere, or is waited at for ever."""

import os
from collections.abc import Callable
from pathlib import Path

# Each makes a path into something that leads to a file, or a folder, of the user.
PLANTS: dict[str, Callable[[Path, Path], object]] = {
    "a symbolic link": lambda path, theirs: path.symlink_to(theirs),
    "a link to nothing": lambda path, theirs: path.symlink_to(theirs.with_name("new")),
    "a hard link": lambda path, theirs: path.hardlink_to(theirs),
    "a pipe": lambda path, theirs: os.mkfifo(path),
    "a folder": lambda path, theirs: path.mkdir(),
}
