"""What the reference run's comparisons say about goals: nothing is measured twice."""

from collections.abc import Iterator
from typing import Any

from benchmarks.rows import Row, reference_dir, row
from photodup.bench.record.json_files import read_json
from photodup.bench.stats.figures import Figure

GOALS: dict[str, tuple[str, dict[str, Any]]] = {
    "INT8 with OpenVINO against FP32 with ONNX Runtime in Triton, eight": (
        "Triton with JPEGs, eight in flight: OpenVINO INT8 ÷ ONNX Runtime FP32",
        {"least": 2.9},
    ),
    "server with INT8, eight": (
        "OpenVINO INT8, eight in flight: Triton ÷ FastAPI",
        {"least": 0.95, "surely": True},
    ),
}
"""Comparisons of `notebooks/comparisons.yaml` by their name: what their b ÷ a is, and its goal."""


def rows() -> Iterator[Row]:
    """Yield each comparison that has a goal; one without an outcome says so."""
    found = {of["name"]: of for of in read_json(reference_dir() / "outcomes.json", [], name=str)}
    for name, (what, goal) in GOALS.items():
        of = found.get(name, {})
        figure: Figure | str = of.get("because") or "The reference run has no such comparison."
        if of.get("effect") is not None:
            figure = 1 + of["effect"], 1 + of["low"], 1 + of["high"]
        yield row(what, figure, **goal)
