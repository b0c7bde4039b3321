"""Tests with real servers and a real browser; the attacks on them live here."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.paths import CHROMIUM
from support.review_library import make_library


@pytest.fixture(scope="module")
def browser() -> Iterator:
    """A headless Chromium that calls nobody by itself, and to which rebound.example is this machine."""
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed (apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        flags.append("--host-resolver-rules=MAP rebound.example 127.0.0.1")
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield running
        running.close()


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A small library of photographs with copies, scanned."""
    return make_library(tmp_path / "library")
