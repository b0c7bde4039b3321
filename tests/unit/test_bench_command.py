"""`photodup bench` prints every figure it promises."""

import importlib
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from photodup.cli import app
from photodup.cli.study import BENCHMARKS
from photodup.selfbench import load_generator


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("grouping", ("seconds", "peak_memory_gb", "recall", "2000", "seconds_to_add_1000", "largest_group")),
        ("library", ("pairs_a_photo", "seconds_after_adding_1000", "2000", "hash (within")),
    ],
)
def test_the_figures_of_scale_are_printed(monkeypatch, name, words):
    monkeypatch.setattr(f"photodup.selfbench.{name}.SIZES", (2000,))
    result = CliRunner().invoke(app, ["bench", "--only", name], catch_exceptions=False)
    assert result.exit_code == 0
    for word in (name, *words):
        assert word in result.output


def test_every_benchmark_can_be_asked_for():
    for name in BENCHMARKS:
        assert callable(importlib.import_module(f"photodup.selfbench.{name}").main)


def test_the_generator_prints_its_ratios(monkeypatch):
    monkeypatch.setattr(load_generator, "ROUNDS", 1)
    monkeypatch.setattr(load_generator.run, "__kwdefaults__", {"seconds": 0.1})
    result = CliRunner().invoke(app, ["bench", "--only", "load_generator"], catch_exceptions=False)
    assert "bare socket" in result.output and "requests/s" in result.output


def test_another_name_is_one_sentence(capsys):
    result = CliRunner().invoke(app, ["bench", "--only", "speed"])
    assert result.exit_code and "no benchmark 'speed'" in str(result.exception)


@pytest.mark.figures
def test_the_peak_of_memory_is_the_process_own():
    """A child of a large process reports its own peak, and what it then takes."""
    ballast = np.ones(60_000_000)  # 480 MB here, in the parent
    code = (
        "import numpy as np; from photodup.selfbench.grouping import peak_memory_gb as peak; "
        "before = peak(); taken = np.ones(25_000_000); print(before, peak())"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    before, after = map(float, said.split())
    assert before < 0.4 and after - before > 0.15 and len(ballast)
