"""One place reads the environment, and says what it means."""

import os
import re

from photodup import settings
from photodup.paths import project_root

# Runs isolated, with the standard library alone, and hands arguments to the program that it starts.
ALSO = {"serving/process/hidden_arguments.py"}


def test_nothing_else_reads_the_environment():
    lib = project_root() / "lib" / "photodup"
    reading = re.compile(r"os\.(environ|getenv|putenv)|from os import .*environ")
    found = {str(path.relative_to(lib)) for path in lib.rglob("*.py") if reading.search(path.read_text())}
    assert found == {"settings.py"} | ALSO


def test_what_is_not_set_is_empty_or_the_default(monkeypatch):
    for name in ("MODEL_PRETRAINED", "MODEL_NAME", "PHOTODUP_MEASURE"):
        monkeypatch.delenv(name, raising=False)
    found = settings.environment()
    assert (found.model_pretrained, found.weights, found.architecture) == (
        "",
        "laion2b_s34b_b79k",
        "ViT-B-32",
    )
    assert found.may_measure
    monkeypatch.setenv("MODEL_PRETRAINED", "random:0")
    monkeypatch.setenv("PHOTODUP_MEASURE", "0")
    found = settings.environment()
    assert found.weights == "random:0" and not found.may_measure


def test_keys_are_not_printed(monkeypatch):
    monkeypatch.setenv("PHOTODUP_API_KEY", "secret-one")
    monkeypatch.setenv("PHOTODUP_TRITON_CONTROL_KEY", "secret-two")
    assert settings.environment().api_key == "secret-one"
    assert "secret" not in repr(settings.environment())


def test_variables_are_as_before_after_a_block(monkeypatch):
    monkeypatch.setenv("PHOTODUP_A", "before")
    monkeypatch.delenv("PHOTODUP_B", raising=False)
    with settings.variables(PHOTODUP_A="", PHOTODUP_B="inside"):
        assert "PHOTODUP_A" not in os.environ and settings.variable("PHOTODUP_B") == "inside"
        assert settings.inherited(PHOTODUP_B="child")["PHOTODUP_B"] == "child"
    assert settings.variable("PHOTODUP_A") == "before" and "PHOTODUP_B" not in os.environ
