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


def run_tests(tests: str, lib: Path, output: Path) -> int:
    """Run tests with the library in `lib`; return pytest's exit status.

    The output goes to a file: a server that outlives its test would keep a pipe open, and us waiting.
    """
    names = [str(ROOT / "tests" / name) for name in tests.split()]
    with output.open("w") as file:
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--timeout=300", "-m", "not long"]
            + [*names],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(lib)},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        ).returncode


@functools.cache
def passed_without_fault(tests: str, output: Path) -> bool:
    return run_tests(tests, ROOT / "lib", output) == 0


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_is_found(name, tmp_path_factory):
    file, text, fault, tests = FAULTS[name]
    folder = tmp_path_factory.mktemp("planted")
    assert passed_without_fault(tests, tmp_path_factory.getbasetemp() / "without"), (
        tmp_path_factory.getbasetemp() / "without"
    ).read_text()
    shutil.copytree(ROOT / "lib", folder / "lib", ignore=shutil.ignore_patterns("*.egg-info"))
    path = folder / "lib" / "photodup" / file
    path.write_text(path.read_text(encoding="utf-8").replace(text, fault), encoding="utf-8")
    status = run_tests(tests, folder / "lib", folder / "output")
    output = (folder / "output").read_text()
    assert status == 1 and ("FAILED" in output or "ERROR" in output), f"{tests} found nothing:\n{output}"
    print(output.splitlines()[-2])
