"""Every place that writes a file past `photodup.files` and `photodup.safe_open`, with the reason why it may."""

import ast
import re

import pytest
from support.paths import ROOT
from support.sources import everywhere, places

_ALWAYS = {"write_text", "write_bytes", "copyfile", "copy2", "copytree", "copyfileobj", "savez", "symlink_to"}
SCRATCH = "in a scratch folder that it made itself, or under the new name that `replacing` gives"
LOG = "what a process says, in build/ of this checkout"

REASONS = {
    "lib/photodup/safe_open.py:writing": "the one writer",
    "lib/photodup/safe_open.py:open_file": "opens what is there; who makes a file with it is listed here",
    # ---- the photo application
    "lib/photodup/photos/state/journal.py:Journal._writable": "lines are appended; links of either kind are refused",
    "lib/photodup/photos/state/journal.py:Journal._drop_cut_line": "the file that `_writable` opened",
    "lib/photodup/photos/state/journal.py:Journal.exclusive": "an empty lock beneath the opened folder",
    "lib/photodup/photos/trash/trash_files.py:copy_file": "a part beneath the opened folder, made anew",
    "lib/photodup/photos/search/candidates.py:_write": "into the file that the own folder opened",
    "lib/photodup/photos/search/neighbours.py:NeighbourIndex.save": "into the file that the own folder opened",
    "lib/photodup/photos/quality/shown.py:_put": SCRATCH,
    "lib/photodup/demo/photographs.py:_put": SCRATCH,
    # ---- the laboratory
    "lib/photodup/selfbench/load_generator.py:_wrk_per_s": SCRATCH,
    "lib/photodup/selfbench/one_pass.py:_make": SCRATCH,
    "lib/photodup/serving/process/process.py:ServerProcess.__init__": LOG,
    "lib/photodup/serving/vast.py:_leave_watchdog": LOG,
    "lib/photodup/serving/triton/server.py:backends_folder": SCRATCH,
    "lib/photodup/serving/triton/repository.py:link_file": SCRATCH,
    "lib/photodup/study/kubernetes/checks.py:policies": SCRATCH,
    "lib/photodup/study/kubernetes/live.py:ControlPlane.__init__": SCRATCH,
    "lib/photodup/study/scaling/topology.py:balancer": SCRATCH,
    "lib/photodup/serving/process/hidden_arguments.py:_point_to_the_environment": "the memory of its own child",
    "lib/photodup/bench/link/relay.py:open_tun": "a device of the kernel",
    "lib/photodup/bench/link/relay.py:sysctl": "a setting of the kernel, in a network namespace of its own",
}


def is_one(call: ast.AST) -> bool:
    """Tell whether a call may make or change a file by its name."""
    if not isinstance(call, ast.Call):
        return False
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    called = ast.unparse(call.func)
    if name in _ALWAYS or called in ("nbformat.write", "shutil.copy"):
        return True
    if called == "os.open" or name == "open_file":
        return any(flag in ast.unparse(call) for flag in ("O_CREAT", "O_WRONLY", "O_RDWR", "flags"))
    if name != "open":
        return False
    modes = [
        arg.value
        for arg in (*call.args, *(key.value for key in call.keywords))
        if isinstance(arg, ast.Constant)
    ]
    return any(isinstance(mode, str) and len(mode) < 4 and set(mode) & set("wax+") for mode in modes)


def test_each_place_that_writes_past_the_one_writer_has_its_reason(root):
    found = everywhere(root, ["lib"], is_one)
    assert found - REASONS.keys() == set(), "use photodup.files, or say in REASONS why it may"
    assert REASONS.keys() - found == set(), "no longer there"


@pytest.mark.parametrize(
    "line",
    ["path.write_text('')", "path.write_bytes(b'')", "open(path, 'w')", "path.open('ab')", "open(path, mode='x')",
     "shutil.copyfile(a, b)", "nbformat.write(notebook, path)", "os.open(path, os.O_CREAT)"],
)  # fmt: skip
def test_a_new_one_is_found(tmp_path, line):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "new.py").write_text(f"def a(path):\n    {line}\n")
    assert everywhere(tmp_path, ["lib"], is_one) == {"lib/new.py:a"}


@pytest.mark.parametrize("line", ["open(path)", "open(path, 'rb')", "Image.open(path)", "file.write(text)"])
def test_what_reads_is_not(line):
    assert places(line, is_one) == set()


def test_no_process_of_ours_imports_from_the_folder_that_it_is_started_in():
    """A library is somebody else's folder, and `python -m` looks there first unless it is told not to."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "lib").rglob("*.py")]
    started = [bit for text in texts for bit in re.findall(r'\S+ "-m", \S+', text) if "bentoml" not in bit]
    assert len(started) >= 7 and all(bit.startswith('"-P",') or '("-P",' in bit for bit in started), started
