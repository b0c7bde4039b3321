"""Which folders of tests may start servers."""

from collections.abc import Iterable
from pathlib import Path

import pytest

SERVERS = {"browser", "launch", "random_service", "real_service", "small_service", "tiny_triton"}


def refuse_servers(items: Iterable[pytest.Item], folder: Path) -> None:
    """Stop the run if a test in `folder` asks for a server or a browser."""
    for item in items:
        asked = SERVERS & set(item.fixturenames)
        if folder in item.path.parents and asked:
            raise pytest.UsageError(
                f"{item.nodeid} asks for {', '.join(sorted(asked))}: move it to tests/servers."
            )
