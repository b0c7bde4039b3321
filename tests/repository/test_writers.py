"""Every place that writes a file past `core.files` and `core.safe_open`, and every one that deletes, moves or
replaces a file: each with the reason why it may."""

import ast
import re

import pytest
from support.paths import ROOT
from support.sources import everywhere, places

_WRITES = {"write_text", "write_bytes", "copyfile", "copy2", "copytree", "copyfileobj", "savez", "symlink_to"}
_REMOVES = {"unlink", "rmtree", "rmdir", "removedirs", "renames", "move", "truncate", "ftruncate"}
_OF_OS = {"remove", "rename", "replace"}  # lists, strings and tables have such methods too
SCRATCH = "in a scratch folder that it made itself, or under the new name that `replacing` gives"
LOG = "what a process says, in build/ of this checkout"
OWN_TEMPORARY = "the file that it wrote itself just before, under a name of its own"
BUILD = "in build/ or a folder given for what can be made again"

WRITERS = {
    "lib/photodup/core/safe_open.py:writing": "the one writer",
    "lib/photodup/core/safe_open.py:write_copy": "a new file beneath the opened folder, exclusively",
    "lib/photodup/core/safe_open.py:open_file": "opens what is there; who makes a file with it is listed here",
    # ---- the photo application
    "lib/photodup/photos/state/journal.py:Journal._writable": "lines are appended; links of either kind are refused",
    "lib/photodup/photos/state/journal.py:Journal._drop_cut_line": "the file that `_writable` opened",
    "lib/photodup/photos/state/journal.py:Journal.exclusive": "an empty lock beneath the opened folder",
    "lib/photodup/photos/demo/photographs.py:_put": SCRATCH,
    # ---- the laboratory
    "lib/photodup/serving/process/server_process.py:ServerProcess.__init__": LOG,
    "lib/photodup/serving/triton/server.py:backends_folder": SCRATCH,
    "lib/photodup/serving/triton/repository.py:link_file": SCRATCH,
    "lib/photodup/serving/triton/copies.py:_copy": "a copy of a model, in a repository in build/ whose names are ours",
    "lib/photodup/bench/link/relay.py:open_tun": "a device of the kernel",
    "lib/photodup/bench/link/relay.py:sysctl": "a setting of the kernel, in a network namespace of its own",
}

REMOVERS = {
    "lib/photodup/core/safe_open.py:writing": f"what all write with; {OWN_TEMPORARY}",
    "lib/photodup/core/safe_open.py:move_without_replacing": f"removal and restore, replacing nothing; {OWN_TEMPORARY}",
    "lib/photodup/core/safe_open.py:remove_file": "what a write or the trash names, beneath the folder that it opened",
    "lib/photodup/core/files.py:replacing": f"what libraries write with; {OWN_TEMPORARY}",
    # ---- the photo application
    "lib/photodup/photos/library/catalogue.py:open_sound": "a damaged catalogue that is certainly ours, moved",
    "lib/photodup/photos/state/journal.py:Journal.append": "a line of ours that could not be written whole",
    "lib/photodup/photos/state/journal.py:Journal._drop_cut_line": "a line of ours that was cut short",
    "lib/photodup/photos/trash/files.py:TrashFiles.clear": "empty folders in the trash",
    # ---- the laboratory
    "lib/photodup/embedding/engines/quantise.py:_with_onnx_runtime": "a file in its own scratch folder",
    "lib/photodup/embedding/engines/quantise.py:quantise": f"{BUILD}; out of a scratch folder of its own",
    "lib/photodup/serving/process/server_process.py:_prune": "the oldest logs of servers in build/",
    "lib/photodup/serving/triton/repository.py:render_repository": "a version that an interrupted run added",
    "lib/photodup/serving/triton/copies.py:model_copy": "a copy of a model that it made itself, in a repository in build/",
    "lib/photodup/serving/triton/copies.py:_copy": "what an interrupted comparison left under that copy's name",
    "lib/photodup/serving/triton/server.py:_remove_shared_memory": "in /dev/shm, by our prefix and process id",
    "lib/photodup/serving/triton/control_key.py:stored_key": "the key file of a server of ours, once it has stopped",
}


def writes(call: ast.AST) -> bool:
    """Tell whether a call may make or change a file by its name."""
    if not isinstance(call, ast.Call):
        return False
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    called = ast.unparse(call.func)
    if name in _WRITES or called in ("nbformat.write", "shutil.copy"):
        return True
    if called == "os.open" or name == "open_file":
        return any(flag in ast.unparse(call) for flag in ("O_CREAT", "O_WRONLY", "O_RDWR", "flags"))
    if name != "open":
        return False
    given = (*call.args, *(key.value for key in call.keywords))
    modes = [arg.value for arg in given if isinstance(arg, ast.Constant)]
    return any(isinstance(mode, str) and len(mode) < 4 and set(mode) & set("wax+") for mode in modes)


def removes(node: ast.AST) -> bool:
    """Tell whether a call or an import deletes, moves or replaces files."""
    if isinstance(node, ast.ImportFrom):
        return node.module in ("os", "shutil") and bool({n.name for n in node.names} & (_REMOVES | _OF_OS))
    if isinstance(node, ast.Attribute):
        return node.attr in _REMOVES or (node.attr in _OF_OS and ast.unparse(node.value) == "os")
    # Path.replace and Path.rename take one argument; those of strings, tables and times do not.
    is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    return is_method and node.func.attr in ("replace", "rename") and len(node.args) == 1 and not node.keywords


WRITING = writes, ("lib",), WRITERS
REMOVING = removes, ("lib", "model_repository", "docker", "k8s", "tools"), REMOVERS


@pytest.mark.parametrize(("is_one", "folders", "reasons"), [WRITING, REMOVING])
def test_each_place_has_its_reason(root, is_one, folders, reasons):
    found = everywhere(root, folders, is_one)
    assert found - reasons.keys() == set(), "use photodup.core.files or state/own_folder.py, or say why"
    assert reasons.keys() - found == set(), "no longer there"
    assert all(len(reason) > 10 for reason in reasons.values())


@pytest.mark.parametrize(
    ("is_one", "line"),
    [(writes, line) for line in (
        "path.write_text('')", "path.write_bytes(b'')", "open(path, 'w')", "path.open('ab')", "open(path, mode='x')",
        "shutil.copyfile(a, b)", "nbformat.write(notebook, path)", "os.open(path, os.O_CREAT)",
    )] + [(removes, line) for line in (
        "path.unlink()", "os.remove(path)", "os.unlink(path)", "shutil.rmtree(path)",
        "os.rename(path, other)", "path.rename(other)", "path.replace(other)", "os.replace(path, other)",
        "shutil.move(path, other)", "each(os.unlink, paths)", "path.rmdir()", "file.truncate(0)",
        "from os import unlink", "from shutil import rmtree as tidy",
    )],
)  # fmt: skip
def test_a_new_one_is_found(tmp_path, is_one, line):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "new.py").write_text(f"class A:\n    def b(self, path, other):\n        {line}\n")
    assert everywhere(tmp_path, ["lib"], is_one) == {"lib/new.py:A.b"}


@pytest.mark.parametrize(
    ("is_one", "line"),
    [(writes, line) for line in ("open(path)", "open(path, 'rb')", "Image.open(path)", "file.write(text)")]
    + [(removes, line) for line in (
        "text.replace('a', 'b')", "names.remove(1)", "replace(a, b=1)", "t.rename(columns={})", "d.replace(hour=1)",
    )],
)  # fmt: skip
def test_what_changes_no_file_is_not(is_one, line):
    assert places(line, is_one) == set()


def test_no_process_of_ours_imports_from_the_folder_that_it_is_started_in():
    """A library is somebody else's folder, and `python -m` looks there first unless it is told not to."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "lib").rglob("*.py")]
    started = [bit for text in texts for bit in re.findall(r'\S+ "-m", \S+', text) if "bentoml" not in bit]
    assert len(started) >= 6 and all(bit.startswith('"-P",') or '("-P",' in bit for bit in started), started
