"""Running notebooks: a cell that hangs is stopped, finished work is not done again."""

import json
import os

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from support.command import one_sentence
from support.report_runs import PIXEL

from photodup.core.errors import PhotodupError
from photodup.study.notebook.files import source_sha256
from photodup.study.notebook.opening import write_opening
from photodup.study.notebook.run import open_run
from photodup.study.report.cells import render_notebook
from photodup.study.report.page import write_report
from photodup.study.runner import execute
from photodup.study.runner.execute import execute_notebook, run_study

ENDPOINTS = "name: nowhere\nbackends:\n  fastapi-pytorch-fp32-http-jpeg: http://127.0.0.1:1\n"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project of two small notebooks, with servers that nobody needs."""
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "quick.yaml").write_text("01_ok: {N: 2}\n")
    (tmp_path / "endpoints.yaml").write_text(ENDPOINTS)
    monkeypatch.setenv("PHOTODUP_ROOT", str(tmp_path))
    write_notebook(tmp_path / "notebooks" / "01_ok.ipynb", "print(f'{RUN} {N}')")
    return tmp_path


def write_notebook(path, *code, tags=("answer",)):
    opening = "# 01 · Work\n\n**Question.** Does it <work>?\n\n**Answer** (reference run). ?\n\n**Needs**"
    parameters = 'RUN: str = "x"  # run\nN: int = 5  # how many'
    cells = [new_markdown_cell(opening), new_code_cell(parameters, metadata={"tags": ["parameters"]})]
    cells += [new_code_cell(source, metadata={"tags": list(tags)}) for source in code]
    notebook = new_notebook(cells=cells)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, path)


def executed(path, source, printed):
    """Write a notebook whose last cell has printed; return it as read."""
    write_notebook(path, source)
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[-1].outputs = [new_output("stream", text=printed)]
    nbformat.write(notebook, path)
    return notebook


def study(project, **options):
    return run_study("mine", endpoints=project / "endpoints.yaml", **options)


def test_a_study_runs_its_notebooks_with_their_sizes_and_not_again_until_their_code_changes(project, capsys):
    (outcome,) = study(project)
    out, err = capsys.readouterr()
    assert "01_ok:   0%" in err, "papermill's progress"
    assert "01_ok passed after" in out
    assert outcome.status == "passed"
    index = (project / "results" / "mine" / "index.html").read_text()
    assert "mine 2" in index, "the answer of this run"
    assert "Does it &lt;work&gt;?" in index, "escaped"
    assert (project / "results" / "mine" / "notebooks" / "01_ok.html").is_file()
    path = project / "results" / "mine" / "notebooks" / "01_ok.ipynb"
    first = path.stat().st_mtime_ns
    study(project)
    assert path.stat().st_mtime_ns == first
    (outcome,) = study(project, again=True, sizes="full")
    assert outcome.parameters == {"RUN": "mine"}, "full sizes are the notebook's own"
    second = path.stat().st_mtime_ns
    assert second > first
    write_notebook(project / "notebooks" / "01_ok.ipynb", "print(N)")
    study(project, sizes="full")
    assert path.stat().st_mtime_ns > second


def test_a_run_has_one_set_of_weights(project, monkeypatch):
    monkeypatch.setenv("MODEL_PRETRAINED", "random:1")  # which the study changes
    study(project, weights="random:1")
    run = open_run("mine", endpoints=project / "endpoints.yaml")
    with run.store:
        run.measure_or_load("point", lambda: {"n": 1})
    study(project, weights="random:1")
    with one_sentence("mine was measured with the weights random:1, not random:2: name another run"):
        study(project, weights="random:2")


def test_a_failing_notebook_is_reported_and_the_others_still_run(project, capsys):
    write_notebook(project / "notebooks" / "00_bad.ipynb", "raise ValueError('the reason')")
    good, bad = study(project)  # 00 is run last: it quotes the others
    assert "00_bad failed after" in (out := capsys.readouterr().out) and "the reason" in out
    assert (bad.status, good.status) == ("failed", "passed")
    assert "the reason" in bad.error
    stored = json.loads((project / "results" / "mine" / "study.json").read_text())
    assert [row["status"] for row in stored] == ["failed", "passed"]


def test_a_notebook_without_a_program_prints_what_it_lacks_and_goes_on(project):
    tool = "from photodup.study.kubernetes import tool\nfrom photodup.study.notebook.gaps import print_gaps\nprint_gaps()"
    missing = "kubectl = tool('a-program-nobody-has')"
    write_notebook(project / "notebooks" / "01_ok.ipynb", tool, missing, "print('went on')")
    (outcome,) = study(project)
    text = (project / "results" / "mine" / "notebooks" / "01_ok.ipynb").read_text()
    assert outcome.status == "passed" and "went on" in text
    assert "Not measured: a-program-nobody-has was not found: run k8s/get-tools.sh" in text


@pytest.mark.timeout(600)
def test_a_cell_that_takes_too_long_ends_its_notebook(project, tmp_path, monkeypatch):
    monkeypatch.setattr("photodup.study.runner.execute.LONGEST_CELL_S", 3)
    write_notebook(project / "notebooks" / "02_slow.ipynb", "import time; time.sleep(3600)")
    outcome = execute_notebook(project / "notebooks/02_slow.ipynb", tmp_path / "out.ipynb", {})
    assert outcome.status == "timeout" and "longer than 3 s" in outcome.error


@pytest.mark.parametrize("name", ["..", "../x", "/etc", "a/b", "x" * 300, "a\n", "", "\x1b[2J"])
def test_a_name_that_leads_elsewhere_is_refused_and_nothing_is_written(project, name):
    before = sorted(project.rglob("*"))
    nowhere = {"endpoints": project / "endpoints.yaml"}
    for use in (
        lambda: open_run(name, **nowhere),
        lambda: run_study(name, **nowhere),
        lambda: execute.measure_pairs(name),
        lambda: write_report(name),
    ):
        with one_sentence(r"is no run name|RUN should be a text"):
            use()
    assert sorted(project.rglob("*")) == before


ODD = [{"run": ["x"]}, {"run": "-5"}, {"gpu": "x" * 300}, {"gpus": "two"}, {"price_per_hour": "free"}]
ODD += [{"endpoints": file} for file in (5, {"a": 1}, "\x1b[2J", "/dev/zero", "pipe")]
LINES = ("h:1,2,3,4,5", "h:70000", "h:0", "h:1,,2", "a..b:9", f"h:{10**30}", "h:9/../x", "h:1\nx")
ODD += [{"endpoints": line} for line in LINES]


@pytest.mark.parametrize("given", ODD)
def test_a_parameter_that_cannot_be_is_one_sentence(project, given):
    os.mkfifo(project / "pipe")
    before = sorted(project.rglob("*"))
    with one_sentence():
        open_run(**{"endpoints": project / "endpoints.yaml"} | given)
    assert sorted(project.rglob("*")) == before


@pytest.mark.parametrize("wrong", ["tiny", ""])
def test_unknown_sizes(project, wrong):
    with pytest.raises(PhotodupError, match="quick"):
        study(project, sizes=wrong)


def test_unknown_notebooks_and_runs_are_named(project):
    with pytest.raises(PhotodupError, match="No notebook begins with '77'"):
        study(project, only=["77"])
    with pytest.raises(PhotodupError, match="no run 'nowhere'"):
        write_report("nowhere")


def test_an_address_line_never_reads_the_reference_run(project, monkeypatch):
    monkeypatch.setenv("PHOTODUP_MEASURE", "0")
    run = open_run(endpoints="203.0.113.7:47150, 47088,47037,47012")
    assert run.name == "203.0.113.7-47088"
    assert run.endpoints.backends["triton-onnx-fp32-grpc-jpeg"] == "203.0.113.7:47037"
    assert run.endpoints.metrics["triton"] == "http://203.0.113.7:47012/metrics"
    service = open_run(endpoints="[2001:db8::1]:8002")
    assert service.name == "2001-db8-1-8002" and {*service.endpoints.backends.values()} == {
        "http://[2001:db8::1]:8002"
    }


def test_a_run_opened_for_reading_measures_nothing(project, monkeypatch):
    monkeypatch.setenv("PHOTODUP_MEASURE", "0")
    run = open_run("mine", endpoints=project / "endpoints.yaml")
    result = run.measure_or_load("anything", lambda: pytest.fail("measured"), may_fail=True)
    assert result["status"] == "missing"
    with pytest.raises(PhotodupError, match="anything was not measured"):
        run.measure_or_load("anything", lambda: pytest.fail("measured"))


def test_a_failed_measurement_names_its_reason_and_is_tried_again(project):
    run = open_run("mine", endpoints=project / "endpoints.yaml")
    with pytest.raises(PhotodupError, match="point: ConnectionError: the reason"):
        run.measure_or_load("point", lambda: (_ for _ in ()).throw(ConnectionError("the reason")))
    assert run.measure_or_load("point", lambda: {"n": 1}) == {"n": 1}
    run.store.close()


def test_the_digest_sees_code_and_tags_but_not_prose_or_outputs(tmp_path):
    path = tmp_path / "01_x.ipynb"
    write_notebook(path, "print(1)")
    digest = source_sha256(path)
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[0].source += " more prose"
    notebook.cells[-1].outputs = [new_output("stream", text="1")]
    nbformat.write(notebook, path)
    assert source_sha256(path) == digest
    write_notebook(path, "print(2)")
    assert source_sha256(path) != digest
    write_notebook(path, "print(1)", tags=())
    assert source_sha256(path) != digest


def test_the_opening_cell_shows_the_computed_answer_the_figure_and_the_sections(tmp_path):
    path = tmp_path / "01_x.ipynb"
    notebook = executed(path, "print('42 of them')", "42 of\nthem\n")
    opening = notebook.cells[0]
    write_opening(notebook)
    assert "**Answer** (reference run). 42 of them\n\n**Needs**" in opening.source
    assert "attachments" not in opening
    figure = new_code_cell("draw()", metadata={"tags": ["figure"], "jupyter": {"source_hidden": True}})
    shown = {"metadata": {"image/png": {"alt": "It is 42"}}, "data": {"image/png": PIXEL}}
    figure.outputs = [new_output("display_data", **shown)]
    notebook.cells += [new_markdown_cell("## What it is\n\nText."), figure]
    nbformat.write(notebook, path)
    write_opening(notebook)
    write_opening(notebook)
    page = render_notebook(path, "mine")
    assert opening.source.count("![It is 42](attachment:answer.png)\n\n**Needs**") == 1
    assert page.count('alt="It is 42"') == 1, "a page shows it once, its finding is the alternative text"
    assert opening.source.count("**Contents** [What it is](#What-it-is)") == 1
    assert opening.attachments["answer.png"]["image/png"]
    assert "(run mine). 42 of them" in page, "a page of another run does not quote the reference run"
    assert page.count("data:image/png;base64,") == 1
    assert 'id="What-it-is"' in page
    assert page.count("<details>") >= 2 and "<details open" not in page, "code is folded"


def test_notebook_pages_need_no_network_and_escape_what_was_printed(tmp_path):
    path = tmp_path / "01_x.ipynb"
    executed(path, "print(1)", "<script>alert(1)</script>")
    page = render_notebook(path, "mine")
    assert "<script" not in page
    assert "http://" not in page and "https://" not in page
