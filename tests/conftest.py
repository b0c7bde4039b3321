"""What several test files share. Nothing here starts a server or loads a model by being imported."""

import atexit
import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CHROMIUM = next(
    (p for name in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(name))), None
)

# A shell starts background jobs with Ctrl-C ignored, and every child inherits that: tests that interrupt a
# process would then wait for ever, on a CI that runs in the background alone.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.setdefault("MODEL_PRETRAINED", "random:0")  # tests must not depend on a 600 MB download
os.environ["PHOTODUP_ROOT"] = str(ROOT)
# Tests sign with a key of their own, never with the key of whoever runs them; child processes inherit it.
if "PHOTODUP_CONFIG" not in os.environ:
    os.environ["PHOTODUP_CONFIG"] = tempfile.mkdtemp(prefix="photodup-config-")
    atexit.register(shutil.rmtree, os.environ["PHOTODUP_CONFIG"], ignore_errors=True)


def pytest_configure(config):
    config.addinivalue_line("markers", "quiet: asserts on times, so nothing may run beside it")


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def demo_dir() -> Path:
    """The demonstration library, built once; tests that change photos must copy them first."""
    from photodup.study.notebook.weights import demo_library

    return demo_library()


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium that calls nobody by itself."""
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed (apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield running
        running.close()
