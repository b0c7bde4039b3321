"""What a person who presses Ctrl-C is told."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def saying_what_is_kept() -> Iterator[None]:
    """Say after Ctrl-C that nothing is lost; for work that is written in batches and continues."""
    try:
        yield
    except KeyboardInterrupt:
        print(
            "\nphotodup: stopped; what was done is kept, and the same command goes on from there.",
            file=sys.stderr,
        )
        raise
