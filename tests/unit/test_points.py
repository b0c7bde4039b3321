"""Points outside the comparisons: measured in one random order, each backend checked once, gaps left open."""

import pytest

from photodup.bench.load.plan import Stopping
from photodup.bench.record.record import RunStore
from photodup.bench.stats.facts import Load
from photodup.serving.endpoints import from_ports
from photodup.study.notebook import points
from photodup.study.notebook.run import Run


@pytest.mark.parametrize("seed", [0, 1])
def test_points_are_measured_in_random_order_and_returned_as_asked(monkeypatch, tmp_path, seed):
    asked = []

    def measure_point(run, backend, load, stopping=None, *, check=True):
        asked.append((backend, load.batch, check))
        return {"backend": backend, "batch": load.batch, "valid": True}

    monkeypatch.setattr(points, "measure_point", measure_point)
    run = Run("made-up", tmp_path, from_ports("127.0.0.1"), RunStore(tmp_path))
    specs = [{"backend": b, "load": Load("offline", batch=n)} for b in "ab" for n in (1, 4, 8, 16)]
    table = points.measure_all(run, specs, Stopping(), seed=seed)

    in_order = [("a", 1), ("a", 4), ("a", 8), ("a", 16), ("b", 1), ("b", 4), ("b", 8), ("b", 16)]
    assert list(zip(table.backend, table.batch, strict=True)) == in_order
    measured = [(backend, batch) for backend, batch, _ in asked]
    assert sorted(measured) == in_order != measured
    assert [backend for backend, _, check in asked if check] == list(dict.fromkeys(b for b, _, _ in asked))


def test_an_unmeasured_point_is_a_gap(tmp_path):
    run = Run("made-up", tmp_path, from_ports("127.0.0.1"), RunStore(tmp_path, measure=False))
    spec = {"backend": "fastapi-pytorch-fp32-http-jpeg", "load": Load("single_stream")}
    assert not points.measure_all(run, [spec], Stopping()).valid.any()
