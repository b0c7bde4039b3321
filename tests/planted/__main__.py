"""Plant each fault of faults.yaml into a copy of lib/ and say whether the tests of its package catch it.

    PYTHONPATH=tests python -m planted [words of a guarantee]

Ends with status 1 if a fault was caught by no test, or if the line it is planted in is gone: plant it anew then.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml
from support.paths import ROOT


def planted(folder: Path, file: str, text: str, fault: str, tests: str) -> str:
    """Return "caught", or what is wrong."""
    shutil.copytree(ROOT / "lib", folder / "lib", ignore=shutil.ignore_patterns("*.egg-info"))
    path = folder / "lib" / "photodup" / file
    if not path.is_file() or (source := path.read_text()).count(text) != 1:
        return f"the line is gone from {file}, or stands there more than once"
    path.write_text(source.replace(text, fault))
    names = [str(ROOT / "tests" / name) for name in tests.split()]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not long", "-p", "no:cacheprovider", *names],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(folder / "lib")},
        capture_output=True,
        text=True,
    )
    if done.returncode == 1:
        first = next(line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR")))
        return f"caught: {first.partition(' - ')[0].rpartition('::')[2]}"
    return f"NOT caught by {tests}" if done.returncode == 0 else f"pytest ended with {done.returncode}"


def main() -> int:
    faults = yaml.safe_load((Path(__file__).parent / "faults.yaml").read_text())
    chosen = {name: fault for name, fault in faults.items() if " ".join(sys.argv[1:]) in name}
    n_caught = 0
    for name, fault in chosen.items():
        with tempfile.TemporaryDirectory() as folder:
            outcome = planted(Path(folder), *fault)
        n_caught += outcome.startswith("caught")
        print(f"{name}: {outcome}", flush=True)
    print(f"{n_caught} of {len(chosen)} planted faults are caught")
    return int(n_caught < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
