"""Tests with real servers and a real browser; the attacks on them live here."""

from collections.abc import Iterator

import pytest
from support.paths import CHROMIUM


@pytest.fixture(scope="module")
def browser() -> Iterator:
    """A headless Chromium that calls nobody by itself."""
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed (apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield running
        running.close()
