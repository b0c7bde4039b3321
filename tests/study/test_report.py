"""The pages made from records: runs side by side, and one run. Each law has its planted fault."""

import json
import os
import re
import shutil

import nbformat
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.paths import ROOT
from support.report_runs import write_notebook
from support.visits import plant_visits
from typer.main import get_command

from photodup.bench.pairs.declared import declarations
from photodup.bench.record import latencies
from photodup.bench.stats.comparison import Verdict
from photodup.cli import app
from photodup.core.errors import PhotodupError
from photodup.study.comparisons.outcomes import read_all, write_outcomes
from photodup.study.notebook import charts
from photodup.study.notebook.run import read_run
from photodup.study.report.facts import evidence, state_of
from photodup.study.report.page import write_report
from photodup.study.report.runs_table import write_runs


def edit(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def figure_files(project, run):
    return sorted((project / "results" / run / "records").glob("figure-*.json"))


def test_runs_side_by_side_are_one_table_of_the_loads_that_two_have(project):
    backends = {
        path: json.loads(path.read_text())["config"]["backend"] for path in figure_files(project, "b")
    }
    lacking, changed = sorted(set(backends.values()))[:2]
    for path, backend in backends.items():
        if backend == lacking:
            path.unlink()
        elif backend == changed:
            edit(path, lambda record: record["result"].update(throughput_images_per_s=98765.4))
    shutil.copytree(project / "results" / "b", project / "results" / "c")
    path = write_runs(["a", "b"])
    page = path.read_text()
    n = page.count("98,765")
    assert path.name == "beside-b.html" and n and lacking not in page
    assert "http://" not in page and "https://" not in page and "<script" not in page
    three = write_runs(["b", "a", "c"])
    assert three.name == "beside-a-c.html" and three.read_text().count("98,765") == 2 * n


def test_runs_of_two_models_say_so_before_any_number(project):
    assert "different models" not in write_runs(["a", "b"]).read_text()
    edit(project / "results" / "b" / "environment.json", lambda facts: facts["model"].update(digest="0" * 12))
    page = write_runs(["a", "b"]).read_text()
    assert page.index("different models") < page.index("images/s,")


@pytest.mark.parametrize(("runs", "sentence"), [
    (["a", "a"], "name each run once"),
    (["a", "nowhere"], "no run 'nowhere'.*there are a, b"),
])  # fmt: skip
def test_what_cannot_stand_side_by_side_is_said_in_one_sentence(project, runs, sentence):
    with pytest.raises(PhotodupError, match=sentence):
        write_runs(runs)


def everywhere(change):
    """Return what changes each mapping of a JSON file."""

    def changed(data):
        content = json.loads(data)
        rows = content if isinstance(content, list) else [content]
        return json.dumps([change(row) for row in rows] if rows is content else change(content)).encode()

    return changed


DAMAGED = {
    "cut short": lambda data: data[: len(data) // 2],
    "binary": lambda data: b"\x89PNG\xff\0" * 50,
    "empty": lambda data: b"",
    "nested": lambda data: b"[" * 100_000,
    "another kind": lambda data: b"5",
    "no keys": everywhere(lambda row: {}),
    "wrong values": everywhere(lambda row: dict.fromkeys(row, 5)),
    "wrong values within": everywhere(
        lambda row: {name: {"x": 5} if isinstance(value, dict) else value for name, value in row.items()}
    ),
}
# Of a run: which file, and what of the above is no damage to it.
RECEIVED = {
    "environment.json": {"no keys", "wrong values within"},
    "study.json": {"wrong values within"},
    "outcomes.json": {"wrong values within"},
    "records/figure-*.json": set(),
    "records/visit-*.json": {"a pipe"},  # which counts as no file
    "notebooks/01_one.ipynb": {"wrong values within", "a pipe"},
    "latencies.parquet": {"a pipe", *DAMAGED} - {"cut short", "binary", "empty"},
}


def received_run(deck):
    """Give run `a` everything that a run holds, and return what makes pages and lists of it."""
    directory = deck / "results" / "a"
    shutil.copy(ROOT / "notebooks" / "comparisons.yaml", deck / "notebooks")
    pair = declarations().pairs[0]
    for run in (directory, directory.with_name("b")):
        plant_visits(run, pair, 1.1)
        latencies.compact(run)
    run = read_run(directory)
    write_outcomes(run)
    row = {"notebook": "01_one", "status": "passed", "seconds": 1.0, "parameters": {"N": 8}}
    (directory / "study.json").write_text(json.dumps([row]))
    return directory, [
        lambda: write_report("a"),
        lambda: write_runs(["a", "b"]),
        lambda: read_all(read_run(directory)),
    ]


def test_a_damaged_run_is_one_sentence_that_names_the_file(deck):
    (directory, makers), failures = received_run(deck), []
    for make in makers:
        make()
    for name, harmless in RECEIVED.items():
        first = makers[-1:] if "visit" in name else makers[:1]
        path = sorted(directory.glob(name))[0]
        whole = path.read_bytes()
        for damage in [*DAMAGED, "a pipe"]:
            if damage in harmless:
                continue
            path.unlink()
            os.mkfifo(path) if damage == "a pipe" else path.write_bytes(DAMAGED[damage](whole))
            said = []
            # Each file by its first reader, and cut short by all.
            for make in makers if damage == "cut short" else first:
                try:
                    make()
                except PhotodupError as error:
                    said.append(str(error))
            of = "records" if name.startswith("records") else path.name
            is_named = all(of in one and "delete it" in one and "\n" not in one for one in said)
            if not said or not is_named:
                failures.append((name, damage, said))
            path.unlink()
            path.write_bytes(whole)
    assert not failures


def test_a_file_that_unpacks_to_more_than_a_run_has_is_not_read(deck):
    directory, _ = received_run(deck)
    n = 60_000_000  # equal values: kilobytes
    column = pa.DictionaryArray.from_arrays(np.zeros(n, np.int8), pa.array(["x"]))
    pq.write_table(pa.table({"record": column}), directory / "latencies.parquet")
    assert (directory / "latencies.parquet").stat().st_size < 300_000
    with pytest.raises(PhotodupError, match=r"latencies.parquet cannot be read \(60,000,000 rows"):
        write_report("a")
    for names in (["x" * 20_000] * 20_000, ["x", None]):  # 400 MB; a row of no record
        rows = pa.table({"record": names, "request": pa.array(range(len(names)), pa.int32())})
        pq.write_table(rows, directory / "latencies.parquet")
        with pytest.raises(PhotodupError, match=r"latencies.parquet cannot be read \(a row names no record"):
            write_report("a")


# One run


def test_the_report_opens_with_its_findings(deck):
    directory = deck / "results" / "a"
    for folder in (deck / "notebooks", directory / "notebooks"):
        path = folder / "05_trt_fp16.ipynb"
        write_notebook(path, "05 · Reduce", "Which?", printed="BF16 is enough")
        notebook = nbformat.read(path, as_version=4)
        notebook.cells[2].metadata["tags"] = ["figure"]
        nbformat.write(notebook, path)
    (directory / "figures").mkdir()
    (directory / "figures" / "05_decisions.csv").write_text("panel,series,x,y\n")
    row = {"notebook": "05_trt_fp16", "status": "passed", "seconds": 7.4, "parameters": {}, "sizes": "quick"}
    (directory / "study.json").write_text(json.dumps([row]))
    page = write_report("a").read_text()
    assert page.count("data:image/png") == 1, "only a finding's; the others stand in their notebooks"
    figure = page.index("data:image/png")
    assert page.index("Which precision may be served?") < page.index("BF16 is enough") < figure
    assert figure < page.index("The questions") < page.index('href="notebooks/01_one.html"')
    assert page.count('href="figures/05_decisions.csv"') == 1
    assert '<td data-label="seconds">7</td>' in page and "make study RUN=my-run SIZES=quick" in page
    shutil.copy(ROOT / "notebooks" / "comparisons.yaml", deck / "notebooks")
    write_notebook(deck / "notebooks" / "07_scale_gpus.ipynb", "07 · Scale", "How many GPUs?")
    assert '<span class="badge needs_a_GPU">needs a GPU</span>' in write_report("a").read_text()


def test_the_data_of_a_figure_names_its_series_and_rows_and_holds_no_lines_across_a_panel():
    from matplotlib.figure import Figure

    left, middle, right = (figure := Figure()).subplots(1, 3)
    left.plot([1, 2], [3.0, 4.5], label="FastAPI")
    left.plot(3, 6.0, "o", color=left.lines[0].get_color())
    left.plot(4, 7.0, "o", label="_hidden from the legend")
    left.axhline(9)
    left.legend()
    left.set(title="p50")
    middle.barh(["a", "b"], [0.5, 1], color="#112233")
    charts.interval_row(right, 0, 0.25, (0.125, 0.5), color="#445566")
    charts.name_rows(right, ["INT8"])
    right.set(xlabel="images/s")
    found = [line.split(",") for line in charts.data_of(figure).splitlines()]
    assert found[0] == ["panel", "series", "x", "y"]
    assert found[1:3] == [["p50", "FastAPI", "1", "3"], ["p50", "FastAPI", "2", "4.5"]]
    assert found[3:5] == [["p50", "FastAPI", "3", "6"], ["p50", "hidden from the legend", "4", "7"]]
    assert found[5:7] == [["2", "", "0.5", "a"], ["2", "", "1", "b"]]
    assert found[7:] == [
        ["3", s, x, "INT8"] for s, x in (("interval", "0.125"), ("interval", "0.5"), ("images/s", "0.25"))
    ]


def missing_places(prose):
    """Return what tables of places name that is not there: files, commands, targets of make."""
    commands, targets = get_command(app).commands, (ROOT / "Makefile").read_text()
    found = []
    for row in (line for line in prose.splitlines() if line.startswith("|")):
        for name in re.findall(r"`([^`]+)`", row.rstrip("|").rpartition("|")[2]):
            first, _, rest = name.partition(" ")
            if first == "photodup":
                found += [] if rest.split()[0] in commands else [name]
            elif first == "make":
                found += [] if re.search(rf"^{rest}:", targets, re.MULTILINE) else [name]
            elif "/" in name or "." in name:
                found += [] if (ROOT / name).exists() else [name]
    return found


def test_the_places_of_the_published_study_are_there():
    assert missing_places((ROOT / "docs/published-map.md").read_text(encoding="utf-8")) == []
    planted = "| there | `lib/photodup/nowhere.py`, `photodup frobnicate X`, `make nothing`, `docker/` |"
    assert missing_places(planted) == ["lib/photodup/nowhere.py", "photodup frobnicate X", "make nothing"]


MEASURED = re.compile(
    r"(?<![\w.])\d[\d.,]*\s?(?:ms|µs|s|images/s|img/s|MB/s|Mbit/s|[KMG]B|GiB|%|×|x|TFLOP/s)(?![\w/])|\$\s?\d"
)


def typed_numbers(text):
    """Return the rows of tables that hold a number with a unit and are not between markers of a generated part."""
    text = re.sub(r"<!-- ([\w-]+):begin -->.*?<!-- \1:end -->", "", text, flags=re.DOTALL)
    return [line for line in text.splitlines() if line.lstrip().startswith("|") and MEASURED.search(line)]


def test_no_table_in_the_documents_holds_a_number_that_nobody_generates():
    """Prose tables of the notebooks too: their numbers are printed by cells, from records."""
    documents = {
        path: path.read_text(encoding="utf-8")
        for folder in (".", "docker", "k8s", "results/published", "model_repository")
        for path in sorted((ROOT / folder).glob("*.md"))
    }
    for path in sorted((ROOT / "notebooks").glob("[0-9]*.ipynb")):
        cells = nbformat.read(path, as_version=4).cells
        documents[path] = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    assert len(documents) > 10
    assert {path.name: rows for path, text in documents.items() if (rows := typed_numbers(text))} == {}


@pytest.mark.parametrize("number", ["12 ms", "1.8×", "45%", "$0.33", "1,058x", "20.0 images/s", "12.5 MB/s"])
def test_a_number_typed_into_a_table_is_seen(number):
    row = f"| backend | {number} |"
    assert typed_numbers(f"text {number}\n\n{row}") == [row]
    assert typed_numbers(f"<!-- results:begin -->\n{row}\n<!-- results:end -->") == []
    assert typed_numbers("| Step 5A | port 8002, 4 RTX 4080, batch 32 |") == []


def test_the_index_says_what_became_of_a_question_from_outcomes_and_not_that_a_notebook_passed(tmp_path):
    stem = "07_scale_gpus"
    primary = [pair.name for pair in declarations().pairs if pair.notebook == stem and pair.is_primary]
    found, open_, gone = (
        {"verdict": str(verdict), "excludes_beyond": 0.3}
        for verdict in (Verdict.BEYOND, Verdict.NOT_FOUND, Verdict.NOT_MEASURED)
    )

    def state(*rows):
        named = [row | {"name": name} for name, row in zip(primary, rows, strict=False)]
        (tmp_path / "outcomes.json").write_text(json.dumps(named))
        return state_of(evidence(tmp_path, stem), "passed")

    assert state_of(evidence(tmp_path, stem), "passed") == state() == "not measured"
    assert state(found, found, found) == state(found) == "decided", "what a run did not plan is no part of it"
    assert state(found, open_, found) == state(found, gone, gone) == "partly"
    assert state(open_, open_) == state(gone) == "undecided"
    assert state(open_ | {"excludes_beyond": 0.05}) == "decided"
    assert evidence(tmp_path, stem) == {primary[0]: "decides"}
    assert state_of({}, "timeout") == "timeout" and state_of({}, "not_run") == "not run"
    assert evidence(tmp_path, "02_export_to_onnx") == {"onnx-parity": "not measured"}
    assert state_of({"onnx-parity": "not measured"}, "passed") == "not measured"
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "onnx-parity-12345678.json").write_text("{}")
    assert evidence(tmp_path, "02_export_to_onnx") == {"onnx-parity": "decides"}
    own, other = tmp_path / "run", tmp_path / "peers" / "records"
    assert evidence(own, "13_compare_servers") == {"peers/visit-": "not measured"}
    other.mkdir(parents=True)
    (other / "visit-infinity-one-12345678.json").write_text("{}")
    assert evidence(own, "13_compare_servers") == {"peers/visit-": "decides"}
