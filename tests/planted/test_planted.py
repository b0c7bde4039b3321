"""Faults of one line, each of which the tests named beside it have to find.

`make planted` plants them one after the other into a copy of lib/ and runs those tests; `make planted FAULT=trash`
does so for the faults with that word. A fault whose text is gone is planted anew, in the code that took its place.
"""

import ast
import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.paths import ROOT

FAULTS = yaml.safe_load((Path(__file__).parent / "faults.yaml").read_text(encoding="utf-8"))


def test_each_fault_has_its_line_and_its_tests():
    wrong = []
    for name, (file, text, fault, tests) in FAULTS.items():
        path = ROOT / "lib" / "photodup" / file
        count = path.read_text(encoding="utf-8").count(text) if path.is_file() else 0
        if count != 1 or text == fault:
            wrong.append(f"{name}: {file} has its text {count} times")
        for test_file, _, function in (test.partition("::") for test in tests.split()):
            path = ROOT / "tests" / test_file
            if not path.is_file() or (function and function.partition("[")[0] not in functions(path)):
                wrong.append(f"{name}: there is no {test_file}::{function}")
    assert not wrong, wrong


@functools.cache
def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def run_tests(tests: str, lib: Path, log: Path) -> int:
    """Run tests with the library in `lib`; return pytest's exit status.

    The output goes to a file: a server that outlives its test would keep a pipe open, and us waiting.
    """
    options = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--timeout=300", "-m", "not long"]
    command = [sys.executable, "-m", "pytest", *options]
    command += [str(ROOT / "tests" / name) for name in tests.split()]
    environment = os.environ | {"PYTHONPATH": str(lib)}
    with log.open("w") as output:
        return subprocess.run(command, cwd=ROOT, env=environment, stdout=output, stderr=output).returncode


@functools.cache
def run_without_fault(tests: str, log: Path) -> str:
    """Return what the tests print that fail without any fault; empty if all pass."""
    return log.read_text() if run_tests(tests, ROOT / "lib", log) else ""


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_is_found(name, tmp_path_factory):
    file, text, fault, tests = FAULTS[name]
    assert not run_without_fault(tests, tmp_path_factory.getbasetemp() / "without.log")
    folder = tmp_path_factory.mktemp("planted")
    shutil.copytree(ROOT / "lib", folder / "lib", ignore=shutil.ignore_patterns("*.egg-info"))
    path = folder / "lib" / "photodup" / file
    path.write_text(path.read_text(encoding="utf-8").replace(text, fault), encoding="utf-8")
    status = run_tests(tests, folder / "lib", log := folder / "log")
    said = log.read_text()
    if not status and " passed" not in (last := said.splitlines()[-1]):  # a machine without Triton
        pytest.skip(last)
    # Status 1 is a test that failed; an import that the fault breaks would be 2 or 4, and finds nothing.
    assert status == 1, f"{tests} ended with {status}: {said}"
