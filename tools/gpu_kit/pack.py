"""Pack what a machine with a GPU and no network needs: an archive for each group, and the script that measures there.

    python tools/gpu_kit/pack.py FOLDER [--group core --group triton --group onnx --group notebooks]

The wheels come from pip, or from `--wheels` where they lie already.
"""

import argparse
import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "lib"))

from photodup.core.errors import PhotodupError  # noqa: E402

GROUPS = {
    "core": "the project, demonstration photographs, and the wheels that everything needs",
    "triton": "a real tritonserver with its Python backend",
    "onnx": "ONNX Runtime with CUDA",
    "notebooks": "Jupyter's kernel, papermill and what draws a run's page",
}
TREE = (
    "lib",
    "model_repository",
    "pyproject.toml",
    "LICENSE",
    "matplotlibrc",
    "results/published",
    "notebooks",
    "tools/gpu_kit",
)
# pip takes a wheel only for a platform named exactly, and these are in use.
PLATFORMS = [f"manylinux_2_{n}_x86_64" for n in (17, 24, 27, 28, 31, 34, 35)] + [
    "manylinux2014_x86_64",
    "manylinux1_x86_64",
]


def main() -> None:
    """Parse the command line and pack."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the archives go; made if missing")
    parser.add_argument("--group", action="append", choices=GROUPS, help="repeat; default all")
    parser.add_argument("--python", default="3.12", help="Python version over there (default 3.12)")
    parser.add_argument("--wheels", type=Path, help="folder with the wheels; default: pip downloads them")
    options = parser.parse_args()
    try:
        archives = pack(
            options.folder, options.group or list(GROUPS), python=options.python, wheels=options.wheels
        )
    except PhotodupError as error:
        sys.exit(f"pack.py: {error}")
    for archive in archives:
        print(f"{archive.name}: {archive.stat().st_size / 2**20:.1f} MiB")


def pack(
    folder: Path,
    groups: Sequence[str],
    *,
    python: str = "3.12",
    wheels: Path | None = None,
    requirements: Path | None = None,
) -> list[Path]:
    """Write the groups' archives and the script for the other side into a folder; return the archives.

    Args:
        folder: made if missing.
        groups: names of `GROUPS`.
        python: version over there, as in `3.12`.
        wheels: folder with the wheels; None lets pip download them.
        requirements: folder with a list of wheels for each group; default: the kit's own.

    Raises:
        PhotodupError: a wheel that cannot be had.
    """
    folder.mkdir(parents=True, exist_ok=True)
    archives = [folder / f"{group}.tar.gz" for group in groups]
    for group, archive in zip(groups, archives, strict=True):
        with tempfile.TemporaryDirectory() as scratch:
            carried = _wheels(
                group, Path(scratch), python, wheels, requirements
            )  # before anything is written
            with tarfile.open(archive, "w:gz", compresslevel=6) as tar:
                if group == "core":
                    _add_tree(tar)
                    _add_photographs(tar)
                for wheel in carried:
                    tar.add(wheel, f"wheels/{wheel.name}", filter=_nobody)
    shutil.copy(Path(__file__).with_name("far_side.sh"), folder)
    return archives


def _add_tree(tar: tarfile.TarFile) -> None:
    def wanted(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        name = Path(info.name).name
        if name == "__pycache__" or name.endswith((".egg-info", ".pyc", ".onnx", ".data", ".plan")):
            return None
        return _nobody(info)

    for name in TREE:
        tar.add(ROOT / name, f"tree/{name}", filter=wanted)


def _add_photographs(tar: tarfile.TarFile) -> None:
    """Add the photographs that loads are made of, with a ground truth that names these alone."""
    from photodup.study.notebook.points import N_PHOTOS
    from photodup.study.notebook.weights import demo_library, payload_photos

    missing, library = set(payload_photos(N_PHOTOS)), demo_library()
    truth = json.loads((library / "ground_truth.json").read_text(encoding="utf-8"))
    entries = []
    for entry in truth["photos"]:
        data = (library / entry["path"]).read_bytes()
        if data in missing:
            missing.discard(data)
            entries.append(entry)
            _add_bytes(tar, f"tree/build/demo/{entry['path']}", data)
    shortened = json.dumps(truth | {"photos": entries})
    _add_bytes(tar, "tree/build/demo/ground_truth.json", shortened.encode())


def _add_bytes(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o644
    tar.addfile(info, io.BytesIO(data))


def _nobody(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out who packed it."""
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


def _wheels(
    group: str, scratch: Path, python: str, folder: Path | None, requirements: Path | None
) -> Iterable[Path]:
    listed = (requirements or Path(__file__).with_name("wheels")) / f"{group}.txt"
    names = [line.split("#")[0].strip() for line in listed.read_text().splitlines()]
    names = [name for name in names if name]
    if not names:
        return []
    command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--implementation", "cp", "--python-version", python]
    command += [word for platform in PLATFORMS for word in ("--platform", platform)]
    if folder is not None:
        command += ["--no-index", "--find-links", str(folder)]
    process = subprocess.run(
        [*command, "-d", str(scratch), *names], capture_output=True, text=True, check=False
    )
    if process.returncode:
        lines = [line for line in process.stderr.splitlines() if line.startswith("ERROR")] or ["no message"]
        raise PhotodupError(f"pip cannot get the wheels of {group} ({lines[-1][:200]}): see {listed.name}.")
    return sorted(scratch.glob("*.whl"))


if __name__ == "__main__":
    main()
