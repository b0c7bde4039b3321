"""Describe the machine of a measurement: hardware, kernel, packages, source version. No host, user or folder names."""

import os
import platform
import subprocess
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path

import psutil

from photodup.bench import Columns
from photodup.core.paths import NoCheckoutError, project_root
from photodup.core.settings import environment
from photodup.embedding.engines.model import cpuinfo, processor_flags

PACKAGES = (
    "fastapi", "grpcio", "httptools", "nncf", "numpy", "nvidia-pytriton", "onnx", "onnxruntime", "onnxruntime-gpu",
    "open_clip_torch", "openvino", "pillow", "torch", "tritonclient", "uvicorn", "uvloop",
)  # fmt: skip
# Files that affect a measurement. Notebooks and results change while a run writes them, so they do not count.
SOURCES = ("lib", "model_repository", "pyproject.toml", "constraints.txt")


def describe(
    model: Mapping[str, str | None] | None = None, servers: Mapping[str, str | float | None] | None = None
) -> Columns:
    """Describe this machine and its software.

    Args:
        model: what is known of the weights (`digest`, …); laid over `MODEL_NAME` and `MODEL_PRETRAINED`.
        servers: facts about the machine of the servers, where it is another than this one.

    Returns:
        JSON-ready facts. The same machine and installation always give the same dictionary, so its
        digest tells whether two records are comparable. `gpus` is empty where no NVIDIA driver answers.
    """
    settings = environment()
    names = {"name": settings.architecture, "pretrained": _without_folder(settings.weights)}
    return {
        "cpu": cpuinfo("model name") or platform.processor() or platform.machine(),
        "vector_instructions": sorted(f for f in processor_flags() if f.startswith(("avx", "amx", "asimd"))),
        "cores": os.cpu_count(),
        "cores_usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.system(),
        "kernel": platform.release(),
        "tcp": _tcp_settings(),
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := installed_version(name))} | _triton(),
        "gpus": _gpus(),
        "model": {**names, **(model or {})},
        **({"servers": dict(servers)} if servers else {}),
    }


@cache
def _triton() -> dict[str, str]:
    """Return the version of the embedded Triton's wheel, which has an environment of its own."""
    try:
        folder = Path(environment().triton_venv or project_root() / ".venv-triton")
    except NoCheckoutError:
        return {}
    wheels = sorted(folder.glob("lib/python3*/site-packages/nvidia_pytriton-*.dist-info"))
    return {"nvidia-pytriton": wheels[-1].name.split("-")[1].removesuffix(".dist")} if wheels else {}


@cache
def source_version() -> tuple[str | None, bool | None]:
    """Return the checkout's commit and whether its sources differ from it; (None, None) outside git."""
    root = Path(__file__).resolve().parents[4]
    commit = _git(root, "rev-parse", "HEAD")
    status = _git(root, "status", "--porcelain", "--", *SOURCES)
    return commit, None if status is None else bool(status)


def installed_version(package: str) -> str | None:
    """Return a package's version; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git(root: Path, *arguments: str) -> str | None:
    try:
        process = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return process.stdout.strip()


def _without_folder(pretrained: str) -> str:
    """Return a checkpoint's file name: its folder may name the user."""
    kind, colon, path = pretrained.partition(":")
    if colon and kind == "onnx":
        return f"onnx:{Path(path).name}"
    return Path(pretrained).name if os.sep in pretrained else pretrained


def _tcp_settings() -> dict[str, str]:
    """Congestion control and slow start after idle: they decide what a large payload costs on a long link."""
    folder = Path("/proc/sys/net/ipv4")
    names = ("tcp_congestion_control", "tcp_slow_start_after_idle")
    return {name: (folder / name).read_text().strip() for name in names if (folder / name).is_file()}


def _gpus() -> list[Columns]:
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no package, no driver, no device: all mean "no GPU here"
        return []
    driver, gpus = pynvml.nvmlSystemGetDriverVersion(), []
    for index in range(pynvml.nvmlDeviceGetCount()):
        device = pynvml.nvmlDeviceGetHandleByIndex(index)
        memory = pynvml.nvmlDeviceGetMemoryInfo(device).total
        name = pynvml.nvmlDeviceGetName(device)
        gpus.append({"name": name, "memory_gib": round(memory / 2**30, 1), "driver": driver})
    return gpus
