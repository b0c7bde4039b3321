"""A run, or any folder, that somebody gave me may hold links where photodup writes: nothing goes through one."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.command import one_sentence
from support.hostile_library import tree
from support.plants import PLANTS

from photodup.bench.anyurl import report as load_report
from photodup.bench.record import latencies
from photodup.bench.record.store import RunStore
from photodup.core.errors import PhotodupError
from photodup.photos.demo.photographs import build_demo
from photodup.serving.endpoints import from_ports, save_endpoints
from photodup.study.notebook import charts
from photodup.study.report.page import write_report
from photodup.study.report.runs_table import write_runs
from photodup.study.runner.execute import execute_notebook


def measured(run: Path) -> None:
    with RunStore(run) as store:
        store.measure_or_load("new", lambda: {"value": 1.5, "raw": {"latency_ms": [1.0, 2.0]}}, config={})


def compacted(run: Path) -> None:
    latencies.write_part(next((run / "records").glob("figure-*.json")), {"latency_ms": [1.0]})
    latencies.compact(run)


def drawn(run: Path) -> None:
    from matplotlib.figure import Figure

    charts.save(Figure(), SimpleNamespace(directory=run), "chart")


def executed(run: Path) -> None:
    source = run.parents[1] / "notebooks" / "01_one.ipynb"
    source.write_text(source.read_text().replace("secret_code()", "1"))
    execute_notebook(source, run / "notebooks" / source.name, {}, within=run.parent)


# What is written below results/a, by what writes it.
OUTPUTS = {
    "index.html": lambda run: write_report("a"),
    "notebooks/01_one.html": lambda run: write_report("a"),
    "beside-b.html": lambda run: write_runs(["a", "b"]),
    "latencies.parquet": compacted,
    "environment.json": measured,
    "figures/chart.png": drawn,
}
FOLDERS = {"notebooks": lambda run: write_report("a"), "records": measured, "figures": drawn}


@pytest.mark.parametrize("planted", PLANTS)
@pytest.mark.parametrize("output", OUTPUTS)
def test_nothing_is_written_through_what_has_the_name_of_an_output(deck, mine, output, planted):
    run = deck / "results" / "a"
    path = run / output
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    PLANTS[planted](path, mine / "letter")
    before = tree(mine)
    if output == "environment.json" and planted != "a link to nothing":
        return  # it is read first, and is no JSON
    with pytest.raises(PhotodupError, match=rf"{path.name} (is not written|cannot be read) \(.*: [^\n]*\.$"):
        OUTPUTS[output](run)
    assert tree(mine) == before


@pytest.mark.parametrize("planted", ["a symbolic link", "a pipe"])
@pytest.mark.parametrize("folder", FOLDERS)
def test_no_folder_in_a_run_leads_elsewhere(deck, mine, folder, planted):
    run = deck / "results" / "a"
    path = run / folder
    if path.exists():
        shutil.copytree(path, mine, dirs_exist_ok=True)
        shutil.rmtree(path)
    PLANTS[planted](path, mine)
    before = tree(mine)
    if folder == "notebooks" and planted == "a pipe":
        write_report("a")  # there is no executed notebook, so that none gets a page
    else:
        with pytest.raises(
            PhotodupError, match=rf"a/{folder}\S* (is not written|cannot be read) \(.*: [^\n]*\.$"
        ):
            FOLDERS[folder](run)
    assert tree(mine) == before


def test_the_parts_of_a_run_are_not_deleted_through_a_link(deck, mine):
    run = deck / "results" / "a"
    measured(run)
    latencies.write_part(next((run / "records").glob("new-*.json")), {"latency_ms": [1.0]})
    shutil.copytree(run / "records", mine, dirs_exist_ok=True)
    shutil.rmtree(run / "records")
    (run / "records").symlink_to(mine)
    before = tree(mine)
    with one_sentence(r"a/records is not written \(a folder on the way is a symbolic link\)"):
        latencies.compact(run)
    assert tree(mine) == before


def test_a_run_that_is_a_link_is_not_written(deck, mine):
    run = deck / "results" / "a"
    shutil.copytree(run, mine, dirs_exist_ok=True)
    shutil.rmtree(run)
    run.symlink_to(mine)
    before = tree(mine)
    for write in (*OUTPUTS.values(), *FOLDERS.values()):
        with one_sentence(
            r"results/a\S* (is not written|cannot be read) \(.*a folder on the way is a symbolic link"
        ):
            write(run)
        assert tree(mine) == before


@pytest.mark.parametrize("name", ["notebooks/01_one.ipynb", "notebooks", "study.json"])
def test_nothing_of_this_disk_is_shown_through_a_link(deck, mine, name):
    run = deck / "results" / "a"
    path, theirs = run / name, mine / Path(name).name
    if not path.exists():
        path.write_text("[]")
    path.rename(theirs)
    path.symlink_to(theirs)
    with one_sentence("cannot be read"):
        write_report("a")
    assert not (run / "index.html").exists()


@pytest.mark.long
@pytest.mark.parametrize("planted", PLANTS)
def test_an_executed_notebook_is_not_written_through_what_has_its_name(deck, mine, planted):
    run = deck / "results" / "a"
    path = run / "notebooks" / "01_one.ipynb"
    path.unlink()
    PLANTS[planted](path, mine / "letter")
    before = tree(mine)
    with pytest.raises(PhotodupError, match=r"01_one\.ipynb is not written"):
        executed(run)
    assert tree(mine) == before


ELSEWHERE = {
    "result.json": lambda folder: load_report.write(folder, {}, {}, "page"),
    "ground_truth.json": build_demo,
    "2019": build_demo,
    "endpoints.yaml": lambda folder: save_endpoints(from_ports(), folder / "endpoints.yaml"),
}


@pytest.mark.parametrize("planted", PLANTS)
@pytest.mark.parametrize("output", ELSEWHERE)
def test_nothing_is_written_through_what_is_in_a_folder_that_the_user_names(tmp_path, mine, output, planted):
    folder = tmp_path / "named"
    folder.mkdir()
    is_folder = output == "2019"
    if (is_folder and planted == "a folder") or (output == "endpoints.yaml" and "link" in planted):
        return  # as it should be; and of a file that is named itself, the link is the user's
    PLANTS[planted](folder / output, mine if is_folder and planted == "a symbolic link" else mine / "letter")
    before = tree(mine)
    with pytest.raises(PhotodupError, match=r"[^\n]*(not written|is there and is no part)[^\n]*"):
        ELSEWHERE[output](folder)
    assert tree(mine) == before
