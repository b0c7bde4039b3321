"""Tests without a server and without a browser: files, numbers and child processes only."""

from pathlib import Path

import pytest
from support.servers import refuse_servers


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    refuse_servers(items, Path(__file__).parent)
