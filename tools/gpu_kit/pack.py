"""Pack what a machine with a GPU and no network needs, in slices small enough to be carried there.

    python tools/gpu_kit/pack.py FOLDER [--group core --group triton --group onnx --group notebooks] [--slice-mib 14]

Into FOLDER go `far_side.sh` and `slices.py`, which need nothing but a Python there, `manifest.json` with the checksums,
and the slices of each group's archive. The wheels come from pip, or from `--wheels` where they lie already.
"""

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "lib"), str(Path(__file__).parent)]

from slices import GROUPS, cut  # noqa: E402

from photodup.core.errors import PhotodupError  # noqa: E402

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
MIB = 2**20


def main() -> None:
    """Parse the command line and pack."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the slices go; made if missing")
    parser.add_argument("--group", action="append", choices=GROUPS, help="repeat; default all")
    parser.add_argument("--slice-mib", type=float, default=14, help="largest slice in MiB (default 14)")
    parser.add_argument("--python", default="3.12", help="Python version over there (default 3.12)")
    parser.add_argument("--wheels", type=Path, help="folder with the wheels; default: pip downloads them")
    options = parser.parse_args()
    try:
        manifest = pack(
            options.folder,
            options.group or list(GROUPS),
            slice_bytes=int(options.slice_mib * MIB),
            python=options.python,
            wheels=options.wheels,
        )
    except PhotodupError as error:
        sys.exit(f"pack.py: {error}")
    for name, group in manifest["groups"].items():
        print(f"{name}: {group['bytes'] / MIB:.1f} MiB in {len(group['slices'])} slices")


def pack(
    folder: Path,
    groups: Sequence[str],
    *,
    slice_bytes: int = 14 * MIB,
    python: str = "3.12",
    wheels: Path | None = None,
    requirements: Path | None = None,
) -> dict:
    """Write the slices of the groups, the manifest and the two programs for the other side; return the manifest.

    Args:
        folder: made if missing; slices of an earlier pack go.
        groups: names of `GROUPS`.
        slice_bytes: the largest slice.
        python: version over there, as in `3.12`.
        wheels: folder with the wheels; None lets pip download them.
        requirements: folder with a list of wheels for each group; default: the kit's own.

    Raises:
        PhotodupError: a wheel that cannot be had, a slice size that makes no sense, a folder with other files.
    """
    if slice_bytes < 1024:
        raise PhotodupError(f"A slice of {slice_bytes} bytes is too small: give --slice-mib 1 or more.")
    folder.mkdir(parents=True, exist_ok=True)
    slices = (old for group in GROUPS for old in folder.glob(f"{group}-[0-9][0-9][0-9].part"))
    for old in [*slices, folder / "manifest.json"]:
        old.unlink(missing_ok=True)
    manifest: dict = {"python": python, "groups": {}}
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        for group in groups:
            archive = Path(scratch) / f"{group}.tar"
            with tarfile.open(archive, "w:gz", compresslevel=6) as tar:
                if group == "core":
                    _add_tree(tar)
                    _add_photographs(tar)
                for wheel in _wheels(group, Path(scratch) / group, python, wheels, requirements):
                    tar.add(wheel, f"wheels/{wheel.name}", filter=_nobody)
            manifest["groups"][group] = cut(archive, folder, slice_bytes)
            archive.unlink()
    for name in ("far_side.sh", "slices.py"):
        source = Path(__file__).with_name(name)
        (folder / name).write_bytes(source.read_bytes())
        os.chmod(folder / name, 0o755)
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    return manifest


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

    photos_of_loads, library = payload_photos(N_PHOTOS), demo_library()
    truth = json.loads((library / "ground_truth.json").read_text(encoding="utf-8"))
    photos = truth["photos"] if isinstance(truth, dict) else truth
    left, entries = set(photos_of_loads), []
    for entry in photos:
        data = (library / entry["path"]).read_bytes()
        if data in left:
            left.discard(data)
            entries.append(entry)
            _add_bytes(tar, f"tree/build/demo/{entry['path']}", data)
    shortened = {**truth, "photos": entries} if isinstance(truth, dict) else entries
    _add_bytes(tar, "tree/build/demo/ground_truth.json", json.dumps(shortened).encode())


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
    scratch.mkdir()
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
