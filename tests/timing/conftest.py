"""Tests that assert on times: nothing may run beside them, so they take turns in one process.

A machine that was busy for a moment is no fault of the code, so a test that failed is asked twice more. A fault
fails three times; `-rR` in pytest's summary names the tests that were asked again.
"""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    ours = [item for item in items if HERE in item.path.parents]
    for item in ours:
        item.add_marker(pytest.mark.quiet)
        item.add_marker(pytest.mark.flaky(reruns=2, reruns_delay=5))
        if hasattr(config, "workerinput"):  # one of several processes of pytest-xdist
            item.add_marker(pytest.mark.skip(reason="asserts on times and runs alone: leave out -n"))
