"""`python -m benchmarks` prints every figure it promises."""

import importlib
import json
import re

import numpy as np
import pytest
from support.command import run_benchmark, run_python
from support.paths import ROOT
from support.triton import tiny_graph

from benchmarks import __main__ as command
from benchmarks import crops, load_generator, one_pass, rows, scale, service, starts, waits
from benchmarks.rows import Row, as_line, compared, excess, guarded, ratio, row
from photodup.bench.pairs.alternate import VisitPlan
from photodup.core.errors import PhotodupError
from photodup.photos.demo.photographs import SOURCES


def test_a_row_meets_its_goal_with_its_interval():
    states = [row("a", (0.96, low, 0.98), least=0.95).state for low in (0.95, 0.94)]
    assert [*states, row("a", (0.9, 0.8, 0.94), least=0.95).state] == ["met", "undecided", "missed"]
    assert row("a", 2.0, "s", most=1.5) == Row("a", 2.0, None, None, "s", most=1.5)
    assert row("a", 2.0, "s", most=1.5).state == "missed" and row("a", 2.0, most=2).state == "met"
    assert row("a", "no server.", least=1) == Row("a", least=1, because="no server.")
    assert row("a", 2.0).state == ""


def test_turns_become_a_ratio_and_a_difference_with_an_interval():
    """Visits are the unit; of one visit its palindromes, and a single one is no comparison."""
    slow = [10.0, 20.0, 11.0, 19.0] * 3
    fast = [12.0, 24.5, 13.0, 23.0, 12.5, 24.0, 13.3, 23.0, 12.1, 25.0, 13.0, 22.5]
    for visits in ([[slow, fast]], [[slow[:4], fast[:4]], [slow[2:6], fast[2:6]], [slow[8:], fast[8:]]]):
        outcome = compared(visits)
        (value, low, high), (more, *_) = ratio(outcome), excess(outcome)
        assert low < value < high and outcome.n_visits == (6 if len(visits) == 1 else 3)
        assert value == pytest.approx(outcome.value_b / outcome.value_a)
        assert more == pytest.approx(outcome.value_b - outcome.value_a)
    assert "at least 2 are needed" in row("a", ratio(compared([[slow[:2], fast[:2]]]))).because


def test_what_cannot_be_measured_is_a_row_that_says_why_and_a_mistake_is_none():
    def failing(error):
        yield row("first", 1.0)
        raise error

    told = list(guarded("all", lambda: failing(PhotodupError("There is no model: make one."))))
    assert [of.name for of in told] == ["first", "all"] and told[1].because == "There is no model: make one."
    assert "not measured: There is no model" in as_line(told[1])
    with pytest.raises(ValueError):
        list(guarded("all", lambda: failing(ValueError("ours"))))


def test_a_notebook_gets_the_figures_of_scale():
    (grouped,), searched = json.loads(run_benchmark("scale", "group", 300)), scale.search(300)
    assert grouped["rows"] == searched["photos"] == 300 and grouped["recall"] == searched["recall"] == 1


def test_crops_that_look_alike_are_grouped_and_the_command_writes_the_rows(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(crops.rows, "__defaults__", (24,))
    command.main(only=["crops"], json=tmp_path / "bench.json")
    document = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))
    a_pair, asked, library = (Row(**fields) for fields in document["rows"])
    assert as_line(library) in capsys.readouterr().out and "cores" in document["machine"]
    assert a_pair.value > 0 and asked.value > 0.5
    assert library.value == pytest.approx(a_pair.value * asked.value * crops.LIBRARY / 60_000)
    assert (library.goal, library.because) == ("≤ 25", "computed")


def test_every_benchmark_can_be_asked_for():
    for name in command.NAMES:
        assert callable(importlib.import_module(f"benchmarks.{name}").rows)


def test_the_library_imports_no_benchmark():
    for path in (ROOT / "lib").rglob("*.py"):
        assert not re.search(r"^\s*(from|import) benchmarks\b", path.read_text(encoding="utf-8"), re.M), path


def test_the_generator_is_compared_with_a_socket_and_with_wrk(monkeypatch):
    for name, value in {"CONCURRENCY": 1, "ROUNDS": 2}.items():  # several take seconds to start
        monkeypatch.setattr(load_generator, name, value)
    monkeypatch.setattr(load_generator.rows, "__kwdefaults__", {"seconds": 0.1})
    added, rate, share = load_generator.rows()
    assert added.unit == "ms" and added.low < added.value < added.high and rate.value > 0
    assert share.value or "wrk is not installed" in share.because


@pytest.fixture
def tiny(tmp_path, monkeypatch) -> str:
    for name, value in {"PLAN": VisitPlan(1, 0.1, alone_s=0, warmup_s=0), "BATCHES": 1, "VISITS": 2}.items():
        monkeypatch.setattr(service, name, value)
    return f"onnx:{tiny_graph(tmp_path / 'tiny.onnx')}"


def test_the_service_is_compared_with_the_model_in_process(tiny, monkeypatch):
    monkeypatch.setattr(service, "QUADS", 1)
    (one,) = guarded("int8", lambda: service.overhead("onnx", "int8", None, weights=tiny))
    assert "There is no INT8 file" in one.because
    one, eight = service.overhead("onnx", "fp32", 1.02, weights=tiny)
    assert (one.goal, eight.goal) == ("≤ 1.02", "≥ 0.95") and eight.low < eight.value < eight.high
    assert one.memory_mib == eight.memory_mib > 0
    assert one.low < one.value < one.high and " against " in one.because


@pytest.mark.long
def test_large_photographs_starts_one_pass_and_waits_are_rows(tiny, tmp_path, monkeypatch):
    """Real services, pages and scans: a row for each figure, whatever it is."""
    monkeypatch.setattr(waits, "build_dir", lambda: tmp_path)
    with pytest.raises(PhotodupError, match=r"get\.py drawn-again"):
        next(waits.rows())
    for name, source in enumerate(SOURCES[:2]):
        (tmp_path / "photographs" / "drawn").mkdir(parents=True, exist_ok=True)
        source.open().save(tmp_path / "photographs" / "drawn" / f"{name}.jpg")
    grouped = list(waits.rows())
    assert grouped[1].because == "1 groups"
    found = [
        *service.large("onnx", "fp32", weights=tiny, n=2),
        *service.first_answers("onnx", "fp32", weights=tiny, n=2),
        *starts.rows(2, 60),
        *one_pass.rows(2, 6, tiny, "local-onnx-fp32"),
        *grouped,
    ]
    assert all((o.value or 0) > 0 or o.because for o in found) and len({o.name for o in found}) == len(found)
    goals = [of.goal for of in found if of.goal]
    assert goals == ["≥ 0.8", "≥ 1.5", "≤ 2", "≤ 5", "≤ 1.5", "≤ 5", "≥ 38", "≥ 18", "≤ 150", "≤ 25"]


def test_committed_rows_are_a_table(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "reference_dir", lambda: tmp_path)
    assert rows.blocks() == {"speed": "Not measured in the committed run."}
    kept = [row("wait", (1.25, 1.2, 1.3), "s", most=2, memory_mib=99.6), row("no goal", 1.0)]
    (tmp_path / "bench.json").write_text(rows.as_json(kept), encoding="utf-8")
    machine, read = rows.committed()
    assert read == kept and "cores" in machine and machine in rows.blocks()["speed"]
    table = rows.blocks()["speed"]
    assert "1.25 [1.2, 1.3] s" in table and "100 MiB" in table and "no goal" not in table
    (tmp_path / "bench.json").write_text('{"rows": [{"speed": 1}]}', encoding="utf-8")
    with pytest.raises(PhotodupError, match=r"bench\.json cannot be read"):
        rows.committed()


@pytest.mark.figures
def test_the_peak_of_memory_is_the_process_own():
    """A child of a large process reports its own peak, and what it then takes."""
    ballast = np.ones(60_000_000)  # 480 MB here, in the parent
    code = (
        "import numpy as np; from benchmarks.scale import peak_memory_gb as peak; "
        "before = peak(); taken = np.ones(25_000_000); print(before, peak())"
    )
    said = run_python(code, check=True).stdout
    before, after = map(float, said.split())
    assert before < 0.4 and after - before > 0.15 and len(ballast)
