"""Tests of what is committed: notebooks, documents, layout, manifests, images, and the table of deletions."""

from pathlib import Path

import pytest
from support.servers import refuse_servers


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    refuse_servers(items, Path(__file__).parent)
