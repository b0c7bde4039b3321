"""Notebook 12 computes its verdicts: another comparison gives another verdict, and other rows another check."""

import contextlib
import io

import nbformat
import pytest
from support.paths import ROOT
from support.shell import executed
from support.visits import plant_visits

from photodup.bench.pairs.declared import declarations
from photodup.study import published

NOTEBOOK = ROOT / "notebooks" / "12_audit_published_claims.ipynb"
PAIRS = {pair.name: pair for pair in declarations().pairs}
JPEG, TENSOR = "gRPC against HTTP with a JPEG, one", "gRPC against HTTP with a tensor and no compute, one"
WAIT = "waiting 10 ms for a batch of 4, one"
REPRODUCED = "it reproduces 1, contradicts 0 and leaves 0 undecided"
CONTRADICTED = "it reproduces 0, contradicts 1 and leaves 0 undecided"


@pytest.fixture
def project(tmp_path):
    """A project whose only run is empty; the rest is this one, with a comparisons.yaml that a test may change."""
    for path in ROOT.iterdir():
        if path.name not in ("results", "notebooks", ".git"):
            (tmp_path / path.name).symlink_to(path)
    for folder in ("notebooks", "results"):
        (tmp_path / folder).mkdir()
    for path in (ROOT / "notebooks").iterdir():
        (tmp_path / "notebooks" / path.name).symlink_to(path)
    (tmp_path / "results" / "published").symlink_to(ROOT / "results" / "published")
    return tmp_path


def answer(project, monkeypatch):
    return executed(NOTEBOOK, project, monkeypatch, RUN="planted", RUNS=[])


@pytest.mark.parametrize(("planted", "expected"), [
    ([(JPEG, 1.1, 20)], REPRODUCED),
    ([(JPEG, 0.9, 20)], CONTRADICTED),
    ([(JPEG, 1.0, 20)], "it reproduces 0, contradicts 0 and leaves 1 undecided"),
    ([(JPEG, 1.1, 20), (TENSOR, 1.1, 20)], REPRODUCED),
    ([(JPEG, 1.1, 20), (TENSOR, 0.9, 20)], CONTRADICTED),  # both have to agree
    ([(WAIT, 1.4, 25)], REPRODUCED),  # the size in ms: 10 of 10.7
    ([(WAIT, 1.4, 100)], CONTRADICTED),  # 40 ms
])  # fmt: skip
def test_a_verdict_follows_the_comparison(project, monkeypatch, planted, expected):
    for name, ratio, value_a in planted:
        plant_visits(project / "results" / "planted", PAIRS[name], ratio, value_a=value_a)
    assert f"tests 1 of the study's claims: {expected}." in answer(project, monkeypatch)


def test_an_exploratory_comparison_decides_nothing(project, monkeypatch):
    plant_visits(project / "results" / "planted", PAIRS[JPEG], 1.1)
    path = project / "notebooks" / "comparisons.yaml"
    text = path.read_text(encoding="utf-8")
    start = text.index("{name: gRPC against HTTP with a JPEG,")
    line = text[start : text.index("\n", start)]
    path.unlink()
    path.write_text(text.replace(line, line.replace("primary: [one], ", "")), encoding="utf-8")
    assert "tests 0 of the study's claims" in answer(project, monkeypatch)


OTHER = {  # what the rows would have to say for a sentence to hold, or not to: the study prints that its servers saturate
    "bytes per second": {"step6a_a100_onnx_b32_throughput": 4.0},
    "round trips": {"step6a_a100_onnx_b32_throughput": 7.0},
    "share of the peak": {f"step5a_triton_b{n}_mean": n * 7.0 for n in (1, 4, 8, 16, 32)},
    "one kind of time": {"step6a_a100_onnx_gpu_compute": 1.0},
    "engines": {"step6a_a100_trt_gpu_compute": 3.7},
    "one load": {"step6a_rtx4080_onnx_b32_throughput": ("closed_loop", 1, 32)},
    "saturation": {"step6b_c64_throughput": 50.0},
    "pods against quota": {"k8s_quota_limits": 12.0},
}


@pytest.fixture(scope="module")
def checked():
    """Return what the cells of the checks note, by the check's name, and the ratios that do not follow."""
    cells = {cell.id: cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells}
    names = [
        "132ab898",
        *(name for name in cells if name.startswith("checks-") and "-md" not in name),
        "b25fd0ec",
    ]

    def check(rows):
        space = {"rows": rows, "claims": published.load_claims()}
        with contextlib.redirect_stdout(io.StringIO()):
            for name in names:
                exec(cells[name], space)
        return {row["check"]: row["result"] for row in space["checks"]}, set(space["wrong"].index)

    return check


def test_other_rows_turn_a_check(checked):
    rows, ratios = published.load_measurements(), published.load_ratios()
    printed, wrong = checked(rows)
    is_open = dict.fromkeys(["bytes per second", "round trips", "share of the peak"], "open")
    assert printed == dict.fromkeys([*OTHER, "printed ratios"], "does not hold") | is_open | {
        "saturation": "holds"
    }
    assert wrong == set(ratios.index[ratios["follows"] == "no"]), "what results/published says of each"
    for name, values in OTHER.items():
        other = rows.copy()
        for row, value in values.items():
            columns = ["scenario", "batch", "concurrency"] if isinstance(value, tuple) else "value"
            other.loc[row, columns] = value
        assert checked(other)[0][name] == ("does not hold" if name == "saturation" else "holds"), name
    typed = rows.copy()
    typed.loc["step5a_triton_b32_mean", "value"] /= 1000  # seconds in a column of milliseconds
    assert {"pytorch_vs_triton_b32_mean", "fix_b32"} <= checked(typed)[1]
