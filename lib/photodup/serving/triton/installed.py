"""Where the embedded Triton is installed, and what its program needs around it."""

import platform
import shutil
import sys
from pathlib import Path

from photodup.errors import PhotodupError
from photodup.files import replacing
from photodup.paths import build_dir, project_root
from photodup.settings import environment, inherited


def triton_venv() -> Path:
    """Return the virtual environment that holds Triton.

    Raises:
        PhotodupError: none here, or none possible on this platform; says what to do instead.
    """
    folder = Path(environment().triton_venv or project_root() / ".venv-triton")
    if _server_in(folder) is not None:
        return folder
    elsewhere = "point an endpoints file at a Triton elsewhere (notebooks/endpoints/)"
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise PhotodupError(
            f"The embedded Triton exists for Linux on x86-64 only, this is {platform.system()} on "
            f"{platform.machine()}: {elsewhere}."
        )
    raise PhotodupError(
        f"No Triton server in {folder}: run `make install`, set PHOTODUP_TRITON_VENV, or {elsewhere}."
    )


def server_folder(venv: Path) -> Path:
    """Return the folder of `bin/tritonserver` in what `triton_venv` returned.

    Raises:
        PhotodupError: it is not there any more.
    """
    if (found := _server_in(venv)) is None:
        raise PhotodupError(f"No Triton server in {venv}: run `make install`, or set PHOTODUP_TRITON_VENV.")
    return found


def _server_in(venv: Path) -> Path | None:
    found = sorted(venv.glob("lib/python3*/site-packages/pytriton/tritonserver"))
    return found[0] if found and (found[0] / "bin" / "tritonserver").exists() else None


def backends_folder(venv: Path) -> Path:
    """Assemble a backend directory: the wheel keeps the stub of each Python version elsewhere."""
    server = server_folder(venv)
    version = server.parents[2].name.removeprefix("python")
    stub = server / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not stub.exists():
        raise PhotodupError(
            f"Triton in {venv} has no Python backend for Python {version}: make that environment with one of "
            f"{', '.join(sorted(p.name for p in stub.parents[1].iterdir()))}."
        )
    folder = build_dir() / "triton" / "backends" / "python"
    folder.mkdir(parents=True, exist_ok=True)
    for source in [*(server / "backends" / "python").glob("*.*"), stub]:
        copy = folder / source.name
        if source.is_file() and (not copy.exists() or copy.stat().st_size != source.stat().st_size):
            with replacing(copy) as scratch:
                shutil.copy2(source, scratch)
    return folder.parent


def server_environment(venv: Path) -> dict[str, str]:
    """The server's environment: its own Python first, and the shared libraries that the copied stub needs."""
    site = server_folder(venv).parents[1]
    libraries = [site / "nvidia_pytriton.libs"]
    for line in (venv / "pyvenv.cfg").read_text().splitlines():
        if line.startswith("home"):  # libpython, where the interpreter is not the distribution's
            libraries.append(Path(line.split("=", 1)[1].strip()).parent / "lib")
    ours = {k: v for k, v in inherited().items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    ours["PATH"] = f"{venv / 'bin'}:{ours.get('PATH', '')}"
    libraries_before = ours.get("LD_LIBRARY_PATH", "")
    ours["LD_LIBRARY_PATH"] = ":".join([*map(str, libraries), libraries_before]).rstrip(":")
    return ours
