"""The embedded Triton's binary, started as the images start it."""

from collections.abc import Sequence
from pathlib import Path

from photodup.core.paths import build_dir, project_root
from photodup.serving.process.server_process import ServerProcess
from photodup.serving.triton.control_key import VARIABLE
from photodup.serving.triton.server import (
    _new_shm_prefix,
    backends_folder,
    server_environment,
    server_folder,
    triton_venv,
)


def start_shipped(
    repository: Path, *, key: str = "", arguments: Sequence[str] = (), log: str = "triton-shipped"
) -> ServerProcess:
    """Start Triton with docker/start-triton.sh, like the images, and return at once. The caller must stop it.

    Args:
        key: the control key; without one models cannot be changed.
        arguments: more options of `tritonserver`, such as `--http-port=8003`.
        log: name of its log in build/logs.

    Raises:
        PhotodupError: there is no embedded Triton here.
    """
    venv = triton_venv()
    environment = server_environment(venv) | {"PHOTODUP_MODEL_REPOSITORY": str(repository.resolve())}
    environment["PATH"] = f"{server_folder(venv) / 'bin'}:{environment['PATH']}"
    environment.pop(VARIABLE, None)
    environment |= {VARIABLE: key} if key else {}
    command = [
        str(project_root() / "docker" / "start-triton.sh"),
        f"--backend-directory={backends_folder(venv)}",
        # Our configurations are complete; guessing would start every Python model once more.
        "--disable-auto-complete-config",
        f"--backend-config=python,shm-region-prefix-name={_new_shm_prefix()}",
        *arguments,
    ]
    return ServerProcess("Triton", command, build_dir() / "logs" / f"{log}.log", environment)
