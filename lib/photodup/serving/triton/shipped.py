"""The embedded Triton started as the images start theirs: by docker/start-triton.sh, with its restrictions."""

import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from photodup.paths import build_dir, project_root
from photodup.serving.control_key import VARIABLE
from photodup.serving.process.process import ServerProcess
from photodup.serving.triton.installed import (
    backends_folder,
    server_environment,
    server_folder,
    triton_venv,
)

SCRIPT = Path("docker") / "start-triton.sh"


def shipped_command(
    repository: Path, *, key: str = "", arguments: Sequence[str] = ()
) -> tuple[list[str], dict[str, str]]:
    """Return the command that runs the script on `repository`, and its whole environment.

    Args:
        key: the control key; without one nobody can change the models.
        arguments: further ones for `tritonserver`, such as `--http-port=8003`.

    Raises:
        PhotodupError: there is no embedded Triton here.
    """
    venv = triton_venv()
    environment = server_environment(venv) | {"PHOTODUP_MODEL_REPOSITORY": str(repository.resolve())}
    environment["PATH"] = f"{server_folder(venv) / 'bin'}:{environment['PATH']}"
    environment.pop(VARIABLE, None)
    environment |= {VARIABLE: key} if key else {}
    command = [str(project_root() / SCRIPT), f"--backend-directory={backends_folder(venv)}"]
    # Our configurations are complete; guessing would start every Python model once more.
    return [*command, "--disable-auto-complete-config", *arguments], environment


def start_shipped(
    repository: Path, *, key: str = "", arguments: Sequence[str] = (), log: str = "triton-shipped"
) -> ServerProcess:
    """Start it under the watchman without waiting for it; whoever calls this stops it.

    Args:
        log: name of its log in build/logs.
    """
    # By the name that `remove_stale_shared_memory` knows: it holds our process, which may be killed.
    regions = f"--backend-config=python,shm-region-prefix-name=photodup_{os.getpid()}_{secrets.token_hex(3)}_"
    command, environment = shipped_command(repository, key=key, arguments=[regions, *arguments])
    return ServerProcess("Triton", command, build_dir() / "logs" / f"{log}.log", environment)
