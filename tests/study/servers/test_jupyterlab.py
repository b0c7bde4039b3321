"""JupyterLab as people use it: `make lab`, open a notebook in a browser, run all cells, read the answer."""

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time

import nbformat
import pytest
from support.paths import CHROMIUM, ROOT
from support.service import answers, until

if CHROMIUM is None:
    pytest.skip("Chromium is not installed (apt-get install chromium)", allow_module_level=True)
if shutil.which("make") is None:
    pytest.skip("make is not installed", allow_module_level=True)

LEAVE = shutil.ignore_patterns(
    ".git", ".venv*", "build", "node_modules", "__pycache__", ".*_cache", ".ipynb_checkpoints"
)
pytestmark = pytest.mark.long
START_S, RUN_ALL_S = 90, 240


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the working tree that the browser may save into; its environment is the real one."""
    copy = tmp_path_factory.mktemp("lab") / "photodup"
    shutil.copytree(ROOT, copy, ignore=LEAVE, symlinks=True)
    (copy / ".venv").symlink_to(sys.prefix)
    planted = nbformat.read(copy / "notebooks" / "08_compare_grpc_http.ipynb", as_version=4)
    planted.cells.insert(4, nbformat.v4.new_code_cell("raise RuntimeError('planted fault')"))
    nbformat.write(planted, copy / "notebooks" / "planted_fault.ipynb")
    return copy


@pytest.fixture(scope="module")
def lab(checkout, tmp_path_factory):
    """The address of what `make lab` starts, with a token; stopped afterwards with its kernels."""
    home, token = tmp_path_factory.mktemp("home"), secrets.token_hex(16)
    options = f"--no-browser --allow-root --port=0 --IdentityProvider.token={token} --ServerApp.ip=127.0.0.1"
    environment = {
        **os.environ, "HOME": str(home), "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_DATA_DIR": str(home / "data"), "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"), "PHOTODUP_ROOT": str(checkout),
        "PHOTODUP_MEASURE": "0", "MPLCONFIGDIR": str(home / "matplotlib"),
    }  # fmt: skip
    log = home / "lab.log"
    with log.open("wb") as output:
        process = subprocess.Popen(  # -o install: what is installed here is what runs, whatever its age
            ["make", "-o", "install", "lab", f"LAB_OPTIONS={options}"],
            cwd=checkout,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield _address(process, log), token
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _address(process, log):
    def address():
        text = log.read_text(errors="replace")
        assert process.poll() is None, f"`make lab` did not start: {text[-2000:]}"
        found = re.search(r"(http://127\.0\.0\.1:\d+)/", text)
        return found[1] if found and answers(f"{found[1]}/api") else ""

    until(address, START_S)
    return address()


def run_all(browser, lab, checkout, name):
    """Open a notebook, choose Run > Run All Cells, wait until the kernel is idle, save; return file and page."""
    address, token = lab
    path = checkout / "notebooks" / f"{name}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:  # so that nothing committed can pass for what this browser ran
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    nbformat.write(notebook, path)
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.goto(f"{address}/lab/workspaces/{name}/tree/{name}.ipynb?token={token}")
    page.locator(".jp-Notebook .jp-Cell").first.wait_for(timeout=60_000)
    # The toolbar's circle is idle before there is a kernel, and running then asks which one to start.
    page.get_by_text("| Idle").wait_for(timeout=60_000)
    page.locator(".lm-MenuBar-item").filter(has_text=re.compile("^Run$")).click()
    page.locator("li[data-command='runmenu:run-all']").click()
    deadline = time.monotonic() + RUN_ALL_S
    while time.monotonic() < deadline:
        page.keyboard.press("Control+s")
        time.sleep(1.5)
        notebook = nbformat.read(path, as_version=4)
        found = errors(notebook)
        if not found or any("did not run" not in one for one in found):
            break
    return notebook, page


def errors(notebook):
    """Every error output, and every code cell that did not run."""
    found = []
    for index, cell in enumerate(c for c in notebook.cells if c.cell_type == "code" and c.source.strip()):
        found += [f"{o.ename}: {o.evalue}" for o in cell.outputs if o.output_type == "error"]
        if cell.execution_count is None:
            found.append(f"code cell {index} did not run")
    return found


@pytest.mark.parametrize("name", ["00_start_here", "08_compare_grpc_http"])
def test_a_notebook_runs_in_jupyterlab_from_the_committed_records(browser, lab, checkout, name):
    committed = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    notebook, page = run_all(browser, lab, checkout, name)
    assert errors(notebook) == []
    assert page.locator(".jp-OutputArea-output").filter(has_text="Traceback").count() == 0
    answer = _answer(notebook)
    assert answer == _answer(committed), "the answer of the committed records"
    cell = page.locator(".jp-Notebook .jp-CodeCell").filter(has_text=answer.split(". ")[0][:60]).last
    page.locator(".jp-Notebook .jp-MarkdownCell").last.scroll_into_view_if_needed()
    cell.scroll_into_view_if_needed(timeout=20_000)
    assert answer in " ".join(cell.locator(".jp-OutputArea-output").first.inner_text().split()), "on screen"
    page.close()


def test_a_cell_that_raises_is_seen(browser, lab, checkout):
    notebook, page = run_all(browser, lab, checkout, "planted_fault")
    assert errors(notebook)[0] == "RuntimeError: planted fault"
    assert len(errors(notebook)) > 1, "what follows did not run"
    assert page.locator(".jp-OutputArea-output").filter(has_text="Traceback").count() > 0
    page.close()


def _answer(notebook):
    cell = next(c for c in notebook.cells if "answer" in c.metadata.get("tags", []))
    return " ".join("".join(o.get("text", "") for o in cell.outputs).split())
