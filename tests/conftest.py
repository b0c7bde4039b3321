"""What several test files share. Nothing here starts a server or loads a model by being imported."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

os.environ.setdefault("MODEL_PRETRAINED", "random:0")  # tests must not depend on a 600 MB download
os.environ["PHOTODUP_ROOT"] = str(ROOT)


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def demo_dir() -> Path:
    """The demonstration library, built once; tests that change photos must copy them first."""
    from photodup.study.weights import demo_library

    return demo_library()
