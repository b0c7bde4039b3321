"""Every place that deletes, moves or replaces a file, with the reason why it may."""

import ast

import pytest
from support.sources import everywhere, places

FOLDERS = ("lib", "model_repository", "docker", "k8s", "tools")
_ALWAYS = {"unlink", "rmtree", "rmdir", "removedirs", "renames", "move", "truncate", "ftruncate"}
_OF_OS = {"remove", "rename", "replace"}  # lists, strings and tables have such methods too

OWN_TEMPORARY = "the file that it wrote itself just before, under a name of its own"
BUILD = "in build/ or a folder given for what can be made again"

REASONS = {
    "lib/photodup/safe_open.py:writing": f"what all write with; {OWN_TEMPORARY}",
    "lib/photodup/safe_open.py:name_if_free": f"what all write with, and the owner's removal or restore; {OWN_TEMPORARY}",
    "lib/photodup/safe_open.py:remove_file": "what a write or the trash names, beneath the folder that it opened",
    "lib/photodup/files.py:replacing": f"what libraries write with; {OWN_TEMPORARY}",
    # ---- the photo application
    "lib/photodup/photos/state/own_folder.py:OwnFolder.delete": "own folder: marked, no link, only shapes we write",
    "lib/photodup/photos/library/catalogue.py:_set_aside": "a damaged catalogue that is certainly ours, moved",
    "lib/photodup/photos/state/journal.py:Journal.append": "a line of ours that could not be written whole",
    "lib/photodup/photos/state/journal.py:Journal._drop_cut_line": "a line of ours that was cut short",
    "lib/photodup/photos/trash/trash_files.py:TrashFiles.clear": "empty folders in the trash",
    "lib/photodup/demo/photographs.py:build_demo": "the demonstration's own ground truth, read first",
    # ---- the laboratory
    "lib/photodup/embedding/engines/quantise.py:_with_onnx_runtime": "a file in its own scratch folder",
    "lib/photodup/embedding/engines/quantise.py:quantise": f"{BUILD}; out of a scratch folder of its own",
    "lib/photodup/serving/process/process.py:_prune": "the oldest logs of servers in build/",
    "lib/photodup/serving/triton/repository.py:render_repository": "a version that an interrupted run added",
    "lib/photodup/serving/triton/copies.py:model_copy": "a copy of a model that it made itself, in a repository in build/",
    "lib/photodup/serving/triton/copies.py:_copy": "what an interrupted comparison left under that copy's name",
    "lib/photodup/serving/triton/server.py:_remove_shared_memory": "in /dev/shm, by our prefix and process id",
    "lib/photodup/serving/control_key.py:kept": "the key file of a server of ours, when that server has stopped",
    "lib/photodup/serving/vast.py:up": "the record of an order that was refused, in build/",
    "lib/photodup/serving/vast.py:_undo_order": "the record of an order that was taken back, in build/",
    "lib/photodup/serving/vast.py:_destroy": "the record of a rented machine that was given back, in build/",
    "lib/photodup/serving/vast.py:down": "the record of an order that never became a machine, in build/",
    # ---- the kit for a machine without a network
    "tools/gpu_kit/pack.py:pack": "slices that an earlier pack left in the folder given, by their names",
    "tools/gpu_kit/slices.py:_unpack": "slices and the archive joined of them, in the kit's own work folder, once unpacked",
    "tools/gpu_kit/slices.py:bundle": "slices of an earlier bundle in the folder given, by their names",
}


def is_one(node: ast.AST) -> bool:
    """Tell whether a call or an import deletes, moves or replaces files."""
    if isinstance(node, ast.ImportFrom):
        return node.module in ("os", "shutil") and bool({n.name for n in node.names} & (_ALWAYS | _OF_OS))
    if isinstance(node, ast.Attribute):
        return node.attr in _ALWAYS or (node.attr in _OF_OS and ast.unparse(node.value) == "os")
    # Path.replace and Path.rename take one argument; those of strings, tables and times do not.
    is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    return is_method and node.func.attr in ("replace", "rename") and len(node.args) == 1 and not node.keywords


def test_each_place_that_deletes_moves_or_replaces_has_its_reason(root):
    found = everywhere(root, FOLDERS, is_one)
    assert found - REASONS.keys() == set(), "say in REASONS why it may, or use photos/state/own_folder.py"
    assert REASONS.keys() - found == set(), "no longer there"
    assert all(len(reason) > 10 for reason in REASONS.values())


@pytest.mark.parametrize(
    "line",
    [
        "path.unlink()", "os.remove(path)", "os.unlink(path)", "shutil.rmtree(path)",
        "os.rename(path, other)", "path.rename(other)", "path.replace(other)", "os.replace(path, other)",
        "shutil.move(path, other)", "each(os.unlink, paths)", "path.rmdir()", "file.truncate(0)",
        "from os import unlink", "from shutil import rmtree as tidy",
    ],
)  # fmt: skip
def test_a_new_one_is_found(root, tmp_path, line):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "new.py").write_text(f"class A:\n    def b(self, path, other):\n        {line}\n")
    assert (
        everywhere(tmp_path, FOLDERS, is_one) == {"lib/new.py:A.b"}
        and not everywhere(tmp_path, FOLDERS, is_one) & REASONS.keys()
    )


@pytest.mark.parametrize(
    "line",
    [
        "text.replace('a', 'b')",
        "names.remove(1)",
        "replace(a, b=1)",
        "t.rename(columns={})",
        "d.replace(hour=1)",
    ],
)
def test_what_changes_no_file_is_not(line):
    assert places(line, is_one) == set()
