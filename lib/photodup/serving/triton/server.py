"""A real Triton Inference Server on this machine, without Docker.

The binary is that of NVIDIA's `nvidia-pytriton` wheel, in its own virtual environment (it needs NumPy 1.x):
`PHOTODUP_TRITON_VENV`, or `.venv-triton` in the checkout.

SECURITY. Each start makes a new random key for model loading, shared memory, tracing and logging (`control_key.py`).
`tritonserver` takes it only as an argument, so every user of this machine can read it (`ps`) and reach the server, which
listens on loopback.
"""

import glob
import os
import platform
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from photodup.core.errors import PhotodupError
from photodup.core.files import replacing
from photodup.core.paths import build_dir, project_root
from photodup.core.settings import environment, inherited
from photodup.serving.process.ports import claim_ports, reachable_host
from photodup.serving.process.server_process import ServerProcess, is_answering
from photodup.serving.triton import control_key
from photodup.serving.triton.config import models_in, read_config


def triton_venv() -> Path:
    """Return the virtual environment that holds Triton.

    Raises:
        PhotodupError: there is none, or none for this platform; names the alternative.
    """
    folder = Path(environment().triton_venv or project_root() / ".venv-triton")
    if (server_folder(folder) / "bin" / "tritonserver").exists():
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
    """Return the folder of `bin/tritonserver` in a virtual environment; `venv` itself if it has none."""
    return next(venv.glob("lib/python3*/site-packages/pytriton/tritonserver"), venv)


def backends_folder(venv: Path) -> Path:
    """Assemble a backend directory and return it: the wheel keeps its Python stubs in another folder."""
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
    """Return the server's environment: its own Python first, and the shared libraries of the copied stub."""
    site = server_folder(venv).parents[1]
    libraries = [site / "nvidia_pytriton.libs"]
    for line in (venv / "pyvenv.cfg").read_text().splitlines():
        if line.startswith("home"):  # libpython of an interpreter that is not the distribution's
            libraries.append(Path(line.split("=", 1)[1].strip()).parent / "lib")
    ours = {k: v for k, v in inherited().items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    ours["PATH"] = f"{venv / 'bin'}:{ours.get('PATH', '')}"
    libraries_before = ours.get("LD_LIBRARY_PATH", "")
    ours["LD_LIBRARY_PATH"] = ":".join([*map(str, libraries), libraries_before]).rstrip(":")
    return ours


_SHM_PREFIX = "photodup_"
PORTS = ("Triton HTTP", "Triton gRPC", "Triton metrics")


def _explain(log: str) -> str:
    if fault := re.search(
        r"Poll failed for model directory (.*)\"", log
    ):  # the last line says only that models failed
        return f"The configuration of {fault[1]}."
    if "libpython" in log and "cannot open shared object" in log:
        return "Install the shared library of that Python (Debian: apt-get install libpython3.11)."
    if "shared memory" in log.lower() and "No space left" in log:
        return "Give /dev/shm more room (Docker: --shm-size=1g)."
    return ""


class EmbeddedTriton(ServerProcess):
    """Triton on loopback, started by the constructor. A context manager that waits until its models are ready.

    It ends with the block, and with this process.

    Args:
        repository: rendered for `cpu-embedded`.
        models: to load at the start, ensembles with their steps; None loads all of the repository.
        ports: of HTTP, gRPC and the metrics; 0 takes a free one.
        host: address to listen on; loopback unless a link is emulated in front.
        timeout_s: longest wait for readiness.
        progress: called with a line of text now and then; None is silent.

    Attributes:
        http_port, grpc_port, metrics_port: ports in use.

    Raises:
        PhotodupError: no binary, or a port in use; on entering, a model that does not load (quotes the log).
    """

    def __init__(
        self,
        repository: Path,
        models: Sequence[str] | None = None,
        *,
        ports: Sequence[int] = (0, 0, 0),
        host: str = "127.0.0.1",
        timeout_s: float = 120.0,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self.repository, self.host, self.timeout_s, self.progress = repository, host, timeout_s, progress
        self.models = list(models) if models is not None else models_in(repository)
        venv = triton_venv()
        for name in self.models:  # Triton reports only that "all models" failed; this names the line
            read_config(repository / name / "config.pbtxt")
        claimed = claim_ports(host, dict(zip(PORTS, ports, strict=True)))
        self.http_port, self.grpc_port, self.metrics_port = claimed.values()
        remove_stale_shared_memory()
        self._shm_prefix = _new_shm_prefix()
        key = control_key.new_key()
        self._key_files = ExitStack()
        self._stored_key = control_key.stored_key([self.http_url, self.grpc_url], key)
        log = build_dir() / "logs" / f"triton-{self.http_port}.log"
        super().__init__("Triton", self._command(venv, key), log, server_environment(venv))

    @property
    def http_url(self) -> str:
        """`http://host:port`, for a client on this machine."""
        return f"http://{reachable_host(self.host)}:{self.http_port}"

    @property
    def grpc_url(self) -> str:
        """`host:port`, for gRPC clients on this machine."""
        return f"{reachable_host(self.host)}:{self.grpc_port}"

    @property
    def metrics_url(self) -> str:
        """Address of the Prometheus page."""
        return f"http://{reachable_host(self.host)}:{self.metrics_port}/metrics"

    def _command(self, venv: Path, key: str) -> list[str]:
        restricted = control_key.restriction(key)
        return [
            str(server_folder(venv) / "bin" / "tritonserver"),
            f"--model-repository={self.repository.resolve()}",
            f"--backend-directory={backends_folder(venv)}",
            # Explicit: models and versions change on request, not when a file is touched.
            "--model-control-mode=explicit",
            *(f"--load-model={name}" for name in self.models),
            # Our configurations are complete; guessing would start every Python model once more.
            "--disable-auto-complete-config",
            *(f"--{name}-address={self.host}" for name in ("http", "grpc", "metrics")),
            f"--http-port={self.http_port}",
            f"--grpc-port={self.grpc_port}",
            f"--metrics-port={self.metrics_port}",
            "--allow-gpu-metrics=false",
            # Two more front ends of this binary, without restrictions; an environment variable opens one.
            "--allow-sagemaker=false",
            "--allow-vertex-ai=false",
            f"--http-restricted-api={restricted}",
            f"--grpc-restricted-protocol={restricted}",
            "--exit-timeout-secs=2",
            f"--backend-config=python,shm-region-prefix-name={self._shm_prefix}",
        ]

    def wait_until_ready(self) -> float:
        self._key_files.enter_context(self._stored_key)
        health = f"{self.http_url}/v2/health/ready"
        return self.wait_ready(lambda: is_answering(health), self.timeout_s, self.progress, _explain)

    def stop(self) -> None:
        """Stop the server, and remove its key and shared memory."""
        super().stop()
        self._key_files.close()
        _remove_shared_memory(self._shm_prefix)


def _new_shm_prefix() -> str:
    """Return a prefix with our process id, for `remove_stale_shared_memory`."""
    return f"{_SHM_PREFIX}{os.getpid()}_{secrets.token_hex(3)}_"


def remove_stale_shared_memory() -> None:
    """Remove the shared memory of embedded servers whose starter has ended (a killed server leaves it)."""
    for path in glob.glob(f"/dev/shm/{_SHM_PREFIX}*"):
        owner = Path(path).name.removeprefix(_SHM_PREFIX).split("_")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            _remove_shared_memory(Path(path).name)


def _remove_shared_memory(prefix: str) -> None:
    for path in glob.glob(f"/dev/shm/{prefix}*"):
        Path(path).unlink(missing_ok=True)
